use std::path::PathBuf;

use clap::{Args, ValueEnum};
use layers::{Translation, XattrMap};

use super::capabilities::Modcaps;
use super::ids::NamespaceRange;
use crate::serve::virtiofs::{Cache, Negotiate, Tag};

/// What is said of an option is what barge does about it.
#[derive(Args, Clone)]
#[command(
    args_override_self = true,
    arg_required_else_help = true,
    after_help = "Locks are seen by other guests and by the host, unless -o no_posix_lock,no_flock says otherwise.\n\
                  The program ends when the monitor that connected goes. A link named virtiofsd to barge is this command."
)]
#[allow(
    rustdoc::broken_intra_doc_links,
    reason = "what help has in brackets is no link"
)]
pub(crate) struct VirtiofsdArgs {
    /// The directory to share
    #[arg(long, value_name = "DIR", required_unless_present_any = ["compat", "print_capabilities"])]
    pub(super) shared_dir: Option<PathBuf>,
    /// The vhost-user socket to make and listen at
    #[arg(long, alias = "socket", value_name = "PATH",
          required_unless_present_any = ["fd", "print_capabilities"])]
    pub(super) socket_path: Option<PathBuf>,
    /// The group that may connect to the socket, besides this user
    #[arg(long, value_name = "GROUP", conflicts_with = "fd")]
    pub(super) socket_group: Option<String>,
    /// The number of an inherited socket to listen at instead
    #[arg(long, value_name = "N", conflicts_with = "socket_path",
          value_parser = clap::value_parser!(i32).range(0..))]
    pub(super) fd: Option<i32>,
    /// The tag that the device's configuration tells; without one there is no configuration, as QEMU
    /// expects
    #[arg(long, value_name = "TAG")]
    pub(super) tag: Option<Tag>,
    /// Threads for requests that would block; 0 is barge's usual number. What does not block is
    /// answered by the queue's own thread
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) thread_pool_size: u16,
    /// Extended attributes
    #[arg(long)]
    pub(super) xattr: bool,
    /// POSIX ACLs; implies --xattr. With always, clients that have none are refused
    #[arg(long, value_name = "WHEN", require_equals = true, num_args = 0..=1,
          default_value = "never", default_missing_value = "always")]
    pub(super) posix_acl: Negotiate,
    /// Rules by which extended attributes have other names on the host; implies --xattr
    #[arg(long, value_name = "RULES")]
    pub(super) xattrmap: Option<XattrMap>,
    /// Accepted: no namespaces or new roots are made. Whatever it says, names are resolved beneath the
    /// shared directory by the kernel, and no link is followed
    #[arg(
        long,
        value_name = "MODE",
        default_value = "namespace",
        ignore_case = true
    )]
    pub(super) sandbox: Sandbox,
    /// Let the guest change nothing
    #[arg(long)]
    pub(super) readonly: bool,
    /// Accepted: no filter of system calls is installed
    #[arg(long, value_name = "ACTION", default_value = "kill")]
    pub(super) seccomp: Seccomp,
    /// Tell the guest which directories are mount points [default]
    #[arg(long = "announce-submounts", overrides_with = "no_announce_submounts")]
    _announce_submounts: bool,
    /// Do not tell the guest which directories are mount points
    #[arg(long)]
    pub(super) no_announce_submounts: bool,
    /// Whether handles of the kernel stand for nodes when descriptors are short
    #[arg(
        long,
        value_name = "WHEN",
        require_equals = true,
        default_value = "prefer"
    )]
    pub(super) inode_file_handles: Handles,
    /// What the guest may keep
    #[arg(long, value_name = "MODE", default_value = "auto", ignore_case = true)]
    pub(super) cache: Cache,
    /// Let programs map files as shared that the guest keeps no contents of (--cache never or metadata):
    /// nobody else may change the directory
    #[arg(long)]
    pub(super) allow_mmap: bool,
    /// Listings without attributes; so it is with --cache=never, too
    #[arg(long)]
    pub(super) no_readdirplus: bool,
    /// Let the guest write behind: nobody else may change the directory
    #[arg(long)]
    pub(super) writeback: bool,
    /// Honour the O_DIRECT of the guest's programs
    #[arg(long)]
    pub(super) allow_direct_io: bool,
    /// Say in JSON what this program can do for vhost-user, and end
    #[arg(long)]
    pub(super) print_capabilities: bool,
    /// Which capabilities to keep as the super-user, besides and of the usual ones: +sys_admin:-chown
    #[arg(long, value_name = "CHANGES", default_value = "", hide_default_value = true,
          value_parser = modcaps, allow_hyphen_values = true)]
    pub(super) modcaps: Modcaps,
    /// How much to log
    #[arg(long, value_name = "LEVEL", default_value = "info", ignore_case = true)]
    pub(super) log_level: Level,
    /// Log to syslog; to standard error if there is none
    #[arg(long)]
    pub(super) syslog: bool,
    /// How many descriptors may be open; 0 leaves the limits alone [default: the hard limit]
    #[arg(long, value_name = "N")]
    pub(super) rlimit_nofile: Option<u64>,
    /// Take set-id bits and file capabilities away here when a file is written, so that with
    /// --xattr the guest does not ask for capabilities before each write [default; virtiofsd's is
    /// --no-killpriv-v2]
    #[arg(long = "killpriv-v2", overrides_with = "no_killpriv_v2")]
    _killpriv_v2: bool,
    /// Leave set-id bits and file capabilities to the guest
    #[arg(long, overrides_with = "_killpriv_v2")]
    pub(super) no_killpriv_v2: bool,
    /// Security labels (SELinux) of what the guest makes; implies --xattr. With always, clients that
    /// send none are refused
    #[arg(long, value_name = "WHEN", require_equals = true, num_args = 0..=1,
          default_value = "never", default_missing_value = "always")]
    pub(super) security_label: Negotiate,
    /// Map a range of user ids as a user namespace would; may be repeated. Without privileges it can
    /// be this user alone
    #[arg(long, value_name = ":NAMESPACE:HOST:COUNT:")]
    pub(super) uid_map: Vec<NamespaceRange>,
    /// Map a range of group ids; may be repeated
    #[arg(long, value_name = ":NAMESPACE:HOST:COUNT:")]
    pub(super) gid_map: Vec<NamespaceRange>,
    /// Translate a range of user ids; may be repeated. TYPE is map, guest, host, squash-guest or
    /// squash-host; or forbid-guest:FROM:COUNT. POSIX ACLs are translated, too
    #[arg(long, value_name = "TYPE:FROM:TO:COUNT")]
    pub(super) translate_uid: Vec<Translation>,
    /// Translate a range of group ids; may be repeated
    #[arg(long, value_name = "TYPE:FROM:TO:COUNT")]
    pub(super) translate_gid: Vec<Translation>,
    /// Pass O_NOATIME on, which the host refuses of files that are not the caller's
    #[arg(long)]
    pub(super) preserve_noatime: bool,
    /// Accepted: there is no migration, and the monitor is told so
    #[arg(long, value_name = "MODE")]
    migration_mode: Option<MigrationMode>,
    /// Accepted: there is no migration
    #[arg(long, value_name = "WHAT")]
    migration_on_error: Option<MigrationOnError>,
    /// Accepted: there is no migration
    #[arg(long)]
    migration_verify_handles: bool,
    /// Accepted: there is no migration
    #[arg(long)]
    migration_confirm_paths: bool,
    /// Options as the older virtiofsd had them: source=DIR, cache=none, xattr, no_posix_lock
    #[arg(short = 'o', value_name = "OPTIONS", value_delimiter = ',')]
    pub(super) compat: Vec<String>,
    /// The same as --log-level=debug
    #[arg(short = 'd', hide = true)]
    debug: bool,
    /// Accepted: the program stays in the foreground
    #[arg(short = 'f', hide = true)]
    _foreground: bool,
    #[arg(skip)]
    pub(super) no_posix_lock: bool,
    #[arg(skip)]
    pub(super) no_flock: bool,
}

impl VirtiofsdArgs {
    /// How much is logged.
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

    /// Whether it is logged to syslog.
    pub(crate) fn syslog(&self) -> bool {
        self.syslog
    }

    /// Whether anything was said of migration.
    pub(super) fn migrates(&self) -> bool {
        self.migration_mode.is_some()
            || self.migration_on_error.is_some()
            || self.migration_verify_handles
            || self.migration_confirm_paths
    }
}

/// No changes are the default.
fn modcaps(text: &str) -> Result<Modcaps, String> {
    match text {
        "" => Ok(Modcaps::default()),
        changes => changes.parse(),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Sandbox {
    Namespace,
    Chroot,
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Seccomp {
    None,
    Kill,
    Log,
    Trap,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Handles {
    /// Never: what is renamed on the host while descriptors are short is lost
    Never,
    /// Where the file system and our privileges permit
    #[value(alias = "fallback")]
    Prefer,
    /// Or nothing is served
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum MigrationMode {
    FindPaths,
    FileHandles,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum MigrationOnError {
    Abort,
    GuestError,
}
