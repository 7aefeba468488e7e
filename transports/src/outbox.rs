use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use sys::pages::PageBuffer;
use vfs::copies::count_copied;
use vfs::{Backing, Fill, Patience, Result, Sink};
use wire::Outgoing;

use crate::Pages;

/// Consecutive messages to be sent together; the last is under construction. File contents are read
/// directly into it, or their pages spliced, at most once in all messages that are sent together.
pub struct Outbox {
    /// Always initialized to its end, so that file contents can be read into it without zeroing it
    /// first.
    buffer: PageBuffer,
    message_start: usize,
    end: usize,
    /// The minimum number of a file's bytes whose pages are spliced.
    splice_threshold: usize,
    pages: Option<Pages>,
    /// The position of the pages in the buffer, always after the start of their message.
    pages_position: usize,
    /// The file to pass, and the start of its message in the buffer.
    passed_file: Option<(usize, Arc<dyn Backing>)>,
    meter: Option<Box<dyn Meter>>,
    /// The number of bytes that the message under construction may take.
    expected: usize,
}

/// Counts the memory of an outbox. Called before it grows, so that the budget of others shrinks
/// before the memory is allocated.
pub trait Meter: Send {
    /// Sets the size of the buffer to `bytes`.
    fn set(&mut self, bytes: usize);

    /// Returns whether memory is so scarce that buffers should be released rather than kept.
    fn is_scarce(&self) -> bool {
        false
    }
}

impl Default for Outbox {
    /// Creates an outbox that does not splice pages.
    fn default() -> Outbox {
        Outbox {
            buffer: PageBuffer::new(),
            message_start: 0,
            end: 0,
            splice_threshold: usize::MAX,
            pages: None,
            pages_position: 0,
            passed_file: None,
            meter: None,
            expected: 0,
        }
    }
}

impl Outbox {
    /// The maximum size of one message in bytes: NBD's largest payload, which no other protocol
    /// here exceeds, and its header.
    const MAX_MESSAGE: usize = (64 << 20) + (64 << 10);

    /// The buffer size for small messages.
    const SMALL_BUFFER: usize = 16 << 10;

    /// Creates an outbox whose memory `meter` counts.
    pub fn metered(meter: Box<dyn Meter>) -> Outbox {
        Outbox {
            meter: Some(meter),
            ..Outbox::default()
        }
    }

    /// Replaces the meter that counts its memory.
    pub fn set_meter(&mut self, meter: Box<dyn Meter>) {
        self.meter = Some(meter);
        self.update_meter(self.buffer.len());
    }

    /// Sets the number of bytes that the next message may take: they are counted as if allocated,
    /// until the next call.
    pub fn set_expected(&mut self, bytes: usize) {
        if bytes != self.expected {
            self.expected = bytes;
            self.update_meter(self.buffer.len());
        }
    }

    /// Begins the next message after the existing ones.
    pub fn begin(&mut self) -> &mut dyn Outgoing {
        self.message_start = self.end;
        self
    }

    /// Returns all messages, in order. There must be no pages among them: see
    /// [`Outbox::read_pages`].
    pub fn bytes(&self) -> &[u8] {
        debug_assert!(!self.has_pages(), "pages are no bytes");
        &self.buffer[..self.end]
    }

    /// Returns the total size of all messages in bytes.
    pub fn size(&self) -> usize {
        self.end + self.pages_len()
    }

    /// Sets the size from which on a file's pages are spliced instead of read; [`usize::MAX`]
    /// disables splicing.
    pub fn set_splice_threshold(&mut self, from: usize) {
        self.splice_threshold = from;
    }

    /// Returns whether the messages include pages of a file.
    pub fn has_pages(&self) -> bool {
        self.pages_len() > 0
    }

    /// Returns the bytes before the pages, the pages, and the bytes after them; `None` without
    /// pages.
    pub fn parts(&mut self) -> Option<(&[u8], &mut Pages, &[u8])> {
        let pages = self.pages.as_mut().filter(|pages| !pages.is_empty())?;
        let (before, behind) = self.buffer[..self.end].split_at(self.pages_position);
        Some((before, pages, behind))
    }

    /// Returns the file to pass, and the start of its message among all, which is the last one.
    pub fn passed_file(&self) -> Option<(usize, &dyn Backing)> {
        (self.passed_file.as_ref()).map(|(at, file)| (*at, &**file))
    }

