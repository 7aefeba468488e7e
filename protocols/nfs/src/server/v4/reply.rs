//! A reply under construction, parts of which can be cached for retransmission.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use vfs::{Fill, Patience, Result, Sink};
use wire::{Buffered, Outgoing, Xdr};

use super::FAILED_RESULT;

/// A reply under construction, and a copy of the data written to it while one is being made.
pub(super) struct Reply<'a> {
    out: &'a mut dyn Outgoing,
    copy: Option<Copy>,
    /// The maximum length of the reply, at which a failed operation's result must still fit.
    most: usize,
}

struct Copy {
    /// The offset in the reply at which the copy begins.
    base: usize,
    bytes: Vec<u8>,
    /// The maximum length of the copy.
    most: usize,
    /// Whether the copy is incomplete, for example because of a file's contents: `bytes` is empty
    /// then.
    lost: bool,
}

impl Copy {
    fn grow(&mut self, len: usize, add: impl FnOnce(&mut Vec<u8>)) {
        if self.bytes.len().saturating_add(len) > self.most {
            self.lose();
        } else if !self.lost {
            add(&mut self.bytes);
        }
    }

    fn lose(&mut self) {
        self.lost = true;
        self.bytes = Vec::new();
    }
}

impl<'a> Reply<'a> {
    pub(super) fn new(out: &'a mut dyn Outgoing) -> Reply<'a> {
        Reply {
            out,
            copy: None,
            most: usize::MAX,
        }
    }

    /// Limits the reply to `most` bytes, including those already written.
    pub(super) fn limit(&mut self, most: usize) {
        self.most = most;
    }

    /// Returns whether there is no room for another operation.
    pub(super) fn is_over(&self) -> bool {
        self.out.len().saturating_add(FAILED_RESULT) > self.most
    }

    /// Starts a copy of all data written from now on, of at most `most` bytes.
    pub(super) fn keep(&mut self, most: usize) {
        self.copy = Some(Copy {
            base: self.out.len(),
            bytes: Vec::new(),
            most,
            lost: false,
        });
    }

    /// Ends the copy and returns it, or `None` if it contains a file's contents, became too long or
    /// was not started.
    pub(super) fn kept(&mut self) -> Option<Arc<[u8]>> {
        let copy = self.copy.take()?;
        (!copy.lost).then(|| copy.bytes.into())
    }

    /// Appends a value.
    pub(super) fn value<'v>(&mut self, value: &impl Xdr<'v>) {
        value.put(&mut Buffered::new(self));
    }
}

impl Sink for Reply<'_> {
    fn room(&self) -> usize {
        let left = self.most.saturating_sub(self.out.len() + FAILED_RESULT);
        self.out.room().min(left)
    }

    fn bytes(&mut self, data: &[u8]) {
        self.out.bytes(data);
        if let Some(copy) = &mut self.copy {
            copy.grow(data.len(), |bytes| bytes.extend_from_slice(data));
        }
    }

    fn zeros(&mut self, len: usize) {
        self.out.zeros(len);
        if let Some(copy) = &mut self.copy {
            copy.grow(len, |bytes| bytes.resize(bytes.len() + len, 0));
        }
    }

    fn file(
        &mut self,
        fd: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        patience: Patience,
    ) -> Result<usize> {
        let got = self.out.file(fd, offset, len, patience)?;
        if let Some(copy) = &mut self.copy {
            copy.lose();
        }
        Ok(got)
    }

    fn lend(&mut self, len: usize, fill: Fill<'_>) -> Option<Result<usize>> {
        let filled = self.out.lend(len, fill)?;
        if let (Some(copy), Ok(_)) = (&mut self.copy, filled) {
            copy.lose();
        }
        Some(filled)
    }
}

impl Outgoing for Reply<'_> {
    fn len(&self) -> usize {
        self.out.len()
    }

    fn patch(&mut self, at: usize, data: &[u8]) {
        self.out.patch(at, data);
        if let Some(copy) = &mut self.copy
            && !copy.lost
            && let Some(at) = at.checked_sub(copy.base)
        {
            copy.bytes[at..at + data.len()].copy_from_slice(data);
        }
    }

    fn truncate(&mut self, len: usize) {
        self.out.truncate(len);
        if let Some(copy) = &mut self.copy {
            copy.bytes.truncate(len.saturating_sub(copy.base));
        }
    }
}
