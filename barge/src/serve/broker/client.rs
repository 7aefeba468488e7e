//! The broker as the process that serves uses it.

use std::collections::HashMap;
use std::env;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use sys::users::{Group, User, UserDatabase};
use transports::{Addr, DatagramSocket, Listener};

use super::message::{self, Entry, Reply, Request};
use crate::Failure;

/// The environment variable with the [`ChildOptions`] of the process that serves.
pub(super) const CHILD_OPTIONS: &str = "BARGE_CHILD";

/// The options that the broker passes to the process that serves, in the environment: numbers with
/// colons between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChildOptions {
    /// The descriptor of the socket for requests.
    pub(super) channel: i32,
    /// The broker's process id.
    pub(super) broker: u32,
    /// Number of sockets that a service manager passed to the broker.
    pub(super) listen_fds: i32,
    /// Whether the process is prepared for namespaces.
    pub(super) namespaces: bool,
    /// Whether it replaces one that has crashed.
    pub(super) restarted: bool,
}

impl ChildOptions {
    pub(super) fn to_text(self) -> String {
        let flag = u8::from;
        format!(
            "{}:{}:{}:{}:{}",
            self.channel,
            self.broker,
            self.listen_fds,
            flag(self.namespaces),
            flag(self.restarted)
        )
    }

    fn parse(text: &str) -> Option<ChildOptions> {
        let numbers = text.split(':').map(|number| number.parse().ok());
        let numbers: Vec<i32> = numbers.collect::<Option<_>>()?;
        match numbers[..] {
            [channel, broker, listen_fds, namespaces, restarted] => Some(ChildOptions {
                channel,
                broker: broker.try_into().ok()?,
                listen_fds,
                namespaces: namespaces != 0,
                restarted: restarted != 0,
            }),
            _ => None,
        }
    }
}

/// Returns the number of sockets that a service manager has passed to the broker of this process,
/// if it has one.
pub(in crate::serve) fn listen_fds() -> Option<i32> {
    let text = env::var(CHILD_OPTIONS).ok()?;
    Some(ChildOptions::parse(&text)?.listen_fds)
}

/// A connection to the broker.
pub(in crate::serve) struct Broker {
    channel: OwnedFd,
    options: ChildOptions,
    /// How often each address was listened at.
    listened: Mutex<HashMap<String, usize>>,
}

impl Broker {
    /// Returns the broker that has started this process, if one has.
    pub(in crate::serve) fn of_this_process() -> Result<Option<Arc<Broker>>, Failure> {
        let Some(text) = env::var_os(CHILD_OPTIONS) else {
            return Ok(None);
        };
        let options = text.to_str().and_then(ChildOptions::parse);
        let options = options.ok_or_else(|| {
            Failure::new(format!("{CHILD_OPTIONS}: expected the options of a child"))
        })?;
        let channel = sys::inherit::fd(options.channel)
            .map_err(|error| Failure::new(format!("{CHILD_OPTIONS}: {error}")))?;
        Ok(Some(Arc::new(Broker {
            channel,
            options,
            listened: Mutex::default(),
        })))
    }

    /// Returns its process id.
    pub(in crate::serve) fn id(&self) -> u32 {
        self.options.broker
    }

    /// Returns whether this process is prepared for namespaces.
    pub(super) fn prepared_namespaces(&self) -> bool {
        self.options.namespaces
    }

    /// Returns whether this process replaces one that has crashed.
    pub(in crate::serve) fn has_restarted(&self) -> bool {
        self.options.restarted
    }

    fn ask(&self, request: &Request) -> io::Result<(Reply, Option<OwnedFd>)> {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let (here, there) = socketpair(family, kind, SocketFlags::CLOEXEC, None)?;
        message::send(self.channel.as_fd(), request, Some(there.as_fd()))?;
        drop(there);
        match message::receive(here.as_fd())? {
            (Reply::Failed { errno, message }, _) => Err(match errno {
                Some(errno) => io::Error::from_raw_os_error(errno),
                None => io::Error::other(message),
            }),
            reply => Ok(reply),
        }
    }

    /// Asks for a descriptor.
    fn descriptor(&self, request: &Request) -> io::Result<OwnedFd> {
        match self.ask(request)? {
            (Reply::Descriptor, Some(fd)) => Ok(fd),
            other => Err(unexpected(&other.0)),
        }
    }

