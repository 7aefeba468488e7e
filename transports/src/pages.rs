//! Zero-copy transfer of file pages to a connection: a pipe that they are spliced through.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};

/// A pipe that holds pages of a file. Truncating the file does not remove them; but writes to the
/// file change them until they are received.
pub struct Pages {
    output: OwnedFd,
    input: OwnedFd,
    len: usize,
}

impl Pages {
    /// The requested size of a pipe in bytes, which the system allows every user (`pipe-max-size`,
    /// pipe(7)).
    const CAPACITY: usize = 1 << 20;

    /// Creates an empty pipe. Returns an error if there are too many large ones already.
    pub fn new() -> io::Result<Pages> {
        let (output, input) = pipe_with(PipeFlags::CLOEXEC)?;
        fcntl_setpipe_size(&input, Pages::CAPACITY)?;
        Ok(Pages {
            output,
            input,
            len: 0,
        })
    }

    /// Returns the number of bytes in it.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Splices up to `len` bytes of `file` from `offset` into it, as many as fit, and returns their
    /// number: fewer also at end of file or on an error after the first byte.
    pub fn take(&mut self, file: BorrowedFd<'_>, offset: u64, len: usize) -> io::Result<usize> {
        let mut taken = 0;
        while taken < len {
            let mut at = offset + taken as u64;
            // Applies to the pipe: do not wait for space in it.
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

    /// Splices all of its contents to `socket`; waits without a time limit. With `more`, further
    /// data follows soon.
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

    /// Reads its contents into `memory`, which has the same length.
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
