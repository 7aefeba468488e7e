use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use engine::{Timeouts, Tuning};
use transports::Addr;
use vfs::Trust;

use super::access::TrustedUsers;
use super::block::{Block, Drive};
use super::exports::ClientList;
#[cfg(feature = "gss")]
use super::gss::SecArgs;
use super::plan::{Http, Nfs, Nine, Plan, Share, Virtiofs};
use super::secure::TlsArgs;
use super::share::ShareArgs;
use super::vhost::{Affinity, Socket, Vhost};
use super::virtio9p::Channel;
use super::virtiofs::{Cache, Negotiate, POSIX_ACL, Tag};
use crate::Failure;
use crate::config::Config;
use crate::source::{Named, Source};

#[derive(Args)]
#[allow(
    rustdoc::broken_intra_doc_links,
    reason = "what help has in brackets is no link"
)]
pub(crate) struct ServeArgs {
    /// What to serve: PATH (of a directory or an image), dir:PATH, image:PATH, mem:, 9p://HOST[:PORT]/ANAME, 9p+unix:SOCKET,
    /// 9p+vsock:[CID:]PORT, 9p+vsock-uds:PATH:PORT,
    /// nfs://HOST[:PORT]/PATH, s3://BUCKET/KEY, gs://BUCKET/KEY, az://CONTAINER/KEY or https://HOST/PATH (images), or refer:/PATH@HOST[+HOST], to which clients of NFS v4 are sent; NAME=SOURCE gives it a name, which several need: all of them together are a tree, too, with a directory for each. Without any, the
    /// current directory, read-only
    #[arg(value_name = "[NAME=]SOURCE")]
    sources: Vec<Named>,
    /// Serve what this file says, and nothing but that: see barge.toml(5), `barge config check`. Read again on SIGHUP
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// What that says.
    #[arg(skip)]
    pub(crate) file: Option<Config>,
    /// Serve 9P at tcp:HOST:PORT, unix:PATH, vsock:[CID:]PORT (guests of this host, by the kernel), vsock-uds:PATH:PORT (the guest
    /// of a monitor whose vsock is at PATH, as Firecracker's) or fd:N; may be repeated [default, if nothing else is named:
    /// tcp:127.0.0.1:5640]
    #[arg(long = "9p", value_name = "ADDR")]
    nine: Vec<Addr>,
    /// Serve NFS v3 and v4, and MOUNT for v3 on the same port, at tcp:HOST:PORT, unix:PATH or fd:N; may be
    /// repeated [default, if nothing else is named and it is free: tcp:127.0.0.1:2049]
    #[arg(long, value_name = "ADDR")]
    nfs: Vec<Addr>,
    /// Tell clients of NFS v3 where its locks are, as rpcbind does, by TCP and UDP; without it they mount with
    /// nolock [default: port 111 of the first --nfs address]
    #[arg(long, value_name = "ADDR", num_args = 0..=1, requires = "nfs")]
    rpcbind: Option<Option<Addr>>,
    /// How long an NFS v4 client may be silent before others may get what it has open or locked, seconds: its lease
    #[arg(long, value_name = "SECONDS", default_value_t = 90, value_parser = clap::value_parser!(u16).range(10..=3600))]
    nfs_lease: u16,
    /// Refuse READ_PLUS, by which NFS v4.2 clients read holes without their zeros; they read as they do by v4.1 then
    #[arg(long)]
    no_read_plus: bool,
    /// Let NFS v4.2 clients see and set the labels of SELinux, kept as security.selinux, as exports(5)'s security_label does;
    /// which of them they go by is their kernel's. Setting them takes root here, and users that are not squashed
    #[arg(long)]
    nfs_security_label: bool,
    /// Give NFS v4.1 and v4.2 clients delegations: they then open, read and lock a file that nobody else wants without
    /// asking. Not where programs of this host rename or remove files that clients use: clients hear of it a moment later
    #[arg(long)]
    delegations: bool,
    /// State directory of NFS: the secret of file handles and the clients that may reclaim after a
    /// restart [default: $STATE_DIRECTORY, else /var/lib/barge for root and $XDG_STATE_HOME/barge
    /// for others]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    #[command(flatten)]
    pub(super) share: ShareArgs,
    #[command(flatten)]
    tls: TlsArgs,
    #[cfg(feature = "gss")]
    #[command(flatten)]
    sec: SecArgs,
    /// Serve virtiofs at a vhost-user socket, for a virtual machine monitor; may be repeated. NAME is a
    /// source's; without it, several sources are directories of one share, and mounts of their own there
    #[arg(long, value_name = "[NAME=]SOCKET")]
    virtiofs: Vec<Socket>,
    /// Serve 9P at a vhost-user socket, as a virtio device that a guest mounts by its tag; may be repeated. NAME is a source's, and
    /// the only one to be seen; the tag, if not given, is NAME or share
    #[arg(long = "virtio-9p", value_name = "[NAME=]SOCKET[,tag=TAG]")]
    virtio_9p: Vec<Channel>,
    /// Serve a file as a disk at a vhost-user socket, for a virtual machine monitor; may be repeated. NAME is a source's, and FILE
    /// a path within it, or nothing for an image, which is the disk then; ro lets the guest read only
    #[arg(long, value_name = "[NAME=]SOCKET[,file=FILE][,ro]")]
    block: Vec<Drive>,
    /// Serve files as disks by NBD at tcp:HOST:PORT, unix:PATH, vsock:[CID:]PORT or fd:N; may be repeated. An export's name is the
    /// path of a file; an image is the export without a name, or of its source's [usual port: 10809]
    #[arg(long, value_name = "ADDR")]
    nbd: Vec<Addr>,
    /// Show by HTTP what is done here, at PORT of this machine alone, tcp:HOST:PORT or unix:PATH: a status page (/), its figures
    /// (/status.json), Prometheus's (/metrics), and whether it is there (/healthz). `barge top` shows the same. Whoever can connect sees
    /// who the clients are
    #[arg(long, value_name = "ADDR", value_parser = crate::seeing::addr)]
    http: Option<Addr>,
    /// Write down every call of the sources, with times and results, an object a line, for `barge bench replay`; what an image is packed
    /// by is --record-trace. It costs some microseconds a call, and 200 bytes
    #[arg(long, value_name = "FILE")]
    record_calls: Option<PathBuf>,
    /// A further name by which browsers and programs may call that, besides addresses, localhost and this machine's name; may be
    /// repeated
    #[arg(long, value_name = "NAME", requires = "http")]
    http_name: Vec<String>,
    /// What a virtiofs guest may keep
    #[arg(long, value_name = "MODE", default_value = "auto")]
    cache: Cache,
    /// Let a virtiofs guest write behind: nobody else may change the share
    #[arg(long)]
    writeback: bool,
    /// Honour O_DIRECT of virtiofs guests
    #[arg(long)]
    allow_direct_io: bool,
    /// Let a virtiofs guest make files without a name (O_TMPFILE); the share is then no upper layer for
    /// overlayfs
    #[arg(long)]
    tmpfile: bool,
    /// Leave set-id bits and file capabilities of written files to virtiofs guests, which then ask
    /// for capabilities before each write
    #[arg(long, overrides_with = "_killpriv_v2")]
    no_killpriv_v2: bool,
    /// The default
    #[arg(long = "killpriv-v2", hide = true, overrides_with = "no_killpriv_v2")]
    _killpriv_v2: bool,
    /// POSIX ACLs for virtiofs guests: auto where the source has them, always to refuse guests that
    /// do not enforce them, never to hide them
    #[arg(long, value_name = "WHEN", require_equals = true, num_args = 0..=1,
          default_value = "auto", default_missing_value = "always")]
    posix_acl: Negotiate,
    /// Show a virtiofs guest what is on other devices below as part of the share, not as mounts of their own,
    /// which overlayfs does not take
    #[arg(long)]
    no_announce_submounts: bool,
    /// The group whose members may connect to Unix sockets, of devices and of all protocols;
    /// without it only this user may
    #[arg(long, value_name = "GROUP")]
    socket_group: Option<String>,
    /// Believe local processes of these users (names or ids with commas between, or all) whatever
    /// user they claim to be over 9P and NFS, as it is for root's. Others act as their own user, on
    /// Unix sockets and on TCP alike. QEMU's user network, for one, connects as the user that runs
    /// QEMU, and the root of its guest then counts as root here
    #[arg(long, value_name = "USERS", num_args = 0..=1, require_equals = true, default_missing_value = "all")]
    trust_uids: Option<TrustedUsers>,
    /// Who may use a source by NFS or 9P, and how, as a line of exports(5): NAME CLIENT(OPTION,...)... CLIENT is
    /// an address, a network as 10.0.0.0/8, localhost (and whoever comes by a Unix socket) or *; OPTION is ro, rw,
    /// root_squash, no_root_squash, all_squash, secure (clients of other hosts come from ports
    /// below 1024, for 9P as well as NFS), insecure, anonuid=UID or anongid=GID [default:
    /// ro,root_squash,secure]. NAME is / for
    /// the only source without one. A source that no line names is for everybody; may be repeated
    #[arg(long, value_name = "LINE")]
    export: Vec<ClientList>,
    /// Run a command with $BARGE_9P, $BARGE_NFS, $BARGE_NBD and $BARGE_HTTP set, stop when it ends, and exit with its status
    #[arg(long, value_name = "CMD")]
    run: Option<String>,
    /// The largest 9P message to agree to, bytes
    #[arg(long, value_name = "BYTES", default_value_t = 4 << 20,
          value_parser = clap::value_parser!(u32).range(4096..=32 << 20))]
    msize: u32,
    /// Tell a 9P client at once that a lock is taken, instead of answering when it is granted: Linux then
    /// asks again after its locktimeout= (30 seconds), and signals end its wait, as flock -w needs
    #[arg(long)]
    no_lock_wait: bool,
    /// Copy long reads into replies, instead of sending the pages of their files where that is faster: what is written to a file
    /// while a reply is on its way may be in it then
    #[arg(long)]
    no_zerocopy: bool,
    /// How long a connection polls before it sleeps, microseconds; 0 is not at all [default: 50, or
    /// 0 on one processor]
    #[arg(long, value_name = "US")]
    poll_us: Option<u64>,
    /// Processors that the threads of devices' queues keep to, in turn [default: any]
    #[arg(long, value_name = "LIST")]
    queue_affinity: Option<Affinity>,
    /// Threads for requests that would block [default: 4 per processor, at least 16]
    #[arg(long, visible_alias = "thread-pool-size", value_name = "N", value_parser = clap::value_parser!(u16).range(2..))]
    workers: Option<u16>,
    /// Maximum number of connections
    #[arg(long, value_name = "N", default_value_t = 4096)]
    max_connections: usize,
    /// Maximum number of connections per client: a user of this host, a guest, or an address (a /64
    /// network for IPv6) [default: half of what other clients leave of --max-connections]
    #[arg(long, value_name = "N")]
    max_connections_per_client: Option<usize>,
    #[command(flatten)]
    timeouts: TimeoutArgs,
    /// Memory for all clients together: requests that are incomplete or wait, replies that are not
    /// sent, and, up to half, what stays between requests (replies kept for retransmissions, fids,
    /// opens, locks, listings). One client takes at most half of what others leave. Beyond, messages
    /// wait, and what stays is evicted or refused (EMFILE, ENOLCK, NFS4ERR_NOSPC). At most half of
    /// the memory limit of the server's control group [default: 1G]
    #[arg(long, value_name = "SIZE", value_parser = memory)]
    memory: Option<usize>,
    /// Requests of one connection that may wait for workers
    #[arg(long, value_name = "N", default_value_t = 256,
          value_parser = clap::value_parser!(u32).range(1..))]
    max_in_flight: u32,
}

