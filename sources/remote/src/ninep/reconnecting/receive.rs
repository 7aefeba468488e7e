//! The direction from the server.

use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use p9::message::HEADER;
use p9::recovery::Record;
use transports::{Interest, Link, RECV_INTERVAL, Ready};

use super::ReconnectingLink;
use crate::connection::ResendRequired;

/// The message being received.
#[derive(Default)]
pub(super) struct Incoming {
    /// The number of its bytes received.
    received: usize,
    /// The part of its beginning that the record needs.
    head: Vec<u8>,
}

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

impl Incoming {
    /// Passes complete replies to `record`.
    fn note(&mut self, mut bytes: &[u8], record: &mut Record) {
        while !bytes.is_empty() {
            let missing = HEADER.saturating_sub(self.head.len());
            if missing > 0 {
                let (part, rest) = bytes.split_at(missing.min(bytes.len()));
                self.take(part, part.len());
                bytes = rest;
                continue;
            }
            let size = self.head[..4].iter().rev();
            let size = size.fold(0, |size, &byte| size << 8 | usize::from(byte));
            let wanted =
                Record::reply_bytes_needed(self.head[4], size).saturating_sub(self.head.len());
            let come = size.saturating_sub(self.received).min(bytes.len());
            let (part, rest) = bytes.split_at(come);
            self.take(&part[..wanted.min(come)], come);
            bytes = rest;
            // The user of the link detects invalid sizes.
            if self.received >= size {
                // It detects invalid replies, too.
                let _ = record.on_reply(&self.head);
                self.head.clear();
                self.received = 0;
            }
        }
        // The last message may consist of a header alone.
        if self.received == HEADER && self.head[..4] == (HEADER as u32).to_le_bytes() {
            let _ = record.on_reply(&self.head);
            self.head.clear();
            self.received = 0;
        }
    }

    fn take(&mut self, kept: &[u8], seen: usize) {
        self.head.extend_from_slice(kept);
        self.received += seen;
    }
}