    /// Reads the pages into the buffer, so that there are only bytes.
    pub fn read_pages(&mut self) -> io::Result<()> {
        let taken = self.pages_len();
        if taken == 0 {
            return Ok(());
        }
        count_copied(taken);
        let (gap, end) = (self.pages_position, self.end);
        self.extend(taken);
        self.buffer.copy_within(gap..end, gap + taken);
        self.end = end + taken;
        match &mut self.pages {
            Some(pages) => pages.read(&mut self.buffer[gap..gap + taken]),
            None => Ok(()),
        }
    }

    /// Discards all messages.
    pub fn clear(&mut self) {
        self.message_start = 0;
        self.end = 0;
        self.passed_file = None;
        self.drop_pages();
    }

    /// Returns whether it has more memory than small messages need.
    pub fn is_large(&self) -> bool {
        self.buffer.len() > Outbox::SMALL_BUFFER
    }

    /// Returns whether it has memory that is needed elsewhere.
    pub fn is_scarce(&self) -> bool {
        self.is_large() && self.meter.as_ref().is_some_and(|meter| meter.is_scarce())
    }

    /// Releases all memory, if there are no messages.
    pub fn shrink(&mut self) {
        if self.end == 0 {
            self.buffer = PageBuffer::new();
            self.pages = None;
            self.update_meter(0);
        }
    }

    fn pages_len(&self) -> usize {
        self.pages.as_ref().map_or(0, Pages::len)
    }

    /// A pipe can be emptied only by reading, so it is dropped.
    fn drop_pages(&mut self) {
        self.pages.take_if(|pages| !pages.is_empty());
    }

    /// Splices up to `len` bytes of a file as pages, if they are cached, and returns their number.
    fn splice(&mut self, fd: BorrowedFd<'_>, offset: u64, len: usize, patience: Patience) -> usize {
        // Without patience nothing may be waited for, and the pages may still be under I/O.
        let may = len >= self.splice_threshold
            && !self.has_pages()
            && self.end > self.message_start
            && patience > Patience::None;
        if !may || sys::cache::is_cached(fd, offset, len as u64) != Ok(true) {
            return 0;
        }
        if self.pages.is_none() {
            self.pages = Pages::new().ok();
        }
        self.pages_position = self.end;
        let pages = self.pages.as_mut();
        pages.map_or(0, |pages| pages.take(fd, offset, len).unwrap_or(0))
    }

    /// Returns the offset and the length of the pages in the message under construction.
    fn message_pages(&self) -> (usize, usize) {
        // Pages of an earlier message are at its end, at the latest.
        match self.pages_position.checked_sub(self.message_start) {
            Some(at @ 1..) => (at, self.pages_len()),
            _ => (0, 0),
        }
    }

    /// Returns the buffer position of the message's byte `at`, which is not in a page.
    fn buffer_position(&self, at: usize) -> usize {
        let (gap, taken) = self.message_pages();
        self.message_start + if at < gap + taken { at } else { at - taken }
    }

    /// Returns space for `len` more bytes.
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
        if self.end > 0 {
            self.update_meter(capacity);
            self.buffer.grow(capacity);
        } else if capacity <= Outbox::SMALL_BUFFER {
            self.update_meter(capacity);
            self.buffer = PageBuffer::zeroed(capacity);
        } else {
            // It usually holds one large message: a mebibyte and its header, not two.
            let capacity = end.next_multiple_of(Outbox::SMALL_BUFFER);
            self.update_meter(capacity);
            self.buffer = PageBuffer::zeroed(capacity);
        }
    }

    fn update_meter(&mut self, bytes: usize) {
        if let Some(meter) = &mut self.meter {
            meter.set(bytes.max(self.expected));
        }
    }
}

impl Sink for Outbox {
    fn room(&self) -> usize {
        Outbox::MAX_MESSAGE - self.len()
    }

    fn bytes(&mut self, data: &[u8]) {
        count_copied(data.len());
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
        let taken = self.splice(fd, offset, len, patience);
        let (offset, len) = (offset + taken as u64, len - taken);
        match sys::file_io::pread_into(fd, offset, self.extend(len), patience) {
            Ok(got) => {
                self.end += got;
                Ok(taken + got)
            }
            // Bytes before the error are valid.
            Err(_) if taken > 0 && patience == Patience::Full => Ok(taken),
            Err(errno) => {
                self.drop_pages();
                Err(errno)
            }
        }
    }

