//! A lane's own thread: receives, answers what it can, sends.

use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tracing::trace_span;
use transports::{Frame, Interest, Outbox, Poller, Ready};
use wire::{Answer, Malformed, Role};

use crate::input::Input;
use crate::lane::{Lane, invalid};
use crate::pace::Pace;
use crate::request::named;
use crate::stats::add;

/// What only the lane's own thread has.
pub(crate) struct Own<'a> {
    lane: &'a Arc<Lane>,
    input: Input,
    out: Outbox,
    poller: Poller,
    pace: Pace,
}

impl<'a> Own<'a> {
    /// How long large buffers are kept for a next large message: their pages cost as much to get as
    /// half a megabyte to copy.
    const IDLE: Duration = Duration::from_millis(500);

    pub(crate) fn new(lane: &'a Arc<Lane>) -> Own<'a> {
        Own {
            lane,
            input: Input::default(),
            out: Outbox::default(),
            poller: Poller::new(lane.tuning.poll),
            pace: Pace::default(),
        }
    }

    fn holds_much(&self) -> bool {
        self.input.is_empty() && (self.input.is_large() || self.out.is_large())
    }

    /// Until the client ends.
    pub(crate) fn run(mut self) -> io::Result<()> {
        loop {
            self.serve_all()?;
            self.flush()?;
            let idle = self.holds_much().then_some(Own::IDLE);
            let buffer = self
                .input
                .space(|head| self.lane.session.frame(head))
                .map_err(invalid)?;
            let Some(received) = receive(self.lane, buffer, &mut self.poller, idle)? else {
                self.input.shrink();
                self.out.shrink();
                continue;
            };
            if received == 0 {
                return match self.input.is_empty() {
                    true => Ok(()),
                    false => Err(ErrorKind::UnexpectedEof.into()),
                };
            }
            add(&self.lane.stats().received, received);
            self.input.end += received;
        }
    }

    /// Answers every whole message that is there.
    fn serve_all(&mut self) -> io::Result<()> {
        self.pace.begin();
        loop {
            let head = self.input.bytes();
            let Some(len) = self.lane.session.frame(head).map_err(invalid)? else {
                return Ok(());
            };
            if head.len() < len {
                return Ok(());
            }
            let start = self.input.start;
            self.input.start += len;
            self.serve(start..start + len)?;
            let took = self.pace.step(len);
            self.lane.stats().enter(&self.lane.inline, || took);
            if self.out.size() >= Lane::BATCH || self.out.has_pages() || self.out.handed().is_some()
            {
                self.flush()?;
                self.pace.begin();
            }
        }
    }

    fn serve(&mut self, range: Range<usize>) -> io::Result<()> {
        let lane = self.lane;
        add(&lane.stats().requests, 1);
        let _span = named(|| {
            let id = lane.stats().requests.load(Ordering::Relaxed);
            trace_span!("request", conn = lane.id(), id)
        });
        let message = &self.input.buffer[range.clone()];
        let id = match lane.session.role(message).map_err(invalid)? {
            Role::Request { id } => id,
            Role::Cancel { id, target } => {
                if lane.outstanding() > 0 && lane.follow(id, target, message)? {
                    return Ok(());
                }
                id
            }
            Role::Reset { id } => {
                if lane.outstanding() > 0 {
                    self.flush()?;
                    lane.cancel_all();
                    lane.await_quiet()?;
                }
                id
            }
        };
        lane.check_unused(id)?;
        let message = &self.input.buffer[range.clone()];
        // Pages are waited for while they are sent, as all is if nobody else could want to send.
        self.out.take_pages(match lane.outstanding() {
            0 if lane.tuning.zerocopy => lane.link.payloads().pages,
            _ => usize::MAX,
        });
        let patience = self.pace.patience();
        match lane
            .session
            .serve(&lane.inline, patience, &Frame(message), self.out.begin())
        {
            Ok(Answer::Done) => Ok(()),
            Ok(Answer::Secure) => self.secure(),
            Ok(Answer::WouldBlock | Answer::Parked) => {
                if !lane.has_room(range.len()) {
                    self.flush()?;
                    lane.await_until(|lane| lane.has_room(range.len()))?;
                }
                // What it noted is of an attempt.
                lane.inline.take_noted();
                lane.offload(id, self.input.keep(range));
                Ok(())
            }
            Err(malformed) => Err(invalid(malformed)),
        }
    }

    /// Has the link secure all that comes behind the request for that. What has come already was
    /// sent by whoever could read and change the connection.
    fn secure(&mut self) -> io::Result<()> {
        if !self.input.is_empty() {
            let early = "expected nothing before the connection is secured";
            return Err(invalid(Malformed::new(early)));
        }
        self.flush()?;
        self.lane.await_quiet()?;
        let peer = self.lane.link.secure()?;
        self.lane.session.secured(peer);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        let lane = self.lane;
        let clogged = if self.out.size() == 0 {
            lane.is_clogged()
        } else if self.out.has_pages() {
            let clogged = lane.send_pages(&mut self.out)?;
            self.out.clear();
            clogged
        } else {
            // With nothing in flight there is nobody else who could want to send.
            let clogged = lane.send(&self.out, lane.outstanding() == 0)?;
            self.out.clear();
            clogged
        };
        // A client that leaves its replies lying is not given more of them: what it has sent already
        // may ask for thousands of times as much as it is long.
        if clogged {
            lane.await_until(|lane| !lane.is_clogged())?;
        }
        Ok(())
    }
}

/// Receives at least a byte, sending on the backlog meanwhile; 0 at the end. Nothing if `idle` is over
/// before.
fn receive(
    lane: &Lane,
    buffer: &mut [u8],
    poller: &mut Poller,
    idle: Option<Duration>,
) -> io::Result<Option<usize>> {
    loop {
        if lane.outstanding() == 0 && !lane.has_backlog() {
            return poller.wait(|wait| {
                if wait && idle.is_some() {
                    let interest = Interest {
                        read: true,
                        write: false,
                    };
                    if lane.link.wait(interest, lane.bell.as_fd(), idle)? == Ready::default() {
                        return Ok(None);
                    }
                }
                lane.link.recv(buffer, wait).map(Some)
            });
        }
        if lane.is_gone() {
            return Err(ErrorKind::BrokenPipe.into());
        }
        // A client that leaves its replies lying is not heard until it takes them.
        let backlog = lane.has_backlog();
        let ready = lane.listen(Interest {
            read: !backlog,
            write: backlog,
        })?;
        if ready.read || ready.hung_up {
            match lane.link.recv(buffer, false) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                done => return done.map(Some),
            }
        }
    }
}
