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
use transports::{Interest, Link, Origin, Payloads, Ready, TICK};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};

use super::Driver;
use super::chain::Lengths;
use super::ring::{Came, Queue};

/// A function that returns a message's length, given its first bytes; `None` if they are too few.
pub type Frame = fn(&[u8]) -> Option<usize>;

/// The first queue of a device, as a connection.
pub struct Stream {
    driver: Driver,
    frame: Frame,
    peer: String,
    /// The epoll instance on which a receiver sleeps: for a reply, the end of input, the device.
    asleep: Epoll,
    coming: Mutex<Coming>,
    going: Mutex<Going>,
    /// Readable once receiving has ended.
    end: OwnedFd,
    ended: AtomicBool,
    /// Readable when there may be a free slot after a sender requested that, or the queue has
    /// failed.
    room: OwnedFd,
    wants_room: AtomicBool,
    over: AtomicBool,
}

/// A reply that is being received, and how many of its bytes were.
#[derive(Default)]
struct Coming(Option<(Came, usize)>);

/// A message that is being sent.
#[derive(Default)]
struct Going {
    /// Its first bytes, until a slot is free.
    head: Vec<u8>,
    /// Its slot, the number of bytes in it, and its length.
    slot: Option<(u16, usize, usize)>,
}

impl Stream {
    /// Creates a stream over the first queue of `driver`, with messages delimited by `frame`;
    /// `peer` is for logs.
    pub fn new(driver: Driver, frame: Frame, peer: impl Into<String>) -> io::Result<Stream> {
        let event = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let (asleep, end) = (Epoll::new()?, event()?);
        watch(&asleep, &driver.socket, DEVICE)?;
        watch(&asleep, driver.queues()[0].call(), CALL)?;
        watch(&asleep, &end, END)?;
        Ok(Stream {
            driver,
            frame,
            asleep,
            peer: peer.into(),
            coming: Mutex::default(),
            going: Mutex::default(),
            end,
            ended: AtomicBool::new(false),
            room: event()?,
            wants_room: AtomicBool::new(false),
            over: AtomicBool::new(false),
        })
    }

    fn queue(&self) -> &Queue {
        &self.driver.queues()[0]
    }

