//! Read-ahead: whether reads of an open file are a stream, and how far ahead of it to read.

use std::ops::Range;

use super::pages::BLOCK;

/// What is known of the reads of an open file.
#[derive(Default)]
pub(super) struct Stream {
    /// Where the next read of the stream begins.
    next: u64,
    /// Up to where it has been read ahead.
    ahead: u64,
    /// How far ahead it is to be read: 0 as long as it is no stream.
    window: u64,
}

impl Stream {
    /// The first window. Programs that read two pieces of a file mostly read the rest.
    const FIRST: u64 = 256 << 10;

    /// The largest: as much as a connection of 8 Gbit/s has under way within 8 ms.
    const MOST: u64 = 8 << 20;

    /// The kernel sends several reads of a stream at once, and they come in any order: so far from where one was expected.
    const DISORDER: u64 = 512 << 10;

    /// A program reads `range` of a file of `size` bytes: says what is to be read ahead, if anything. Windows are no larger than
    /// `most`.
    pub(super) fn read(&mut self, range: &Range<u64>, size: u64, most: u64) -> Option<Range<u64>> {
        let disorder = match self.window {
            0 => 0,
            _ => Stream::DISORDER,
        };
        let expected = self.next.saturating_sub(disorder)..=self.next + disorder;
        if !expected.contains(&range.start) {
            *self = Stream {
                next: range.end,
                ..Stream::default()
            };
            return None;
        }
        self.next = self.next.max(range.end);
        if self.window == 0 {
            // What is read now is read by whoever reads it.
            (self.window, self.ahead) = (Stream::FIRST, range.end.next_multiple_of(BLOCK));
        }
        self.ahead = self.ahead.max(self.next);
        if self.ahead - self.next > self.window / 2 || self.ahead >= size {
            return None;
        }
        let from = self.ahead;
        self.ahead = (self.next + self.window).next_multiple_of(BLOCK).min(size);
        self.window = (self.window * 2).min(Stream::MOST).min(most);
        (from < self.ahead).then_some(from..self.ahead)
    }

    /// Whether the last reads were a stream.
    pub(super) fn is_stream(&self) -> bool {
        self.window > 0
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
            assert!(ahead >= at && ahead - at <= 4 << 20);
        }
        assert!(longest >= 2 << 20, "{longest}");
    }

    #[test]
    fn a_stream_may_come_out_of_order() {
        let mut stream = Stream::default();
        for at in [0, 2, 1, 3, 5, 4, 6, 8, 7] {
            let at = at * BLOCK;
            stream.read(&(at..at + BLOCK), SIZE, SIZE);
            assert!(stream.is_stream(), "{at}");
        }
    }

    #[test]
    fn what_is_read_at_random_is_not_read_ahead() {
        let mut stream = Stream::default();
        for at in [500, 3, 77, 210, 78] {
            let at = at * BLOCK;
            assert_eq!(stream.read(&(at..at + BLOCK), SIZE, SIZE), None);
        }
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
