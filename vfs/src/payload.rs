//! Payload transfer: the transport determines the method, so it implements both ends of a read or
//! write.
//!
//! A read fills a [`Sink`], a write drains a [`Payload`]. Neither exposes its memory: that may be a
//! reply under construction, a guest's memory (shared, volatile, never a `&[u8]`), a socket's pipe,
//! or the caller's own buffer.

use crate::fd::BorrowedFd;
use crate::{Patience, Result};

/// The destination of a read's bytes, in order.
pub trait Sink {
    /// Returns how many more bytes fit. A source never adds more.
    fn room(&self) -> usize;

    /// Appends `data`.
    fn bytes(&mut self, data: &[u8]);

    /// Appends `len` zeros, possibly as a hole that needs no bytes.
    fn zeros(&mut self, len: usize);

    /// Appends up to `len` bytes of the file `fd` from `offset` and returns their number: fewer
    /// only at end of file or on an error after the first byte. With less than full patience,
    /// appends only cached data; returns `WOULD_BLOCK` without effect if not all of it is cached.
    fn file(
        &mut self,
        fd: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        patience: Patience,
    ) -> Result<usize>;

    /// Lends `fill` the memory of the next `len` bytes. `fill` writes at its beginning and returns
    /// the number of bytes, which are appended; bytes after them are discarded. Returns `None`,
    /// without calling `fill`, if there is no memory to lend.
    fn lend(&mut self, len: usize, fill: Fill<'_>) -> Option<Result<usize>>;
}

/// A function that writes bytes into memory and returns their number: see [`Sink::lend`].
pub type Fill<'a> = &'a mut dyn FnMut(&mut [u8]) -> Result<usize>;

/// The source of a write's bytes, in order.
pub trait Payload {
    /// Returns the number of bytes left.
    fn len(&self) -> usize;

    /// Returns whether no bytes are left.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Passes the bytes left to `take` in one or more pieces. An error of `take` ends the transfer,
    /// and the piece of that call stays.
    fn bytes(&mut self, take: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()>;

    /// Writes the bytes left to the file `fd` at `offset` and returns the number written: fewer
    /// only on an error after the first byte. A descriptor opened to append ignores `offset`.
    fn file(&mut self, fd: BorrowedFd<'_>, offset: u64) -> Result<usize>;
}
