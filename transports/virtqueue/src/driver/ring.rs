//! A queue, as its driver has it: a split ring (virtio 1.3, 2.7), and for each request memory of its own.
//!
//! Any thread may put requests in and wait for their replies. Of those that wait, one (the leader) looks
//! for what the device gives back, and the others sleep until theirs is there.
//!
//! The device is not trusted: what it gives back that it does not have, or longer than there is room, ends
//! the queue.
//!
//! Lock order: the queue's one mutex, never held across a wait for the device.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU16, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use transports::TICK;
use vm_memory::volatile_memory::{VolatileMemory, VolatileSlice};
use vm_memory::{Bytes, MmapRegion};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::EventFd;

/// Where in its memory a queue has what.
#[derive(Clone, Copy)]
pub(super) struct Layout {
    depth: usize,
    payload: usize,
}

impl Layout {
    const PAGE: usize = 4096;

    /// Descriptors of a request: two to read, two to write.
    const DESCRIPTORS: usize = 4;

    /// Bytes of a descriptor.
    const DESCRIPTOR: usize = 16;

    /// Behind the request, where its reply begins.
    const REPLY_AT: usize = Queue::INLINE;

    const PAYLOAD_AT: usize = (Layout::REPLY_AT + Queue::REPLY).next_multiple_of(Layout::PAGE);

    pub(super) fn new(depth: u16, payload: usize) -> Layout {
        Layout {
            depth: (usize::from(depth) + Queue::SPARE)
                .clamp(4, 256)
                .next_power_of_two(),
            payload: payload.next_multiple_of(Layout::PAGE),
        }
    }

    pub(super) fn size(&self) -> u16 {
        (self.depth * Layout::DESCRIPTORS) as u16
    }

    pub(super) fn descriptors(&self) -> usize {
        0
    }

    pub(super) fn available(&self) -> usize {
        self.descriptors() + usize::from(self.size()) * Layout::DESCRIPTOR
    }

    pub(super) fn used(&self) -> usize {
        // Flags, index, a number each, and the event.
        (self.available() + 6 + 2 * usize::from(self.size())).next_multiple_of(Layout::PAGE)
    }

    fn slots(&self) -> usize {
        (self.used() + 6 + 8 * usize::from(self.size())).next_multiple_of(Layout::PAGE)
    }

    fn slot(&self, slot: u16) -> usize {
        self.slots() + usize::from(slot) * (Layout::PAYLOAD_AT + self.payload)
    }

    pub(super) fn bytes(&self) -> usize {
        self.slot(self.depth as u16)
    }
}

/// What a queue is made of.
pub(super) struct Shared {
    pub(super) memory: Arc<MmapRegion<()>>,
    /// Where in it the queue's part begins.
    pub(super) begin: usize,
    pub(super) layout: Layout,
    pub(super) event_idx: bool,
    pub(super) kick: EventFd,
    pub(super) call: EventFd,
    pub(super) events: Events,
    pub(super) poll: Duration,
}

/// What a queue sleeps on: the device tells of a reply, or is gone.
pub(super) struct Events(Epoll);

impl Events {
    const CALL: u64 = 0;
    const DEVICE: u64 = 1;

    pub(super) fn new(call: &EventFd, device: &UnixStream) -> io::Result<Events> {
        let epoll = Epoll::new()?;
        let gone = EventSet::IN | EventSet::READ_HANG_UP;
        for (fd, events, which) in [
            (call.as_raw_fd(), EventSet::IN, Events::CALL),
            (device.as_raw_fd(), gone, Events::DEVICE),
        ] {
            epoll.ctl(ControlOperation::Add, fd, EpollEvent::new(events, which))?;
        }
        Ok(Events(epoll))
    }

    /// Waits for either, but no longer than a [`TICK`]; false if the device is gone.
    fn wait(&self) -> io::Result<bool> {
        let mut events = [EpollEvent::default(); 2];
        match self.0.wait(TICK.as_millis() as i32, &mut events) {
            Ok(0) => Ok(true),
            Ok(count) => Ok(events[..count]
                .iter()
                .any(|event| event.data() == Events::CALL)),
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(true),
            Err(error) => Err(error),
        }
    }
}

