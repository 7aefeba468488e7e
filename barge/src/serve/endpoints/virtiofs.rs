//! virtiofs: a vhost-user socket for each share, to which a virtual machine monitor connects.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use engine::Engine;
use fuse::server::{Migration, Options, Records, Resender, Server};
use sys::shared_memory::{self, SharedMemory};
use virtqueue::DeviceConfig;
use wire::SavedState;

use crate::Failure;
use crate::serve::args::VirtiofsArgs;
use crate::serve::args::device::SocketArg;
use crate::serve::args::virtiofs::{POSIX_ACL, Tag};
use crate::serve::endpoint::{BindContext, Endpoint, EndpointEntry};
use crate::serve::exports::Catalog;
use crate::serve::vhost::{self, DeviceKind, DeviceSession, DeviceSocket, VhostOptions};

/// virtiofs devices.
pub(in crate::serve) struct Virtiofs {
    pub(in crate::serve) shares: Vec<SocketArg>,
    pub(in crate::serve) options: Options,
    /// The tag in the device's configuration; without one there is no configuration.
    pub(in crate::serve) tag: Option<Tag>,
    pub(in crate::serve) vhost: VhostOptions,
    bound: Vec<DeviceSocket>,
}

impl Virtiofs {
    pub(super) fn from_args(
        args: &VirtiofsArgs,
        share: SocketArg,
        vhost: VhostOptions,
    ) -> Virtiofs {
        let options = Options {
            cache: args.cache.into(),
            writeback: args.writeback,
            allow_direct_io: args.allow_direct_io,
            tmpfile: args.tmpfile,
            killpriv_v2: !args.no_killpriv_v2,
            posix_acl: args.posix_acl.is_offered(),
            required: args.posix_acl.required(POSIX_ACL),
            announce_submounts: !args.no_announce_submounts,
            migration: Migration {
                mode: args.migration_mode.into(),
                on_error: args.migration_on_error.into(),
                verify_handles: args.migration_verify_handles,
            },
            ..Default::default()
        };
        Virtiofs::new(vec![share], options, Some(Tag::NONE), vhost)
    }

    /// Returns the devices of `shares`. Without a `tag`, they have no configuration.
    pub(in crate::serve) fn new(
        shares: Vec<SocketArg>,
        options: Options,
        tag: Option<Tag>,
        vhost: VhostOptions,
    ) -> Virtiofs {
        Virtiofs {
            shares,
            options,
            tag,
            vhost,
            bound: Vec::new(),
        }
    }

    fn bind_share(
        &self,
        share: &SocketArg,
        context: &BindContext<'_>,
    ) -> Result<DeviceSocket, Failure> {
        let export = context.exports.named(share.name.as_deref(), "--virtiofs")?;
        let server = Server::new(export, self.options.clone());
        let keeper = context.host.keep_device(&share.addr);
        let keeper = keeper.map_err(Failure::new)?.map(Arc::new);
        let own = keeper.clone();
        let kind = DeviceKind {
            session: Box::new(move |saved| {
                let (mut session, mut records) = (server.session(), None);
                if let Some(keeper) = own.clone().filter(|_| session.can_be_taken_over()) {
                    let opened = records_of(saved)?;
                    session = session.with_records(opened.records, Resender::Transport);
                    session = session.with_keeper(keeper);
                    records = Some(opened.memory);
                }
                let session = Arc::new(session);
                Ok(DeviceSession {
                    migrates: Some(session.clone()).filter(|session| session.can_migrate()),
                    session,
                    records,
                })
            }),
            keeper,
            config: DeviceConfig {
                // Request queues and the high-priority queue.
                queues: 1 + REQUEST_QUEUES,
                features: 0,
                config_space: self
                    .tag
                    .map_or(Vec::new(), |tag| config_space(tag, REQUEST_QUEUES)),
                repeats_requests: false,
            },
            unpinned: 1,
        };
        DeviceSocket::bind(&share.addr, context, &self.vhost, kind)
    }
}

/// The records of a session, and their memory.
struct OpenRecords {
    records: Records,
    memory: OwnedFd,
}

/// Returns the records of a session whose process has crashed, or new ones. Returns the reason if
/// there are none.
fn records_of(saved: Option<&SavedState>) -> Result<OpenRecords, String> {
    let open = || -> io::Result<OpenRecords> {
        let memory = match saved.and_then(vhost::recorded) {
            Some((memory, _)) => memory.try_clone()?,
            None => shared_memory::create("barge-records", Records::WORDS)?,
        };
        let mapped = SharedMemory::map(memory.as_fd(), Records::WORDS)?;
        let records = Records::new(Box::new(mapped), sys::random::bytes()?);
        let why = || io::Error::other("they have another format");
        Ok(OpenRecords {
            records: records.ok_or_else(why)?,
            memory,
        })
    };
    open().map_err(|error| format!("records of the session: {error}"))
}

/// Maximum number of request queues of a device.
const REQUEST_QUEUES: usize = 64;

impl Endpoint for Virtiofs {
    fn keep_devices_of(&mut self, name: &str) -> bool {
        self.shares
            .retain(|share| share.name.as_deref() == Some(name));
        !self.shares.is_empty()
    }

    fn devices(&self) -> Vec<&SocketArg> {
        self.shares.iter().collect()
    }

    fn bind(&mut self, context: &BindContext<'_>) -> Result<(), Failure> {
        let shares = self.shares.iter();
        let bound = shares.map(|share| self.bind_share(share, context));
        self.bound = bound.collect::<Result<_, _>>()?;
        Ok(())
    }

    fn start(&mut self, engine: &Arc<Engine>) -> Result<(), Failure> {
        vhost::start(engine, std::mem::take(&mut self.bound))
    }

    fn entries(&self, _: &Catalog<'_>) -> Vec<EndpointEntry> {
        let entry = |share: &SocketArg| {
            let device = vhost::entry("virtiofs", share, monitor_options);
            let mount = device.qemu.iter().map(|_| MOUNT.to_owned());
            EndpointEntry {
                commands: mount.collect(),
                ..device
            }
        };
        self.shares.iter().map(entry).collect()
    }

    fn setting(&self) -> Option<(&'static str, String)> {
        Some(("virtiofs", self.shares.first()?.to_string()))
    }
}

/// The mount command for the guest.
const MOUNT: &str = "mount -t virtiofs share /mnt";

/// Returns QEMU's options of a virtiofs device. Queues shorter than 1024 would split large
/// requests.
fn monitor_options(socket: &Path) -> String {
    format!(
        "-chardev socket,id=fs,path={} -device vhost-user-fs-pci,chardev=fs,tag=share,queue-size=1024,num-request-queues=1",
        socket.display()
    )
}

/// Returns the device's configuration: its tag and the number of request queues (virtio 1.3,
/// 5.11.4).
fn config_space(tag: Tag, queues: usize) -> Vec<u8> {
    let mut space = tag.0.to_vec();
    space.extend((queues as u32).to_le_bytes());
    space
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_short() {
        assert_eq!(
            config_space(Tag::NONE, 64),
            [&[0; 36][..], &[64, 0, 0, 0]].concat()
        );
        let tag = |text: &str| text.parse::<Tag>().map(|tag| tag.0[..3].to_vec());
        assert_eq!(tag("fs"), Ok(b"fs\0".into()));
        assert!(tag(&"x".repeat(36)).is_ok() && tag(&"x".repeat(37)).is_err() && tag("").is_err());
    }
}