    fn coming(&self) -> MutexGuard<'_, Coming> {
        self.coming.lock()
    }

    fn going(&self) -> MutexGuard<'_, Going> {
        self.going.lock()
    }

    /// Copies received bytes, as many as fit.
    fn take(&self, coming: &mut Coming, buf: &mut [u8]) -> io::Result<usize> {
        let mut got = 0;
        while got < buf.len() {
            let (came, at) = match coming.0.take() {
                Some(begun) => begun,
                None => match self.queue().any() {
                    Ok(None) => break,
                    Ok(Some(came)) => (self.checked(came)?, 0),
                    // The error is returned by the next call, after the bytes received before.
                    Err(_) if got > 0 => break,
                    Err(error) => return Err(error),
                },
            };
            let len = (buf.len() - got).min(came.len - at);
            self.queue().load_any(&came, at, &mut buf[got..got + len]);
            got += len;
            if at + len < came.len {
                coming.0 = Some((came, at + len));
                break;
            }
            self.give_up(came);
        }
        Ok(got)
    }

    /// Returns a reply after checking that its length matches its header.
    fn checked(&self, came: Came) -> io::Result<Came> {
        let mut head = [0; 16];
        let head = &mut head[..came.len.min(16)];
        self.queue().load_any(&came, 0, head);
        if (self.frame)(head) == Some(came.len) {
            return Ok(came);
        }
        let why = format!("expected a complete reply, got {} bytes", came.len);
        self.give_up(came);
        Err(io::Error::new(ErrorKind::InvalidData, why))
    }

    fn give_up(&self, came: Came) {
        self.queue().give_up(came);
        if self.wants_room.swap(false, Ordering::SeqCst) {
            ring(&self.room);
        }
    }

    /// Copies `bytes` into requests as far as slots are free, and returns the number of bytes.
    fn put(&self, going: &mut Going, bytes: &[u8]) -> io::Result<usize> {
        let mut put = 0;
        loop {
            let (slot, at, len) = match going.slot.take() {
                Some(begun) => begun,
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
                    if len < going.head.len() || len > Queue::INLINE + chain.room() {
                        let why = format!("a message of {len} bytes");
                        return Err(io::Error::new(ErrorKind::InvalidInput, why));
                    }
                    chain.request(&going.head);
                    let at = going.head.len();
                    going.head.clear();
                    (chain.put_aside(), at, len)
                }
            };
            let rest = &bytes[put..];
            let rest = &rest[..rest.len().min(len - at)];
            let mut chain = self.queue().resume(slot);
            let (inline, payload) = rest.split_at(Queue::INLINE.saturating_sub(at).min(rest.len()));
            if !inline.is_empty() {
                chain.request_at(at, inline);
            }
            if !payload.is_empty() {
                chain.payload(at.saturating_sub(Queue::INLINE), payload);
            }
            put += rest.len();
            if at + rest.len() < len {
                going.slot = Some((chain.put_aside(), at + rest.len(), len));
                return Ok(put);
            }
            let request_payload = len.saturating_sub(Queue::INLINE);
            let reply_payload = match request_payload {
                0 => chain.room(),
                _ => 0,
            };
            chain.post(Lengths {
                request: len - request_payload,
                request_payload,
                reply: Queue::REPLY,
                reply_payload,
            });
        }
    }

    /// Returns whether bytes can be sent: a message is begun, or a slot is free.
    fn may_send(&self, going: &Going) -> bool {
        going.slot.is_some() || self.queue().has_room() || self.over.load(Ordering::SeqCst)
    }

    /// Sleeps until a reply arrives or the input ends; returns whether the device is gone. The
    /// receiver holds `coming`.
    fn await_reply(&self, _: &Coming, time: Option<Duration>) -> io::Result<bool> {
        self.armed(|| Ok(events_of(&self.asleep, time)?.contains(&DEVICE)))
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

    fn over(&self) -> io::Result<()> {
        match self.over.load(Ordering::SeqCst) {
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
const APART: usize = 8 << 10;

impl Link for Stream {
    /// A waiting call returns `WouldBlock` after [`TICK`], so that the caller can check the time.
    fn recv(&self, buf: &mut [u8], mut wait: bool) -> io::Result<usize> {
        let mut coming = self.coming();
        let mut gone = false;
        loop {
            if self.ended.load(Ordering::SeqCst) || buf.is_empty() {
                return Ok(0);
            }
            match self.take(&mut coming, buf)? {
                0 if gone => return Ok(0),
                0 if !wait => return Err(ErrorKind::WouldBlock.into()),
                0 => {
                    gone = self.await_reply(&coming, Some(TICK))?;
                    wait = false;
                }
                got => return Ok(got),
            }
        }
    }

    fn send(&self, bytes: &[u8], wait: bool) -> io::Result<usize> {
        let mut going = self.going();
        let mut sent = 0;
        while sent < bytes.len() {
            self.over()?;
            let put = self.put(&mut going, &bytes[sent..])?;
            sent += put;
            self.queue().kick();
            if sent == bytes.len() || (put == 0 && !wait) {
                break;
            }
            if put == 0 && self.await_room()? {
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
            land: APART,
            gather: APART,
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
                let coming = self.coming();
                ready.read = coming.0.is_some()
                    || self.queue().has_any()
                    || self.ended.load(Ordering::SeqCst)
                    || ready.hung_up;
            }
            ready.write = interest.write && (ready.hung_up || self.may_send(&self.going()));
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            let over = left.is_some_and(|left| left.is_zero());
            if ready != Ready::default() || over {
                return Ok(ready);
            }
            let epoll = Epoll::new()?;
            watch(&epoll, &wake, WAKE)?;
            watch(&epoll, &self.driver.socket, DEVICE)?;
            if interest.write {
                watch(&epoll, &self.room, ROOM)?;
                if self.wants_room() {
                    continue;
                }
            }
            let events = if interest.read {
                watch(&epoll, &self.asleep, CALL)?;
                let _coming = self.coming();
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
        ring(&self.end);
    }

    fn hang_up(&self) {
        self.over.store(true, Ordering::SeqCst);
        ring(&self.room);
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
    fn wants_room(&self) -> bool {
        self.wants_room.store(true, Ordering::SeqCst);
        // Clears earlier notifications; the end is checked below.
        let _ = rustix::io::read(&self.room, &mut [0; 8]);
        self.queue().has_room() || self.over.load(Ordering::SeqCst)
    }

    /// Sleeps until there may be a free slot; returns whether the device is gone.
    fn await_room(&self) -> io::Result<bool> {
        let epoll = Epoll::new()?;
        watch(&epoll, &self.room, ROOM)?;
        watch(&epoll, &self.driver.socket, DEVICE)?;
        match self.wants_room() {
            true => Ok(false),
            false => Ok(events_of(&epoll, None)?.contains(&DEVICE)),
        }
    }
}

/// Registers `fd` with `epoll` as `which`: readable, or its peer gone.
fn watch(epoll: &Epoll, fd: &impl AsRawFd, which: u64) -> io::Result<()> {
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

fn ring(event: &OwnedFd) {
    // Fails only if the counter is full, and then it is readable already.
    let _ = rustix::io::write(event, &1u64.to_ne_bytes());
}
