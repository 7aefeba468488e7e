//! A mount that another process continues, after a crash of the one that serves or with another
//! version of the program.
//!
//! The process that serves writes records of the mount (`fuse::server::Records`) into memory of the
//! holder. A successor gets them with the same descriptors of /dev/fuse, takes over, and makes the
//! kernel send the unanswered requests again.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use fuse::server::{Records, Session, resend_message};
use rustix::thread::CapabilitySet;
use sys::shared_memory::SharedMemory;
use transports::fusedev::Notifier;
use vfs::{FileSystem, Support};

use super::MountArgs;
use super::options::ResolvedOptions;
use crate::Failure;
use crate::holder::{Holder, Obstacle};

/// Maximum time for requests to finish before another process continues. A request that takes
/// longer is sent to that one again, which finds out whether it was carried out.
const HAND_OVER: Duration = Duration::from_secs(5);

/// Returns the records of the mount, or none if no other process can continue it.
pub(super) fn records(
    args: &MountArgs,
    options: &ResolvedOptions,
    holder: &Holder,
) -> Result<Option<Records>, Failure> {
    // The nodes of a directory are found again by their kernel handles.
    let tree = options.source.tree();
    let is_image = tree.is_some_and(sources::Source::is_image);
    let handles = is_image || sys::caps::have_all(CapabilitySet::DAC_READ_SEARCH);
    if !options.can_be_taken_over || !handles || args.record_trace.is_some() {
        return declined(holder, Obstacle::Excluded);
    }
    let memory = holder.records().map_err(Failure::new)?;
    let memory = SharedMemory::map(memory.as_fd(), Records::WORDS).map_err(Failure::new)?;
    let secret = sys::random::bytes().map_err(Failure::new)?;
    match Records::new(Box::new(memory), secret) {
        Some(records) => Ok(Some(records)),
        None => declined(holder, Obstacle::OtherFormat),
    }
}

/// Returns the records if nodes of `source` can be found again.
pub(super) fn usable(
    records: Option<Records>,
    source: &dyn FileSystem,
    holder: &Holder,
) -> Result<Option<Records>, Failure> {
    match records {
        Some(_) if source.capabilities().handles != Support::Native => {
            declined(holder, Obstacle::NoHandles)
        }
        records => Ok(records),
    }
}

/// Reports that there are no records because of `why`, if an earlier process had some.
fn declined(holder: &Holder, why: Obstacle) -> Result<Option<Records>, Failure> {
    if !holder.takes_over() {
        tracing::info!("no other process can continue the mount: {why}");
        return Ok(None);
    }
    holder.decline(why).map_err(Failure::new)?;
    Err(Failure::new(format!("cannot continue the mount: {why}")))
}

/// Continues the mount of an earlier process.
pub(super) fn continue_session(session: &Arc<Session>, holder: &Holder) -> Result<(), Failure> {
    let kept = holder.kept().map_err(Failure::new)?;
    match session.take_over(&kept) {
        Ok(Some(taken)) => {
            tracing::info!(
                nodes = taken.nodes,
                files = taken.files,
                locks = taken.locks,
                "continues the mount"
            );
            if taken.lost > 0 {
                tracing::error!("{} open files are lost", taken.lost);
            }
            Ok(())
        }
        Ok(None) => declined(holder, Obstacle::Records).map(drop),
        // The next process may succeed.
        Err(errno) => Err(Failure::new(format!("cannot continue the mount: {errno}"))),
    }
}

/// Makes the kernel send the requests again that the earlier process has left unanswered.
pub(super) fn request_unanswered(holder: &Holder) -> Result<(), Failure> {
    let device = holder.descriptor().map_err(Failure::new)?;
    let sent = Notifier::new(device).send(&resend_message());
    sent.map_err(Failure::new)
}

/// Ends this process, so that another one continues. The kernel sends unanswered requests to that.
/// Returns if that is not possible, or if the mount has ended and there is no session.
pub(super) fn hand_over(session: Option<&Session>, holder: &Holder) {
    if session.is_some_and(|session| session.hand_over(HAND_OVER)) {
        std::process::exit(0);
    }
    tracing::warn!("no other process can continue this mount");
    // It may have ended.
    let _ = holder.decline(Obstacle::Session);
}
