//! What a source is served with: the options that each share of a file may have of its own.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use layers::gate::Terms;
use layers::squash::{NOBODY, Whom};
use layers::{IdMap, IdRange, MapIds, Squash, XattrMap};

use super::plan::{Layers, Share};
use crate::Failure;
use crate::source::Named;
use crate::tier::TierArgs;

#[derive(Args)]
pub(crate) struct ShareArgs {
    #[command(flatten)]
    tier: TierArgs,
    /// Let clients write to a source that cannot be written, an image for one: what they change is kept in this directory, as Linux's
    /// overlayfs keeps it (DIR/upper, DIR/work). For a single source
    #[arg(long, value_name = "DIR")]
    overlay: Option<PathBuf>,
    /// Serve images only, and only if they are signed with the key whose public half is in this file (PEM, Ed25519); given several times, with one of
    /// them. Nothing is shown that is not what was signed. Disks (--block, --nbd) are not held against it, and do not go with it
    #[arg(long, value_name = "FILE", conflicts_with_all = ["block", "nbd"])]
    verify_key: Vec<PathBuf>,
    /// Write down which parts of files clients read of the only source, and in which order, for barge pack --trace; every call is what
    /// --record-calls writes down
    #[arg(long, value_name = "FILE")]
    record_trace: Option<PathBuf>,
    #[command(flatten)]
    terms: TermsArgs,
    /// Map a range of user ids; may be repeated. Ids outside all ranges become 65534
    #[arg(long, value_name = "CLIENT:HOST:COUNT")]
    map_uid: Vec<IdRange>,
    /// Map a range of group ids; may be repeated
    #[arg(long, value_name = "CLIENT:HOST:COUNT")]
    map_gid: Vec<IdRange>,
    /// Rules by which extended attributes have other names at the source, in virtiofsd's syntax:
    /// ':map::user.virtiofs.:' keeps all of them as a user's
    #[arg(long, value_name = "RULES")]
    xattrmap: Option<XattrMap>,
    /// On whose behalf a directory is used
    #[arg(long, value_name = "MODEL", default_value = "auto")]
    identity: IdentityArg,
    /// Hand a directory's open files themselves to clients that ask for them by 9P on unix:PATH, as `barge mount` by root does: this host's kernel
    /// then reads and writes them without asking here. Who has a file keeps it when this program or the share is gone, and root of this host can
    /// write to one that it has to read. Not with --read-only or --export, and of what is not seen: recorded or counted
    #[arg(long)]
    hand_over_files: bool,
}

/// On which terms a share is served: those of its options that may change while it is.
#[derive(Args)]
pub(crate) struct TermsArgs {
    /// Let clients change nothing
    #[arg(long)]
    read_only: bool,
    /// Which users to squash: their requests become the anonymous user's. Lists of --export say
    /// that for themselves by default
    #[arg(long, value_name = "WHOM", default_value = "remote-root")]
    squash: SquashArg,
    /// The anonymous user's id
    #[arg(long, value_name = "UID", default_value_t = NOBODY)]
    anon_uid: u32,
    /// The anonymous user's group
    #[arg(long, value_name = "GID", default_value_t = NOBODY)]
    anon_gid: u32,
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum SquashArg {
    /// Nobody's
    None,
    /// The super-user's of other hosts; not that of this host and its virtual machines
    RemoteRoot,
    /// The super-user's
    Root,
    /// Everyone's
    All,
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum IdentityArg {
    /// switch if privileged, otherwise fixed
    Auto,
    /// As each caller; needs privileges
    Switch,
    /// As this process, whoever calls
    Fixed,
    /// As this process, with owners and modes kept in user.virtfs.* attributes, as QEMU's mapped-xattr
    MappedXattr,
}

impl ShareArgs {
    /// What is served of `named`; to be read only, if `read_only` or the options say so.
    pub(super) fn plan(&self, named: Named, read_only: bool) -> Result<Share, Failure> {
        let source = self.tier.apply_to(&named.source);
        Ok(Share {
            named: Named {
                source: source.signed(&self.verify_key)?,
                ..named
            },
            record: self.record_trace.clone(),
            hostdir: hostdir::Options {
                identity: self.identity(),
                ..Default::default()
            },
            overlay: self.overlay.clone(),
            hands_over: self.hand_over_files,
            layers: Layers {
                xattrs: self.xattrmap.clone(),
                ids: self.ids()?,
                terms: self.terms.plan(read_only),
            },
        })
    }

    /// Some are one source's alone, of which there are `sources`.
    pub(super) fn check_alone(&self, sources: usize) -> Result<(), Failure> {
        if self.overlay.is_some() && sources != 1 {
            return Err(Failure::usage(
                "--overlay is for one source: expected it to be named, alone",
            ));
        }
        if self.record_trace.is_some() && sources > 1 {
            return Err(Failure::usage(
                "--record-trace: expected one source, got several",
            ));
        }
        Ok(())
    }

    /// No ranges leave ids as they are.
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

impl TermsArgs {
    /// The terms of a share that is to be read only, if `read_only` or the options say so. Who is let in is said elsewhere.
    fn plan(&self, read_only: bool) -> Terms {
        let whom = match self.squash {
            SquashArg::None => Whom::None,
            SquashArg::RemoteRoot => Whom::RemoteRoot,
            SquashArg::Root => Whom::Root,
            SquashArg::All => Whom::All,
        };
        Terms {
            squash: Squash {
                whom,
                uid: self.anon_uid,
                gid: self.anon_gid,
            },
            read_only: read_only || self.read_only,
            clients: None,
        }
    }
}
