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
use crate::serve::args::device::{SocketArg, VirtiofsDevice};
use crate::serve::args::virtiofs::{Locks, POSIX_ACL};
use crate::serve::endpoint::{BindContext, Endpoint, EndpointEntry};
use crate::serve::exports::Catalog;
use crate::serve::vhost::{self, DeviceKind, DeviceSession, DeviceSocket, VhostOptions};

/// virtiofs devices.
pub(in crate::serve) struct Virtiofs {
    pub(in crate::serve) shares: Vec<VirtiofsDevice>,
    pub(in crate::serve) options: Options,
    pub(in crate::serve) vhost: VhostOptions,
    bound: Vec<DeviceSocket>,
}

impl Virtiofs {
    pub(super) fn from_args(
        args: &VirtiofsArgs,
        share: VirtiofsDevice,
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
            posix_locks: args.locks == Locks::Shared,
            flock: args.locks == Locks::Shared,
            migration: Migration {
                mode: args.migration_mode.into(),
                on_error: args.migration_on_error.into(),
                verify_handles: args.migration_verify_handles,
            },
            ..Default::default()
        };
        Virtiofs::new(vec![share], options, vhost)
    }

    /// Returns the devices of `shares`.
    pub(in crate::serve) fn new(
        shares: Vec<VirtiofsDevice>,
        options: Options,
        vhost: VhostOptions,
    ) -> Virtiofs {
        Virtiofs {
            shares,
            options,
            vhost,
            bound: Vec::new(),
        }
    }

    fn bind_share(
        &self,
        share: &VirtiofsDevice,
        context: &BindContext<'_>,
    ) -> Result<DeviceSocket, Failure> {
        let export = context
            .exports
            .named(share.socket.name.as_deref(), "--virtiofs")?;
        let server = Server::new(export, self.options.clone());
        let keeper = context.host.keep_device(&share.socket.addr);
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
                config_space: share.config_space(REQUEST_QUEUES as u32),
                repeats_requests: false,
            },
            unpinned: 1,
        };
        DeviceSocket::bind(&share.socket.addr, context, &self.vhost, kind)
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
            .retain(|share| share.socket.name.as_deref() == Some(name));
        !self.shares.is_empty()
    }

    fn devices(&self) -> Vec<&SocketArg> {
        self.shares.iter().map(|share| &share.socket).collect()
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
        let entry = |share: &VirtiofsDevice| {
            let qemu = |socket: &Path| monitor_options(&share.tag, socket);
            let device = vhost::entry("virtiofs", &share.socket, qemu);
            let mount = device.qemu.iter().map(|_| mount_command(&share.tag));
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

/// Returns the mount command for the guest.
fn mount_command(tag: &str) -> String {
    format!("mount -t virtiofs {tag} /mnt")
}

/// Returns QEMU's options of a virtiofs device. Queues shorter than 1024 would split large
/// requests.
fn monitor_options(tag: &str, socket: &Path) -> String {
    format!(
        "-chardev socket,id=fs,path={} -device vhost-user-fs-pci,chardev=fs,tag={tag},queue-size=1024,num-request-queues=1",
        socket.display()
    )
}
