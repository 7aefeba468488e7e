use std::os::fd::BorrowedFd;

use vfs::{Fill, Patience, Result, Sink};
use wire::Outgoing;

/// Messages in a row, to be sent at once; the last is under construction. File contents are read
/// straight into it.
#[derive(Default)]
pub struct Outbox {
    /// Always initialized to its end, so that file contents can land in it without being zeroed
    /// first each time.
    buffer: Vec<u8>,
    message: usize,
    end: usize,
}

impl Outbox {
    /// The most bytes one message may have: far beyond what any protocol here agrees on.
    const LIMIT: usize = 64 << 20;

    /// What an idle outbox keeps of its buffer.
    const KEEP: usize = 16 << 10;

    /// Begins the next message behind those that are there.
    pub fn begin(&mut self) -> &mut dyn Outgoing {
        self.message = self.end;
        self
    }

    /// All messages, in order.
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[..self.end]
    }

    /// Forgets all messages.
    pub fn clear(&mut self) {
        self.message = 0;
        self.end = 0;
    }

    /// Whether it holds memory that only many or large messages need.
    pub fn is_large(&self) -> bool {
        self.buffer.len() > Outbox::KEEP
    }

    /// Gives that memory back, if there are no messages.
    pub fn shrink(&mut self) {
        if self.end == 0 && self.is_large() {
            self.buffer = Vec::new();
        }
    }

    /// Room for `len` more bytes.
    fn extend(&mut self, len: usize) -> &mut [u8] {
        let end = self.end + len;
        if end > self.buffer.len() {
            self.grow(end);
        }
        &mut self.buffer[self.end..end]
    }

    #[cold]
    fn grow(&mut self, end: usize) {
        let capacity = end.next_power_of_two().max(4096);
        if self.end == 0 {
            self.buffer = vec![0; capacity];
        } else {
            self.buffer.resize(capacity, 0);
        }
    }
}

impl Sink for Outbox {
    fn room(&self) -> usize {
        Outbox::LIMIT - (self.end - self.message)
    }

    fn bytes(&mut self, data: &[u8]) {
        self.extend(data.len()).copy_from_slice(data);
        self.end += data.len();
    }

    fn zeros(&mut self, len: usize) {
        self.extend(len).fill(0);
        self.end += len;
    }

    fn file(
        &mut self,
        fd: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        patience: Patience,
    ) -> Result<usize> {
        let got = sys::payload::pread_into(fd, offset, self.extend(len), patience)?;
        self.end += got;
        Ok(got)
    }

    fn lend(&mut self, len: usize, fill: Fill<'_>) -> Option<Result<usize>> {
        let filled = fill(self.extend(len));
        self.end += filled.unwrap_or(0).min(len);
        Some(filled)
    }
}

impl Outgoing for Outbox {
    fn len(&self) -> usize {
        self.end - self.message
    }

    fn patch(&mut self, at: usize, data: &[u8]) {
        let at = self.message + at;
        self.buffer[at..at + data.len()].copy_from_slice(data);
    }

    fn truncate(&mut self, len: usize) {
        self.end = self.end.min(self.message + len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_stand_in_a_row_and_an_error_takes_back_only_the_last() {
        let mut outbox = Outbox::default();
        outbox.begin().bytes(b"first");
        let second = outbox.begin();
        second.bytes(b"....");
        second.zeros(2);
        second.patch(0, b"se");
        assert_eq!(second.len(), 6);
        second.truncate(2);
        second.bytes(b"cond");
        assert_eq!(outbox.bytes(), b"firstsecond");
        outbox.clear();
        assert_eq!(outbox.bytes(), b"");
    }

    #[test]
    fn file_contents_land_behind_the_header() {
        use std::io::Write;
        use std::os::fd::AsFd;
        let mut file = tempfile::tempfile().expect("a temporary file");
        file.write_all(b"0123456789").expect("written");
        let mut outbox = Outbox::default();
        outbox.begin().bytes(b"head:");
        let out = outbox.begin();
        assert_eq!(out.file(file.as_fd(), 4, 100, Patience::Full), Ok(6));
        assert_eq!(outbox.bytes(), b"head:456789");
    }
}
