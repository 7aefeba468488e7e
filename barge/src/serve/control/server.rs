//! The control socket: connections of this user and of root, and their bounds.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use engine::StopSignal;
use serde_json::Value;
use transports::{Addr, Listener};

use super::Controller;
use super::protocol::{self, MAX_LINE};
use crate::Failure;
use crate::listen::listen;
use crate::serve::live::{ErrorCode, LiveError};

/// Maximum number of connections. A connection has one request at a time; further ones wait in its
/// socket.
const MAX_CONNECTIONS: usize = 16;

/// Time for the rest of a line that has begun, and for a reply to be received.
const LINE_TIMEOUT: Duration = Duration::from_secs(10);

/// Time that a connection may be without requests, so that forgotten ones do not use up the
/// connections.
const IDLE_TIMEOUT: Duration = Duration::from_secs(600);

/// A control socket, until dropped.
pub(in crate::serve) struct ControlServer {
    listener: Arc<Listener>,
    stop: Arc<StopSignal>,
    thread: OnceLock<JoinHandle<()>>,
}

impl ControlServer {
    /// Binds the socket; clients wait until [`ControlServer::start`].
    pub(in crate::serve) fn bind(addr: &Addr) -> Result<ControlServer, Failure> {
        ControlServer::new(listen(addr, None)?)
    }

    /// Returns that of a socket that is bound already.
    pub(in crate::serve) fn new(listener: Listener) -> Result<ControlServer, Failure> {
        let stop = StopSignal::new().map_err(Failure::new)?;
        Ok(ControlServer {
            listener: Arc::new(listener),
            stop: Arc::new(stop),
            thread: OnceLock::new(),
        })
    }

    /// Returns a duplicate for another program. The socket's file stays when it is dropped.
    pub(in crate::serve) fn duplicate(&self) -> io::Result<Listener> {
        let listener = &self.listener;
        Listener::inherit(listener.socket()?, listener.addr(), listener.has_file())
    }

    /// Removes the file of an inherited socket at the end from now on.
    pub(in crate::serve) fn own_file(&self) {
        self.listener.own_file();
    }

