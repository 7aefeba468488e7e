//! A lane's receive buffer.

use std::ops::{Deref, Range};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use sys::pages::PageBuffer;
use vfs::copies::count_copied;
use wire::Malformed;

use vfs::memory::{Need, Reservation};

/// Bytes received and not served yet.
pub(crate) struct Input {
    pub(crate) buffer: PageBuffer,
    pub(crate) start: usize,
    pub(crate) end: usize,
    spares: Arc<SpareBuffers>,
    /// The reservation for the part of the buffer that exceeds, or has exceeded,
    /// [`Input::SMALL_BUFFER`], which every connection may use.
    memory: Reservation,
}

impl Input {
    /// The buffer size for small messages: hundreds of requests without a payload.
    const SMALL_BUFFER: usize = 16 << 10;

    /// The buffer size for many messages with a page of payload each.
    const LARGE_BUFFER: usize = 256 << 10;

    /// Creates an empty input, with the reservation `memory`.
    pub(crate) fn new(memory: Reservation) -> Input {
        Input {
            buffer: PageBuffer::new(),
            start: 0,
            end: 0,
            spares: Arc::default(),
            memory,
        }
    }

    /// Adds bytes that another process has received. The input is empty.
    pub(crate) fn prepend(&mut self, bytes: &[u8]) {
        self.buffer.grow(bytes.len().max(Input::SMALL_BUFFER));
        self.buffer[..bytes.len()].copy_from_slice(bytes);
        (self.start, self.end) = (0, bytes.len());
        self.memory
            .set(bytes.len().saturating_sub(Input::SMALL_BUFFER));
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Returns the space to receive into, never empty, or the memory to wait for. For a large
    /// message that has begun it is exactly the rest, so that no part of the next message has to be
    /// moved afterwards. Memory for the whole message is reserved first, so that partly received
    /// messages do not block each other. A message of unknown length may grow as far as `frame`
    /// allows.
    pub(crate) fn space(
        &mut self,
        frame: impl Fn(&[u8]) -> Result<Option<usize>, Malformed>,
    ) -> Result<Result<&mut [u8], Need>, Malformed> {
        let was_full = self.end == self.buffer.len() && self.start < self.end;
        if self.is_empty() {
            (self.start, self.end) = (0, 0);
        } else if self.start > 0 {
            count_copied(self.end - self.start);
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let known = frame(self.bytes())?;
        let len = known.unwrap_or(0);
        let wanted = match self.buffer.len() {
            have if was_full && (have < Input::LARGE_BUFFER || known.is_none()) => {
                (have * 4).max(len)
            }
            have => have.max(len).max(Input::SMALL_BUFFER),
        };
        let until = match known {
            Some(len) if len > Input::LARGE_BUFFER => len,
            None if self.end >= Input::LARGE_BUFFER => wanted,
            _ => wanted.min(Input::LARGE_BUFFER),
        };
        // The minimum to make progress, if memory is short.
        let least = known
            .unwrap_or(self.end + 1)
            .max(Input::SMALL_BUFFER)
            .min(until);
        let Some(until) = [until, least]
            .into_iter()
            .find(|&until| self.reserve(until))
        else {
            // Spare buffers may hold the memory that this connection and others wait for.
            self.release_spares();
            let more = least - Input::SMALL_BUFFER - self.memory.bytes();
            return Ok(Err(Need::Request(more)));
        };
        let wanted = match until > least {
            true => wanted,
            false => self.buffer.len().max(until),
        };
        // Fresh pages take no memory until they are written: the peer may send only the beginning
        // of a message.
        self.buffer.grow(wanted);
        Ok(Ok(&mut self.buffer[self.end..until]))
    }

    /// Reserves memory for a buffer of `bytes`; returns whether there was room.
    fn reserve(&mut self, bytes: usize) -> bool {
        let beyond = bytes.saturating_sub(Input::SMALL_BUFFER);
        beyond <= self.memory.bytes() || self.memory.try_set(beyond)
    }

    /// Detaches the message at `range`, the last one taken, for as long as it is in flight. A large
    /// message that no other follows takes the buffer along: new pages cost as much as a copy.
    pub(crate) fn detach(&mut self, range: Range<usize>) -> DetachedMessage {
        if !self.takes_buffer(&range) {
            return DetachedMessage::copy(&self.buffer[range], self.memory.sibling());
        }
        (self.start, self.end) = (0, 0);
        let (buffer, memory) = self
            .spares
            .take()
            .unwrap_or_else(|| (PageBuffer::new(), self.memory.sibling()));
        DetachedMessage::Buffer {
            buffer: std::mem::replace(&mut self.buffer, buffer),
            range,
            home: self.spares.clone(),
            memory: Some(std::mem::replace(&mut self.memory, memory)),
        }
    }

    /// Returns whether the message at `range` takes the buffer along instead of being copied.
    fn takes_buffer(&self, range: &Range<usize>) -> bool {
        self.is_empty()
            && range.len() >= Input::LARGE_BUFFER
            && range.len() >= self.buffer.len() / 2
    }

    /// Returns whether the message at `range` can be detached without its copy exceeding the
    /// client's share.
    pub(crate) fn may_detach(&self, range: &Range<usize>) -> bool {
        self.takes_buffer(range) || self.memory.sibling().try_set(range.len())
    }

    /// Returns whether it has, or will get, memory that only many or large messages need.
    #[cfg(test)]
    fn is_large(&self) -> bool {
        self.buffer.len() > Input::SMALL_BUFFER || self.spares.all().is_some()
    }

    pub(crate) fn shrink(&mut self) {
        if self.is_empty() {
            self.buffer = PageBuffer::new();
            self.memory.set(0);
            self.release_spares();
        }
    }

    /// Drops the spare buffers, and those of messages in flight once they are answered.
    fn release_spares(&self) {
        *self.spares.all() = None;
    }
}

/// A message in flight.
pub(crate) enum DetachedMessage {
    /// A copy of a small message.
    Copy {
        bytes: Vec<u8>,
        _memory: Reservation,
    },
    /// A large message in the buffer that received it.
    Buffer {
        buffer: PageBuffer,
        range: Range<usize>,
        /// The destination of the buffer once the message is answered.
        home: Arc<SpareBuffers>,
        /// Present until dropped.
        memory: Option<Reservation>,
    },
}

impl DetachedMessage {
    /// Copies a message, and reserves its memory in `memory` regardless of the limit.
    pub(crate) fn copy(message: &[u8], mut memory: Reservation) -> DetachedMessage {
        count_copied(message.len());
        memory.set(message.len());
        DetachedMessage::Copy {
            bytes: message.to_vec(),
            _memory: memory,
        }
    }
}

impl Deref for DetachedMessage {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            DetachedMessage::Copy { bytes, .. } => bytes,
            DetachedMessage::Buffer { buffer, range, .. } => &buffer[range.clone()],
        }
    }
}

