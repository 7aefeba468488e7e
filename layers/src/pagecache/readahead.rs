//! Read-ahead: detection of sequential reads, and the size of the window.

use std::ops::Range;

use super::units::BLOCK;

/// The read pattern of an open file.
#[derive(Default)]
pub(super) struct Stream {
    /// Where the stream began; 0 if it began with the file.
    start: u64,
    /// The offset at which the next read is expected.
    next: u64,
    /// The end of the read-ahead; 0 while reads are not sequential.
    readahead_end: u64,
}

impl Stream {
    /// The smallest window. Programs that read the beginning of a file mostly read the rest.
    const MIN_WINDOW: u64 = 256 << 10;

    /// The largest window: as much as a connection of 8 Gbit/s has in flight within 8 ms.
    const MAX_WINDOW: u64 = 8 << 20;

    /// The distance from the expected offset that a sequential read may have: the kernel sends
    /// several reads of a stream at once, and they arrive in any order.
    const REORDER_WINDOW: u64 = 512 << 10;

    /// Records a read of `range` of a file of `size` bytes. Returns the range to read ahead, if
    /// any, which is at most `most` bytes ahead of it.
    pub(super) fn read(&mut self, range: &Range<u64>, size: u64, most: u64) -> Option<Range<u64>> {
        let disorder = match self.is_sequential() {
            true => Stream::REORDER_WINDOW,
            false => 0,
        };
        let expected = self.next.saturating_sub(disorder)..=self.next + disorder;
        if !expected.contains(&range.start) {
            *self = Stream {
                start: range.start,
                next: range.end,
                readahead_end: 0,
            };
            return None;
        }
        self.next = self.next.max(range.end);
        // At most half as much as the program has read is fetched in vain.
        let window = (self.next - self.start) / 2;
        let window = match self.start {
            0 => window.max(Stream::MIN_WINDOW),
            _ if window < Stream::MIN_WINDOW => return None,
            _ => window,
        };
        let window = window.min(Stream::MAX_WINDOW).min(most);
        // The caller reads the present range itself.
        self.readahead_end = self.readahead_end.max(self.next.next_multiple_of(BLOCK));
        if self.readahead_end - self.next > window / 2 || self.readahead_end >= size {
            return None;
        }
        let from = self.readahead_end;
        self.readahead_end = (self.next + window).next_multiple_of(BLOCK).min(size);
        (from < self.readahead_end).then_some(from..self.readahead_end)
    }

    /// Returns whether the last reads were sequential.
    pub(super) fn is_sequential(&self) -> bool {
        self.readahead_end > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 1 << 30;

    #[test]
    fn windows_grow_with_sequential_use_up_to_the_most() {
        let mut stream = Stream::default();
        let (mut at, mut ahead, mut longest) = (0, 0, 0);
        while at < 256 << 20 {
            if let Some(range) = stream.read(&(at..at + BLOCK), SIZE, 4 << 20) {
                assert!(ahead == 0 || range.start == ahead, "no gap, nothing twice");
                ahead = range.end;
                longest = longest.max(range.end - range.start);
            }
            at += BLOCK;
            assert!(ahead >= at && ahead - at <= (4 << 20) + BLOCK);
        }
        assert!(longest >= 1 << 20, "{longest}");
    }

    #[test]
    fn a_stream_may_come_out_of_order() {
        let mut stream = Stream::default();
        for at in [0, 2, 1, 3, 5, 4, 6, 8, 7] {
            let at = at * BLOCK;
            stream.read(&(at..at + BLOCK), SIZE, SIZE);
            assert!(stream.is_sequential(), "{at}");
        }
    }

    #[test]
    fn what_is_read_at_random_is_not_read_ahead() {
        let mut stream = Stream::default();
        for at in [500, 3, 77, 210, 78, 79, 80] {
            let at = at * BLOCK;
            assert_eq!(stream.read(&(at..at + BLOCK), SIZE, SIZE), None);
        }
    }

    #[test]
    fn a_stream_that_begins_anywhere_is_read_ahead_of_by_half() {
        let mut stream = Stream::default();
        let (mut read, mut ahead) = (0, 0);
        for at in 100..116 {
            let at = at * BLOCK;
            read += BLOCK;
            let range = stream.read(&(at..at + BLOCK), SIZE, SIZE);
            ahead += range.map_or(0, |range| range.end - range.start);
        }
        assert!(ahead > read / 4 && ahead <= read, "{ahead} of {read}");
    }

    #[test]
    fn nothing_is_read_ahead_behind_the_end() {
        let mut stream = Stream::default();
        assert_eq!(stream.read(&(0..10), 10, SIZE), None);
        let mut stream = Stream::default();
        let all = stream.read(&(0..10), BLOCK + 7, SIZE);
        assert_eq!(all, Some(BLOCK..BLOCK + 7));
        assert_eq!(stream.read(&(10..BLOCK), BLOCK + 7, SIZE), None);
    }
}
