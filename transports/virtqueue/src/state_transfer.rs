//! The transfer of a device's state during a migration (vhost-user, "Migrating back-end state").
//!
//! The monitor passes a pipe with SET_DEVICE_STATE_FD, and a thread writes the state to it or reads
//! it from there. CHECK_DEVICE_STATE waits for the thread and returns its result. The pipe is the
//! monitor's: no read or write of it outlasts the end of the connection or of the server.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::FileType;
use vhost::vhost_user::message::VhostTransferStateDirection as Direction;

/// The state of a device that is not in its queues, for its migration. All queues are stopped
/// during a call, and at most one call runs at a time.
pub trait DeviceState: Send + Sync {
    /// Writes the state. After an error the device continues as before.
    fn save(&self, to: &mut dyn Write) -> io::Result<()>;

    /// Reads the state and continues with it. After an error the device is as after a reset.
    fn load(&self, from: &mut dyn Read) -> io::Result<()>;

    /// Continues after a save: the migration failed, or the monitor has only taken a snapshot.
    fn resume(&self);
}

/// A transfer in progress.
pub(crate) struct Transfer {
    thread: JoinHandle<io::Result<()>>,
    /// Readable to end the transfer.
    cancel: OwnedFd,
}

impl Transfer {
    /// Starts a transfer over `pipe`, which ends early if `stop` is readable. Returns an error if
    /// `pipe` is neither a pipe nor a socket: reads and writes of other files may block forever.
    pub(crate) fn start(
        state: Arc<dyn DeviceState>,
        direction: Direction,
        pipe: File,
        stop: OwnedFd,
    ) -> io::Result<Transfer> {
        let kind = FileType::from_raw_mode(rustix::fs::fstat(&pipe)?.st_mode);
        if !matches!(kind, FileType::Fifo | FileType::Socket) {
            let why = "expected a pipe for the device's state";
            return Err(io::Error::new(ErrorKind::InvalidInput, why));
        }
        let cancel = eventfd(0, EventfdFlags::CLOEXEC)?;
        let mut pipe = StatePipe {
            pipe,
            ends: [cancel.try_clone()?, stop],
        };
        let thread = std::thread::Builder::new().name("barge-state".into());
        let thread = thread.spawn(move || match direction {
            Direction::SAVE => state.save(&mut pipe),
            Direction::LOAD => state.load(&mut pipe),
        })?;
        Ok(Transfer { thread, cancel })
    }

    /// Waits for its end and returns the result.
    pub(crate) fn join(self) -> io::Result<()> {
        let panicked = |_| Err(io::Error::other("the transfer of the state failed"));
        self.thread.join().unwrap_or_else(panicked)
    }

    /// Ends it before it is complete.
    pub(crate) fn cancel(self) {
        // Fails only if it is readable already.
        let _ = rustix::io::write(&self.cancel, &1u64.to_ne_bytes());
        let _ = self.join();
    }
}

/// The monitor's pipe. Reads and writes end with an error once one of `ends` is readable.
struct StatePipe {
    pipe: File,
    ends: [OwnedFd; 2],
}

impl StatePipe {
    /// The most bytes that a pipe accepts without blocking once it is writable.
    const MOST: usize = 4096;

    fn wait(&self, events: PollFlags) -> io::Result<()> {
        let mut fds = [
            PollFd::new(&self.ends[0], PollFlags::IN),
            PollFd::new(&self.ends[1], PollFlags::IN),
            PollFd::from_borrowed_fd(self.pipe.as_fd(), events),
        ];
        while let Err(error) = poll(&mut fds, None) {
            if error != rustix::io::Errno::INTR {
                return Err(error.into());
            }
        }
        match fds[..2].iter().all(|end| end.revents().is_empty()) {
            true => Ok(()),
            false => Err(io::Error::other("the connection ends")),
        }
    }
}

impl Read for StatePipe {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.wait(PollFlags::IN)?;
        self.pipe.read(bytes)
    }
}

impl Write for StatePipe {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.wait(PollFlags::OUT)?;
        self.pipe.write(&bytes[..bytes.len().min(StatePipe::MOST)])
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