impl Drop for DetachedMessage {
    fn drop(&mut self) {
        if let DetachedMessage::Buffer {
            buffer,
            home,
            memory,
            ..
        } = self
            && let Some(memory) = memory.take()
        {
            home.put((std::mem::take(buffer), memory));
        }
    }
}

/// Buffers that large messages took along and returned; `None` while none are wanted.
#[derive(Default)]
pub(crate) struct SpareBuffers(Mutex<Option<Vec<SpareBuffer>>>);

/// A buffer and its reservation.
type SpareBuffer = (PageBuffer, Reservation);

impl SpareBuffers {
    /// The maximum number of buffers: as many as workers usually serve large messages of a
    /// connection at once.
    const MAX_BUFFERS: usize = 4;

    fn take(&self) -> Option<SpareBuffer> {
        self.all().get_or_insert_default().pop()
    }

    fn put(&self, buffer: SpareBuffer) {
        if let Some(all) = &mut *self.all()
            && all.len() < SpareBuffers::MAX_BUFFERS
        {
            all.push(buffer);
        }
    }

    fn all(&self) -> MutexGuard<'_, Option<Vec<SpareBuffer>>> {
        self.0.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use vfs::memory::{MemoryBudget, Purpose};

    const LARGE: usize = 1 << 20;

    fn input(limit: usize) -> Input {
        let budget = MemoryBudget::new(limit);
        Input::new(budget.reservation(vfs::peer::PeerKey::Inherited, Purpose::Request))
    }

    /// Simulates the arrival of a large message, which is taken from the input.
    fn received(input: &mut Input, behind: &[u8]) -> Range<usize> {
        let frame = |head: &[u8]| Ok((!head.is_empty()).then_some(LARGE));
        input.space(frame).expect("room").expect("memory")[0] = 7;
        input.end += 1;
        while input.end < LARGE {
            input.end += input.space(frame).expect("room").expect("memory").len();
        }
        input.buffer.grow(LARGE + behind.len());
        input.buffer[LARGE..][..behind.len()].copy_from_slice(behind);
        input.end += behind.len();
        input.start = LARGE;
        0..LARGE
    }