impl ServeArgs {
    pub(super) fn plan(&self) -> Result<Plan, Failure> {
        let current = Named {
            name: None,
            source: Source::Tree(barge_client::Source::HostDir(".".into())),
        };
        let (sources, read_only) = match self.sources.as_slice() {
            [] => (vec![current], true),
            sources => (sources.to_vec(), false),
        };
        self.share.check_alone(self.sources.len())?;
        let share = |named: Named| self.share.plan(named, read_only);
        self.plan_for(sources.into_iter().map(share).collect::<Result<_, _>>()?)
    }

    /// Says how `shares` are served.
    pub(super) fn plan_for(&self, shares: Vec<Share>) -> Result<Plan, Failure> {
        Ok(Plan {
            shares,
            file: self.file.clone(),
            kernel_handles: false,
            record_calls: self.record_calls.clone(),
            lists: self.export.clone(),
            nine: Some(Nine {
                addrs: self.nine.clone(),
                channels: self.virtio_9p.clone(),
                max_msize: self.msize,
                wait_for_locks: !self.no_lock_wait,
            }),
            nfs: Some(Nfs {
                addrs: self.nfs.clone(),
                rpcbind: self.rpcbind.clone(),
                lease: Duration::from_secs(self.nfs_lease.into()),
                read_plus: !self.no_read_plus,
                security_labels: self.nfs_security_label,
                delegations: self.delegations,
                state_dir: self.state_dir.clone(),
                tls: self.tls.plan()?,
                #[cfg(feature = "gss")]
                security: self.sec.plan(),
            }),
            block: Block {
                drives: self.block.clone(),
                nbd: self.nbd.clone(),
            },
            virtiofs: Virtiofs {
                shares: self.virtiofs.clone(),
                options: fuse::server::Options {
                    cache: self.cache.into(),
                    writeback: self.writeback,
                    allow_direct_io: self.allow_direct_io,
                    tmpfile: self.tmpfile,
                    killpriv_v2: !self.no_killpriv_v2,
                    posix_acl: self.posix_acl.is_offered(),
                    required: self.posix_acl.required(POSIX_ACL),
                    announce_submounts: !self.no_announce_submounts,
                    ..Default::default()
                },
                tag: Some(Tag::NONE),
            },
            vhost: Vhost {
                group: self.socket_group.clone(),
                affinity: self.queue_affinity.clone().unwrap_or_default(),
                once: false,
            },
            trust: self
                .trust_uids
                .clone()
                .map_or(Trust::default(), Trust::from),
            tuning: self.tuning(),
            http: self.http.clone().map(|addr| Http {
                addr,
                names: self.http_name.clone(),
            }),
            run: self.run.clone(),
        })
    }

