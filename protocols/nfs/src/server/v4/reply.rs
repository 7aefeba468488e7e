//! A reply under construction, of which a part may be kept to be sent again.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use vfs::{Fill, Patience, Result, Sink};
use wire::{Buffered, Outgoing, Xdr};

use super::FAILED;

/// A reply on its way out, and a copy of what is put into it while one is wanted.
pub(super) struct Reply<'a> {
    out: &'a mut dyn Outgoing,
    copy: Option<Copy>,
    /// How long it may be, if it has less room than there is: always with an operation that failed behind it.
    most: usize,
}

struct Copy {
    /// Where it begins in the reply.
    base: usize,
    bytes: Vec<u8>,
    /// How long it may become.
    most: usize,
    /// Something went in that is too long to keep, a file's contents for one: `bytes` are none.
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

    /// It may be `most` bytes long, with all that stands before it.
    pub(super) fn limit(&mut self, most: usize) {
        self.most = most;
    }

    /// Whether it has become too long for one more operation.
    pub(super) fn is_over(&self) -> bool {
        self.out.len().saturating_add(FAILED) > self.most
    }

    /// Keeps a copy of all that is put in from now on, unless that comes to more than `most` bytes.
    pub(super) fn keep(&mut self, most: usize) {
        self.copy = Some(Copy {
            base: self.out.len(),
            bytes: Vec::new(),
            most,
            lost: false,
        });
    }

    /// Ends the copy. Nothing if it has a file's contents or became too long, or there was none.
    pub(super) fn kept(&mut self) -> Option<Arc<[u8]>> {
        let copy = self.copy.take()?;
        (!copy.lost).then(|| copy.bytes.into())
    }

    /// Puts a value in.
    pub(super) fn value<'v>(&mut self, value: &impl Xdr<'v>) {
        value.put(&mut Buffered::new(self));
    }
}

impl Sink for Reply<'_> {
    fn room(&self) -> usize {
        let left = self.most.saturating_sub(self.out.len() + FAILED);
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
