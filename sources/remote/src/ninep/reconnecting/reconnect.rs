//! Reconnecting.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use p9::message::{DATA_HEAD, HEADER, Header};
use p9::recovery::{Failure, Server};
use p9::{Dialect, Tag, Tmessage};
use parking_lot::MutexGuard;
use transports::{Interest, Link};
use vfs::Errno;
use vfs::fd::AsFd;

use super::link::{Outage, ReconnectingLink, State};

impl ReconnectingLink {
    /// Tries once to reconnect if the pause is over; else waits until then or until the state
    /// changes.
    pub(super) fn try_reconnect(&self, mut state: MutexGuard<'_, State>) {
        let Some(outage) = &mut state.outage else {
            return;
        };
        let now = Instant::now();
        if now < outage.next {
            let time = outage.next - now;
            self.changed.wait_for(&mut state, time);
            return;
        }
        outage.next = now + outage.pause;
        outage.pause = (outage.pause * 2).min(Outage::MAX_PAUSE);
        let since = outage.since;
        let mut recovery = state.record.begin();
        drop(state);
        let done = self.connect().and_then(|link| {
            recovery.run(&mut RecoveryConnection {
                owner: self,
                link: &link,
            })?;
            Ok(link)
        });
        let mut state = self.state();
        let settled = state.record.end(recovery);
        state.local_replies.extend(settled.into_iter().flatten());
        let done = done.and_then(|link| match self.resend(state, &link) {
            Ok(()) => Ok(()),
            Err(error) => {
                self.state().record.on_connection_lost();
                Err(Failure::Temporary(error.to_string()))
            }
        });
        match done {
            Ok(()) => tracing::info!(
                "9P connection to {}: reconnected after {:.1} s",
                self.peer,
                since.elapsed().as_secs_f32()
            ),
            Err(Failure::Permanent(why)) => self.state().failed = Some(why),
            Err(Failure::Temporary(why)) if self.retry.may_retry(since) => {
                tracing::debug!("9P connection to {}: {why}", self.peer);
            }
            Err(Failure::Temporary(why)) => self.give_up(&why),
        }
    }

    /// Lets the requests in flight fail, as no server has come in time. Later ones wait for the
    /// next attempt, and the session continues once there is a server.
    fn give_up(&self, why: &str) {
        let mut state = self.state();
        let replies = state.record.give_up(Errno::ETIMEDOUT);
        state.local_replies.extend(replies.into_iter().flatten());
        if let Some(outage) = &mut state.outage
            && !std::mem::replace(&mut outage.is_given_up, true)
        {
            tracing::error!("9P connection to {}: {why}", self.peer);
        }
    }

    fn connect(&self) -> Result<Arc<dyn Link>, Failure> {
        match (self.dial)() {
            Ok(link) => Ok(link.into()),
            Err(error) => Err(Failure::Temporary(error.to_string())),
        }
    }

