//! A queue as a stream: for protocols whose messages say themselves how long they are, and which have a client half for streams.
//!
//! What is sent is cut into messages, each a request of its own with room for the largest reply; what has come is received in the
//! order that the device gave it back. A payload is copied once on its way between the queue's memory and the caller's.
//!
//! Lock order: what is received, or what is sent, is held across waits by who receives or sends; the queue's own lock within.

use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use transports::{Interest, Link, Origin, Payloads, Ready, TICK};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};

use super::Driver;
use super::chain::Lengths;
use super::ring::{Came, Queue};

/// How long the message is that begins so; nothing if that is too little to tell.
pub type Frame = fn(&[u8]) -> Option<usize>;

/// The first queue of a device, as a connection.
pub struct Stream {
    driver: Driver,
    frame: Frame,
    peer: String,
    /// What who receives sleeps on: a reply, the end, the device.
    asleep: Epoll,
    coming: Mutex<Coming>,
    going: Mutex<Going>,
    /// Readable once nothing more shall be received.
    end: OwnedFd,
    ended: AtomicBool,
    /// Readable when there may be room for another request, after somebody wanted that, or never will be.
    room: OwnedFd,
    wants_room: AtomicBool,
    over: AtomicBool,
}

/// A reply that is being received, and how much of it has been.
#[derive(Default)]
struct Coming(Option<(Came, usize)>);

/// A message that is being sent.
#[derive(Default)]
struct Going {
    /// Its beginning, until there is room for it.
    head: Vec<u8>,
    /// Where it goes, how much of it is there, and how long it is.
    slot: Option<(u16, usize, usize)>,
}

impl Stream {
    /// The first queue of `driver`, with messages as `frame` says; `peer` is for logs.
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
        self.coming.lock().expect(POISON)
    }

    fn going(&self) -> MutexGuard<'_, Going> {
        self.going.lock().expect(POISON)
    }

    /// Copies as much of what has come as there is room for.
    fn take(&self, coming: &mut Coming, buf: &mut [u8]) -> io::Result<usize> {
        let mut got = 0;
        while got < buf.len() {
            let (came, at) = match coming.0.take() {
                Some(begun) => begun,
                None => match self.queue().any() {
                    Ok(None) => break,
                    Ok(Some(came)) => (self.checked(came)?, 0),
                    // Nothing more comes; what did is told first.
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

    /// A reply that is as long as it says.
    fn checked(&self, came: Came) -> io::Result<Came> {
        let mut head = [0; 16];
        let head = &mut head[..came.len.min(16)];
        self.queue().load_any(&came, 0, head);
        if (self.frame)(head) == Some(came.len) {
            return Ok(came);
        }
        let why = format!("expected a whole reply, got {} bytes", came.len);
        self.give_up(came);
        Err(io::Error::new(ErrorKind::InvalidData, why))
    }

    fn give_up(&self, came: Came) {
        self.queue().give_up(came);
        if self.wants_room.swap(false, Ordering::SeqCst) {
            ring(&self.room);
        }
    }

    /// Puts of `bytes` as much as there is room for into requests, and says how much.
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

    /// Whether something can be sent: `going` is begun, or there is room to.
    fn may_send(&self, going: &Going) -> bool {
        going.slot.is_some() || self.queue().has_room() || self.over.load(Ordering::SeqCst)
    }

    /// Sleeps until something comes or nothing more will; says whether the device is gone. Who receives has `coming`.
    fn await_reply(&self, _: &Coming, time: Option<Duration>) -> io::Result<bool> {
        self.armed(|| Ok(events_of(&self.asleep, time)?.contains(&DEVICE)))
    }

    /// Does what sleeps until the device tells of a reply, unless one has come.
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

/// From here on copying once more costs more than looking once more.
const APART: usize = 8 << 10;

impl Link for Stream {
    /// Who waits is told `WouldBlock` after [`TICK`], to look at the time.
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
    /// Has who makes room tell; says whether there is some already.
    fn wants_room(&self) -> bool {
        self.wants_room.store(true, Ordering::SeqCst);
        // What rang before is over, but for the end.
        let _ = rustix::io::read(&self.room, &mut [0; 8]);
        self.queue().has_room() || self.over.load(Ordering::SeqCst)
    }

    /// Sleeps until there may be room for a request; says whether the device is gone.
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

/// Has `epoll` tell, as `which`, that `fd` is readable or its peer gone.
fn watch(epoll: &Epoll, fd: &impl AsRawFd, which: u64) -> io::Result<()> {
    let events = EventSet::IN | EventSet::READ_HANG_UP;
    let event = EpollEvent::new(events, which);
    epoll.ctl(ControlOperation::Add, fd.as_raw_fd(), event)
}

/// Waits for any of what `epoll` watches, for `time` at most.
fn events_of(epoll: &Epoll, time: Option<Duration>) -> io::Result<Vec<u64>> {
    let mut events = [EpollEvent::default(); 4];
    // Rounded up, lest it be waited for over and over.
    let time = time.map(|time| i32::try_from(time.as_millis() + 1).unwrap_or(i32::MAX));
    let count = match epoll.wait(time.unwrap_or(-1), &mut events) {
        Err(error) if error.kind() == ErrorKind::Interrupted => 0,
        done => done?,
    };
    Ok(events[..count].iter().map(|event| event.data()).collect())
}

fn ring(event: &OwnedFd) {
    // Fails only when the counter is full, and then it is set.
    let _ = rustix::io::write(event, &1u64.to_ne_bytes());
}

const POISON: &str = "no panic holds it";
