//! The options of `barge serve`: their definitions and values, without behaviour. The keys of a
//! configuration file follow them ([`crate::config`]).

#![allow(
    rustdoc::broken_intra_doc_links,
    reason = "brackets in help are no links"
)]

pub(crate) mod access;
pub(crate) mod confinement;
pub(crate) mod control;
pub(crate) mod device;
pub(crate) mod nfs_state;
pub(crate) mod share;
pub(crate) mod virtiofs;

use std::path::PathBuf;

use clap::Args;
use transports::Addr;

use self::access::{AdmittedUser, ClientList, TrustedUsers};
use self::confinement::ConfinementArgs;
use self::control::ControlArgs;
use self::device::{Affinity, Drive, NinePDevice, VirtiofsDevice};
use self::nfs_state::StateArgs;
use self::share::ShareArgs;
use self::virtiofs::{Cache, Locks, MigrationMode, MigrationOnError, Negotiate};
#[cfg(feature = "gss")]
use super::gss::SecArgs;
use super::nfs_tls::TlsArgs;
use crate::source::SourceArg;

/// Headings of help that options of several files share.
pub(super) const SOURCES: &str = "Sources";
pub(super) const IDENTITY: &str = "Identity and access";
pub(super) const OBSERVABILITY: &str = "Observability";
pub(super) const LIMITS: &str = "Limits";

#[derive(Args)]
pub(crate) struct ServeArgs {
    /// Tree to serve: a directory, an image or a URL [default: ., read-only]
    ///
    /// PATH (of a directory or an image), dir:PATH, image:PATH, mem:, 9p://HOST[:PORT]/ANAME,
    /// 9p+unix:SOCKET, 9p+vsock:[CID:]PORT, 9p+vsock-uds:PATH:PORT, nfs://HOST[:PORT]/PATH, an
    /// image in an object store (s3://BUCKET/KEY, gs://BUCKET/KEY, az://CONTAINER@ACCOUNT/KEY,
    /// https://HOST/PATH) or in an OCI registry (oci://HOST/REPOSITORY[:TAG|@DIGEST]), or
    /// refer:/PATH@HOST[+HOST], an NFSv4 referral to another server. Several sources need names
    /// (NAME=SOURCE). Together they are one tree with a directory for each. Without a source, the
    /// current directory is served read-only.
    #[arg(value_name = "[NAME=]SOURCE")]
    pub(in crate::serve) sources: Vec<SourceArg>,
    /// Configuration file to serve, in place of all other options
    ///
    /// The format is described in barge.toml(5); `barge config check` checks a file. SIGHUP reads
    /// it again.
    #[arg(long, value_name = "FILE", help_heading = SOURCES)]
    pub(crate) config: Option<PathBuf>,
    /// Command to run while serving
    ///
    /// $BARGE_9P, $BARGE_NFS, $BARGE_NBD and $BARGE_HTTP are set to the addresses. The server stops
    /// when the command ends, and exits with its status.
    #[arg(long, value_name = "CMD", help_heading = SOURCES)]
    pub(in crate::serve) run: Option<String>,
    #[command(flatten)]
    pub(in crate::serve) p9: NinePArgs,
    #[command(flatten)]
    pub(in crate::serve) nfs: NfsArgs,
    #[command(flatten)]
    pub(in crate::serve) virtiofs: VirtiofsArgs,
    #[command(flatten)]
    pub(in crate::serve) block: BlockArgs,
    #[command(flatten)]
    pub(in crate::serve) agent: AgentArgs,
    #[command(flatten)]
    pub(in crate::serve) identity: IdentityArgs,
    #[command(flatten)]
    pub(in crate::serve) limits: LimitArgs,
    #[command(flatten)]
    pub(in crate::serve) confinement: ConfinementArgs,
    #[command(flatten)]
    pub(in crate::serve) share: ShareArgs,
    #[command(flatten)]
    pub(in crate::serve) observability: ObservabilityArgs,
    #[command(flatten)]
    pub(crate) control: ControlArgs,
}

