//! The options of a share, which each share of a configuration file may set on its own.

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

use clap::{Args, ValueEnum};
use layers::disk_quota::DiskLimits;
use layers::gate::AccessPolicy;
use layers::hide::{PathList, Pattern, Rules};
use layers::limit::{Limits, Rates};
use layers::squash::{NOBODY, SquashMode};
use layers::{Admission, IdMap, IdRange, MapIds, Squash, XattrMap};

use super::access::AdmittedUser;
use super::{IDENTITY, LIMITS, OBSERVABILITY, SOURCES};
use crate::Failure;
use crate::config::files::Files;
use crate::disk_cache::DiskCacheArgs;
use crate::serve::share::Share;
use crate::source::{NamedSource, Source};

#[derive(Args)]
pub(crate) struct ShareArgs {
    #[command(flatten)]
    disk_cache: DiskCacheArgs,
    /// Directory for changes to a source that is read-only, such as an image
    ///
    /// Changes are stored as Linux's overlayfs does (DIR/upper, DIR/work). For a single source.
    #[arg(long, value_name = "DIR", help_heading = SOURCES)]
    overlay: Option<PathBuf>,
    /// Public key (PEM, Ed25519) that images must be signed with; may be repeated
    ///
    /// Only images are served, and only if one of the keys has signed them; all data is verified.
    /// Not with disks (--block, --nbd).
    #[arg(long, value_name = "FILE", conflicts_with_all = ["block", "nbd"], help_heading = SOURCES)]
    verify_key: Vec<PathBuf>,
    /// Public key (PEM) that images must be signed with by cosign; may be repeated
    ///
    /// It is of ECDSA on P-256 or Ed25519. Only images in registries are served, and only if one of
    /// the keys has signed them.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["block", "nbd"], help_heading = SOURCES)]
    cosign_key: Vec<PathBuf>,
    /// Pattern of names or paths to hide; may be repeated
    ///
    /// '*.key' hides such names in all directories, '/home/*/.ssh' a path from the root of the
    /// share, 'a/**/b' one with any directories in between; all below is hidden, too. '*', '?' and
    /// '[a-z]' match within a name, and '\\' quotes. Hidden names cannot be created, and
    /// a move between places with different rules is refused.
    #[arg(
        long,
        value_name = "GLOB",
        conflicts_with_all = ["block", "nbd"],
        help_heading = SOURCES
    )]
    hide: Vec<Pattern>,
    /// File with the paths to show, one on each line; all others are hidden
    ///
    /// All below a listed path is shown. Paths are relative to the root of the share; those of a
    /// directory may begin with its own path, as in a list of `nix-store --query --requisites`.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["block", "nbd"], help_heading = SOURCES)]
    only: Option<PathBuf>,
    /// Maximum disk space of the share, which clients see as its size
    ///
    /// Writes beyond it fail with EDQUOT. All that the share contains counts, as with du(1): it is
    /// read at the start. Changes by programs of this host are not counted until the next start.
    #[arg(
        long,
        value_name = "SIZE",
        value_parser = quota,
        conflicts_with_all = ["block", "nbd", "overlay"],
        help_heading = SOURCES
    )]
    quota: Option<u64>,
    /// Maximum number of files and directories of the share
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u64).range(1..),
        conflicts_with_all = ["block", "nbd", "overlay"],
        help_heading = SOURCES
    )]
    quota_inodes: Option<u64>,
    /// File to record a read trace to, for `barge pack --trace`
    ///
    /// It lists the parts of files that clients read, in their order. For a single source.
    /// --record-calls logs every call.
    #[arg(long, value_name = "FILE", help_heading = OBSERVABILITY)]
    record_trace: Option<PathBuf>,
    #[command(flatten)]
    access: AccessArgs,
    #[command(flatten)]
    limits: RateArgs,
    /// Range of user ids to map; may be repeated
    ///
    /// Ids outside of all ranges become 65534.
    #[arg(long, value_name = "CLIENT:HOST:COUNT", help_heading = IDENTITY)]
    map_uid: Vec<IdRange>,
    /// Range of group ids to map; may be repeated
    #[arg(long, value_name = "CLIENT:HOST:COUNT", help_heading = IDENTITY)]
    map_gid: Vec<IdRange>,
    /// Mapping of extended attribute names, in virtiofsd's syntax
    ///
    /// ':map::user.virtiofs.:' stores all of them as user attributes.
    #[arg(long, value_name = "RULES", help_heading = IDENTITY)]
    xattrmap: Option<XattrMap>,
    /// Identity with which a directory is accessed
    #[arg(long, value_name = "MODEL", default_value = "auto", help_heading = IDENTITY)]
    identity: IdentityArg,
    /// Pass descriptors of a directory's files to 9P clients on unix:PATH
    ///
    /// The kernel of this host then reads and writes the files of a `barge mount` by root without
    /// requests. A client keeps a file open after the server or the share is gone, and root of this
    /// host can write to a file that it may only read. Not with --read-only, --export, --limit or
    /// --client-limit; such reads and writes are neither recorded nor counted.
    #[arg(long = "9p-fd-passing", alias = "hand-over-files", help_heading = "9P")]
    fd_passing: bool,
}

