//! A queue's driver side: a split virtqueue (virtio 1.3, 2.7), and a memory slot for each request.
//!
//! Any thread may submit requests and wait for their replies. One of the waiting threads, the
//! leader, checks the used ring, and the others sleep until their reply arrives.
//!
//! The device is not trusted: a used element for a request that it does not own, or longer than the
//! buffer, fails the queue.
//!
//! Lock order: the poller's, which the leader holds while it waits; then the queue's other mutex,
//! never held while waiting for the device.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering, fence};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use transports::{Poller, RECV_INTERVAL};
use vm_memory::volatile_memory::{VolatileMemory, VolatileSlice};
use vm_memory::{Bytes, MmapRegion};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::EventFd;

use super::WaitMode;
use super::chain::{Chain, Lengths};
use super::layout::Layout;

/// The immutable parts of a queue.
pub(super) struct Shared {
    pub(super) memory: Arc<MmapRegion<()>>,
    /// The offset of the queue's part in the memory.
    pub(super) begin: usize,
    pub(super) layout: Layout,
    pub(super) event_idx: bool,
    pub(super) kick: EventFd,
    pub(super) call: EventFd,
    pub(super) events: Events,
    pub(super) waiting: WaitMode,
    /// Set before the last signal of the call event of a driver that sleeps in read(2).
    pub(super) disconnected: Arc<AtomicBool>,
}

/// The events that a queue sleeps on: a reply, or the end of the connection.
pub(super) struct Events(Epoll);

impl Events {
    const CALL: u64 = 0;
    const DEVICE: u64 = 1;

    pub(super) fn new(call: &EventFd, device: &UnixStream) -> io::Result<Events> {
        let epoll = Epoll::new()?;
        let disconnected = EventSet::IN | EventSet::READ_HANG_UP;
        for (fd, events, which) in [
            (call.as_raw_fd(), EventSet::IN, Events::CALL),
            (device.as_raw_fd(), disconnected, Events::DEVICE),
        ] {
            epoll.ctl(ControlOperation::Add, fd, EpollEvent::new(events, which))?;
        }
        Ok(Events(epoll))
    }

    /// Waits for an event, but no longer than a [`RECV_INTERVAL`]; returns false if the device is
    /// gone.
    fn wait(&self) -> io::Result<bool> {
        let mut events = [EpollEvent::default(); 2];
        match self.0.wait(RECV_INTERVAL.as_millis() as i32, &mut events) {
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
    /// Notified when a reply arrived, or the leader left.
    progress: Condvar,
    /// Held by the leader.
    poller: Mutex<Poller>,
}

struct State {
    slots: Vec<SlotState>,
    free: Vec<u16>,
    /// The number of requests made available, and how many of them the device was not notified of.
    available: u16,
    unnotified: u16,
    /// The number of used elements processed.
    used: u16,
    /// Replies for any receiver, in order.
    posted_replies: VecDeque<PostedReply>,
    has_leader: bool,
    failed: Option<&'static str>,
}

/// The state of a slot.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum SlotState {
    /// Free, or under construction.
    Free,
    /// Owned by the device, which may write this many bytes.
    InFlight { limit: u32 },
    /// The same, with a reply to discard.
    Abandoned { limit: u32 },
    /// The same, with a reply for any receiver.
    Posted { limit: u32, inline: u32 },
    /// Used, with this many bytes written.
    Used { len: u32 },
}

/// A reply for any receiver.
pub(super) struct PostedReply {
    slot: u16,
    /// Its length, and the maximum of its inline part, in bytes.
    pub(super) len: usize,
    inline: usize,
}

impl State {
    /// Takes a slot, if more than `keep` are free.
    fn take_slot(&mut self, keep: usize) -> Option<u16> {
        match self.free.len() > keep {
            true => self.free.pop(),
            false => None,
        }
    }
}

impl Queue {
    /// The maximum inline part of a request in bytes: arguments and two names of the maximum
    /// length.
    pub const MAX_INLINE_REQUEST: usize = 8192;

    /// The maximum inline part of a reply in bytes.
    pub const MAX_INLINE_REPLY: usize = 512;

    /// The number of slots reserved for [`Queue::spare_chain`].
    pub(super) const SPARE_SLOTS: usize = 2;

    pub(super) fn new(shared: Shared) -> Queue {
        let depth = shared.layout.depth();
        let poll = match shared.waiting {
            WaitMode::Adaptive(time) => time,
            WaitMode::Polling(_) | WaitMode::Interrupts => Duration::ZERO,
        };
        Queue {
            shared,
            state: Mutex::new(State {
                slots: vec![SlotState::Free; usize::from(depth)],
                free: (0..depth).rev().collect(),
                available: 0,
                unnotified: 0,
                used: 0,
                posted_replies: VecDeque::new(),
                has_leader: false,
                failed: None,
            }),
            progress: Condvar::new(),
            poller: Mutex::new(Poller::new(poll)),
        }
    }