// The structures below have no documentation: clap would take it for the command's.

#[derive(Args)]
#[command(next_help_heading = "9P")]
pub(crate) struct NinePArgs {
    /// Address to serve 9P at; may be repeated
    ///
    /// tcp:HOST:PORT, unix:PATH, vsock:[CID:]PORT (guests of this host), vsock-uds:PATH:PORT (the
    /// guest of a monitor such as Firecracker whose vsock device is at PATH) or fd:N [default if no
    /// other protocol is served: tcp:127.0.0.1:5640]
    #[arg(long = "9p", id = "p9", value_name = "ADDR")]
    pub(in crate::serve) addrs: Vec<Addr>,
    /// vhost-user socket to serve 9P at, as a virtio device; may be repeated
    ///
    /// The guest mounts it by its tag, which is NAME or `share` by default. NAME selects one
    /// source.
    #[arg(long = "virtio-9p", value_name = "[NAME=]SOCKET[,tag=TAG]")]
    pub(in crate::serve) virtio_9p: Vec<NinePDevice>,
    /// Maximum size of a 9P message
    #[arg(long = "9p-msize", alias = "msize", value_name = "SIZE", default_value = "4M",
          value_parser = msize)]
    pub(in crate::serve) msize: u32,
    /// Answer a 9P lock request at once if the lock is taken
    ///
    /// By default the reply is sent when the lock is granted. Without that, Linux asks again after
    /// its locktimeout= (30 seconds), and signals end its wait, as flock -w needs.
    #[arg(long = "9p-no-lock-wait", alias = "no-lock-wait")]
    pub(in crate::serve) no_lock_wait: bool,
}

#[derive(Args)]
#[command(next_help_heading = "Notification")]
pub(crate) struct AgentArgs {
    /// Address for barge-agent in guests, which raises inotify events there; may be repeated
    ///
    /// tcp:HOST:PORT, unix:PATH (a monitor's virtio-serial port), vsock:[CID:]PORT,
    /// vsock-uds:PATH:PORT or fd:N. An agent learns the names of changed files of a share that its
    /// guest has mounted, as root of that guest would see them. All shares are served by one
    /// process then.
    #[arg(long, value_name = "ADDR")]
    pub(in crate::serve) agent: Vec<Addr>,
}