/// The options of a share that may change while it is served.
#[derive(Args)]
pub(crate) struct AccessArgs {
    /// Refuse all changes by clients
    #[arg(long, help_heading = SOURCES)]
    read_only: bool,
    /// User of this host who may use a share, by name or id; may be repeated
    ///
    /// Only root and the user of this process may connect otherwise, over loopback, other addresses
    /// of this host and Unix sockets: the server accesses files as its own user unless root runs
    /// it. '*' admits all users. A client list that names localhost does so for its share, and
    /// --socket-group admits the members of the group to Unix sockets. Set for all shares, it also
    /// admits to the status page, as --http-admit does alone. The user network of QEMU connects as
    /// the user that runs QEMU.
    #[arg(long, value_name = "USER", value_delimiter = ',', help_heading = IDENTITY)]
    admit: Vec<AdmittedUser>,
    /// Users to squash: their requests become the anonymous user's
    ///
    /// Lines of --export squash root unless they say otherwise.
    #[arg(long, value_name = "WHOM", default_value = "remote-root", help_heading = IDENTITY)]
    squash: SquashArg,
    /// User id of the anonymous user
    #[arg(long, value_name = "UID", default_value_t = NOBODY, help_heading = IDENTITY)]
    anon_uid: u32,
    /// Group id of the anonymous user
    #[arg(long, value_name = "GID", default_value_t = NOBODY, help_heading = IDENTITY)]
    anon_gid: u32,
}

