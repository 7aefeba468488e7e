//! What a lane has received.

use std::ops::{Deref, Range};
use std::sync::{Arc, Mutex, MutexGuard};

use vfs::copies::copied;
use wire::Malformed;

/// What has come and is not answered yet.
#[derive(Default)]
pub(crate) struct Input {
    pub(crate) buffer: Vec<u8>,
    pub(crate) start: usize,
    pub(crate) end: usize,
    spares: Arc<Spares>,
}

impl Input {
    /// Room for small messages: hundreds of requests without a payload.
    const SMALL: usize = 16 << 10;

    /// Room for many messages with a page of payload each.
    const MANY: usize = 256 << 10;

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Where to receive more: never nothing. Of a large message that has begun, exactly the rest, so that no part
    /// of the next has to move when that one is done. One that does not say how long it is may become as large as
    /// `frame` lets it.
    pub(crate) fn space(
        &mut self,
        frame: impl Fn(&[u8]) -> Result<Option<usize>, Malformed>,
    ) -> Result<&mut [u8], Malformed> {
        let was_full = self.end == self.buffer.len() && self.start < self.end;
        if self.is_empty() {
            (self.start, self.end) = (0, 0);
        } else if self.start > 0 {
            copied(self.end - self.start);
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let known = frame(self.bytes())?;
        let len = known.unwrap_or(0);
        let wanted = match self.buffer.len() {
            have if was_full && (have < Input::MANY || known.is_none()) => (have * 4).max(len),
            have => have.max(len).max(Input::SMALL),
        };
        if wanted > Input::MANY && wanted > self.buffer.len() {
            // Fresh pages take no memory until something comes into them: the peer may send no more than
            // this message's beginning.
            let mut larger = vec![0; wanted];
            copied(self.end);
            larger[..self.end].copy_from_slice(&self.buffer[..self.end]);
            self.buffer = larger;
        } else {
            self.buffer.resize(wanted, 0);
        }
        let until = match known {
            Some(len) if len > Input::MANY => len,
            None if self.end >= Input::MANY => wanted,
            _ => wanted.min(Input::MANY),
        };
        Ok(&mut self.buffer[self.end..until])
    }

    /// What stands at `range`, the last that was taken out, for as long as it is in flight. A large message that nothing stands
    /// behind has the buffer with it: its pages cost as much to get as to copy.
    pub(crate) fn keep(&mut self, range: Range<usize>) -> Held {
        let takes_along = range.len() >= Input::MANY && range.len() >= self.buffer.len() / 2;
        if !self.is_empty() || !takes_along {
            return Held::copy(&self.buffer[range]);
        }
        (self.start, self.end) = (0, 0);
        Held {
            buffer: std::mem::replace(&mut self.buffer, self.spares.take()),
            range,
            home: Some(self.spares.clone()),
        }
    }

    /// Whether it has memory, or will, that only many or large messages need.
    #[cfg(test)]
    fn is_large(&self) -> bool {
        self.buffer.len() > Input::SMALL || self.spares.all().is_some()
    }

    pub(crate) fn shrink(&mut self) {
        if self.is_empty() {
            self.buffer = Vec::new();
            *self.spares.all() = None;
        }
    }
}

/// A message in flight.
pub(crate) struct Held {
    buffer: Vec<u8>,
    range: Range<usize>,
    /// Where the buffer goes when it is answered.
    home: Option<Arc<Spares>>,
}

impl Held {
    pub(crate) fn copy(message: &[u8]) -> Held {
        copied(message.len());
        Held {
            buffer: message.to_vec(),
            range: 0..message.len(),
            home: None,
        }
    }
}

impl Deref for Held {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buffer[self.range.clone()]
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(home) = &self.home {
            home.give_back(std::mem::take(&mut self.buffer));
        }
    }
}

/// Buffers that large messages took along and that came back; nothing while none are wanted.
#[derive(Default)]
struct Spares(Mutex<Option<Vec<Vec<u8>>>>);

impl Spares {
    /// As many as workers are at once at large messages of a connection, as a rule.
    const MOST: usize = 4;

    fn take(&self) -> Vec<u8> {
        self.all().get_or_insert_default().pop().unwrap_or_default()
    }

    fn give_back(&self, buffer: Vec<u8>) {
        if let Some(all) = &mut *self.all()
            && all.len() < Spares::MOST
        {
            all.push(buffer);
        }
    }

    fn all(&self) -> MutexGuard<'_, Option<Vec<Vec<u8>>>> {
        self.0.lock().expect("no panic holds it")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGE: usize = 1 << 20;

    /// An input that a large message has come to, which is taken out.
    fn received(input: &mut Input, behind: &[u8]) -> Range<usize> {
        let frame = |head: &[u8]| Ok((!head.is_empty()).then_some(LARGE));
        input.space(frame).expect("room")[0] = 7;
        input.end += 1;
        while input.end < LARGE {
            input.end += input.space(frame).expect("room").len();
        }
        input.buffer.extend_from_slice(behind);
        input.end += behind.len();
        input.start = LARGE;
        0..LARGE
    }

    #[test]
    fn a_large_message_takes_the_buffer_along_and_the_buffer_comes_back() {
        let mut input = Input::default();
        let range = received(&mut input, b"");
        let at = input.buffer.as_ptr();
        let kept = input.keep(range);
        assert_eq!((kept.as_ptr(), kept.len(), kept[0]), (at, LARGE, 7));
        assert!(input.is_empty() && input.is_large());
        drop(kept);
        let range = received(&mut input, b"");
        drop(input.keep(range));
        assert_eq!(input.buffer.as_ptr(), at, "there are two by now");
    }

    #[test]
    fn what_something_stands_behind_is_copied() {
        let mut input = Input::default();
        let range = received(&mut input, b"next");
        let kept = input.keep(range);
        assert_eq!((kept.len(), kept[0]), (LARGE, 7));
        assert_eq!(input.bytes(), b"next");
    }

    #[test]
    fn an_input_that_has_shrunk_keeps_nothing_that_comes_back() {
        let mut input = Input::default();
        let range = received(&mut input, b"");
        let kept = input.keep(range);
        input.shrink();
        drop(kept);
        assert!(!input.is_large() && input.spares.all().is_none());
    }

    #[test]
    fn there_is_room_for_a_message_that_does_not_say_how_long_it_is() {
        const LEN: usize = 1 << 20;
        let frame = |head: &[u8]| Ok((head.len() >= LEN).then_some(LEN));
        let mut input = Input::default();
        while input.end < LEN {
            let space = input.space(frame).expect("no end yet").len();
            assert!(space > 0, "after {} bytes", input.end);
            input.end += space.min(LEN - input.end);
        }
        assert!(input.buffer.len() <= 4 * LEN);
        // The next one has to say more before it gets as much.
        input.start = input.end;
        assert_eq!(input.space(frame).map(|space| space.len()), Ok(Input::MANY));
    }
}