    /// Sends the requests in flight, then those queued meanwhile, and makes `link` the connection
    /// when none are left.
    fn resend<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        link: &Arc<dyn Link>,
    ) -> io::Result<()> {
        loop {
            let unsent = state.record.unsent();
            state
                .local_replies
                .extend(unsent.answers.into_iter().flatten());
            state.resend.extend(unsent.lent);
            let messages = unsent.messages;
            if messages.is_empty() {
                let stale = state.record.stale();
                if stale > 0 {
                    tracing::warn!("9P connection to {}: {stale} files are stale", self.peer);
                }
                state.link = link.clone();
                state.epoch += 1;
                state.is_connected = true;
                state.outage = None;
                return Ok(());
            }
            drop(state);
            for message in messages {
                self.resend_one(&**link, &message)?;
            }
            state = self.state();
        }
    }

    /// Sends the whole message, and receives replies if the server needs that to continue.
    fn resend_one(&self, link: &dyn Link, mut message: &[u8]) -> io::Result<()> {
        let both = Interest {
            read: true,
            write: true,
        };
        let mut buffer = Vec::new();
        while !message.is_empty() {
            match link.send(message, false) {
                Ok(sent) => {
                    message = &message[sent..];
                    continue;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            let ready = link.wait(both, self.wake_event.as_fd(), None)?;
            if ready.woken {
                self.clear_wake_event();
                if self.state().ended {
                    return Err(ErrorKind::ConnectionAborted.into());
                }
            }
            if ready.read {
                buffer.resize(64 << 10, 0);
                match link.recv(&mut buffer, false) {
                    Ok(0) => return Err(ErrorKind::ConnectionReset.into()),
                    Ok(got) => self.state().early_input.extend(&buffer[..got]),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }
}

/// A new connection during session recovery.
struct RecoveryConnection<'a> {
    owner: &'a ReconnectingLink,
    link: &'a Arc<dyn Link>,
}

impl RecoveryConnection<'_> {
    /// The longest wait for a reply: a restarting server may have to mount its disks first.
    const MAX_WAIT: Duration = Duration::from_secs(30);

    fn max_wait(&self) -> Duration {
        self.owner.timeo.min(RecoveryConnection::MAX_WAIT)
    }

    fn exchange(&self, requests: &[Tmessage<'_>]) -> io::Result<Vec<Vec<u8>>> {
        let mut encoded = Vec::new();
        for (at, request) in requests.iter().enumerate() {
            let tag = match request {
                Tmessage::Version { .. } => Tag::NONE,
                _ => Tag(at as u16),
            };
            request.encode(Dialect::Linux, tag, &mut encoded);
        }
        self.link.send(&encoded, true)?;
        let mut replies = vec![Vec::new(); requests.len()];
        for _ in requests {
            let mut message = vec![0; HEADER];
            self.fill(&mut message)?;
            let bad = |_| io::Error::from(ErrorKind::InvalidData);
            let header = Header::decode(&message).map_err(bad)?;
            let size = header.size as usize;
            if !(HEADER..=longest_reply(requests)).contains(&size) {
                return Err(ErrorKind::InvalidData.into());
            }
            message.resize(size, 0);
            self.fill(&mut message[HEADER..])?;
            let at = match header.tag {
                Tag::NONE => 0,
                Tag(at) => usize::from(at),
            };
            match replies.get_mut(at) {
                Some(reply) if reply.is_empty() => *reply = message,
                _ => return Err(ErrorKind::InvalidData.into()),
            }
        }
        Ok(replies)
    }

    fn fill(&self, mut part: &mut [u8]) -> io::Result<()> {
        let interest = Interest {
            read: true,
            write: false,
        };
        while !part.is_empty() {
            match self.link.recv(part, false) {
                Ok(0) => return Err(ErrorKind::ConnectionReset.into()),
                Ok(got) => part = &mut part[got..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let wake_event = self.owner.wake_event.as_fd();
                    let ready = self
                        .link
                        .wait(interest, wake_event, Some(self.max_wait()))?;
                    if ready.woken {
                        self.owner.clear_wake_event();
                        let state = self.owner.state();
                        if state.ended || !state.local_replies.is_empty() {
                            return Err(ErrorKind::ConnectionAborted.into());
                        }
                    } else if !ready.read {
                        return Err(ErrorKind::TimedOut.into());
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// The longest reply to `requests`: replies without data fit 4 KiB.
fn longest_reply(requests: &[Tmessage<'_>]) -> usize {
    let lengths = requests.iter().map(|request| match request {
        Tmessage::Read { count, .. } => DATA_HEAD + *count as usize,
        _ => 4096,
    });
    lengths.fold(4096, usize::max)
}

impl Server for RecoveryConnection<'_> {
    fn call(&mut self, requests: &[Tmessage<'_>]) -> Result<Vec<Vec<u8>>, Failure> {
        self.exchange(requests)
            .map_err(|error| Failure::Temporary(error.to_string()))
    }
}
