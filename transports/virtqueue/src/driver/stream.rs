//! A queue as a byte stream, for protocols with self-delimiting messages and a client half for
//! streams.
//!
//! Sent bytes are split into messages, each a separate request with room for the largest reply;
//! replies are received in the order in which the device used the requests. A payload is copied
//! once between the queue's memory and the caller's.
//!
//! Lock order: the receive or send state, held by the receiving or sending thread across waits;
//! then the queue's lock.

use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use rustix::event::{EventfdFlags, eventfd};
use transports::{Interest, Link, Origin, Payloads, RECV_INTERVAL, Ready};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};

use super::Driver;
use super::chain::Lengths;
use super::ring::{PostedReply, Queue};

/// A function that returns a message's length, given its first bytes; `None` if they are too few.
pub type FrameLength = fn(&[u8]) -> Option<usize>;

/// The first queue of a device, as a connection.
pub struct Stream {
    driver: Driver,
    frame: FrameLength,
    peer: String,
    /// The epoll instance on which a receiver sleeps: for a reply, the end of input, the device.
    epoll: Epoll,
    receiving: Mutex<Receiving>,
    sending: Mutex<Sending>,
    /// Readable once receiving has ended.
    end_event: OwnedFd,
    ended: AtomicBool,
    /// Readable when there may be a free slot after a sender requested that, or the queue has
    /// failed.
    slot_event: OwnedFd,
    wants_slot: AtomicBool,
    disconnected: AtomicBool,
}

/// A reply that is being received, and how many of its bytes were.
#[derive(Default)]
struct Receiving(Option<(PostedReply, usize)>);

/// A message that is being sent.
#[derive(Default)]
struct Sending {
    /// Its first bytes, until a slot is free.
    head: Vec<u8>,
    /// Its slot, the number of bytes in it, and its length.
    slot: Option<(u16, usize, usize)>,
}

impl Stream {
    /// Creates a stream over the first queue of `driver`, with messages delimited by `frame`;
    /// `peer` is for logs.
    pub fn new(driver: Driver, frame: FrameLength, peer: impl Into<String>) -> io::Result<Stream> {
        let event = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let (asleep, end) = (Epoll::new()?, event()?);
        register(&asleep, &driver.socket, DEVICE)?;
        register(&asleep, driver.queues()[0].call(), CALL)?;
        register(&asleep, &end, END)?;
        Ok(Stream {
            driver,
            frame,
            epoll: asleep,
            peer: peer.into(),
            receiving: Mutex::default(),
            sending: Mutex::default(),
            end_event: end,
            ended: AtomicBool::new(false),
            slot_event: event()?,
            wants_slot: AtomicBool::new(false),
            disconnected: AtomicBool::new(false),
        })
    }

    fn queue(&self) -> &Queue {
        &self.driver.queues()[0]
    }