    fn lend(&mut self, len: usize, fill: Fill<'_>) -> Option<Result<usize>> {
        let filled = fill(self.extend(len));
        self.end += filled.unwrap_or(0).min(len);
        Some(filled)
    }
}

impl Outgoing for Outbox {
    fn len(&self) -> usize {
        self.end - self.message_start + self.message_pages().1
    }

    fn patch(&mut self, at: usize, data: &[u8]) {
        let at = self.buffer_position(at);
        self.buffer[at..at + data.len()].copy_from_slice(data);
    }

    fn truncate(&mut self, len: usize) {
        if len >= self.len() {
            return;
        }
        let (gap, taken) = self.message_pages();
        if len < gap + taken {
            assert!(len <= gap, "pages are taken back whole");
            self.drop_pages();
        }
        self.end = self.buffer_position(len);
        self.passed_file
            .take_if(|(at, _)| *at >= self.message_start);
    }

    /// Accepts only one file: a second one would belong to another message.
    fn pass_file(&mut self, file: Arc<dyn Backing>) -> bool {
        let first = self.passed_file.is_none();
        if first {
            self.passed_file = Some((self.message_start, file));
        }
        first
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

    /// Returns all bytes sent.
    fn sent(outbox: &mut Outbox) -> Vec<u8> {
        use std::io::Read;
        let (ours, mut theirs) = std::os::unix::net::UnixStream::pair().expect("a pair");
        let link = crate::StreamLink::new(ours.into(), "test").expect("a link");
        let (before, pages, behind) = outbox.parts().expect("pages");
        crate::Link::send_pages(&link, before, pages, behind).expect("sent");
        drop(link);
        let mut all = Vec::new();
        theirs.read_to_end(&mut all).expect("received");
        all
    }

    #[test]
    fn pages_stand_between_what_is_before_and_behind_and_an_error_takes_them_back() {
        use std::io::Write;
        use std::os::fd::AsFd;
        let mut file = tempfile::tempfile().expect("a temporary file");
        let content: Vec<u8> = (0..50_000u32).map(|at| (at % 251) as u8).collect();
        file.write_all(&content).expect("written");
        let mut outbox = Outbox::default();
        outbox.set_splice_threshold(30_000);
        for way in ["sent", "settled", "taken back"] {
            outbox.clear();
            outbox.begin().bytes(b"first");
            let out = outbox.begin();
            out.bytes(b"..:");
            assert_eq!(
                out.file(file.as_fd(), 5, 40_000, Patience::Brief),
                Ok(40_000)
            );
            assert_eq!(
                out.file(file.as_fd(), 1, 40_000, Patience::Brief),
                Ok(40_000)
            );
            out.bytes(b"tail");
            assert_eq!(out.len(), 80_007);
            if !outbox.has_pages() {
                return eprintln!("skipped: no cachestat(2), or not of this file system");
            }
            let out: &mut dyn Outgoing = &mut outbox;
            out.patch(0, b"at");
            out.patch(80_003, b"T");
            let all = [
                b"firstat:",
                &content[5..40_005],
                &content[1..40_001],
                b"Tail",
            ]
            .concat();
            match way {
                "sent" => assert!(sent(&mut outbox) == all),
                "settled" => {
                    outbox.read_pages().expect("read");
                    assert!(outbox.bytes() == all);
                    let end = outbox.begin();
                    assert_eq!(end.len(), 0);
                }
                _ => {
                    out.truncate(2);
                    out.bytes(b"!");
                    assert_eq!((out.len(), outbox.bytes()), (3, &b"firstat!"[..]));
                }
            }
        }
    }

    /// The announced number of bytes is sent even if the file is truncated meanwhile: otherwise the
    /// stream would lose its framing.
    #[test]
    fn pages_are_as_many_as_they_were_when_the_file_is_cut() {
        use std::io::Write;
        use std::os::fd::AsFd;
        let mut file = tempfile::tempfile().expect("a temporary file");
        file.write_all(&[7; 100_000]).expect("written");
        let mut outbox = Outbox::default();
        outbox.set_splice_threshold(30_000);
        let out = outbox.begin();
        out.bytes(b"head");
        assert_eq!(
            out.file(file.as_fd(), 0, 100_000, Patience::Brief),
            Ok(100_000)
        );
        if !outbox.has_pages() {
            return eprintln!("skipped: no cachestat(2), or not of this file system");
        }
        file.set_len(10).expect("cut");
        assert_eq!(sent(&mut outbox).len(), 100_004);
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
