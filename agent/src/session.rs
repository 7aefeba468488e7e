//! The conversation with a server about one mount.

use std::fmt;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::time::{Duration, Instant};

use transports::Link;

use crate::mount::ShareMount;
use crate::protocol::{
    Action, Done, Found, FromAgent, FromServer, Hello, Lines, VERSION, encode, parse_from_server,
};

/// Time for the server to answer at the beginning, and between two lines: it sends one every 30 s.
pub const SILENCE: Duration = Duration::from_secs(100);

/// The reason why a conversation ended.
#[derive(Debug)]
pub enum Ended {
    /// The connection failed.
    Lost(io::Error),
    /// The server refused the agent, for this reason.
    Refused(String),
    /// The mount cannot be used.
    Mount(io::Error),
    /// The server sent a line that is not of this protocol.
    Malformed(String),
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ended::Lost(error) => write!(f, "connection lost: {error}"),
            Ended::Refused(message) => write!(f, "refused by the server: {message}"),
            Ended::Mount(error) => write!(f, "cannot use the mount: {error}"),
            Ended::Malformed(error) => write!(f, "unexpected line of the server: {error}"),
        }
    }
}

/// The mount that a conversation is about.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// The name of the share.
    pub share: &'a str,
    /// The directory where it is mounted.
    pub path: &'a Path,
    /// Whether a read-only file system is made writable ([`ShareMount::open`]).
    pub remount: bool,
    /// Whether there was a conversation about it before, so that changes may have been missed.
    pub again: bool,
}

/// Repeats the changes of `target` until the connection ends or another
/// file system is mounted there. Calls `ready` once all changes are reported. The calling thread is
/// of the super-user, and acts as another user meanwhile.
pub fn run(link: &dyn Link, target: Target<'_>, ready: &mut dyn FnMut()) -> Ended {
    match converse(link, target, ready) {
        Ok(never) => match never {},
        Err(ended) => ended,
    }
}

fn converse(
    link: &dyn Link,
    target: Target<'_>,
    ready: &mut dyn FnMut(),
) -> Result<std::convert::Infallible, Ended> {
    let Target {
        share,
        path,
        remount,
        again,
    } = target;
    let mount = ShareMount::open(path, remount).map_err(Ended::Mount)?;
    let random = sys::random::bytes::<16>().map_err(|error| Ended::Lost(error.into()))?;
    let session: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut channel = Channel {
        link,
        lines: Lines::default(),
    };
    channel.send(&FromAgent::Hello(Hello {
        version: VERSION,
        share: share.to_owned(),
        session: session.clone(),
    }))?;
    let challenge = loop {
        match channel.next()? {
            FromServer::Challenge(challenge) if challenge.session == session => break challenge,
            FromServer::Error(refused) => return Err(Ended::Refused(refused.message)),
            // Of an earlier conversation.
            _ => {}
        }
    };
    let _identity = AgentIdentity::assume(challenge.uid).map_err(Ended::Mount)?;
    match mount.is_absent(&challenge.name).map_err(Ended::Mount)? {
        true => {}
        false => return Err(Ended::Malformed("a challenge that exists".into())),
    }
    channel.send(&FromAgent::Found(Found {
        session: session.clone(),
    }))?;
    match channel.next()? {
        FromServer::Ready(begun) if begun.session == session => ready(),
        FromServer::Error(refused) => return Err(Ended::Refused(refused.message)),
        other => return Err(Ended::Malformed(format!("{other:?}"))),
    }
    if again {
        tracing::warn!("{}: changes may have been missed", path.display());
        if let Err(error) = mount.perform(&Action::Overflow) {
            tracing::debug!("overflow: {error}");
        }
    }
    loop {
        let poke = match channel.next()? {
            FromServer::Poke(poke) => poke,
            FromServer::Error(refused) => return Err(Ended::Refused(refused.message)),
            other => return Err(Ended::Malformed(format!("{other:?}"))),
        };
        if poke.action == Action::Overflow {
            tracing::warn!("{}: changes were lost", path.display());
        }
        if poke.action == Action::None && !mount.is_mounted_at(path) {
            return Err(Ended::Mount(ErrorKind::NotFound.into()));
        }
        let done = mount.perform(&poke.action);
        if let Err(error) = &done {
            tracing::debug!("{:?}: {error}", poke.action);
        }
        channel.send(&FromAgent::Done(Done {
            id: poke.id,
            error: done.err().map(|error| error.raw_os_error().unwrap_or(-1)),
        }))?;
    }
}

/// A connection, as messages.
struct Channel<'a> {
    link: &'a dyn Link,
    lines: Lines,
}

impl Channel<'_> {
    fn send(&self, message: &FromAgent) -> Result<(), Ended> {
        let line = encode(message);
        self.link.send(&line, true).map(drop).map_err(Ended::Lost)
    }

    fn next(&mut self) -> Result<FromServer, Ended> {
        let end = Instant::now() + SILENCE;
        loop {
            let line = self.lines.next_line();
            let line = line.map_err(|_| Ended::Malformed("a line that is too long".into()))?;
            if let Some(line) = line {
                return parse_from_server(&line).map_err(Ended::Malformed);
            }
            let mut bytes = [0; 4096];
            match self.link.recv(&mut bytes, true) {
                Ok(0) => return Err(Ended::Lost(ErrorKind::UnexpectedEof.into())),
                Ok(len) => self.lines.push(&bytes[..len]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if Instant::now() >= end {
                        return Err(Ended::Lost(ErrorKind::TimedOut.into()));
                    }
                }
                Err(error) => return Err(Ended::Lost(error)),
            }
        }
    }
}

/// The identity of the calling thread as an agent, until dropped: the user of the server's choice,
/// by which it recognises the requests of this thread, with the rights of the super-user.
struct AgentIdentity;

impl AgentIdentity {
    fn assume(uid: u32) -> io::Result<AgentIdentity> {
        let identity = AgentIdentity;
        sys::creds::set_fs_uid(uid)?;
        sys::caps::set_fs_capabilities(true)?;
        Ok(identity)
    }
}

impl Drop for AgentIdentity {
    fn drop(&mut self) {
        // As before: the process is the super-user's.
        if let Err(error) = sys::creds::set_fs_uid(0) {
            tracing::error!("cannot be root again: {error}");
        }
    }
}
