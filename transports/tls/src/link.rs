//! A link that can start TLS.

use std::io::{self, ErrorKind, IoSlice};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustls::{ClientConnection, Connection, ServerConnection};
use transports::{Event, Interest, Link, Origin, Payloads, Ready};
use vfs::fd::{AsFd, BorrowedFd};
use wire::TlsPeer;

use crate::channel::Channel;
use crate::names;
use crate::{Acceptor, Connector};

/// A link that wraps another: plain until [`Link::start_tls`], under TLS from then on.
pub struct TlsLink {
    link: Box<dyn Link>,
    side: Side,
    /// Set from the start of the handshake on.
    channel: OnceLock<Channel>,
}

enum Side {
    Server(Arc<Acceptor>),
    Client(Arc<Connector>),
}

impl TlsLink {
    /// The timeout of a handshake.
    pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

    /// Creates a server's end.
    pub fn server(link: impl Link + 'static, acceptor: Arc<Acceptor>) -> TlsLink {
        TlsLink::new(Box::new(link), Side::Server(acceptor))
    }

    /// Creates a client's end.
    pub fn client(link: impl Link + 'static, connector: Arc<Connector>) -> TlsLink {
        TlsLink::new(Box::new(link), Side::Client(connector))
    }

    fn new(link: Box<dyn Link>, side: Side) -> TlsLink {
        TlsLink {
            link,
            side,
            channel: OnceLock::new(),
        }
    }

    fn handshake(&self, channel: &Channel) -> io::Result<()> {
        let never = Event::new()?;
        let until = Instant::now() + TlsLink::HANDSHAKE_TIMEOUT;
        loop {
            let stuck = match channel.flush_now(&*self.link) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => true,
                done => {
                    done?;
                    false
                }
            };
            if !stuck && !channel.state().is_handshaking() {
                return Ok(());
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
            let interest = Interest {
                read: !stuck,
                write: stuck,
            };
            let ready = self.link.wait(interest, never.as_fd(), Some(left))?;
            if !ready.read && !ready.hung_up {
                continue;
            }
            match channel.advance(&*self.link) {
                Ok(true) => {}
                Ok(false) => return Err(ErrorKind::UnexpectedEof.into()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => {
                    // Sends the alert with the reason, but does not wait for the peer to receive
                    // it.
                    let _ = channel.flush_now(&*self.link);
                    return Err(error);
                }
            }
        }
    }
}

impl Link for TlsLink {
    fn recv(&self, buf: &mut [u8], wait: bool) -> io::Result<usize> {
        match self.channel.get() {
            None => self.link.recv(buf, wait),
            Some(channel) => channel.recv(&*self.link, buf, wait),
        }
    }

    fn send(&self, bytes: &[u8], wait: bool) -> io::Result<usize> {
        match self.channel.get() {
            None => self.link.send(bytes, wait),
            Some(channel) => channel.send(&*self.link, &[IoSlice::new(bytes)], wait),
        }
    }

    fn send_vectored(&self, pieces: &[IoSlice<'_>], wait: bool) -> io::Result<usize> {
        match self.channel.get() {
            None => self.link.send_vectored(pieces, wait),
            Some(channel) => channel.send(&*self.link, pieces, wait),
        }
    }

    fn wait(
        &self,
        interest: Interest,
        wake: BorrowedFd<'_>,
        time: Option<Duration>,
    ) -> io::Result<Ready> {
        let channel = self.channel.get();
        let more = interest.read && channel.is_some_and(Channel::has_more);
        let time = if more { Some(Duration::ZERO) } else { time };
        let mut ready = self.link.wait(interest, wake, time)?;
        ready.read |= more;
        if let Some(channel) = channel
            && interest.read
            && ready == Ready::default()
        {
            channel.release_memory();
        }
        Ok(ready)
    }

    fn end_input(&self) {
        self.link.end_input();
    }

    fn hang_up(&self) {
        if let Some(channel) = self.channel.get() {
            channel.close(&*self.link);
        }
        self.link.hang_up();
    }

    fn start_tls(&self) -> io::Result<TlsPeer> {
        let keys = match &self.side {
            Side::Server(acceptor) => {
                ServerConnection::new(acceptor.config()).map(Connection::Server)
            }
            Side::Client(connector) => {
                ClientConnection::new(connector.config.clone(), connector.name.clone())
                    .map(Connection::Client)
            }
        };
        let channel = Channel::new(keys.map_err(io::Error::other)?);
        let mut fresh = false;
        let channel = self.channel.get_or_init(|| {
            fresh = true;
            channel
        });
        if !fresh {
            return Err(ErrorKind::Unsupported.into());
        }
        self.handshake(channel)
            .map_err(|error| io::Error::new(error.kind(), format!("TLS handshake: {error}")))?;
        let keys = channel.state();
        let shown = keys.peer_certificates().and_then(<[_]>::first);
        Ok(TlsPeer {
            names: shown.map(|certificate| names::of(certificate)),
        })
    }

    fn set_timeouts(&self, recv: Duration, send: Duration) -> io::Result<()> {
        self.link.set_timeouts(recv, send)
    }

    /// Payloads are copied from and to the TLS buffers anyway, so pages would save nothing.
    fn payloads(&self) -> Payloads {
        Payloads {
            pages: usize::MAX,
            ..self.link.payloads()
        }
    }

    fn peer(&self) -> &str {
        self.link.peer()
    }

    fn origin(&self) -> Origin {
        self.link.origin()
    }
}