/// A queue of a device.
pub struct Queue {
    shared: Shared,
    state: Mutex<State>,
    /// Rung when something came, or nobody leads any more.
    bell: Condvar,
}

struct State {
    slots: Vec<Phase>,
    free: Vec<u16>,
    /// How many requests were made available, and how many of them the device may not know of.
    available: u16,
    untold: u16,
    /// How many were seen to be given back.
    used: u16,
    /// Replies that are nobody's in particular, in their order.
    came: VecDeque<Came>,
    leading: bool,
    failed: Option<&'static str>,
}

/// What becomes of a slot.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Free, or being filled.
    Ours,
    /// The device has it, and may write so many bytes.
    There { room: u32 },
    /// The same, and nobody waits for it.
    Forgotten { room: u32 },
    /// The same, and its reply is for whoever asks for any.
    Posted { room: u32, inline: u32 },
    /// It is back with so many bytes written.
    Back { len: u32 },
}

/// A reply that is nobody's in particular.
pub(super) struct Came {
    slot: u16,
    /// How many bytes it has, and how many of them inline at most.
    pub(super) len: usize,
    inline: usize,
}

impl State {
    /// A slot, if more than `keep` are free.
    fn take(&mut self, keep: usize) -> Option<u16> {
        match self.free.len() > keep {
            true => self.free.pop(),
            false => None,
        }
    }
}

/// How long the parts of a request and of its reply are, bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lengths {
    /// Of the request, what is inline.
    pub request: usize,
    /// Of the request, what stands in the payload behind that.
    pub request_payload: usize,
    /// Of the reply, what may come inline.
    pub reply: usize,
    /// Of the reply, what may come into the payload behind that.
    pub reply_payload: usize,
}

impl Lengths {
    /// How many bytes the device may write.
    fn room(&self) -> u32 {
        (self.reply + self.reply_payload) as u32
    }
}

/// A request being made: memory that the device will see. Dropping it gives it up.
pub struct Chain<'q> {
    queue: &'q Queue,
    slot: u16,
}

/// A request that the device has. Dropping it forgets the reply.
#[must_use = "a reply that nobody waits for is forgotten"]
pub struct Ticket<'q> {
    queue: &'q Queue,
    slot: u16,
    /// How much of the reply may come inline.
    inline: usize,
}

/// A reply, where the device has put it.
pub struct Reply<'q> {
    chain: Chain<'q>,
    len: usize,
    inline: usize,
}

impl Queue {
    /// Bytes of a request that go without payload: arguments and two names of the longest.
    pub const INLINE: usize = 8192;

    /// Bytes of a reply that come without payload.
    pub const REPLY: usize = 512;

    /// So many slots are for [`Queue::spare_chain`] alone.
    const SPARE: usize = 2;

    pub(super) fn new(shared: Shared) -> Queue {
        let depth = shared.layout.depth as u16;
        Queue {
            shared,
            state: Mutex::new(State {
                slots: vec![Phase::Ours; usize::from(depth)],
                free: (0..depth).rev().collect(),
                available: 0,
                untold: 0,
                used: 0,
                came: VecDeque::new(),
                leading: false,
                failed: None,
            }),
            bell: Condvar::new(),
        }
    }