#[derive(Args)]
#[command(next_help_heading = "NFS")]
pub(crate) struct NfsArgs {
    /// Address to serve NFSv3 and NFSv4 at; may be repeated
    ///
    /// tcp:HOST:PORT, unix:PATH or fd:N. MOUNT for v3 is served on the same port [default if no
    /// other protocol is served and the port is free: tcp:127.0.0.1:2049]
    #[arg(long = "nfs", id = "nfs", value_name = "ADDR")]
    pub(in crate::serve) addrs: Vec<Addr>,
    /// Address to serve a port mapper at [default: port 111 of the first --nfs address]
    ///
    /// NFSv3 clients find the lock service through it, over TCP and UDP, as through rpcbind.
    /// Without it they mount with nolock.
    #[arg(long = "nfs-rpcbind", alias = "rpcbind", value_name = "ADDR", num_args = 0..=1,
          requires = "nfs")]
    pub(in crate::serve) rpcbind: Option<Option<Addr>>,
    /// NFSv4 lease time, seconds
    ///
    /// After that time without a request, other clients may get a client's locks and opens.
    #[arg(long, value_name = "SECONDS", default_value_t = 90, value_parser = clap::value_parser!(u16).range(10..=3600))]
    pub(in crate::serve) nfs_lease: u16,
    /// Refuse the READ_PLUS operation of NFSv4.2
    ///
    /// Clients then receive the zeros of holes, as they do with v4.1.
    #[arg(long = "nfs-no-read-plus", alias = "no-read-plus")]
    pub(in crate::serve) no_read_plus: bool,
    /// Let NFSv4.2 clients see and set SELinux labels
    ///
    /// Labels are stored as security.selinux, as with security_label of exports(5); the kernel of a
    /// client enforces them. Setting them needs a server that runs as root, and users that are not
    /// squashed.
    #[arg(long)]
    pub(in crate::serve) nfs_security_label: bool,
    /// Grant delegations to NFSv4.1 and v4.2 clients
    ///
    /// A client then opens, reads and locks a file that no other client uses without a request. If
    /// programs of this host rename or remove files that clients use, clients see that a moment
    /// later.
    #[arg(long = "nfs-delegations", alias = "delegations")]
    pub(in crate::serve) delegations: bool,
    /// State directory of NFS
    ///
    /// It holds the secret of file handles and the clients that may reclaim locks after a restart
    /// [default: $STATE_DIRECTORY, else /var/lib/barge for root and $XDG_STATE_HOME/barge for other
    /// users]
    #[arg(long = "nfs-state-dir", alias = "state-dir", value_name = "DIR")]
    pub(in crate::serve) state_dir: Option<PathBuf>,
    #[command(flatten)]
    pub(in crate::serve) state: StateArgs,
    #[command(flatten)]
    pub(in crate::serve) tls: TlsArgs,
    #[cfg(feature = "gss")]
    #[command(flatten)]
    pub(in crate::serve) sec: SecArgs,
}

#[derive(Args)]
#[command(next_help_heading = "virtiofs")]
pub(crate) struct VirtiofsArgs {
    /// vhost-user socket to serve virtiofs at; may be repeated
    ///
    /// A virtual machine monitor connects to it. NAME selects one source; without it, several
    /// sources are directories of one share, each a mount of its own in the guest. The guest mounts
    /// it by its tag, which is the monitor's if the monitor has one (QEMU, cloud-hypervisor), and
    /// else TAG (user-mode Linux), which is NAME or `share` by default.
    #[arg(
        long = "virtiofs",
        id = "virtiofs",
        value_name = "[NAME=]SOCKET[,tag=TAG]"
    )]
    pub(in crate::serve) shares: Vec<VirtiofsDevice>,
    /// Caching policy of virtiofs guests
    #[arg(
        long = "virtiofs-cache",
        alias = "cache",
        value_name = "MODE",
        default_value = "auto"
    )]
    pub(in crate::serve) cache: Cache,
    /// Enable the write-back cache of virtiofs guests
    ///
    /// Safe only if no other client or program changes the share.
    #[arg(long = "virtiofs-writeback", alias = "writeback")]
    pub(in crate::serve) writeback: bool,
    /// Honour O_DIRECT of virtiofs guests
    #[arg(long = "virtiofs-allow-direct-io", alias = "allow-direct-io")]
    pub(in crate::serve) allow_direct_io: bool,
    /// Let virtiofs guests create unnamed files (O_TMPFILE)
    ///
    /// The share is then no upper layer for overlayfs.
    #[arg(long = "virtiofs-tmpfile", alias = "tmpfile")]
    pub(in crate::serve) tmpfile: bool,
    /// Do not offer FUSE_HANDLE_KILLPRIV_V2 to virtiofs guests
    ///
    /// Guests then clear set-id bits and file capabilities of written files themselves, and ask for
    /// capabilities before each write.
    #[arg(
        long = "virtiofs-no-killpriv-v2",
        alias = "no-killpriv-v2",
        overrides_with = "_killpriv_v2"
    )]
    pub(in crate::serve) no_killpriv_v2: bool,
    /// Offer FUSE_HANDLE_KILLPRIV_V2 to virtiofs guests, the default
    #[arg(
        long = "virtiofs-killpriv-v2",
        alias = "killpriv-v2",
        hide = true,
        overrides_with = "no_killpriv_v2"
    )]
    _killpriv_v2: bool,
    /// How to find the files of a virtiofs guest again after its live migration
    ///
    /// The source of the migration decides. find-paths serves copies of a directory, too.
    #[arg(
        long = "virtiofs-migration-mode",
        value_name = "MODE",
        default_value = "find-paths"
    )]
    pub(in crate::serve) migration_mode: MigrationMode,
    /// Reaction to files of a virtiofs guest that cannot be migrated
    ///
    /// Both ends of the migration apply it.
    #[arg(
        long = "virtiofs-migration-on-error",
        value_name = "ACTION",
        default_value = "abort"
    )]
    pub(in crate::serve) migration_on_error: MigrationOnError,
    /// With find-paths, check by file handles that the migrated files are the same ones
    ///
    /// Source and destination must share the same directory of the same file system.
    #[arg(long = "virtiofs-migration-verify-handles")]
    pub(in crate::serve) migration_verify_handles: bool,
    /// When to offer POSIX ACLs to virtiofs guests
    ///
    /// auto offers them if the source has them, always also refuses guests that do not enforce
    /// them, never hides them.
    #[arg(long = "virtiofs-posix-acl", alias = "posix-acl", value_name = "WHEN",
          require_equals = true, num_args = 0..=1, default_value = "auto",
          default_missing_value = "always")]
    pub(in crate::serve) posix_acl: Negotiate,
    /// Do not announce submounts to virtiofs guests
    ///
    /// Directories on other devices are then part of the share, not mounts of their own, which
    /// overlayfs in a guest needs.
    #[arg(
        long = "virtiofs-no-announce-submounts",
        alias = "no-announce-submounts"
    )]
    pub(in crate::serve) no_announce_submounts: bool,
    /// Where locks of virtiofs guests apply
    ///
    /// With shared, a process that waits for a lock cannot be killed or interrupted until it has
    /// the lock: the guest's kernel cannot cancel the request. Linux has no means for that in
    /// virtiofs.
    #[arg(long = "virtiofs-locks", value_name = "WHERE", default_value = "guest")]
    pub(in crate::serve) locks: Locks,
}

