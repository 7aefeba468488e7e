//! File descriptors passed by a server on this host (Thand): requested together with the open, and
//! checked before use.
//!
//! The server may belong to a user with fewer privileges than this process. A descriptor is
//! therefore accepted only for a regular file, on a file system where the identity of the reading
//! and writing process does not matter, and opened with the access it is used for: the server,
//! which could open it so, could do the same I/O itself.

use std::sync::atomic::{AtomicU32, Ordering};

use p9::{Fid, Tmessage};
use vfs::fd::{AsFd, BorrowedFd, OwnedFd};
use vfs::{Backing, BackingRestrictions, Cx, Errno, OpenFlags, Result};

#[cfg_attr(not(target_os = "linux"), path = "fd_passing/elsewhere.rs")]
mod restrictions;

use super::connection::{Reply, Ticket};
use super::fid::Session;

/// The number of consecutive refusals.
pub(super) struct FdPassing(AtomicU32);

impl FdPassing {
    /// The number of consecutive refusals after which the server is assumed to serve no files of
    /// the host, and is not asked again.
    const MAX_REFUSALS: u32 = 64;

    pub(super) fn new(takes_files: bool) -> FdPassing {
        FdPassing(AtomicU32::new(match takes_files {
            true => 0,
            false => FdPassing::MAX_REFUSALS,
        }))
    }

    fn is_enabled(&self) -> bool {
        self.0.load(Ordering::Relaxed) < FdPassing::MAX_REFUSALS
    }

    fn record(&self, open: bool) {
        if !open {
            self.0.fetch_add(1, Ordering::Relaxed);
        } else if self.0.load(Ordering::Relaxed) > 0 {
            self.0.store(0, Ordering::Relaxed);
        }
    }
}

/// An accepted file descriptor.
pub(super) struct PassedFd {
    file: OwnedFd,
    limits: BackingRestrictions,
}

impl AsFd for PassedFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Backing for PassedFd {
    fn restrictions(&self) -> Option<BackingRestrictions> {
        Some(self.limits)
    }
}

impl PassedFd {
    /// Returns `file` as accepted if it suits an open with `flags`.
    fn checked(file: OwnedFd, flags: OpenFlags) -> std::io::Result<Option<PassedFd>> {
        let Some(limits) = restrictions::of(&file)? else {
            return Ok(None);
        };
        Ok(limits.allows(flags).then_some(PassedFd { file, limits }))
    }
}

/// A Thand in flight.
pub(super) struct FdRequest<'a>(Option<Ticket<'a>>);

impl Session {
    /// Requests the descriptor of `fid`, which is about to be open, unless the server keeps
    /// refusing.
    pub(super) fn request_fd(&self, fid: Fid) -> Option<FdRequest<'_>> {
        let hands = self.fd_passing.is_enabled();
        hands.then(|| FdRequest(self.pipelined(&Tmessage::Hand { fid })))
    }

    /// Receives the descriptor, now that `fid` is open with `flags`. Its absence is not an error.
    pub(super) fn receive_fd(
        &self,
        cx: &Cx<'_>,
        fd_request: Option<FdRequest<'_>>,
        fid: Fid,
        flags: OpenFlags,
    ) -> Option<PassedFd> {
        let FdRequest(early) = fd_request?;
        let request = || self.call(cx, &Tmessage::Hand { fid });
        let taken = |reply: Result<Reply>| reply.map(|mut reply| reply.take_file());
        let early = early.map(|ticket| taken(self.connection.wait_in(cx, ticket)));
        let file = match early {
            // The server processed it before the open, it was not sent, or its descriptor was lost
            // with other replies.
            None | Some(Err(Errno::EBADF) | Ok(None)) => taken(request()),
            Some(done) => done,
        };
        self.fd_passing
            .record(!matches!(file, Err(Errno::EOPNOTSUPP)));
        let handed = PassedFd::checked(file.ok()??, flags);
        if !matches!(handed, Ok(Some(_))) {
            tracing::debug!(
                "descriptor passed by {} is not usable",
                self.connection.peer()
            );
        }
        handed.ok()?
    }
}
