//! Pages of a file on their way to a connection, without being copied: a pipe that they are moved into and out of.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};

/// A pipe with pages of a file in it. What is in it does not become less when the file is cut; but as long as it has not been
/// received it changes when the file is written to.
pub struct Pages {
    output: OwnedFd,
    input: OwnedFd,
    len: usize,
}

impl Pages {
    /// What is asked of the system for a pipe, bytes, which is what it lets everybody have (`pipe-max-size`, pipe(7)).
    const CAPACITY: usize = 1 << 20;

    /// A pipe of nothing. Errs where there are too many large ones already.
    pub fn new() -> io::Result<Pages> {
        let (output, input) = pipe_with(PipeFlags::CLOEXEC)?;
        fcntl_setpipe_size(&input, Pages::CAPACITY)?;
        Ok(Pages {
            output,
            input,
            len: 0,
        })
    }

    /// How many bytes are in it.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether none are.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Takes up to `len` bytes of `file` from `offset`, as many as there is room for, and says how many: fewer also at the end of
    /// the file or on an error after the first.
    pub fn take(&mut self, file: BorrowedFd<'_>, offset: u64, len: usize) -> io::Result<usize> {
        let mut taken = 0;
        while taken < len {
            let mut at = offset + taken as u64;
            // Of the pipe: it does not wait until somebody has made room.
            let flags = SpliceFlags::NONBLOCK;
            match splice(file, Some(&mut at), &self.input, None, len - taken, flags) {
                Ok(0) => break,
                Ok(more) => taken += more,
                Err(rustix::io::Errno::INTR) => {}
                Err(_) if taken > 0 => break,
                Err(error) => return Err(error.into()),
            }
        }
        self.len += taken;
        Ok(taken)
    }

    /// Moves what is in it to `socket`, all of it; waits as long as that takes. With `more`, something follows soon.
    pub fn send(&mut self, socket: BorrowedFd<'_>, more: bool) -> io::Result<()> {
        let flags = match more {
            true => SpliceFlags::MORE,
            false => SpliceFlags::empty(),
        };
        while self.len > 0 {
            match splice(&self.output, None, socket, None, self.len, flags) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(sent) => self.len -= sent,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Moves what is in it into `memory`, which is as long.
    pub fn read(&mut self, memory: &mut [u8]) -> io::Result<()> {
        let mut come = 0;
        while come < memory.len() {
            match rustix::io::read(self.output.as_fd(), &mut memory[come..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(more) => come += more,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.len -= come;
        Ok(())
    }
}