    /// Room for a request; waits for it if there is none, so who asks must not hold back what others wait
    /// for. `TimedOut` once it is `over`, which is looked at now and then.
    pub fn chain(&self, over: impl Fn() -> bool) -> io::Result<Chain<'_>> {
        let slot = self.until(over, |state| state.take(Queue::SPARE))?;
        Ok(Chain { queue: self, slot })
    }

    /// Room for a request, if there is any.
    pub fn try_chain(&self) -> Option<Chain<'_>> {
        self.take(Queue::SPARE)
    }

    /// Room for a request that ends another, of which there is some when other requests have none.
    pub fn spare_chain(&self) -> Option<Chain<'_>> {
        self.take(0)
    }

    fn take(&self, keep: usize) -> Option<Chain<'_>> {
        let mut state = self.state();
        if state.free.len() <= keep {
            self.reap(&mut state);
        }
        let slot = state.take(keep)?;
        Some(Chain { queue: self, slot })
    }

    /// Tells the device of what it may not know of yet. Waiting does so as well.
    pub fn kick(&self) {
        let mut state = self.state();
        self.tell(&mut state);
    }

    /// A request that was put aside.
    pub(super) fn resume(&self, slot: u16) -> Chain<'_> {
        Chain { queue: self, slot }
    }

    /// The next reply to a request that was posted, if one has come. Errs once the queue is of no use any more.
    pub(super) fn any(&self) -> io::Result<Option<Came>> {
        let mut state = self.state();
        self.reap(&mut state);
        match (state.came.pop_front(), state.failed) {
            (None, Some(why)) => Err(io::Error::new(ErrorKind::BrokenPipe, why)),
            (came, _) => Ok(came),
        }
    }

    /// Whether there is a reply to a request that was posted, or never will be.
    pub(super) fn has_any(&self) -> bool {
        let mut state = self.state();
        self.reap(&mut state);
        !state.came.is_empty() || state.failed.is_some()
    }

    /// Whether there is room for a request.
    pub(super) fn has_room(&self) -> bool {
        self.state().free.len() > Queue::SPARE
    }

    /// Copies what stands at `at` on of a reply, within its length.
    pub(super) fn load_any(&self, came: &Came, at: usize, bytes: &mut [u8]) {
        assert!(at + bytes.len() <= came.len, "a reply is in bounds");
        let (inline, payload) = bytes.split_at_mut(came.inline.saturating_sub(at).min(bytes.len()));
        let begin = self.shared.layout.slot(came.slot);
        self.load(begin + Layout::REPLY_AT + at.min(came.inline), inline);
        let behind = at.saturating_sub(came.inline);
        self.load(begin + Layout::PAYLOAD_AT + behind, payload);
    }

    /// Has no more use for a reply.
    pub(super) fn give_up(&self, came: Came) {
        drop(self.resume(came.slot));
    }

    /// The device tells when it gives back something that [`Queue::any`] has not seen; false if there is something already.
    pub(super) fn arm(&self) -> bool {
        let used = self.state().used;
        self.ask_to_be_told(Some(used));
        self.number(self.shared.layout.used() + 2)
            .load(Ordering::Acquire)
            == used
    }

    /// It need not tell any more, and what it told is heard.
    pub(super) fn disarm(&self) {
        self.ask_to_be_told(None);
        let _ = self.shared.call.read();
    }

    /// What the device tells by.
    pub(super) fn call(&self) -> &EventFd {
        &self.shared.call
    }

    fn wait(&self, slot: u16, over: impl Fn() -> bool) -> io::Result<usize> {
        self.until(over, |state| match state.slots[usize::from(slot)] {
            Phase::Back { len } => {
                state.slots[usize::from(slot)] = Phase::Ours;
                Some(len as usize)
            }
            _ => None,
        })
    }

    /// Waits until there is what `look` looks for, or it is `over`.
    fn until<T>(
        &self,
        over: impl Fn() -> bool,
        mut look: impl FnMut(&mut State) -> Option<T>,
    ) -> io::Result<T> {
        let mut looked = Instant::now();
        let mut state = self.state();
        loop {
            if let Some(found) = look(&mut state) {
                return Ok(found);
            }
            if let Some(why) = state.failed {
                return Err(io::Error::new(ErrorKind::BrokenPipe, why));
            }
            self.tell(&mut state);
            if looked.elapsed() >= TICK {
                if over() {
                    return Err(ErrorKind::TimedOut.into());
                }
                looked = Instant::now();
            }
            if state.leading {
                state = self.bell.wait_timeout(state, TICK).expect(POISON).0;
                continue;
            }
            if self.reap(&mut state) {
                continue;
            }
            state.leading = true;
            let used = state.used;
            drop(state);
            let paused = self.pause(used);
            state = self.state();
            state.leading = false;
            if let Err(why) = paused {
                self.fail(&mut state, why);
            }
            self.reap(&mut state);
            self.bell.notify_all();
        }
    }

    /// Waits until the device has given back more than `used`, or a moment.
    fn pause(&self, used: u16) -> Result<(), &'static str> {
        let there = self.number(self.shared.layout.used() + 2);
        if !self.shared.poll.is_zero() {
            let begun = Instant::now();
            loop {
                for _ in 0..64 {
                    if there.load(Ordering::Acquire) != used {
                        return Ok(());
                    }
                    std::hint::spin_loop();
                }
                if begun.elapsed() >= self.shared.poll {
                    break;
                }
            }
        }
        self.ask_to_be_told(Some(used));
        if there.load(Ordering::Acquire) == used {
            match self.shared.events.wait() {
                // There is nothing to read if a signal came instead.
                Ok(true) => drop(self.shared.call.read()),
                Ok(false) => return Err("the device has ended the connection"),
                Err(_) => return Err("cannot wait for the device"),
            }
        }
        self.ask_to_be_told(None);
        Ok(())
    }

    /// The device tells when it gives back the request behind `used`, or need not tell.
    fn ask_to_be_told(&self, used: Option<u16>) {
        let layout = &self.shared.layout;
        if self.shared.event_idx {
            // One that is behind is not reached before the numbers have gone round.
            if let Some(used) = used {
                let event = layout.available() + 4 + 2 * usize::from(layout.size());
                self.number(event).store(used, Ordering::Relaxed);
            }
        } else {
            let flags = u16::from(used.is_none());
            self.number(layout.available())
                .store(flags, Ordering::Relaxed);
        }
        // Before the look whether it has come meanwhile.
        fence(Ordering::SeqCst);
    }

    /// Takes what the device has given back; says whether that was anything.
    fn reap(&self, state: &mut State) -> bool {
        let layout = &self.shared.layout;
        let there = self.number(layout.used() + 2).load(Ordering::Acquire);
        let any = state.used != there;
        while state.used != there && state.failed.is_none() {
            let place = usize::from(state.used % layout.size());
            let mut element = [0; 8];
            self.load(layout.used() + 4 + 8 * place, &mut element);
            let [id, len] = [&element[..4], &element[4..]]
                .map(|bytes| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
            state.used = state.used.wrapping_add(1);
            let slot = id / Layout::DESCRIPTORS as u32;
            let whole = id % Layout::DESCRIPTORS as u32 == 0;
            match state.slots.get_mut(slot as usize) {
                Some(phase @ &mut Phase::There { room }) if whole && len <= room => {
                    *phase = Phase::Back { len };
                }
                Some(phase @ &mut Phase::Forgotten { room }) if whole && len <= room => {
                    *phase = Phase::Ours;
                    state.free.push(slot as u16);
                }
                Some(phase @ &mut Phase::Posted { room, inline }) if whole && len <= room => {
                    *phase = Phase::Ours;
                    state.came.push_back(Came {
                        slot: slot as u16,
                        len: len as usize,
                        inline: inline as usize,
                    });
                }
                _ => self.fail(state, "the device gave back what it did not have"),
            }
        }
        any
    }

    fn fail(&self, state: &mut State, why: &'static str) {
        state.failed.get_or_insert(why);
        self.bell.notify_all();
    }

    fn publish(&self, slot: u16, lengths: &Lengths, phase: Phase) {
        let layout = &self.shared.layout;
        let head = slot * Layout::DESCRIPTORS as u16;
        self.describe(slot, head, lengths);
        let mut state = self.state();
        state.slots[usize::from(slot)] = phase;
        let place = usize::from(state.available % layout.size());
        self.number(layout.available() + 4 + 2 * place)
            .store(head, Ordering::Relaxed);
        state.available = state.available.wrapping_add(1);
        state.untold += 1;
        self.number(layout.available() + 2)
            .store(state.available, Ordering::Release);
    }

    /// Writes the descriptors of a request.
    fn describe(&self, slot: u16, head: u16, lengths: &Lengths) {
        const NEXT: u16 = 1;
        const WRITE: u16 = 2;
        let layout = &self.shared.layout;
        let at = super::BASE + (self.shared.begin + layout.slot(slot)) as u64;
        let pieces = [
            (0, lengths.request, 0),
            (Layout::PAYLOAD_AT, lengths.request_payload, 0),
            (Layout::REPLY_AT, lengths.reply, WRITE),
            (Layout::PAYLOAD_AT, lengths.reply_payload, WRITE),
        ];
        let mut pieces = pieces.iter().filter(|piece| piece.1 > 0).peekable();
        let mut index = head;
        while let Some(&(offset, len, flags)) = pieces.next() {
            let flags = flags | if pieces.peek().is_some() { NEXT } else { 0 };
            let mut bytes = [0; Layout::DESCRIPTOR];
            bytes[..8].copy_from_slice(&(at + offset as u64).to_le_bytes());
            bytes[8..12].copy_from_slice(&(len as u32).to_le_bytes());
            bytes[12..14].copy_from_slice(&u16::to_le_bytes(flags));
            bytes[14..].copy_from_slice(&(index + 1).to_le_bytes());
            let place = usize::from(index) * Layout::DESCRIPTOR;
            self.store(layout.descriptors() + place, &bytes);
            index += 1;
        }
    }

    fn tell(&self, state: &mut State) {
        if state.untold == 0 {
            return;
        }
        let layout = &self.shared.layout;
        // Between telling what is available and looking whether the device wants to hear of it.
        fence(Ordering::SeqCst);
        let wanted = if self.shared.event_idx {
            let event = layout.used() + 4 + 8 * usize::from(layout.size());
            let event = self.number(event).load(Ordering::Relaxed);
            state.available.wrapping_sub(event).wrapping_sub(1) < state.untold
        } else {
            self.number(layout.used()).load(Ordering::Relaxed) & 1 == 0
        };
        state.untold = 0;
        if wanted {
            // Fails only when the device has not looked for longer than the event can count.
            let _ = self.shared.kick.write(1);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect(POISON)
    }

    fn memory(&self) -> VolatileSlice<'_, ()> {
        self.shared.memory.as_volatile_slice()
    }

    /// A number that the device sees.
    fn number(&self, at: usize) -> &AtomicU16 {
        // In the machine's own order, which is little-endian where barge runs.
        let number = self.shared.memory.get_atomic_ref(self.shared.begin + at);
        number.expect("a place within the queue")
    }

    fn store(&self, at: usize, bytes: &[u8]) {
        let stored = self.memory().write_slice(bytes, self.shared.begin + at);
        stored.expect("a place within the queue");
    }

    fn load(&self, at: usize, bytes: &mut [u8]) {
        let loaded = self.memory().read_slice(bytes, self.shared.begin + at);
        loaded.expect("a place within the queue");
    }
}

