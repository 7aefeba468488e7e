//! A reply under construction, parts of which can be cached for retransmission.

use std::sync::Arc;

use vfs::fd::BorrowedFd;
use vfs::{Fill, Patience, Result, Sink};
use wire::{Buffered, Outgoing, Xdr};

/// A reply under construction, and copies of the data written to it while they are being made.
pub(crate) struct Reply<'a> {
    /// The transport's reply. Only protocols that neither limit nor copy results write to it
    /// directly.
    pub(super) out: &'a mut dyn Outgoing,
    /// A copy of the results of the call.
    call_copy: Option<ReplyCopy>,
    /// A copy of the result of one operation.
    result_copy: Option<ReplyCopy>,
    /// The maximum length of the reply, at which a failed operation's result must still fit.
    most: usize,
}

/// The bytes of a failed v4 operation's result: its number, its status and, for SETATTR, an empty
/// bitmap.
const FAILED_RESULT: usize = 12;

struct ReplyCopy {
    /// The offset in the reply at which the copy begins.
    base: usize,
    bytes: Vec<u8>,
    /// The maximum length of the copy.
    most: usize,
    /// Whether the copy is incomplete, for example because of a file's contents: `bytes` is empty
    /// then.
    incomplete: bool,
}

impl ReplyCopy {
    fn grow(&mut self, len: usize, add: impl FnOnce(&mut Vec<u8>)) {
        if self.bytes.len().saturating_add(len) > self.most {
            self.abandon();
        } else if !self.incomplete {
            add(&mut self.bytes);
        }
    }

    fn new(base: usize, most: usize) -> ReplyCopy {
        ReplyCopy {
            base,
            bytes: Vec::new(),
            most,
            incomplete: false,
        }
    }

    /// Returns the copied bytes, or `None` if the copy is incomplete.
    fn finish(self) -> Option<Arc<[u8]>> {
        (!self.incomplete).then(|| self.bytes.into())
    }

    fn patch(&mut self, at: usize, data: &[u8]) {
        if !self.incomplete
            && let Some(at) = at.checked_sub(self.base)
        {
            self.bytes[at..at + data.len()].copy_from_slice(data);
        }
    }

    fn abandon(&mut self) {
        self.incomplete = true;
        self.bytes = Vec::new();
    }
}

impl<'a> Reply<'a> {
    pub(super) fn new(out: &'a mut dyn Outgoing) -> Reply<'a> {
        Reply {
            out,
            call_copy: None,
            result_copy: None,
            most: usize::MAX,
        }
    }

    /// Returns the same reply, of which no copy has been started.
    pub(super) fn reborrow(&mut self) -> Reply<'_> {
        Reply {
            out: &mut *self.out,
            call_copy: None,
            result_copy: None,
            most: self.most,
        }
    }

    /// Limits the reply to `most` bytes, including those already written.
    pub(super) fn limit(&mut self, most: usize) {
        self.most = most;
    }

    /// Returns whether there is no room for another operation.
    pub(super) fn is_full(&self) -> bool {
        self.out.len().saturating_add(FAILED_RESULT) > self.most
    }

    /// Starts a copy of all data written from now on, of at most `most` bytes, as the results of
    /// the call.
    pub(super) fn copy_call(&mut self, most: usize) {
        self.call_copy = Some(ReplyCopy::new(self.out.len(), most));
    }

    /// Ends the copy of the call's results and returns it, or `None` if it contains a file's
    /// contents, became too long or was not started.
    pub(super) fn take_call_copy(&mut self) -> Option<Arc<[u8]>> {
        self.call_copy.take()?.finish()
    }

    /// Starts a copy of all data written from now on, as the result of an operation.
    pub(super) fn copy_result(&mut self) {
        self.result_copy = Some(ReplyCopy::new(self.out.len(), usize::MAX));
    }

    /// Ends the copy of the operation's result and returns it, or `None` if it contains a file's
    /// contents or was not started.
    pub(super) fn take_result_copy(&mut self) -> Option<Arc<[u8]>> {
        self.result_copy.take()?.finish()
    }

    fn copies(&mut self) -> impl Iterator<Item = &mut ReplyCopy> {
        self.call_copy.iter_mut().chain(&mut self.result_copy)
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
        for copy in self.copies() {
            copy.grow(data.len(), |bytes| bytes.extend_from_slice(data));
        }
    }

    fn zeros(&mut self, len: usize) {
        self.out.zeros(len);
        for copy in self.copies() {
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
        for copy in self.copies() {
            copy.abandon();
        }
        Ok(got)
    }

    fn lend(&mut self, len: usize, fill: Fill<'_>) -> Option<Result<usize>> {
        let filled = self.out.lend(len, fill)?;
        if filled.is_ok() {
            self.copies().for_each(ReplyCopy::abandon);
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
        self.copies().for_each(|copy| copy.patch(at, data));
    }

    fn truncate(&mut self, len: usize) {
        self.out.truncate(len);
        for copy in self.copies() {
            copy.bytes.truncate(len.saturating_sub(copy.base));
        }
    }
}