    fn receiving(&self) -> MutexGuard<'_, Receiving> {
        self.receiving.lock()
    }

    fn sending(&self) -> MutexGuard<'_, Sending> {
        self.sending.lock()
    }

    /// Copies received bytes, as many as fit.
    fn take(&self, coming: &mut Receiving, buf: &mut [u8]) -> io::Result<usize> {
        let mut got = 0;
        while got < buf.len() {
            let (reply, at) = match coming.0.take() {
                Some(partial) => partial,
                None => match self.queue().next_posted() {
                    Ok(None) => break,
                    Ok(Some(reply)) => (self.check_length(reply)?, 0),
                    // The error is returned by the next call, after the bytes received before.
                    Err(_) if got > 0 => break,
                    Err(error) => return Err(error),
                },
            };
            let len = (buf.len() - got).min(reply.len - at);
            self.queue()
                .load_posted(&reply, at, &mut buf[got..got + len]);
            got += len;
            if at + len < reply.len {
                coming.0 = Some((reply, at + len));
                break;
            }
            self.release_posted(reply);
        }
        Ok(got)
    }

    /// Returns a reply after checking that its length matches its header.
    fn check_length(&self, reply: PostedReply) -> io::Result<PostedReply> {
        let mut head = [0; 16];
        let head = &mut head[..reply.len.min(16)];
        self.queue().load_posted(&reply, 0, head);
        if (self.frame)(head) == Some(reply.len) {
            return Ok(reply);
        }
        let why = format!("expected a complete reply, got {} bytes", reply.len);
        self.release_posted(reply);
        Err(io::Error::new(ErrorKind::InvalidData, why))
    }

    fn release_posted(&self, reply: PostedReply) {
        self.queue().release_posted(reply);
        if self.wants_slot.swap(false, Ordering::SeqCst) {
            signal(&self.slot_event);
        }
    }

    /// Copies `bytes` into requests as far as slots are free, and returns the number of bytes.
    fn put(&self, going: &mut Sending, bytes: &[u8]) -> io::Result<usize> {
        let mut put = 0;
        loop {
            let (slot, at, len) = match going.slot.take() {
                Some(partial) => partial,
                None => {
                    let Some(len) = (self.frame)(&going.head) else {
                        let Some(&byte) = bytes.get(put) else {
                            return Ok(put);
                        };
                        going.head.push(byte);
                        put += 1;
                        continue;
                    };
                    let Some(mut chain) = self.queue().try_chain() else {
                        return Ok(put);
                    };
                    if len < going.head.len() || len > Queue::MAX_INLINE_REQUEST + chain.room() {
                        let why = format!("a message of {len} bytes");
                        return Err(io::Error::new(ErrorKind::InvalidInput, why));
                    }
                    chain.request(&going.head);
                    let at = going.head.len();
                    going.head.clear();
                    (chain.detach(), at, len)
                }
            };
            let rest = &bytes[put..];
            let rest = &rest[..rest.len().min(len - at)];
            let mut chain = self.queue().resume(slot);
            let (inline, payload) =
                rest.split_at(Queue::MAX_INLINE_REQUEST.saturating_sub(at).min(rest.len()));
            if !inline.is_empty() {
                chain.request_at(at, inline);
            }
            if !payload.is_empty() {
                chain.payload(at.saturating_sub(Queue::MAX_INLINE_REQUEST), payload);
            }
            put += rest.len();
            if at + rest.len() < len {
                going.slot = Some((chain.detach(), at + rest.len(), len));
                return Ok(put);
            }
            let request_payload = len.saturating_sub(Queue::MAX_INLINE_REQUEST);
            let reply_payload = match request_payload {
                0 => chain.room(),
                _ => 0,
            };
            chain.post(Lengths {
                request: len - request_payload,
                request_payload,
                reply: Queue::MAX_INLINE_REPLY,
                reply_payload,
            });
        }
    }

    /// Returns whether bytes can be sent: a message is begun, or a slot is free.
    fn may_send(&self, going: &Sending) -> bool {
        going.slot.is_some()
            || self.queue().has_free_slot()
            || self.disconnected.load(Ordering::SeqCst)
    }

    /// Sleeps until a reply arrives or the input ends; returns whether the device is gone. The
    /// receiver holds `coming`.
    fn await_reply(&self, _: &Receiving, time: Option<Duration>) -> io::Result<bool> {
        self.armed(|| Ok(events_of(&self.epoll, time)?.contains(&DEVICE)))
    }

    /// Runs `sleep` with notifications of replies enabled, unless there is a reply already.
    fn armed<T: Default>(&self, sleep: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let slept = match self.queue().arm() {
            true => sleep(),
            false => Ok(T::default()),
        };
        self.queue().disarm();
        slept
    }

    fn check_connected(&self) -> io::Result<()> {
        match self.disconnected.load(Ordering::SeqCst) {
            true => Err(ErrorKind::BrokenPipe.into()),
            false => Ok(()),
        }
    }
}

const CALL: u64 = 0;
const DEVICE: u64 = 1;
const END: u64 = 2;
const ROOM: u64 = 3;
const WAKE: u64 = 4;

/// The size from which on a separate copy costs more than another check.
const MIN_SEPARATE_COPY: usize = 8 << 10;

impl Link for Stream {
    /// A waiting call returns `WouldBlock` after [`RECV_INTERVAL`], so that the caller can check
    /// the time.
    fn recv(&self, buf: &mut [u8], mut wait: bool) -> io::Result<usize> {
        let mut coming = self.receiving();
        let mut disconnected = false;
        loop {
            if self.ended.load(Ordering::SeqCst) || buf.is_empty() {
                return Ok(0);
            }
            match self.take(&mut coming, buf)? {
                0 if disconnected => return Ok(0),
                0 if !wait => return Err(ErrorKind::WouldBlock.into()),
                0 => {
                    disconnected = self.await_reply(&coming, Some(RECV_INTERVAL))?;
                    wait = false;
                }
                got => return Ok(got),
            }
        }
    }