const POISON: &str = "no panic holds it";

impl<'q> Chain<'q> {
    /// Writes the beginning of the request, at most [`Queue::INLINE`] bytes.
    pub fn request(&mut self, bytes: &[u8]) {
        self.request_at(0, bytes);
    }

    /// Writes a part of the beginning of the request.
    pub(super) fn request_at(&mut self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= Queue::INLINE, "a request is in bounds");
        self.queue.store(self.at(at), bytes);
    }

    /// Writes a part of the payload.
    pub fn payload(&mut self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.room(), "a payload is in bounds");
        self.queue.store(self.at(Layout::PAYLOAD_AT + at), bytes);
    }

    /// How many bytes of payload there may be.
    pub fn room(&self) -> usize {
        self.queue.shared.layout.payload
    }

    /// Has the device see it, which may have to be told: [`Queue::kick`].
    pub fn submit(self, lengths: Lengths) -> Ticket<'q> {
        let (queue, slot, inline) = (self.queue, self.slot, lengths.reply);
        let room = lengths.room();
        self.publish(&lengths, Phase::There { room });
        Ticket {
            queue,
            slot,
            inline,
        }
    }

    /// [`Chain::submit`], and the reply is for whoever asks for any: [`Queue::any`].
    pub(super) fn post(self, lengths: Lengths) {
        let (room, inline) = (lengths.room(), lengths.reply as u32);
        self.publish(&lengths, Phase::Posted { room, inline });
    }

    fn publish(self, lengths: &Lengths, phase: Phase) {
        let &Lengths {
            request,
            request_payload,
            reply,
            reply_payload,
        } = lengths;
        assert!(
            (1..=Queue::INLINE).contains(&request)
                && reply <= Queue::REPLY
                && request_payload.max(reply_payload) <= self.room()
                && (request_payload == 0 || reply_payload == 0),
            "{lengths:?}"
        );
        let (queue, slot) = (self.queue, self.slot);
        std::mem::forget(self);
        queue.publish(slot, lengths, phase);
    }

    /// What is put aside, to go on with by [`Queue::resume`].
    pub(super) fn put_aside(self) -> u16 {
        let slot = self.slot;
        std::mem::forget(self);
        slot
    }

    fn at(&self, offset: usize) -> usize {
        self.queue.shared.layout.slot(self.slot) + offset
    }
}