#[derive(Args)]
#[command(next_help_heading = "Block")]
pub(crate) struct BlockArgs {
    /// vhost-user socket to serve a file at as a disk; may be repeated
    ///
    /// A virtual machine monitor connects to it. NAME selects a source and FILE a path within it;
    /// an image needs no FILE and is the disk itself. ro makes the disk read-only.
    #[arg(
        long = "block",
        id = "block",
        value_name = "[NAME=]SOCKET[,file=FILE][,ro]"
    )]
    pub(in crate::serve) drives: Vec<Drive>,
    /// Address to serve files at as disks over NBD; may be repeated
    ///
    /// tcp:HOST:PORT, unix:PATH, vsock:[CID:]PORT or fd:N. The name of an export is the path of a
    /// file; an image is the export without a name, or that of its source [usual port: 10809]
    #[arg(long, value_name = "ADDR")]
    pub(in crate::serve) nbd: Vec<Addr>,
}

#[derive(Args)]
#[command(next_help_heading = IDENTITY)]
pub(crate) struct IdentityArgs {
    /// Group whose members may connect to Unix sockets [default: only this user]
    ///
    /// Applies to the sockets of devices and of all protocols.
    #[arg(long, value_name = "GROUP")]
    pub(in crate::serve) socket_group: Option<String>,
    /// Local users to trust with the user ids that their 9P and NFS requests claim
    ///
    /// Names or ids with commas between, or all. Root is always trusted. Processes of other users
    /// act as their own user, over Unix sockets and TCP. The user network of QEMU, for example,
    /// connects as the user that runs QEMU; root of its guest then counts as root of this host.
    #[arg(long, value_name = "USERS", num_args = 0..=1, require_equals = true, default_missing_value = "all")]
    pub(in crate::serve) trust_uids: Option<TrustedUsers>,
    /// Clients that may use a source over NFS and 9P, as a line of exports(5); may be repeated
    ///
    /// NAME CLIENT(OPTION,...)... NAME is / for a single source without a name. CLIENT is an
    /// address, a network such as 10.0.0.0/8, localhost (Unix sockets included) or *. OPTION is ro,
    /// rw, root_squash, no_root_squash, all_squash, secure (clients of other hosts use ports below
    /// 1024, for 9P as well as NFS), insecure, anonuid=UID, anongid=GID or
    /// replicas=/PATH@HOST[+HOST...], where other servers, or other addresses of this one, have the
    /// same tree [default: ro,root_squash,secure]. A source that no line names is open to all other
    /// hosts; of this host a line for localhost admits all users, any other one only those of
    /// --admit.
    #[arg(long, value_name = "LINE")]
    pub(in crate::serve) export: Vec<ClientList>,
}

