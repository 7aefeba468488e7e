//! The direction from the server.

use std::io::{self, ErrorKind, Read};
use std::sync::Arc;

use transports::{Interest, Link, RECV_INTERVAL, Ready};
use vfs::fd::{AsFd, OwnedFd};

use super::incoming::Incoming;
use super::link::ReconnectingLink;
use crate::connection::ResendRequired;

impl ReconnectingLink {
    pub(super) fn receive(
        &self,
        buf: &mut [u8],
        wait: bool,
        mut file: Option<&mut Option<OwnedFd>>,
    ) -> io::Result<usize> {
        let mut incoming = self.incoming.lock();
        loop {
            let mut state = self.state();
            if state.ended {
                return Ok(0);
            }
            if incoming.received == 0 && !state.local_replies.is_empty() {
                return state.local_replies.read(buf);
            }
            if incoming.received == 0 && !state.resend.is_empty() {
                let again = std::mem::take(&mut state.resend);
                let numbers = again.into_iter().map(|tag| tag.0.into());
                return Err(ResendRequired(numbers.collect()).into());
            }
            if !state.early_input.is_empty() {
                let got = state.early_input.read(buf)?;
                incoming.note(&buf[..got], &mut state.record);
                return Ok(got);
            }
            if let Some(why) = &state.failed {
                return Err(io::Error::new(ErrorKind::ConnectionReset, why.clone()));
            }
            if !state.is_connected {
                if incoming.received > 0 {
                    *incoming = Incoming::default();
                    return Err(ErrorKind::Interrupted.into());
                }
                if !wait {
                    return Err(ErrorKind::WouldBlock.into());
                }
                self.try_reconnect(state);
                // The caller may have timeouts to check.
                return Err(ErrorKind::WouldBlock.into());
            }
            let (link, epoch) = (state.link.clone(), state.epoch);
            // Only then can the link generate replies of its own.
            let listens = state.record.stale() > 0;
            drop(state);
            let received = match &mut file {
                Some(file) => link.recv_with_file(buf, wait && !listens, file),
                None => link.recv(buf, wait && !listens),
            };
            match received {
                Ok(0) => self.disconnected(epoch, &"the server closed the connection"),
                Ok(got) => {
                    incoming.note(&buf[..got], &mut self.state().record);
                    return Ok(got);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock && wait && listens => {
                    if !self.wait_for_input(&link)? {
                        return Err(error);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Err(error),
                Err(error) => self.disconnected(epoch, &error),
            }
        }
    }

    /// Waits until the server sends or the link has generated a reply, and returns whether either
    /// happened.
    fn wait_for_input(&self, link: &Arc<dyn Link>) -> io::Result<bool> {
        let interest = Interest {
            read: true,
            write: false,
        };
        let ready = link.wait(interest, self.wake_event.as_fd(), Some(RECV_INTERVAL))?;
        if ready.woken {
            self.clear_wake_event();
        }
        Ok(ready != Ready::default())
    }
}