impl Drop for Chain<'_> {
    fn drop(&mut self) {
        self.queue.state().free.push(self.slot);
        self.queue.bell.notify_all();
    }
}

impl<'q> Ticket<'q> {
    /// Waits for the reply. Errs once the device is gone; `TimedOut` once it is `over`, which is looked at now and then: then the
    /// reply is forgotten.
    pub fn wait(self, over: impl Fn() -> bool) -> io::Result<Reply<'q>> {
        let (queue, slot, inline) = (self.queue, self.slot, self.inline);
        let len = queue.wait(slot, over)?;
        std::mem::forget(self);
        let chain = Chain { queue, slot };
        Ok(Reply { chain, len, inline })
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let mut state = self.queue.state();
        let phase = &mut state.slots[usize::from(self.slot)];
        match *phase {
            Phase::There { room } => *phase = Phase::Forgotten { room },
            Phase::Back { .. } => {
                *phase = Phase::Ours;
                state.free.push(self.slot);
                drop(state);
                self.queue.bell.notify_all();
            }
            Phase::Ours | Phase::Forgotten { .. } | Phase::Posted { .. } => {}
        }
    }
}

impl Reply<'_> {
    /// How many bytes it has.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies what came inline into `bytes`, and says how much that was.
    pub fn inline(&self, bytes: &mut [u8]) -> usize {
        let len = self.len.min(self.inline).min(bytes.len());
        let at = self.chain.at(Layout::REPLY_AT);
        self.chain.queue.load(at, &mut bytes[..len]);
        len
    }

    /// Copies what came into the payload at `at` on into `bytes`, which is no longer than that.
    pub fn payload(&self, at: usize, bytes: &mut [u8]) {
        assert!(
            at + bytes.len() <= self.len.saturating_sub(self.inline),
            "a payload is in bounds"
        );
        let at = self.chain.at(Layout::PAYLOAD_AT + at);
        self.chain.queue.load(at, bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use vm_memory::FileOffset;
    use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK};

    use super::*;

    /// A queue, and the device's end of its connection.
    fn queue() -> (Queue, UnixStream) {
        let layout = Layout::new(2, 4096);
        let file = File::from(memfd_create("test", MemfdFlags::CLOEXEC).expect("a file"));
        ftruncate(&file, layout.bytes() as u64).expect("sized");
        let memory = MmapRegion::from_file(FileOffset::new(file, 0), layout.bytes());
        let event = || EventFd::new(EFD_CLOEXEC | EFD_NONBLOCK).expect("an event");
        let (ours, device) = UnixStream::pair().expect("a socket pair");
        let (kick, call) = (event(), event());
        let queue = Queue::new(Shared {
            memory: Arc::new(memory.expect("mapped")),
            begin: 0,
            layout,
            event_idx: false,
            events: Events::new(&call, &ours).expect("events"),
            kick,
            call,
            poll: Duration::ZERO,
        });
        (queue, device)
    }

    const ASKED: Lengths = Lengths {
        request: 40,
        request_payload: 0,
        reply: 16,
        reply_payload: 100,
    };

    impl Queue {
        fn asked(&self) -> Ticket<'_> {
            self.chain(|| false).expect("room").submit(ASKED)
        }

        /// As the device: what is said to be used, and how much of it.
        fn use_up(&self, used: &[(u32, u32)], index: u16) {
            let at = self.shared.layout.used();
            for (place, (id, len)) in used.iter().enumerate() {
                let element = [id.to_le_bytes(), len.to_le_bytes()].concat();
                self.store(at + 4 + 8 * place, &element);
            }
            self.number(at + 2).store(index, Ordering::Release);
            self.shared.call.write(1).expect("told");
        }
    }

    #[test]
    fn what_the_device_does_not_have_ends_the_queue() {
        for (used, index) in [
            // Longer than there is room, or all there is.
            (&[(0, 117)][..], 1),
            (&[(0, u32::MAX)], 1),
            // No request, the middle of one, none that is in flight.
            (&[(1, 0)], 1),
            (&[(8, 0)], 1),
            (&[(16, 0)], 1),
            (&[(u32::MAX, 0)], 1),
            // The same twice, and more than there can be.
            (&[(0, 0), (0, 0)], 2),
            (&[(0, 0)], 40_000),
            (&[(0, 0)], u16::MAX),
        ] {
            let (queue, _device) = queue();
            let (ticket, forgotten) = (queue.asked(), queue.asked());
            drop(forgotten);
            queue.use_up(used, index);
            // A reply that came before may be had.
            let _ = ticket.wait(|| false);
            let late = queue
                .chain(|| false)
                .map(|chain| chain.submit(ASKED).wait(|| false).is_ok());
            assert!(!late.unwrap_or(false), "{used:?} {index}");
            assert!(queue.state().failed.is_some(), "{used:?} {index}");
        }
    }

    #[test]
    fn all_who_wait_hear_of_the_end() {
        let (queue, device) = queue();
        std::thread::scope(|scope| {
            let waiting: Vec<_> = (0..2)
                .map(|_| {
                    scope.spawn(|| {
                        queue
                            .chain(|| false)?
                            .submit(ASKED)
                            .wait(|| false)
                            .map(drop)
                    })
                })
                .collect();
            // There is room for no third, who waits for that.
            let third = scope.spawn(|| {
                loop {
                    drop(queue.chain(|| false)?.submit(ASKED));
                }
            });
            queue.use_up(&[(u32::MAX, 0)], 1);
            let failed = |error: io::Error| assert_eq!(error.kind(), ErrorKind::BrokenPipe);
            for waited in waiting {
                failed(waited.join().expect("no panic").expect_err("no reply"));
            }
            let third: io::Result<()> = third.join().expect("no panic");
            failed(third.expect_err("no room"));
        });
        drop(device);
    }

    #[test]
    fn a_reply_is_as_long_as_it_was_said_to_be_first() {
        let (queue, _device) = queue();
        let ticket = queue.asked();
        queue.use_up(&[(0, 116)], 1);
        let reply = ticket.wait(|| false).expect("a reply");
        // The device goes on writing.
        queue.use_up(&[(0, u32::MAX)], 1);
        assert_eq!((reply.len(), reply.inline(&mut [0; 512])), (116, 16));
        reply.payload(0, &mut [0; 100]);
        drop(reply);
        assert!(queue.state().failed.is_none());
    }
}
