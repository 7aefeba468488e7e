//! vhost-user sockets, to which virtual machine monitors connect: where they are, and who is let in.

use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::str::FromStr;
use std::sync::Arc;

use engine::Engine;
use p9::server::Users;
use transports::{Addr, Listener};
use virtqueue::{Config, Device, Stop};
use wire::Session;

use super::users::HostUsers;
use crate::Failure;

/// Which processors the threads of queues keep to, in turn; none means any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Affinity(Vec<usize>);

impl Affinity {
    /// The first `free` queues go where there is room.
    fn of(&self, queue: usize, free: usize) -> Option<usize> {
        let turn = queue.checked_sub(free)?.checked_rem(self.0.len())?;
        Some(self.0[turn])
    }
}

/// A list as taskset(1) takes it: `0,2,4-7`.
impl FromStr for Affinity {
    type Err = String;

    fn from_str(text: &str) -> Result<Affinity, String> {
        let expected = || format!("expected processors as 0,2,4-7, got '{text}'");
        let number = |text: &str| {
            let number = text.parse().ok();
            number.filter(|&number: &usize| number < rustix::thread::CpuSet::MAX_CPU)
        };
        let mut all = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            match (number(first), number(last)) {
                (Some(first), Some(last)) if first <= last => all.extend(first..=last),
                _ => return Err(expected()),
            }
        }
        Ok(Affinity(all))
    }
}

/// `[NAME=]SOCKET`: a source, or all of them as one tree, and where a device shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Socket {
    pub(super) name: Option<String>,
    pub(super) at: Addr,
}

impl FromStr for Socket {
    type Err = String;

    fn from_str(text: &str) -> Result<Socket, String> {
        let (name, socket) = match text.split_once('=') {
            Some((name, socket)) if !name.contains('/') => (Some(name.to_owned()), socket),
            _ => (None, text),
        };
        if socket.is_empty() {
            return Err("expected [NAME=]SOCKET".into());
        }
        Ok(Socket {
            name,
            at: Addr::Unix(socket.into()),
        })
    }
}

/// What all devices have in common.
#[derive(Clone, Debug, Default)]
pub(super) struct Vhost {
    /// The group that may connect.
    pub(super) group: Option<String>,
    /// Where the threads of queues run.
    pub(super) affinity: Affinity,
    /// The first monitor is the only one.
    pub(super) once: bool,
}

/// What is behind a socket.
pub(super) struct Kind {
    /// What answers a monitor's guest, for each.
    pub(super) session: Box<dyn Fn() -> Arc<dyn Session> + Send + Sync>,
    pub(super) config: Config,
    /// How many of its queues, the first, keep to no processor.
    pub(super) free: usize,
}

/// A socket, and what monitors find behind it.
pub(super) struct Place {
    listener: Listener,
    affinity: Affinity,
    kind: Kind,
}

impl Place {
    /// Opens a socket where only this user, and the members of a group, may connect: a monitor has
    /// the whole tree.
    pub(super) fn open(at: &Addr, vhost: &Vhost, kind: Kind) -> Result<Place, Failure> {
        Ok(Place {
            listener: super::listen(at, vhost.group()?)?,
            affinity: vhost.affinity.clone(),
            kind,
        })
    }

    /// One monitor after the other, as a virtual machine ends and the next one starts.
    fn accept(&self, engine: &Arc<Engine>, once: bool, stop: BorrowedFd<'_>) {
        let name = self.listener.addr().to_string();
        loop {
            match self.listener.accept_socket(stop) {
                Ok(Some((socket, _))) => {
                    tracing::debug!(addr = name, "a monitor connected");
                    if let Err(error) = self.device(engine, socket.into(), &name, stop) {
                        tracing::warn!(addr = name, "connection closed: {error}");
                    }
                    if once {
                        return;
                    }
                }
                Ok(None) => return,
                Err(error) => return engine.lose_listener(&name, &error),
            }
        }
    }

    fn device(
        &self,
        engine: &Arc<Engine>,
        socket: UnixStream,
        name: &str,
        stop: BorrowedFd<'_>,
    ) -> io::Result<()> {
        // All queues of a device lead to one session.
        let queues = engine.queues((self.kind.session)());
        let (affinity, free) = (self.affinity.clone(), self.kind.free);
        let drive = move |index, ring| -> io::Result<Stop> {
            let driven = queues.drive(ring, affinity.of(index, free))?;
            Ok(Box::new(|| driven.join()))
        };
        Device::new(socket, name, self.kind.config.clone(), Arc::new(drive))?.run(stop)
    }
}

/// Serves the monitors that come, or `once` the first at each place alone.
pub(super) fn serve(engine: &Arc<Engine>, places: Vec<Place>, once: bool) -> Result<(), Failure> {
    for place in places {
        let drives = engine.clone();
        engine
            .host(move |stop| place.accept(&drives, once, stop))
            .map_err(Failure::new)?;
    }
    Ok(())
}

impl Vhost {
    /// The id of the group whose members may connect to Unix sockets, of whatever is served there.
    pub(super) fn group(&self) -> Result<Option<u32>, Failure> {
        let Some(group) = &self.group else {
            return Ok(None);
        };
        let known = HostUsers.gid(group.as_bytes());
        match known.or_else(|| group.parse().ok()) {
            Some(gid) => Ok(Some(gid)),
            None => Err(Failure::usage(format!(
                "--socket-group {group}: there is no such group"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_a_socket_and_perhaps_a_name() {
        let socket = |text: &str| text.parse::<Socket>();
        assert_eq!(socket("/run/a=b").map(|socket| socket.name), Ok(None));
        assert_eq!(
            socket("home=/run/s"),
            Ok(Socket {
                name: Some("home".into()),
                at: Addr::Unix("/run/s".into()),
            })
        );
        assert!(socket("home=").is_err() && socket("").is_err());
    }

    #[test]
    fn queues_take_turns_on_the_processors_named() {
        let affinity: Affinity = "3,5-6".parse().expect("a list");
        let processors: Vec<_> = (0..6).map(|queue| affinity.of(queue, 1)).collect();
        let one = |processor| Some(processor);
        assert_eq!(processors, [None, one(3), one(5), one(6), one(3), one(5)]);
        assert_eq!(affinity.of(0, 0), one(3));
        assert_eq!(Affinity::default().of(1, 1), None);
        for bad in ["", "a", "1-", "3-1", "0,,1", "100000"] {
            assert!(bad.parse::<Affinity>().is_err(), "{bad}");
        }
    }
}