    /// Takes a slot for a request, and waits for one if none is free, so the caller must not delay
    /// the release of others. Returns `TimedOut` once `over` returns true, which is called now and
    /// then.
    pub fn chain(&self, over: impl Fn() -> bool) -> io::Result<Chain<'_>> {
        let slot = self.wait_until(over, |state| state.take_slot(Queue::SPARE_SLOTS))?;
        Ok(Chain::of(self, slot))
    }

    /// Takes a slot for a request, if one is free.
    pub fn try_chain(&self) -> Option<Chain<'_>> {
        self.take_chain(Queue::SPARE_SLOTS)
    }

    /// Takes a slot for a request that cancels another, from those reserved if no other is free.
    pub fn spare_chain(&self) -> Option<Chain<'_>> {
        self.take_chain(0)
    }

    fn take_chain(&self, keep: usize) -> Option<Chain<'_>> {
        let mut state = self.state();
        if state.free.len() <= keep {
            self.process_used(&mut state);
        }
        let slot = state.take_slot(keep)?;
        Some(Chain::of(self, slot))
    }

    /// Notifies the device of requests made available since the last notification. Waiting does so
    /// as well.
    pub fn kick(&self) {
        let mut state = self.state();
        self.kick_device(&mut state);
    }

    /// Returns a detached request.
    pub(super) fn resume(&self, slot: u16) -> Chain<'_> {
        Chain::of(self, slot)
    }

    /// Returns the next reply to a posted request, if any. Returns an error once the queue has
    /// failed.
    pub(super) fn next_posted(&self) -> io::Result<Option<PostedReply>> {
        let mut state = self.state();
        self.process_used(&mut state);
        match (state.posted_replies.pop_front(), state.failed) {
            (None, Some(why)) => Err(io::Error::new(ErrorKind::BrokenPipe, why)),
            (reply, _) => Ok(reply),
        }
    }

    /// Returns whether there is a reply to a posted request, or the queue has failed.
    pub(super) fn has_posted(&self) -> bool {
        let mut state = self.state();
        self.process_used(&mut state);
        !state.posted_replies.is_empty() || state.failed.is_some()
    }

    /// Returns whether a slot for a request is free.
    pub(super) fn has_free_slot(&self) -> bool {
        self.state().free.len() > Queue::SPARE_SLOTS
    }

    /// Copies a reply from `at` on, within its length.
    pub(super) fn load_posted(&self, reply: &PostedReply, at: usize, bytes: &mut [u8]) {
        assert!(at + bytes.len() <= reply.len, "a reply is in bounds");
        let (inline, payload) =
            bytes.split_at_mut(reply.inline.saturating_sub(at).min(bytes.len()));
        let begin = self.shared.layout.slot(reply.slot);
        self.load(begin + Layout::REPLY_OFFSET + at.min(reply.inline), inline);
        let behind = at.saturating_sub(reply.inline);
        self.load(begin + Layout::PAYLOAD_OFFSET + behind, payload);
    }

    /// Releases a reply.
    pub(super) fn release_posted(&self, reply: PostedReply) {
        drop(self.resume(reply.slot));
    }

    /// Enables notifications of replies that [`Queue::next_posted`] has not seen; returns false if
    /// there is one already.
    pub(super) fn arm(&self) -> bool {
        let used = self.state().used;
        self.set_used_event(Some(used));
        self.shared_u16(self.shared.layout.used() + 2)
            .load(Ordering::Acquire)
            == used
    }

    /// Disables notifications, and clears a pending one.
    pub(super) fn disarm(&self) {
        assert!(
            self.shared.waiting != WaitMode::Interrupts,
            "a stream's call event does not block"
        );
        self.set_used_event(None);
        let _ = self.shared.call.read();
    }

    pub(super) fn layout(&self) -> &Layout {
        &self.shared.layout
    }

    /// Returns the call event, by which the device notifies.
    pub(super) fn call(&self) -> &EventFd {
        &self.shared.call
    }

    /// Waits for a reply and returns its length in bytes; the caller owns the slot then.
    pub(super) fn wait(&self, slot: u16, over: impl Fn() -> bool) -> io::Result<usize> {
        self.wait_until(over, |state| match state.slots[usize::from(slot)] {
            SlotState::Used { len } => {
                state.slots[usize::from(slot)] = SlotState::Free;
                Some(len as usize)
            }
            _ => None,
        })
    }

    /// Waits until `look` returns a result, or `over` returns true.
    fn wait_until<T>(
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
            self.kick_device(&mut state);
            if looked.elapsed() >= RECV_INTERVAL {
                if over() {
                    return Err(ErrorKind::TimedOut.into());
                }
                looked = Instant::now();
            }
            if state.has_leader {
                self.progress.wait_for(&mut state, RECV_INTERVAL);
                continue;
            }
            if self.process_used(&mut state) {
                continue;
            }
            state.has_leader = true;
            let used = state.used;
            drop(state);
            let paused = self.wait_for_used(used);
            state = self.state();
            state.has_leader = false;
            if let Err(error) = paused {
                let why = match error.kind() {
                    ErrorKind::BrokenPipe => "the device closed the connection",
                    _ => "cannot wait for the device",
                };
                self.fail(&mut state, why);
            }
            self.process_used(&mut state);
            self.progress.notify_all();
        }
    }

    /// Waits until the device has used more than `used` requests, or for a short time.
    fn wait_for_used(&self, used: u16) -> io::Result<()> {
        let there = self.shared_u16(self.shared.layout.used() + 2);
        let is_back = || there.load(Ordering::Acquire) != used;
        if let WaitMode::Polling(time) = self.shared.waiting {
            let started = Instant::now();
            while started.elapsed() < time {
                for _ in 0..64 {
                    if is_back() {
                        return Ok(());
                    }
                    std::hint::spin_loop();
                }
            }
        }
        let mut poller = self.poller.lock();
        poller.wait(|wait| match is_back() {
            true => Ok(()),
            false if wait => self.sleep(used, is_back),
            false => Err(ErrorKind::WouldBlock.into()),
        })
    }

    /// Does the sleeping part of [`Queue::wait_for_used`].
    fn sleep(&self, used: u16, is_back: impl Fn() -> bool) -> io::Result<()> {
        self.set_used_event(Some(used));
        let there = is_back() || {
            let blocks = self.shared.waiting == WaitMode::Interrupts;
            // There is no event to read if a signal arrived instead.
            if blocks || self.shared.events.wait()? {
                let _ = self.shared.call.read();
            } else {
                self.shared.disconnected.store(true, Ordering::SeqCst);
            }
            !self.shared.disconnected.load(Ordering::SeqCst)
        };
        self.set_used_event(None);
        match there {
            true => Ok(()),
            false => Err(ErrorKind::BrokenPipe.into()),
        }
    }

    /// Enables a notification of the next request after `used`, or disables notifications.
    fn set_used_event(&self, used: Option<u16>) {
        let layout = &self.shared.layout;
        if self.shared.event_idx {
            // An event index that has passed is not reached before the index wraps around.
            if let Some(used) = used {
                let event = layout.available() + 4 + 2 * usize::from(layout.size());
                self.shared_u16(event).store(used, Ordering::Relaxed);
            }
        } else {
            let flags = u16::from(used.is_none());
            self.shared_u16(layout.available())
                .store(flags, Ordering::Relaxed);
        }
        // Orders the store before the following check of the used index.
        fence(Ordering::SeqCst);
    }

    /// Processes new elements of the used ring; returns whether there were any.
    fn process_used(&self, state: &mut State) -> bool {
        let layout = &self.shared.layout;
        let there = self.shared_u16(layout.used() + 2).load(Ordering::Acquire);
        let any = state.used != there;
        while state.used != there && state.failed.is_none() {
            let position = usize::from(state.used % layout.size());
            let mut element = [0; 8];
            self.load(layout.used() + 4 + 8 * position, &mut element);
            let [id, len] = [&element[..4], &element[4..]]
                .map(|bytes| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
            state.used = state.used.wrapping_add(1);
            let slot = id / Layout::DESCRIPTORS_PER_REQUEST as u32;
            let whole = id % Layout::DESCRIPTORS_PER_REQUEST as u32 == 0;
            match state.slots.get_mut(slot as usize) {
                Some(phase @ &mut SlotState::InFlight { limit }) if whole && len <= limit => {
                    *phase = SlotState::Used { len };
                }
                Some(phase @ &mut SlotState::Abandoned { limit }) if whole && len <= limit => {
                    *phase = SlotState::Free;
                    state.free.push(slot as u16);
                }
                Some(phase @ &mut SlotState::Posted { limit, inline }) if whole && len <= limit => {
                    *phase = SlotState::Free;
                    state.posted_replies.push_back(PostedReply {
                        slot: slot as u16,
                        len: len as usize,
                        inline: inline as usize,
                    });
                }
                _ => self.fail(
                    state,
                    "the device returned a descriptor chain that it did not own",
                ),
            }
        }
        any
    }

    /// Frees a slot that the caller owns.
    pub(super) fn release(&self, slot: u16) {
        self.state().free.push(slot);
        self.progress.notify_all();
    }

    /// Discards the reply to a request, and frees its slot once the device has used it.
    pub(super) fn abandon(&self, slot: u16) {
        let mut state = self.state();
        let phase = &mut state.slots[usize::from(slot)];
        match *phase {
            SlotState::InFlight { limit } => *phase = SlotState::Abandoned { limit },
            SlotState::Used { .. } => {
                *phase = SlotState::Free;
                drop(state);
                self.release(slot);
            }
            SlotState::Free | SlotState::Abandoned { .. } | SlotState::Posted { .. } => {}
        }
    }

    fn fail(&self, state: &mut State, why: &'static str) {
        state.failed.get_or_insert(why);
        self.progress.notify_all();
    }

    /// Makes a request available to the device.
    pub(super) fn publish(&self, slot: u16, lengths: &Lengths, phase: SlotState) {
        let layout = &self.shared.layout;
        let head = slot * Layout::DESCRIPTORS_PER_REQUEST as u16;
        self.write_descriptors(slot, head, lengths);
        let mut state = self.state();
        state.slots[usize::from(slot)] = phase;
        let position = usize::from(state.available % layout.size());
        self.shared_u16(layout.available() + 4 + 2 * position)
            .store(head, Ordering::Relaxed);
        state.available = state.available.wrapping_add(1);
        state.unnotified += 1;
        self.shared_u16(layout.available() + 2)
            .store(state.available, Ordering::Release);
    }

    /// Writes the descriptors of a request.
    fn write_descriptors(&self, slot: u16, head: u16, lengths: &Lengths) {
        const NEXT: u16 = 1;
        const WRITE: u16 = 2;
        let layout = &self.shared.layout;
        let at = super::BASE + (self.shared.begin + layout.slot(slot)) as u64;
        let pieces = [
            (0, lengths.request, 0),
            (Layout::PAYLOAD_OFFSET, lengths.request_payload, 0),
            (Layout::REPLY_OFFSET, lengths.reply, WRITE),
            (Layout::PAYLOAD_OFFSET, lengths.reply_payload, WRITE),
        ];
        let mut pieces = pieces.iter().filter(|piece| piece.1 > 0).peekable();
        let mut index = head;
        while let Some(&(offset, len, flags)) = pieces.next() {
            let flags = flags | if pieces.peek().is_some() { NEXT } else { 0 };
            let mut bytes = [0; Layout::DESCRIPTOR_SIZE];
            bytes[..8].copy_from_slice(&(at + offset as u64).to_le_bytes());
            bytes[8..12].copy_from_slice(&(len as u32).to_le_bytes());
            bytes[12..14].copy_from_slice(&u16::to_le_bytes(flags));
            bytes[14..].copy_from_slice(&(index + 1).to_le_bytes());
            let position = usize::from(index) * Layout::DESCRIPTOR_SIZE;
            self.store(layout.descriptors() + position, &bytes);
            index += 1;
        }
    }

    fn kick_device(&self, state: &mut State) {
        if state.unnotified == 0 {
            return;
        }
        let layout = &self.shared.layout;
        // Orders the update of the available index before the check whether the device wants a
        // notification.
        fence(Ordering::SeqCst);
        let wanted = if self.shared.event_idx {
            let event = layout.used() + 4 + 8 * usize::from(layout.size());
            let event = self.shared_u16(event).load(Ordering::Relaxed);
            state.available.wrapping_sub(event).wrapping_sub(1) < state.unnotified
        } else {
            self.shared_u16(layout.used()).load(Ordering::Relaxed) & 1 == 0
        };
        state.unnotified = 0;
        if wanted {
            // Fails only if the event's counter would overflow.
            let _ = self.shared.kick.write(1);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn memory(&self) -> VolatileSlice<'_, ()> {
        self.shared.memory.as_volatile_slice()
    }

    /// Returns a 16-bit number shared with the device.
    fn shared_u16(&self, at: usize) -> &AtomicU16 {
        // Native byte order, which is little-endian on the machines that barge runs on.
        let number = self.shared.memory.get_atomic_ref(self.shared.begin + at);
        number.expect("a place within the queue")
    }

    pub(super) fn store(&self, at: usize, bytes: &[u8]) {
        let stored = self.memory().write_slice(bytes, self.shared.begin + at);
        stored.expect("a place within the queue");
    }

    pub(super) fn load(&self, at: usize, bytes: &mut [u8]) {
        let loaded = self.memory().read_slice(bytes, self.shared.begin + at);
        loaded.expect("a place within the queue");
    }
}

#[cfg(test)]
mod tests;