/// The limits of a share, which may change while it is served.
#[derive(Args)]
pub(crate) struct RateArgs {
    /// Limit of all clients of a share together: ops=N,bytes=SIZE[,burst=TIME]
    ///
    /// N operations and SIZE bytes read and written per second; one of the two may be missing, and
    /// 'none' is no limit. A request over the limit waits, and clients take turns. A share that is
    /// not used saves up what it may do in TIME (10ms to 3600s) [default: 100ms]. Each share has
    /// the limit for itself. While it is set, descriptors are not passed.
    #[arg(long, value_name = "RATES", help_heading = LIMITS)]
    limit: Option<Rates>,
    /// Limit of each client of a share: ops=N,bytes=SIZE[,burst=TIME]
    ///
    /// A client is a host, a virtual machine's device, or a user of this host, with all its
    /// connections.
    #[arg(long, value_name = "RATES", help_heading = LIMITS)]
    client_limit: Option<Rates>,
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum SquashArg {
    /// No user
    None,
    /// The super-user of other hosts, but not of this host and its virtual machines
    RemoteRoot,
    /// The super-user
    Root,
    /// All users
    All,
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum IdentityArg {
    /// switch if privileged, otherwise fixed
    Auto,
    /// The identity of each caller; needs privileges
    Switch,
    /// The identity of this process for all callers
    Fixed,
    /// The identity of this process; owners and modes are stored in user.virtfs.* attributes, as
    /// with QEMU's mapped-xattr
    MappedXattr,
}

impl ShareArgs {
    /// Returns the share of `named`. Lists of paths are among `files`.
    pub(in crate::serve) fn plan(
        &self,
        named: NamedSource,
        files: &Files,
    ) -> Result<Share, Failure> {
        let source = self.disk_cache.apply_to(&named.source);
        let hidden = self.hidden(&source, files)?;
        Ok(Share {
            named: NamedSource {
                source: source
                    .require_signature(&self.verify_key)?
                    .require_cosign_signature(&self.cosign_key)?,
                ..named
            },
            objects: Vec::new(),
            released: false,
            read_trace: self.record_trace.clone(),
            files: self.files(),
            hidden,
            quota: DiskLimits {
                bytes: self.quota,
                inodes: self.quota_inodes,
            },
            hostdir: hostdir::Options {
                identity: self.identity(),
                ..Default::default()
            },
            overlay: self.overlay.clone(),
            fd_passing: self.fd_passing,
            ids: self.ids()?,
            xattrs: self.xattrmap.clone(),
            access: self.access.plan(),
            limits: Limits {
                share: self.limits.limit.unwrap_or_default(),
                client: self.limits.client_limit.unwrap_or_default(),
            },
        })
    }

    /// Returns the users of this host who may use a share, of `--admit`.
    pub(in crate::serve) fn admitted(&self) -> &[AdmittedUser] {
        &self.access.admit
    }

    /// Returns the files that are read when the source is opened.
    fn files(&self) -> Vec<PathBuf> {
        let keys = self.verify_key.iter().chain(&self.cosign_key);
        keys.cloned().collect()
    }

    /// Returns the rules that hide paths of `source`.
    fn hidden(&self, source: &Source, files: &Files) -> Result<Rules, Failure> {
        let Some(file) = &self.only else {
            return Ok(Rules::new(self.hide.clone(), None));
        };
        let failed = |error: String| Failure::new(format!("{}: {error}", file.display()));
        let text = files
            .read(file)
            .map_err(|error| failed(error.to_string()))?;
        let prefix = match source {
            Source::Tree(sources::Source::HostDir(dir)) => dir.as_os_str().as_bytes(),
            _ => b"",
        };
        let only = PathList::parse(&text, prefix).map_err(failed)?;
        Ok(Rules::new(self.hide.clone(), Some(only)))
    }

    /// Checks the options that apply to a single source only; there are `sources`.
    pub(in crate::serve) fn check_single_source(&self, sources: usize) -> Result<(), Failure> {
        if self.overlay.is_some() && sources != 1 {
            return Err(Failure::usage("--overlay: expected exactly one SOURCE"));
        }
        if self.record_trace.is_some() && sources > 1 {
            return Err(Failure::usage(
                "--record-trace: expected one source, got several",
            ));
        }
        Ok(())
    }

    /// Returns the id maps; without ranges, ids stay as they are.
    fn ids(&self) -> Result<Vec<MapIds>, Failure> {
        if self.map_uid.is_empty() && self.map_gid.is_empty() {
            return Ok(Vec::new());
        }
        let map = |ranges: &[IdRange]| match ranges {
            [] => Ok(IdMap::identity()),
            ranges => IdMap::new(ranges.to_vec()).map_err(Failure::usage),
        };
        let (uids, gids) = (map(&self.map_uid)?, map(&self.map_gid)?);
        Ok(vec![MapIds { uids, gids }])
    }

    fn identity(&self) -> hostdir::Identity {
        match self.identity {
            IdentityArg::Auto => hostdir::Identity::Auto,
            IdentityArg::Switch => hostdir::Identity::Switch,
            IdentityArg::Fixed => hostdir::Identity::Fixed,
            IdentityArg::MappedXattr => hostdir::Identity::MappedXattr,
        }
    }
}

impl AccessArgs {
    /// Returns the terms of a share. The clients are set elsewhere.
    fn plan(&self) -> AccessPolicy {
        let mode = match self.squash {
            SquashArg::None => SquashMode::None,
            SquashArg::RemoteRoot => SquashMode::RemoteRoot,
            SquashArg::Root => SquashMode::Root,
            SquashArg::All => SquashMode::All,
        };
        AccessPolicy {
            squash: Squash {
                mode,
                uid: self.anon_uid,
                gid: self.anon_gid,
            },
            read_only: self.read_only,
            admission: Arc::new(Admission::new(
                None,
                self.admit.iter().copied().collect(),
                None,
            )),
        }
    }
}

/// Parses the value of `--quota`.
fn quota(text: &str) -> Result<u64, String> {
    remote::bytes(text)
        .filter(|&bytes| bytes > 0)
        .ok_or_else(|| format!("expected a size, such as 10G, got '{text}'"))
}
