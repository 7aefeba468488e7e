//! A link to a 9P server that survives lost connections.
//!
//! It records the session state that passes through ([`p9::recovery`]). When the connection is
//! lost, the receiving thread reconnects, restores the session and sends the requests in flight
//! again; the user of the link notices only a delay. Meanwhile new requests are accepted and wait,
//! and cancellations are answered at once.
//!
//! Requests are copied, to be sent again, except the payloads of writes that the sender keeps until
//! the reply: the sender is asked to send those again (`connection::ResendRequired`).
//!
//! The client half uses it, and so does a relay between another client and a server.
//!
//! `link` is the link with its state, whose operations are in this module. `send` and `receive` are
//! the two directions, `incoming` follows the message being received, `reconnect` reconnects, and
//! `relay` serves another client.
//!
//! Lock order: the runs of the sending side or the incoming message; then the state. No thread
//! waits for a peer while it holds the state's lock.

mod incoming;
mod link;
mod receive;
mod reconnect;
mod relay;
mod send;

use std::io::{self, IoSlice};
use std::time::Duration;

use transports::{Interest, Link, Origin, Payloads, Ready};
use vfs::fd::{BorrowedFd, OwnedFd};

pub use self::link::{Dial, ReconnectingLink};
pub use self::relay::relay;

impl Link for ReconnectingLink {
    fn recv(&self, buf: &mut [u8], wait: bool) -> io::Result<usize> {
        self.receive(buf, wait, None)
    }

    /// Bytes received while reconnecting come without file descriptors.
    fn recv_with_file(
        &self,
        buf: &mut [u8],
        wait: bool,
        file: &mut Option<OwnedFd>,
    ) -> io::Result<usize> {
        self.receive(buf, wait, Some(file))
    }

    fn send(&self, bytes: &[u8], wait: bool) -> io::Result<usize> {
        self.send_pieces(&[IoSlice::new(bytes)], 0, wait)
    }

    fn send_vectored(&self, pieces: &[IoSlice<'_>], wait: bool) -> io::Result<usize> {
        self.send_pieces(pieces, 0, wait)
    }

    fn send_lent(&self, messages: &[u8], payload: &[u8], wait: bool) -> io::Result<usize> {
        let pieces = [IoSlice::new(messages), IoSlice::new(payload)];
        self.send_pieces(&pieces, payload.len(), wait)
    }

    /// Without a connection the link is always writable.
    fn wait(
        &self,
        interest: Interest,
        wake: BorrowedFd<'_>,
        time: Option<Duration>,
    ) -> io::Result<Ready> {
        let state = self.state();
        let quiet = state.local_replies.is_empty()
            && state.resend.is_empty()
            && state.early_input.is_empty();
        let read = interest.read && !quiet;
        let write = interest.write && !state.is_connected;
        if read || write {
            return Ok(Ready {
                read,
                write,
                ..Ready::default()
            });
        }
        let link = state.link.clone();
        drop(state);
        link.wait(interest, wake, time)
    }

    fn end_input(&self) {
        self.hang_up();
    }

    fn hang_up(&self) {
        let mut state = self.state();
        state.ended = true;
        state.link.hang_up();
        drop(state);
        self.wake_all();
    }

    fn payloads(&self) -> Payloads {
        self.payloads
    }

    fn peer(&self) -> &str {
        &self.peer
    }

    fn origin(&self) -> Origin {
        Origin::Inherited
    }
}