    pub(in crate::serve) fn listen(&self, addr: &Addr) -> Result<Listener, Failure> {
        let addr = addr.to_string();
        let place = {
            let mut listened = self.listened.lock();
            let count = listened.entry(addr.clone()).or_default();
            *count += 1;
            *count - 1
        };
        let request = Request::Listen { addr, place };
        let (addr, socket) = match self.ask(&request).map_err(Failure::new)? {
            (Reply::Listening { addr }, Some(socket)) => (addr, socket),
            other => return Err(Failure::new(unexpected(&other.0))),
        };
        let addr = addr.parse().map_err(Failure::new)?;
        Listener::from_fd(socket, &addr).map_err(Failure::new)
    }

    pub(in crate::serve) fn bind_udp(&self, host: &str, port: u16) -> io::Result<DatagramSocket> {
        let host = host.to_owned();
        let socket = self.descriptor(&Request::BindUdp { host, port })?;
        DatagramSocket::from_socket(socket.into())
    }

    pub(in crate::serve) fn connect_udp(&self, to: SocketAddr) -> io::Result<UdpSocket> {
        self.descriptor(&Request::ConnectUdp { to }).map(Into::into)
    }

    pub(in crate::serve) fn open(&self, path: &Path) -> io::Result<File> {
        let path = path.into();
        self.descriptor(&Request::Read { path }).map(Into::into)
    }

    pub(in crate::serve) fn create(&self, path: &Path) -> io::Result<File> {
        let path = path.into();
        self.descriptor(&Request::Create { path }).map(Into::into)
    }

    /// Passes a notification on to the service manager.
    pub(in crate::serve) fn notify(&self, text: &str) -> io::Result<()> {
        let text = text.to_owned();
        self.ask(&Request::Notify { text }).map(drop)
    }

    /// Reports that clients are served, and passes the environment of the command of `--run`.
    pub(in crate::serve) fn report_ready(
        &self,
        environment: Vec<(String, String)>,
    ) -> io::Result<()> {
        self.ask(&Request::Ready { environment }).map(drop)
    }

    fn find(&self, request: &Request) -> rustix::io::Result<Option<Entry>> {
        match self.ask(request) {
            Ok((Reply::Found { entry }, _)) => Ok(entry),
            Ok(_) => Err(Errno::BADMSG),
            Err(error) => Err(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
        }
    }
}

fn unexpected(reply: &Reply) -> io::Error {
    io::Error::other(format!("expected another reply than {reply:?}"))
}

fn user(entry: Entry) -> rustix::io::Result<User> {
    Ok(User {
        name: CString::new(entry.name).map_err(|_| Errno::BADMSG)?,
        uid: entry.id,
        gid: entry.gid,
    })
}

fn group(entry: Entry) -> rustix::io::Result<Group> {
    Ok(Group {
        name: CString::new(entry.name).map_err(|_| Errno::BADMSG)?,
        gid: entry.gid,
    })
}

/// The user database of a process that cannot read it.
pub(super) struct BrokeredUsers(pub(super) Arc<Broker>);

impl UserDatabase for BrokeredUsers {
    fn by_uid(&self, uid: u32) -> rustix::io::Result<Option<User>> {
        let found = self.0.find(&Request::UserById { uid })?;
        found.map(user).transpose()
    }

    fn by_name(&self, name: &CStr) -> rustix::io::Result<Option<User>> {
        let name = name.to_bytes().to_vec();
        let found = self.0.find(&Request::UserByName { name })?;
        found.map(user).transpose()
    }

    fn group_by_gid(&self, gid: u32) -> rustix::io::Result<Option<Group>> {
        let found = self.0.find(&Request::GroupById { gid })?;
        found.map(group).transpose()
    }

    fn group_by_name(&self, name: &CStr) -> rustix::io::Result<Option<Group>> {
        let name = name.to_bytes().to_vec();
        let found = self.0.find(&Request::GroupByName { name })?;
        found.map(group).transpose()
    }

    fn groups(&self, user: &User) -> Vec<u32> {
        let user = Entry {
            name: user.name.to_bytes().to_vec(),
            id: user.uid,
            gid: user.gid,
        };
        match self.0.ask(&Request::GroupsOfUser { user }) {
            Ok((Reply::Groups { gids }, _)) => gids,
            _ => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_arrive_as_they_were_given() {
        let options = ChildOptions {
            channel: 7,
            broker: 4711,
            listen_fds: 2,
            namespaces: true,
            restarted: false,
        };
        assert_eq!(ChildOptions::parse(&options.to_text()), Some(options));
        for bad in ["", "1:2:3:4", "1:-2:3:4:5", "a:2:3:4:5"] {
            assert_eq!(ChildOptions::parse(bad), None, "{bad}");
        }
    }
}
