use std::path::PathBuf;

use clap::{Args, ValueEnum};
use layers::{Translation, XattrMap};

use super::ids::NamespaceRange;
use crate::serve::args::confinement::Seccomp;
use crate::serve::args::device::VirtiofsDevice;
use crate::serve::args::virtiofs::{Cache, MigrationMode, MigrationOnError, Negotiate};
use crate::serve::modcaps::Modcaps;

/// Options of virtiofsd; the help of each says what barge does with it
#[derive(Args, Clone)]
#[command(
    args_override_self = true,
    arg_required_else_help = true,
    after_help = "Locks apply among the processes of the guest, unless -o posix_lock,flock shares them with other\n\
                  guests and the host. A process of the guest that waits for a shared lock cannot be killed.\n\
                  The program ends when the monitor disconnects. A link named virtiofsd to barge runs this command."
)]
#[allow(
    rustdoc::broken_intra_doc_links,
    reason = "brackets in help are no links"
)]
pub(crate) struct VirtiofsdArgs {
    /// Directory to share
    #[arg(long, value_name = "DIR", required_unless_present_any = ["compat", "print_capabilities"])]
    pub(super) shared_dir: Option<PathBuf>,
    /// vhost-user socket to create and listen at
    #[arg(long, alias = "socket", value_name = "PATH",
          required_unless_present_any = ["fd", "print_capabilities"])]
    pub(super) socket_path: Option<PathBuf>,
    /// Group whose members may connect to the socket [default: only this user]
    #[arg(long, value_name = "GROUP", conflicts_with = "fd")]
    pub(super) socket_group: Option<String>,
    /// Inherited socket to listen at instead, as a descriptor number
    #[arg(long, value_name = "N", conflicts_with = "socket_path",
          value_parser = clap::value_parser!(i32).range(0..))]
    pub(super) fd: Option<i32>,
    /// Tag in the device's configuration
    ///
    /// Without a tag the device has no configuration, as QEMU expects.
    #[arg(long, value_name = "TAG", value_parser = VirtiofsDevice::parse_tag)]
    pub(super) tag: Option<String>,
    /// Number of threads for requests that block; 0 is barge's default
    ///
    /// Other requests are served by the thread of their queue.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) thread_pool_size: u16,
    /// Offer extended attributes
    #[arg(long)]
    pub(super) xattr: bool,
    /// When to offer POSIX ACLs; implies --xattr
    ///
    /// always refuses clients that do not support them.
    #[arg(long, value_name = "WHEN", require_equals = true, num_args = 0..=1,
          default_value = "never", default_missing_value = "always")]
    pub(super) posix_acl: Negotiate,
    /// Mapping of extended attribute names; implies --xattr
    #[arg(long, value_name = "RULES")]
    pub(super) xattrmap: Option<XattrMap>,
    /// Confinement of the process that serves [default: namespace]
    ///
    /// By default a process that may not create namespaces, as in many containers, continues as
    /// with chroot and logs that. With an explicit namespace it refuses to start.
    #[arg(long, value_name = "MODE", ignore_case = true)]
    pub(super) sandbox: Option<Sandbox>,
    /// Refuse all changes by the guest
    #[arg(long)]
    pub(super) readonly: bool,
    /// Reaction to a system call that serving does not use
    #[arg(long, value_name = "ACTION", default_value = "kill")]
    pub(super) seccomp: Seccomp,
    /// Announce mount points in the shared directory to the guest [default]
    #[arg(long = "announce-submounts", overrides_with = "no_announce_submounts")]
    _announce_submounts: bool,
    /// Do not announce mount points in the shared directory to the guest
    #[arg(long)]
    pub(super) no_announce_submounts: bool,
    /// When to use kernel file handles for inodes, if descriptors are short
    // virtiofsd requires an equals sign, which Kata's Rust runtime omits.
    #[arg(long, value_name = "WHEN", default_value = "prefer")]
    pub(super) inode_file_handles: Handles,
    /// Caching policy of the guest
    #[arg(long, value_name = "MODE", default_value = "auto", ignore_case = true)]
    pub(super) cache: Cache,
    /// Allow shared mappings of files with --cache never or metadata
    ///
    /// Safe only if no other client or program changes the directory.
    #[arg(long)]
    pub(super) allow_mmap: bool,
    /// Do not offer READDIRPLUS; implied by --cache=never
    #[arg(long)]
    pub(super) no_readdirplus: bool,
    /// Enable the write-back cache of the guest
    ///
    /// Safe only if no other client or program changes the directory.
    #[arg(long)]
    pub(super) writeback: bool,
    /// Honour O_DIRECT of the guest
    #[arg(long)]
    pub(super) allow_direct_io: bool,
    /// Print the vhost-user capabilities of this program as JSON, and exit
    #[arg(long)]
    pub(super) print_capabilities: bool,
    /// Changes to the capabilities that are kept as root, such as +sys_admin:-chown
    #[arg(long, value_name = "CHANGES", default_value = "", hide_default_value = true,
          value_parser = modcaps, allow_hyphen_values = true)]
    pub(super) modcaps: Modcaps,
    /// Log level
    #[arg(long, value_name = "LEVEL", default_value = "info", ignore_case = true)]
    pub(super) log_level: Level,
    /// Log to syslog, or to standard error if there is none
    #[arg(long)]
    pub(super) syslog: bool,
    /// Maximum number of open descriptors; 0 leaves the limits alone [default: the hard limit]
    #[arg(long, value_name = "N")]
    pub(super) rlimit_nofile: Option<u64>,
    /// Clear set-id bits and file capabilities of written files on the host [default]
    ///
    /// With --xattr, the guest then does not ask for capabilities before each write. virtiofsd's
    /// default is --no-killpriv-v2.
    #[arg(long = "killpriv-v2", overrides_with = "no_killpriv_v2")]
    _killpriv_v2: bool,
    /// Leave set-id bits and file capabilities of written files to the guest
    #[arg(long, overrides_with = "_killpriv_v2")]
    pub(super) no_killpriv_v2: bool,
    /// When to set SELinux labels of new files from the guest; implies --xattr
    ///
    /// always refuses clients that send none.
    #[arg(long, value_name = "WHEN", require_equals = true, num_args = 0..=1,
          default_value = "never", default_missing_value = "always")]
    pub(super) security_label: Negotiate,
    /// Range of user ids to map, as in a user namespace; may be repeated
    ///
    /// Without privileges, only this process's own user id can be mapped.
    #[arg(long, value_name = ":NAMESPACE:HOST:COUNT:")]
    pub(super) uid_map: Vec<NamespaceRange>,
    /// Range of group ids to map; may be repeated
    #[arg(long, value_name = ":NAMESPACE:HOST:COUNT:")]
    pub(super) gid_map: Vec<NamespaceRange>,
    /// Range of user ids to translate; may be repeated
    ///
    /// TYPE is map, guest, host, squash-guest or squash-host, or forbid-guest:FROM:COUNT. POSIX
    /// ACLs are translated as well.
    #[arg(long, value_name = "TYPE:FROM:TO:COUNT")]
    pub(super) translate_uid: Vec<Translation>,
    /// Range of group ids to translate; may be repeated
    #[arg(long, value_name = "TYPE:FROM:TO:COUNT")]
    pub(super) translate_gid: Vec<Translation>,
    /// Preserve O_NOATIME of the guest
    ///
    /// The host refuses it for files that the caller does not own.
    #[arg(long)]
    pub(super) preserve_noatime: bool,
    /// How to find the guest's files again after a live migration
    ///
    /// The source of the migration decides. find-paths serves copies of a directory, too.
    #[arg(long, value_name = "MODE", default_value = "find-paths")]
    pub(super) migration_mode: MigrationMode,
    /// Reaction to files that cannot be migrated
    ///
    /// Both ends of the migration apply it.
    #[arg(long, value_name = "ACTION", default_value = "abort")]
    pub(super) migration_on_error: MigrationOnError,
    /// With find-paths, check by file handles that the files found are the same ones
    ///
    /// Source and destination must share the same directory of the same file system.
    #[arg(long)]
    pub(super) migration_verify_handles: bool,
    /// Always done: paths are confirmed when the guest is stopped
    #[arg(long = "migration-confirm-paths")]
    _migration_confirm_paths: bool,
    /// Options of the older virtiofsd: source=DIR, cache=none, xattr, posix_lock
    #[arg(short = 'o', value_name = "OPTIONS", value_delimiter = ',')]
    pub(super) compat: Vec<String>,
    /// Log at level debug, as --log-level=debug
    #[arg(short = 'd', hide = true)]
    debug: bool,
    /// Accepted without effect: the program always stays in the foreground
    #[arg(short = 'f', hide = true)]
    _foreground: bool,
    /// The socket of the process that serves, in its namespaces
    #[arg(long, hide = true, value_name = "N")]
    pub(super) confined_fd: Option<i32>,
    #[arg(skip)]
    pub(super) posix_lock: bool,
    #[arg(skip)]
    pub(super) flock: bool,
}

