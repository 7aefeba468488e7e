//! What a lane has received.

use vfs::copies::copied;
use wire::Malformed;

/// What has come and is not answered yet.
#[derive(Default)]
pub(crate) struct Input {
    pub(crate) buffer: Vec<u8>,
    pub(crate) start: usize,
    pub(crate) end: usize,
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

    pub(crate) fn is_large(&self) -> bool {
        self.buffer.len() > Input::SMALL
    }

    pub(crate) fn shrink(&mut self) {
        if self.is_empty() {
            *self = Input::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
