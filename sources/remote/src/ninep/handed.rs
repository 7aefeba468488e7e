//! Open files that a server of this host hands over (Thand): asked for along with what opens them, and looked at before they are used.
//!
//! A server may be anybody's who has less to say here than this process. So what it hands over is taken only if it is a plain file, of a
//! file system where it does not matter who reads and writes what is open, and opened for what it is to be used for: whoever has
//! opened it so may do that himself.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use p9::{Fid, Tmessage};
use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat};
use vfs::{Backing, Cx, Errno, Limits, OpenFlags, Result};

use super::fid::Wire;
use super::pipe::{Reply, Ticket};

/// How often a server has refused in a row.
pub(super) struct Hands(AtomicU32);

impl Hands {
    /// A server that has refused so often serves files that are none of the host's, and is not asked any more.
    const ENOUGH: u32 = 64;

    pub(super) fn new(takes_files: bool) -> Hands {
        Hands(AtomicU32::new(match takes_files {
            true => 0,
            false => Hands::ENOUGH,
        }))
    }

    fn are_open(&self) -> bool {
        self.0.load(Ordering::Relaxed) < Hands::ENOUGH
    }

    fn are(&self, open: bool) {
        if !open {
            self.0.fetch_add(1, Ordering::Relaxed);
        } else if self.0.load(Ordering::Relaxed) > 0 {
            self.0.store(0, Ordering::Relaxed);
        }
    }
}

/// A file that was handed over, and is what was asked for.
pub(super) struct Handed {
    file: OwnedFd,
    limits: Limits,
}

impl AsFd for Handed {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Backing for Handed {
    fn limits(&self) -> Option<Limits> {
        Some(self.limits)
    }
}

impl Handed {
    /// `file`, if it is good for who opens it with `flags`.
    fn checked(file: OwnedFd, flags: OpenFlags) -> rustix::io::Result<Option<Handed>> {
        let stat = fstat(&file)?;
        let how = fcntl_getfl(&file)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile
            || how.contains(OFlags::PATH)
            || !sys::anybody::is_for_anybody(&file)?
        {
            return Ok(None);
        }
        let limits = Limits {
            access: match how & OFlags::RWMODE {
                OFlags::RDONLY => OpenFlags::READ,
                OFlags::WRONLY => OpenFlags::WRITE,
                _ => OpenFlags::READ | OpenFlags::WRITE,
            },
            file: (stat.st_dev, stat.st_ino),
        };
        Ok(limits.allow(flags).then_some(Handed { file, limits }))
    }
}

/// A file that is asked for.
pub(super) struct Asked<'a>(Option<Ticket<'a>>);

impl Wire {
    /// Asks for the file that `fid` is about to have open, where a server is asked at all.
    pub(super) fn ask_file(&self, fid: Fid) -> Option<Asked<'_>> {
        let hands = self.hands.are_open();
        hands.then(|| Asked(self.early(&Tmessage::Hand { fid })))
    }

    /// What has come, now that `fid` is open with `flags`. That there is nothing is no error.
    pub(super) fn take_file(
        &self,
        cx: &Cx<'_>,
        asked: Option<Asked<'_>>,
        fid: Fid,
        flags: OpenFlags,
    ) -> Option<Handed> {
        let Asked(early) = asked?;
        let ask = || self.call(cx, &Tmessage::Hand { fid });
        let taken = |reply: Result<Reply>| reply.map(|mut reply| reply.take_file());
        let early = early.map(|ticket| taken(self.pipe.wait_in(cx, ticket)));
        let file = match early {
            // It was looked at before the file was open, could not be asked, or has not come along with other replies.
            None | Some(Err(Errno::EBADF) | Ok(None)) => taken(ask()),
            Some(done) => done,
        };
        self.hands.are(!matches!(file, Err(Errno::EOPNOTSUPP)));
        let handed = Handed::checked(file.ok()??, flags);
        if !matches!(handed, Ok(Some(_))) {
            tracing::debug!("what {} handed over is not taken", self.pipe.peer());
        }
        handed.ok()?
    }
}