    /// Starts a thread that serves the clients with `controller`.
    pub(in crate::serve) fn start(&self, controller: Arc<Controller>) -> Result<(), Failure> {
        let (listener, stop) = (self.listener.clone(), self.stop.clone());
        let thread = std::thread::Builder::new().name("barge-control".into());
        let serve = move || {
            let open = Arc::new(AtomicUsize::new(0));
            loop {
                match listener.accept_socket(stop.fd()) {
                    Ok(Some((socket, _))) => connect(socket.into(), &controller, &open),
                    Ok(None) => return,
                    Err(error) => return tracing::error!("--control: {error}"),
                }
            }
        };
        let thread = thread.spawn(serve).map_err(Failure::new)?;
        self.thread.get_or_init(|| thread);
        Ok(())
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        self.stop.raise();
        // The listener removes the socket's file once the thread has dropped it, too.
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Serves a connection on a thread of its own, unless its user or the number of connections forbid
/// that.
fn connect(socket: UnixStream, controller: &Arc<Controller>, open: &Arc<AtomicUsize>) {
    let _ = socket.set_write_timeout(Some(LINE_TIMEOUT));
    let own = rustix::process::geteuid().as_raw();
    match sys::peer::credentials(socket.as_fd()) {
        Ok((uid, _)) if uid == 0 || uid == own => {}
        Ok((uid, _)) => {
            tracing::warn!(
                uid,
                "control connection refused: expected user {own} or root"
            );
            return refuse(
                &socket,
                ErrorCode::Denied,
                "expected the user of the server or root",
            );
        }
        Err(error) => return tracing::warn!("control connection refused: {error}"),
    }
    let Some(counted) = Counted::new(open) else {
        let message = format!("the limit of {MAX_CONNECTIONS} connections is reached");
        return refuse(&socket, ErrorCode::Busy, &message);
    };
    let controller = controller.clone();
    let thread = std::thread::Builder::new().name("barge-control".into());
    let serve = move || {
        let _counted = counted;
        if let Err(error) = serve(&socket, &controller) {
            tracing::debug!("control connection closed: {error}");
        }
    };
    if let Err(error) = thread.spawn(serve) {
        tracing::warn!("control connection refused: {error}");
    }
}

/// An open connection, until dropped, also by a panic.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    /// Counts a connection, unless there are [`MAX_CONNECTIONS`].
    fn new(open: &Arc<AtomicUsize>) -> Option<Counted> {
        let counted = Counted(open.clone());
        (open.fetch_add(1, Ordering::SeqCst) < MAX_CONNECTIONS).then_some(counted)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn refuse(mut socket: &UnixStream, code: ErrorCode, message: &str) {
    // The peer may be gone.
    let _ = socket.write_all(&protocol::reply(
        &Value::Null,
        Err(LiveError::new(code, message)),
    ));
}

/// Answers one request after the other until the peer closes the connection.
fn serve(mut socket: &UnixStream, controller: &Controller) -> io::Result<()> {
    let mut lines = Lines {
        socket,
        buffer: Vec::new(),
    };
    loop {
        let line = match lines.next() {
            Ok(Some(line)) => line,
            Ok(None) => return Ok(()),
            Err(error) => {
                if error.kind() == ErrorKind::InvalidData {
                    refuse(socket, ErrorCode::InvalidRequest, &error.to_string());
                }
                return Err(error);
            }
        };
        let reply = match protocol::parse(&line) {
            Ok(request) => protocol::reply(&request.id, controller.handle(request.method)),
            Err((id, error)) => protocol::reply(&id, Err(error)),
        };
        socket.write_all(&reply)?;
    }
}

/// The lines of a connection.
struct Lines<'a> {
    socket: &'a UnixStream,
    /// Received bytes after the last line.
    buffer: Vec<u8>,
}

impl Lines<'_> {
    /// Returns the next line without its newline, or `None` at the end. Returns an error of kind
    /// `InvalidData` for a line that is too long.
    fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut searched = 0;
        let mut deadline = None;
        loop {
            if let Some(at) = self.buffer[searched..]
                .iter()
                .position(|byte| *byte == b'\n')
            {
                let rest = self.buffer.split_off(searched + at + 1);
                let mut line = std::mem::replace(&mut self.buffer, rest);
                line.pop();
                return Ok(Some(line));
            }
            searched = self.buffer.len();
            if searched >= MAX_LINE {
                let message = format!("expected at most {MAX_LINE} bytes in a line");
                return Err(io::Error::new(ErrorKind::InvalidData, message));
            }
            let timeout = match self.buffer.is_empty() {
                true => IDLE_TIMEOUT,
                false => {
                    let end = *deadline.get_or_insert_with(|| Instant::now() + LINE_TIMEOUT);
                    end.saturating_duration_since(Instant::now())
                }
            };
            if timeout.is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
            self.socket.set_read_timeout(Some(timeout))?;
            let mut bytes = [0; 4096];
            let room = bytes.len().min(MAX_LINE - searched);
            match (&mut &*self.socket).read(&mut bytes[..room]) {
                Ok(0) => return Ok(None),
                Ok(len) => self.buffer.extend_from_slice(&bytes[..len]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_ends_by_a_panic_makes_room() {
        let open = Arc::new(AtomicUsize::new(0));
        let all: Vec<_> = (0..MAX_CONNECTIONS).map(|_| Counted::new(&open)).collect();
        assert!(all.iter().all(Option::is_some) && Counted::new(&open).is_none());
        let ended = std::thread::spawn(move || {
            let _all = all;
            panic!("a request failed");
        });
        assert!(ended.join().is_err());
        assert_eq!(open.load(Ordering::SeqCst), 0);
    }
}
