//! virtiofs: a vhost-user socket for each share, to which a virtual machine monitor connects.

use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::str::FromStr;
use std::sync::Arc;

use clap::ValueEnum;
use engine::Engine;
use fuse::server::Server;
use p9::server::Users;
use rustix::fs::Mode;
use transports::{Addr, Listener};
use vfs::Export;
use virtqueue::{Config, Device, Stop};

use super::exports::Exports;
use super::plan::Virtiofs;
use super::users::HostUsers;
use crate::Failure;

/// `[NAME=]SOCKET`: a share, or all that there are, and where it is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    pub(super) name: Option<String>,
    pub(super) at: Addr,
}

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Share, String> {
        let (name, socket) = match text.split_once('=') {
            Some((name, socket)) if !name.contains('/') => (Some(name.to_owned()), socket),
            _ => (None, text),
        };
        if socket.is_empty() {
            return Err("expected [NAME=]SOCKET".into());
        }
        Ok(Share {
            name,
            at: Addr::Unix(socket.into()),
        })
    }
}

/// What a device is called where its configuration is read; no name is the monitor's to choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tag([u8; Tag::MOST]);

impl Tag {
    /// Bytes that the configuration has for it (virtio 1.3, 5.11.4).
    const MOST: usize = 36;

    /// No name.
    pub(super) const NONE: Tag = Tag([0; Tag::MOST]);
}

impl FromStr for Tag {
    type Err = String;

    fn from_str(text: &str) -> Result<Tag, String> {
        let mut tag = Tag::NONE;
        let place = tag
            .0
            .get_mut(..text.len())
            .filter(|place| !place.is_empty());
        let expected = || format!("expected 1 to {} bytes, got {}", Tag::MOST, text.len());
        place.ok_or_else(expected)?.copy_from_slice(text.as_bytes());
        Ok(tag)
    }
}

/// Which processors the threads of queues keep to, in turn; none means any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Affinity(Vec<usize>);

impl Affinity {
    /// The queue of high priority goes where there is room.
    fn of(&self, queue: usize) -> Option<usize> {
        let turn = queue.checked_sub(1)?.checked_rem(self.0.len())?;
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

/// What a guest may keep, as virtiofsd names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Cache {
    /// Nothing
    Never,
    /// Names and attributes, for a day; no data
    Metadata,
    /// Names and attributes for a second, data while a file is open
    Auto,
    /// Everything for a day: nobody else changes the share
    Always,
}

impl From<Cache> for fuse::server::Cache {
    fn from(cache: Cache) -> fuse::server::Cache {
        match cache {
            Cache::Never => fuse::server::Cache::Never,
            Cache::Metadata => fuse::server::Cache::Metadata,
            Cache::Auto => fuse::server::Cache::Auto,
            Cache::Always => fuse::server::Cache::Always,
        }
    }
}

/// The most request queues of a device.
const REQUEST_QUEUES: usize = 64;

/// The socket of a share, and what monitors find behind it.
pub(super) struct Place {
    listener: Listener,
    server: Server,
    space: Vec<u8>,
    affinity: Affinity,
}

/// Opens the sockets of `plan`, before any client can be served: the process's umask is another meanwhile.
pub(super) fn places(exports: &Exports, plan: &Virtiofs) -> Result<Vec<Place>, Failure> {
    let place = |share: &Share| {
        let server = Server::new(export_of(share, exports)?, plan.options.clone());
        Ok(Place {
            listener: listen(&share.at, plan.group.as_deref())?,
            server,
            affinity: plan.affinity.clone(),
            space: plan
                .tag
                .map_or(Vec::new(), |tag| space(tag, REQUEST_QUEUES)),
        })
    };
    plan.shares.iter().map(place).collect()
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

fn export_of(share: &Share, exports: &Exports) -> Result<Arc<Export>, Failure> {
    let Some(name) = &share.name else {
        return Ok(exports.whole.clone());
    };
    let found = exports.each.iter().find(|export| export.name == *name);
    found.cloned().ok_or_else(|| {
        Failure::usage(format!(
            "--virtiofs {name}={}: expected the name of a source, got '{name}'",
            share.at
        ))
    })
}

/// Listens where only this user, and the members of `group`, may connect: whoever does has the tree.
fn listen(at: &Addr, group: Option<&str>) -> Result<Listener, Failure> {
    let group = group
        .map(|group| {
            let gid = HostUsers.gid(group.as_bytes());
            gid.ok_or_else(|| {
                Failure::usage(format!("--socket-group {group}: there is no such group"))
            })
        })
        .transpose()?;
    let umask = rustix::process::umask(Mode::from_raw_mode(0o177));
    let listener = super::listen(at);
    rustix::process::umask(umask);
    let listener = listener?;
    if let (Addr::Unix(path), Some(gid)) = (at, group) {
        std::os::unix::fs::chown(path, None, Some(gid))
            .and_then(|()| std::fs::set_permissions(path, PermissionsExt::from_mode(0o660)))
            .map_err(|error| Failure::new(format!("{}: {error}", path.display())))?;
    }
    Ok(listener)
}

impl Place {
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
                Err(error) => {
                    tracing::error!(addr = name, "no longer listening: {error}");
                    return;
                }
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
        let queues = engine.queues(Arc::new(self.server.session()));
        let affinity = self.affinity.clone();
        let drive = move |index, ring| -> io::Result<Stop> {
            let driven = queues.drive(ring, affinity.of(index))?;
            Ok(Box::new(|| driven.join()))
        };
        let config = Config {
            // And the one of high priority.
            queues: 1 + REQUEST_QUEUES,
            space: self.space.clone(),
        };
        Device::new(socket, name, config, Arc::new(drive))?.run(stop)
    }
}

/// The device's configuration: its tag, and how many request queues it may have (virtio 1.3, 5.11.4).
fn space(tag: Tag, queues: usize) -> Vec<u8> {
    let mut space = tag.0.to_vec();
    space.extend((queues as u32).to_le_bytes());
    space
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_a_socket_and_perhaps_a_name_and_a_tag_is_short() {
        let share = |text: &str| text.parse::<Share>();
        assert_eq!(share("/run/a=b").map(|share| share.name), Ok(None));
        assert_eq!(
            share("home=/run/s"),
            Ok(Share {
                name: Some("home".into()),
                at: Addr::Unix("/run/s".into()),
            })
        );
        assert!(share("home=").is_err());
        assert_eq!(
            space(Tag::NONE, 64),
            [&[0; 36][..], &[64, 0, 0, 0]].concat()
        );
        let tag = |text: &str| text.parse::<Tag>().map(|tag| tag.0[..3].to_vec());
        assert_eq!(tag("fs"), Ok(b"fs\0".into()));
        assert!(tag(&"x".repeat(36)).is_ok() && tag(&"x".repeat(37)).is_err() && tag("").is_err());
    }

    #[test]
    fn queues_take_turns_on_the_processors_named() {
        let affinity: Affinity = "3,5-6".parse().expect("a list");
        let processors: Vec<_> = (0..6).map(|queue| affinity.of(queue)).collect();
        let one = |processor| Some(processor);
        assert_eq!(processors, [None, one(3), one(5), one(6), one(3), one(5)]);
        assert_eq!(Affinity::default().of(1), None);
        for bad in ["", "a", "1-", "3-1", "0,,1", "100000"] {
            assert!(bad.parse::<Affinity>().is_err(), "{bad}");
        }
    }
}