    fn tuning(&self) -> Tuning {
        let default = Tuning::default();
        Tuning {
            poll: self.poll_us.map_or(default.poll, Duration::from_micros),
            counts: self.http.is_some(),
            workers: self.workers.map_or(default.workers, usize::from),
            connections: self.max_connections,
            connections_per_client: self.max_connections_per_client,
            timeouts: self.timeouts.timeouts(),
            memory: self.memory.unwrap_or(default.memory).min(most_memory()),
            in_flight: self.max_in_flight as usize,
            zerocopy: !self.no_zerocopy,
            ..default
        }
    }
}

/// The value of `--memory`.
fn memory(text: &str) -> Result<usize, String> {
    /// The largest message that a client can be promised, and the minima of some connections.
    const LEAST: usize = 8 << 20;
    let bytes = remote::bytes(text).and_then(|bytes| usize::try_from(bytes).ok());
    bytes
        .filter(|&bytes| bytes >= LEAST)
        .ok_or_else(|| format!("expected a number of bytes from 8M on, such as 256M, got '{text}'"))
}

/// Half of what the control group may have, if that is limited: the rest is for sources, threads
/// and sockets.
fn most_memory() -> usize {
    let limit = sys::limits::memory().unwrap_or(u64::MAX) / 2;
    usize::try_from(limit).unwrap_or(usize::MAX)
}

// No documentation: clap would take it for the command's.
#[derive(Args)]
struct TimeoutArgs {
    /// Close a connection whose first message is not complete after this many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..))]
    handshake_timeout: u32,
    /// Close a connection if a message that has begun is not complete after this many seconds for
    /// each MiB of it
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..))]
    message_timeout: u32,
    /// Close a connection whose client takes no byte of its replies for this many seconds. Shorter
    /// than a virtual machine is suspended, its guest loses the connection
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..))]
    send_timeout: u32,
    /// Close a connection without requests for this many seconds; 0 is never, as mounts may be idle
    /// for days
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    idle_timeout: u32,
}

impl TimeoutArgs {
    fn timeouts(&self) -> Timeouts {
        let seconds = |seconds: u32| Duration::from_secs(seconds.into());
        Timeouts {
            handshake: seconds(self.handshake_timeout),
            message: seconds(self.message_timeout),
            send: seconds(self.send_timeout),
            idle: (self.idle_timeout > 0).then(|| seconds(self.idle_timeout)),
        }
    }
}

/// Where 9P is served if nothing else is asked for: on this machine only, without privileges.
pub(super) fn default_addr() -> Addr {
    Addr::Tcp {
        host: "127.0.0.1".into(),
        port: 5640,
    }
}