#[derive(Args)]
#[command(next_help_heading = LIMITS)]
pub(crate) struct LimitArgs {
    /// Maximum memory for all clients together [default: 1G]
    ///
    /// It bounds incomplete and waiting requests, unsent replies, and, up to half of it, state
    /// between requests (replies kept for retransmissions, fids, opens, locks, listings). One
    /// client takes at most half of the memory that others leave. Above the limit messages wait,
    /// and state is evicted or refused (EMFILE, ENOLCK, NFS4ERR_NOSPC). At most half of what the
    /// memory limit of the server's control group leaves beyond 16 MiB.
    #[arg(long, value_name = "SIZE", value_parser = memory)]
    pub(in crate::serve) memory: Option<usize>,
    /// Maximum number of connections
    #[arg(long, value_name = "N", default_value_t = 4096)]
    pub(in crate::serve) max_connections: usize,
    /// Maximum number of connections per client
    ///
    /// A client is a user of this host, a guest, or an address (a /64 network for IPv6) [default:
    /// half of the connections that other clients leave of --max-connections]
    #[arg(long, value_name = "N")]
    pub(in crate::serve) max_connections_per_client: Option<usize>,
    /// Maximum number of requests of one connection that wait for workers
    #[arg(long, value_name = "N", default_value_t = 256,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(in crate::serve) max_in_flight: u32,
    #[command(flatten)]
    pub(in crate::serve) timeouts: TimeoutArgs,
    /// Number of threads for requests that block [default: 4 per processor, at least 16]
    #[arg(long, visible_alias = "thread-pool-size", value_name = "N", value_parser = clap::value_parser!(u16).range(2..))]
    pub(in crate::serve) workers: Option<u16>,
    /// Time that a connection polls before it sleeps, µs [default: 50, or 0 on one processor]
    ///
    /// 0 disables polling. Connections stop polling while processors are short.
    #[arg(long, value_name = "US")]
    pub(in crate::serve) poll_us: Option<u64>,
    /// Processors for the threads of virtqueues, in turn [default: any]
    #[arg(long, value_name = "LIST")]
    pub(in crate::serve) queue_affinity: Option<Affinity>,
    /// Copy long reads into replies instead of sending pages of the file
    ///
    /// By default a reply may contain data that is written to the file while the reply is sent.
    #[arg(long)]
    pub(in crate::serve) no_zerocopy: bool,
}