impl VirtiofsdArgs {
    /// Returns the log level.
    pub(crate) fn log_level(&self) -> tracing::level_filters::LevelFilter {
        use tracing::level_filters::LevelFilter;
        match self.log_level {
            _ if self.debug => LevelFilter::DEBUG,
            Level::Off => LevelFilter::OFF,
            Level::Error => LevelFilter::ERROR,
            Level::Warn => LevelFilter::WARN,
            Level::Info => LevelFilter::INFO,
            Level::Debug => LevelFilter::DEBUG,
            Level::Trace => LevelFilter::TRACE,
        }
    }

    /// Returns whether to log to syslog.
    pub(crate) fn syslog(&self) -> bool {
        self.syslog
    }
}

/// Parses `--modcaps`; an empty text is no changes.
fn modcaps(text: &str) -> Result<Modcaps, String> {
    match text {
        "" => Ok(Modcaps::NONE),
        changes => changes.parse(),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Sandbox {
    /// Give it mount, network, IPC and PID namespaces, with a root that has the directory alone
    ///
    /// Without privileges these are in a user namespace.
    Namespace,
    /// Let Landlock refuse other files, TCP and signals; no root is changed
    ///
    /// Needs --inode-file-handles=never to refuse files, as file handles lead around the rules.
    Chroot,
    /// Neither
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Handles {
    /// Do not use them: a file is lost if it is renamed on the host while descriptors are short
    Never,
    /// Use them if the file system and the privileges of this process permit
    #[value(alias = "fallback")]
    Prefer,
    /// Use them, or refuse to start
    Mandatory,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Level {
    Off,
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}
