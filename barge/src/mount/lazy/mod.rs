//! The backend `erofs-lazy`: an image is mounted with the kernel's EROFS from a local file that is
//! filled when it is read.
//!
//! The kernel asks a group of fanotify(7) before it reads a range of the file ([`sys::fanotify`]),
//! and two processes answer. The *holder* ([`holder`]) makes the group, mounts, and alone reads the
//! events; it passes each range on to the *filler* ([`filler`]), which is confined, reads the image
//! from its source, verifies it and writes it into the file.
//!
//! If no process had the group open, the kernel would let readers through to bytes that are
//! missing, which are zeros. So each of the two has it open from its start and outlives the other
//! one: the holder starts another filler at once, and readers wait; without a holder, the filler
//! answers itself.
//!
//! The holder also follows which reads are over ([`reads`]), so that the filler can evict segments
//! that nobody reads if the cache is too large.

mod events;
mod filler;
mod holder;
mod reads;

use std::fs;
use std::io;
use std::os::fd::{AsFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::thread::CapabilitySet;
use serde::{Deserialize, Serialize};
use sys::fanotify::{Answer, Group};

pub(super) use filler::serve;
pub(super) use holder::hold;

/// A request of the filler.
#[derive(Debug, Serialize, Deserialize)]
enum Request {
    /// Asks for a descriptor of the file with this name in the cache's directory, whose reads and
    /// writes raise no events. The file is watched from then on, and whether reads of it are over
    /// if they are `followed`.
    Open { name: String, followed: bool },
    /// Asks for the descriptor by which the holder keeps the image of the opened file in use.
    User,
    /// Mounts, unless that is done. The file has all metadata.
    Mount,
    /// Ranges can be filled.
    Ready,
    /// The file has the whole image.
    Complete,
    /// The image cannot be mounted so.
    Decline,
}

/// The reply to a [`Request`].
#[derive(Debug, Serialize, Deserialize)]
enum Reply {
    Done,
    /// The requested descriptor is passed.
    Descriptor,
}

/// A range that is read.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Fill {
    /// The number of the event's descriptor in the holder, which identifies it.
    event: RawFd,
    start: u64,
    end: u64,
    /// The thread that reads, 0 if it is unknown.
    #[serde(default)]
    thread: i32,
    /// The number of the read, which no other one has.
    #[serde(default)]
    number: u64,
}

/// A message of the holder to the filler. They are handled in their order.
#[derive(Debug, Serialize, Deserialize)]
enum Notice {
    /// The first message: numbers and ranges of reads that were allowed before and may not be over,
    /// or nothing if there may be others.
    Reads(Option<Vec<(u64, u64, u64)>>),
    /// A range has to be filled, and the reads with these numbers are over.
    Fill(Fill, Vec<u64>),
    /// The reads with these numbers are over.
    Over(Vec<u64>),
    /// There will be reads that the filler is not told.
    Unknown,
}

/// The reply to a [`Fill`].
#[derive(Debug, Serialize, Deserialize)]
struct Filled {
    event: RawFd,
    /// Whether the file has the range.
    done: bool,
}

/// Returns the answer to an event whose range was filled, or not.
fn answer(done: bool) -> Answer {
    match done {
        true => Answer::Allow,
        false => Answer::Deny(Errno::IO),
    }
}

/// The settings that limit the number of mounts.
const LIMITS: &str = "as many as fs.fanotify.max_user_groups or fs.inotify.max_user_instances of \
                      the kernel permits are mounted";

/// Returns why no image can be mounted with the local files in `dir`, if so. Creates the directory.
fn obstacle(dir: &Path) -> Option<String> {
    if !sys::caps::have_all(CapabilitySet::SYS_ADMIN) {
        return Some("expected the super-user, with CAP_SYS_ADMIN".into());
    }
    let tried = || -> io::Result<()> {
        fs::create_dir_all(dir)?;
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let probe = rustix::fs::open(dir, flags, Mode::RUSR)?;
        Group::new()?.add(probe.as_fd())
    };
    let shown = dir.display();
    if let Err(error) = tried() {
        return Some(match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::INVAL | Errno::OPNOTSUPP) => format!(
                "{shown}: the file system has no pre-content events, or Linux is older than 6.14"
            ),
            Some(Errno::MFILE) => LIMITS.into(),
            _ => format!("{shown}: {error}"),
        });
    }
    match is_private(dir) {
        Ok(true) => None,
        Ok(false) => Some(format!("{shown}: other users can replace it")),
        Err(error) => Some(format!("{shown}: {error}")),
    }
}

/// Returns whether only this user can change what `dir` is.
fn is_private(dir: &Path) -> io::Result<bool> {
    let dir = fs::canonicalize(dir)?;
    let me = rustix::process::geteuid().as_raw();
    let private = |(level, dir): (usize, &Path)| {
        let metadata = fs::metadata(dir)?;
        let (owner, mode) = (metadata.uid(), metadata.mode());
        let sticky = level > 0 && mode & 0o1000 != 0;
        Ok([0, me].contains(&owner) && (mode & 0o022 == 0 || sticky))
    };
    let checked: io::Result<Vec<bool>> = dir.ancestors().enumerate().map(private).collect();
    Ok(checked?.into_iter().all(|private| private))
}
