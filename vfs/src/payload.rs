//! How bytes travel: the transport decides, so both ends of a read or write are traits of its.
//!
//! Reading fills a [`Sink`], writing drains a [`Payload`]. Neither shows its memory: it may be a
//! reply under construction, a guest's memory (shared, volatile, never a `&[u8]`), a socket's
//! pipe, or the caller's own buffer.

use std::os::fd::BorrowedFd;

use crate::{Patience, Result};

/// Takes the bytes of a read, in order.
pub trait Sink {
    /// How many more bytes fit. A source never puts in more.
    fn room(&self) -> usize;

    /// Takes `data` over.
    fn bytes(&mut self, data: &[u8]);

    /// Takes `len` zeros, perhaps as a hole that needs no bytes at all.
    fn zeros(&mut self, len: usize);

    /// Takes up to `len` bytes of the file `fd` from `offset`, and says how many: fewer only at
    /// end of file or on an error after the first byte. With less than full patience it takes
    /// only what is cached, and if that is not all of it, takes nothing and answers
    /// `WOULD_BLOCK`.
    fn file(
        &mut self,
        fd: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        patience: Patience,
    ) -> Result<usize>;

    /// Lends `fill` the memory of the next `len` bytes, to put bytes at its beginning and say how many: those are taken,
    /// what it put behind them is not. Nothing if there is no memory that could be lent, and then `fill` was not called.
    fn lend(&mut self, len: usize, fill: Fill<'_>) -> Option<Result<usize>>;
}

/// Puts bytes into memory, and says how many: see [`Sink::lend`].
pub type Fill<'a> = &'a mut dyn FnMut(&mut [u8]) -> Result<usize>;

/// Gives the bytes of a write, in order.
pub trait Payload {
    /// How many bytes are left.
    fn len(&self) -> usize;

    /// Whether none are left.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Gives the bytes left to `take` in one or more pieces. An error of `take` ends it: what that
    /// call was given stays.
    fn bytes(&mut self, take: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()>;

    /// Writes the bytes left to the file `fd` at `offset`, and says how many were written: fewer
    /// only on an error after the first byte. A descriptor opened to append ignores `offset`.
    fn file(&mut self, fd: BorrowedFd<'_>, offset: u64) -> Result<usize>;
}