    #[test]
    fn a_large_message_takes_the_buffer_along_and_the_buffer_comes_back() {
        let mut input = input(usize::MAX >> 1);
        let range = received(&mut input, b"");
        let at = input.buffer.as_ptr();
        let detached = input.detach(range);
        assert_eq!(
            (detached.as_ptr(), detached.len(), detached[0]),
            (at, LARGE, 7)
        );
        assert!(input.is_empty() && input.is_large());
        drop(detached);
        let range = received(&mut input, b"");
        drop(input.detach(range));
        assert_eq!(input.buffer.as_ptr(), at, "there are two by now");
    }

    #[test]
    fn what_something_stands_behind_is_copied() {
        let mut input = input(usize::MAX >> 1);
        let range = received(&mut input, b"next");
        let detached = input.detach(range);
        assert_eq!((detached.len(), detached[0]), (LARGE, 7));
        assert_eq!(input.bytes(), b"next");
    }

    #[test]
    fn an_input_that_has_shrunk_keeps_nothing_that_comes_back() {
        let mut input = input(usize::MAX >> 1);
        let range = received(&mut input, b"");
        let detached = input.detach(range);
        input.shrink();
        drop(detached);
        assert!(!input.is_large() && input.spares.all().is_none());
    }

    #[test]
    fn an_input_that_waits_for_memory_keeps_no_spare_buffers() {
        let frame = |head: &[u8]| Ok((!head.is_empty()).then_some(LARGE));
        let budget = MemoryBudget::new(LARGE);
        let memory = budget.reservation(vfs::peer::PeerKey::Inherited, Purpose::Request);
        let mut input = Input::new(memory);
        // A request beyond the client's share: there is no other one meanwhile.
        let range = received(&mut input, b"");
        drop(input.detach(range));
        assert!(budget.used() > 0, "a spare buffer");
        input.space(frame).expect("room").expect("memory")[0] = 7;
        input.end += 1;
        assert!(input.space(frame).expect("room").is_err());
        assert_eq!(budget.used(), 0);
        assert!(input.space(frame).expect("room").is_ok());
        // A message that is answered only then leaves no spare buffer, either.
        input.end = 0;
        let range = received(&mut input, b"");
        let in_flight = input.detach(range);
        input.space(frame).expect("room").expect("memory")[0] = 7;
        input.end += 1;
        assert!(input.space(frame).expect("room").is_err());
        drop(in_flight);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn there_is_room_for_a_message_that_does_not_say_how_long_it_is() {
        const LEN: usize = 1 << 20;
        let frame = |head: &[u8]| Ok((head.len() >= LEN).then_some(LEN));
        let mut input = input(usize::MAX >> 1);
        while input.end < LEN {
            let space = input
                .space(frame)
                .expect("no end yet")
                .expect("memory")
                .len();
            assert!(space > 0, "after {} bytes", input.end);
            input.end += space.min(LEN - input.end);
        }
        assert!(input.buffer.len() <= 4 * LEN);
        // The next message has to send more before it gets as much.
        input.start = input.end;
        let space = input
            .space(frame)
            .map(|space| space.map(|space| space.len()));
        assert_eq!(space, Ok(Ok(Input::LARGE_BUFFER)));
    }

    #[test]
    fn a_large_message_has_all_its_memory_or_waits_for_it() {
        let frame = |head: &[u8]| Ok((!head.is_empty()).then_some(LARGE));
        let budget = MemoryBudget::new(6 * LARGE);
        let input = || {
            let mut input =
                Input::new(budget.reservation(vfs::peer::PeerKey::Inherited, Purpose::Request));
            input.space(frame).expect("room").expect("memory")[0] = 7;
            input.end = 1;
            input
        };
        // Two fit the client's share, and one exceeds it.
        let mut all = [input(), input(), input(), input()];
        let had = all.each_mut().map(|input| {
            let space = input.space(frame).expect("room");
            space.map(|space| space.len())
        });
        let (rest, need) = (Ok(LARGE - 1), Need::Request(LARGE - Input::SMALL_BUFFER));
        assert_eq!(had, [rest, rest, rest, Err(need)]);
        let [.., third, last] = &mut all;
        (third.start, third.end) = (0, 0);
        third.shrink();
        assert!(last.space(frame).expect("room").is_ok());
    }
}