    fn send(&self, bytes: &[u8], wait: bool) -> io::Result<usize> {
        let mut going = self.sending();
        let mut sent = 0;
        while sent < bytes.len() {
            self.check_connected()?;
            let put = self.put(&mut going, &bytes[sent..])?;
            sent += put;
            self.queue().kick();
            if sent == bytes.len() || (put == 0 && !wait) {
                break;
            }
            if put == 0 && self.await_slot()? {
                return Err(ErrorKind::BrokenPipe.into());
            }
        }
        match sent {
            0 if !bytes.is_empty() => Err(ErrorKind::WouldBlock.into()),
            sent => Ok(sent),
        }
    }

    fn payloads(&self) -> Payloads {
        Payloads {
            direct_receive: MIN_SEPARATE_COPY,
            gather: MIN_SEPARATE_COPY,
            ..Payloads::INLINE
        }
    }

    fn wait(
        &self,
        interest: Interest,
        wake: BorrowedFd<'_>,
        time: Option<Duration>,
    ) -> io::Result<Ready> {
        let deadline = time.map(|time| Instant::now() + time);
        let mut ready = Ready::default();
        loop {
            if interest.read {
                let coming = self.receiving();
                ready.read = coming.0.is_some()
                    || self.queue().has_posted()
                    || self.ended.load(Ordering::SeqCst)
                    || ready.hung_up;
            }
            ready.write = interest.write && (ready.hung_up || self.may_send(&self.sending()));
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            let over = left.is_some_and(|left| left.is_zero());
            if ready != Ready::default() || over {
                return Ok(ready);
            }
            let epoll = Epoll::new()?;
            register(&epoll, &wake, WAKE)?;
            register(&epoll, &self.driver.socket, DEVICE)?;
            if interest.write {
                register(&epoll, &self.slot_event, ROOM)?;
                if self.request_slot_event() {
                    continue;
                }
            }
            let events = if interest.read {
                register(&epoll, &self.epoll, CALL)?;
                let _coming = self.receiving();
                self.armed(|| events_of(&epoll, left))?
            } else {
                events_of(&epoll, left)?
            };
            ready.woken = events.contains(&WAKE);
            ready.hung_up = events.contains(&DEVICE);
        }
    }

    fn end_input(&self) {
        self.ended.store(true, Ordering::SeqCst);
        signal(&self.end_event);
    }

    fn hang_up(&self) {
        self.disconnected.store(true, Ordering::SeqCst);
        signal(&self.slot_event);
        self.end_input();
    }

    fn peer(&self) -> &str {
        &self.peer
    }

    fn origin(&self) -> Origin {
        Origin::Inherited
    }
}

impl Stream {
    /// Requests a notification of a free slot; returns whether there is one already.
    fn request_slot_event(&self) -> bool {
        self.wants_slot.store(true, Ordering::SeqCst);
        // Clears earlier notifications; the end is checked below.
        let _ = rustix::io::read(&self.slot_event, &mut [0; 8]);
        self.queue().has_free_slot() || self.disconnected.load(Ordering::SeqCst)
    }

    /// Sleeps until there may be a free slot; returns whether the device is gone.
    fn await_slot(&self) -> io::Result<bool> {
        let epoll = Epoll::new()?;
        register(&epoll, &self.slot_event, ROOM)?;
        register(&epoll, &self.driver.socket, DEVICE)?;
        match self.request_slot_event() {
            true => Ok(false),
            false => Ok(events_of(&epoll, None)?.contains(&DEVICE)),
        }
    }
}

/// Registers `fd` with `epoll` as `which`: readable, or its peer gone.
fn register(epoll: &Epoll, fd: &impl AsRawFd, which: u64) -> io::Result<()> {
    let events = EventSet::IN | EventSet::READ_HANG_UP;
    let event = EpollEvent::new(events, which);
    epoll.ctl(ControlOperation::Add, fd.as_raw_fd(), event)
}

/// Waits for any event of `epoll`, for `time` at most.
fn events_of(epoll: &Epoll, time: Option<Duration>) -> io::Result<Vec<u64>> {
    let mut events = [EpollEvent::default(); 4];
    // Rounded up, so that the rest is not waited for in several short waits.
    let time = time.map(|time| i32::try_from(time.as_millis() + 1).unwrap_or(i32::MAX));
    let count = match epoll.wait(time.unwrap_or(-1), &mut events) {
        Err(error) if error.kind() == ErrorKind::Interrupted => 0,
        done => done?,
    };
    Ok(events[..count].iter().map(|event| event.data()).collect())
}

fn signal(event: &OwnedFd) {
    // Fails only if the counter is full, and then it is readable already.
    let _ = rustix::io::write(event, &1u64.to_ne_bytes());
}