#[derive(Args)]
#[command(next_help_heading = OBSERVABILITY)]
pub(crate) struct ObservabilityArgs {
    /// Address to serve the status page, metrics and health checks at
    ///
    /// PORT (of this host only, for the users that --admit or --http-admit names), HOST:PORT,
    /// tcp:HOST:PORT or unix:PATH. / is the status page, /status.json has its values,
    /// /metrics is for Prometheus; `barge top` shows the same. /livez
    /// fails if a listener has ended, /healthz also if a source does not answer, /readyz also while
    /// the server starts or drains. Every client of this address sees who the clients of the shares
    /// are.
    #[arg(long, value_name = "ADDR", value_parser = crate::status::parse_addr)]
    pub(in crate::serve) http: Option<Addr>,
    /// Host name to accept in HTTP requests; may be repeated
    ///
    /// In addition to addresses, localhost and the name of this host.
    #[arg(long, value_name = "NAME", requires = "http")]
    pub(in crate::serve) http_name: Vec<String>,
    /// User of this host who may see the status page, by name or id; may be repeated
    ///
    /// Besides root, the user of this process and those of --admit: for a collector of metrics,
    /// which needs no share. '*' admits all users.
    #[arg(long, value_name = "USER", value_delimiter = ',', requires = "http")]
    pub(in crate::serve) http_admit: Vec<AdmittedUser>,
    /// Log each request that takes longer than this, ms [default: off]
    ///
    /// A line has the protocol, request, share, client, inode number, path or name if known, bytes
    /// and times. The wait for a worker counts, the wait for a lock does not. A client causes 8
    /// lines at once, then one every 10 seconds; /metrics counts all.
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(in crate::serve) slow_ms: Option<u32>,
    /// OpenTelemetry collector to send metrics and traces to
    ///
    /// http://HOST[:PORT] or https://HOST[:PORT], usually with port 4318 (OTLP as protobuf over
    /// HTTP). Metrics are those of --http, once a minute. Requests slower than --slow-ms become
    /// spans. Variables of the environment set the rest, such as OTEL_SERVICE_NAME,
    /// OTEL_EXPORTER_OTLP_HEADERS and OTEL_TRACES_SAMPLER [default:
    /// $OTEL_EXPORTER_OTLP_ENDPOINT]
    #[cfg(feature = "otel")]
    #[arg(long, value_name = "URL")]
    pub(in crate::serve) otlp: Option<crate::otel::Url>,
    /// File to log every call of the sources to
    ///
    /// Times and results are included, one JSON object per line, for `barge bench replay`. A call
    /// costs some microseconds and 200 bytes. --record-trace writes the trace that `barge pack`
    /// uses.
    #[arg(long, value_name = "FILE")]
    pub(in crate::serve) record_calls: Option<PathBuf>,
}

/// Parses the value of `--9p-msize`.
fn msize(text: &str) -> Result<u32, String> {
    let bytes = remote::bytes(text).and_then(|bytes| u32::try_from(bytes).ok());
    bytes
        .filter(|bytes| (4096..=32 << 20).contains(bytes))
        .ok_or_else(|| format!("expected a size from 4096 to 32M, such as 4M, got '{text}'"))
}

/// Parses the value of `--memory`.
fn memory(text: &str) -> Result<usize, String> {
    /// Room for the largest message that a client can be promised, and the minima of some
    /// connections.
    const MIN_MEMORY: usize = 8 << 20;
    let bytes = remote::bytes(text).and_then(|bytes| usize::try_from(bytes).ok());
    bytes
        .filter(|&bytes| bytes >= MIN_MEMORY)
        .ok_or_else(|| format!("expected a size of at least 8M, such as 256M, got '{text}'"))
}

#[derive(Args)]
pub(crate) struct TimeoutArgs {
    /// Timeout for the first message of a connection, seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..))]
    pub(in crate::serve) handshake_timeout: u32,
    /// Timeout for each MiB of a message that has begun, seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..))]
    pub(in crate::serve) message_timeout: u32,
    /// Timeout for a client that receives nothing of its replies, seconds
    ///
    /// If a virtual machine is suspended for longer, its guest loses the connection.
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..))]
    pub(in crate::serve) send_timeout: u32,
    /// Timeout for a connection without requests, seconds; 0 disables it
    ///
    /// Mounts may be idle for days.
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub(in crate::serve) idle_timeout: u32,
}
