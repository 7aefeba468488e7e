//! vhost-user sockets for virtual machine monitors: addresses, permissions and accepted
//! connections.

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

/// The processors that the threads of queues are pinned to, in turn; an empty list pins none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Affinity(Vec<usize>);

impl Affinity {
    /// Returns the processor of `queue`, or `None` for the first `free` queues, which are not
    /// pinned.
    fn of(&self, queue: usize, free: usize) -> Option<usize> {
        let turn = queue.checked_sub(free)?.checked_rem(self.0.len())?;
        Some(self.0[turn])
    }
}

/// Parses a list in the syntax of taskset(1): `0,2,4-7`.
impl FromStr for Affinity {
    type Err = String;

    fn from_str(text: &str) -> Result<Affinity, String> {
        let expected = || format!("expected processors such as 0,2,4-7, got '{text}'");
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

/// `[NAME=]SOCKET`: the socket of a device, and its source; without a name, all sources as one
/// tree.
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

/// Options that all devices share.
#[derive(Clone, Debug, Default)]
pub(super) struct Vhost {
    /// The group whose members may connect.
    pub(super) group: Option<String>,
    /// The processors of the queues' threads.
    pub(super) affinity: Affinity,
    /// Whether serving ends after the first monitor.
    pub(super) once: bool,
}

/// A kind of device.
pub(super) struct Kind {
    /// Makes a session for the guest of each monitor that connects.
    pub(super) session: Box<dyn Fn() -> Arc<dyn Session> + Send + Sync>,
    pub(super) config: Config,
    /// Number of queues, from the first on, whose threads are not pinned.
    pub(super) free: usize,
}

/// A socket, and the kind of its devices.
pub(super) struct Place {
    listener: Listener,
    affinity: Affinity,
    kind: Kind,
}

impl Place {
    /// Opens a socket that only this user and the members of the group may connect to, as a monitor
    /// can access the whole tree.
    pub(super) fn open(at: &Addr, vhost: &Vhost, kind: Kind) -> Result<Place, Failure> {
        Ok(Place {
            listener: super::listen(at, vhost.group()?)?,
            affinity: vhost.affinity.clone(),
            kind,
        })
    }

    /// Serves one monitor after another, as virtual machines end and start.
    fn accept(&self, engine: &Arc<Engine>, once: bool, stop: BorrowedFd<'_>) {
        let name = self.listener.addr().to_string();
        loop {
            match self.listener.accept_socket(stop) {
                Ok(Some((socket, _))) => {
                    tracing::debug!(addr = name, "virtual machine monitor connected");
                    if let Err(error) = self.device(engine, socket.into(), &name, stop) {
                        tracing::warn!(addr = name, "connection closed: {error}");
                    }
                    if once {
                        return;
                    }
                }
                Ok(None) => return,
                Err(error) => return engine.report_lost_listener(&name, &error),
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
        // All queues of a device share one session.
        let queues = engine.queues((self.kind.session)());
        let (affinity, free) = (self.affinity.clone(), self.kind.free);
        let drive = move |index, ring| -> io::Result<Stop> {
            let queue = queues.start(ring, affinity.of(index, free))?;
            Ok(Box::new(|| queue.cancel_and_join()))
        };
        Device::new(socket, name, self.kind.config.clone(), Arc::new(drive))?.run(stop)
    }
}

/// Serves the monitors that connect, or only the first one of each socket if `once`.
pub(super) fn serve(engine: &Arc<Engine>, places: Vec<Place>, once: bool) -> Result<(), Failure> {
    for place in places {
        let drives = engine.clone();
        engine
            .spawn_listener(move |stop| place.accept(&drives, once, stop))
            .map_err(Failure::new)?;
    }
    Ok(())
}

impl Vhost {
    /// Returns the id of the group whose members may connect to the Unix sockets of all protocols.
    pub(super) fn group(&self) -> Result<Option<u32>, Failure> {
        let Some(group) = &self.group else {
            return Ok(None);
        };
        let known = HostUsers.gid(group.as_bytes());
        match known.or_else(|| group.parse().ok()) {
            Some(gid) => Ok(Some(gid)),
            None => Err(Failure::usage(format!(
                "--socket-group {group}: unknown group"
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
