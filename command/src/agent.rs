//! Options of `barge-agent`: the one definition for its help and for the man page, which
//! `barge man` writes.

#![allow(
    rustdoc::broken_intra_doc_links,
    reason = "brackets in help are no links"
)]

use std::path::PathBuf;
use std::str::FromStr;

use clap::Parser;

use crate::log::LogArgs;

/// Agent in a guest that raises inotify(7) events for changes made elsewhere
///
/// It runs as root in a guest that has mounted shares of `barge serve --agent` over virtiofs, 9P or
/// NFS. Programs that watch files there then notice creations, changes, renames and removals by the
/// host and by other guests. The files of the host are not changed.
#[derive(Parser)]
#[command(name = "barge-agent", version, max_term_width = 100)]
pub struct AgentArgs {
    /// Address of the server's --agent, or the path of a virtio-serial port
    ///
    /// tcp:HOST:PORT, vsock:[CID:]PORT (without CID the guest's host), unix:PATH, fd:N, or a path
    /// such as /dev/virtio-ports/barge.agent, which serves one --mount.
    #[arg(long, value_name = "ADDR")]
    pub connect: String,
    /// Share and the directory where it is mounted; may be repeated
    ///
    /// =DIR is the share of a server that serves one without a name.
    #[arg(long = "mount", value_name = "SHARE=DIR", required = true)]
    pub mounts: Vec<AgentMount>,
    /// Exit with status 1 if a connection or mount fails, instead of trying again
    #[arg(long)]
    pub once: bool,
    /// Make file systems that were mounted read-only writable, while their mounts stay read-only
    ///
    /// The kernel refuses the agent's operations on a read-only file system. Programs still get
    /// EROFS through the mounts that exist; further mounts of the same file system can be writable.
    /// A mount that is read-only on a writable file system, such as a bind mount, does not need it.
    #[arg(long)]
    pub remount_rw: bool,
    /// Options of logging.
    #[command(flatten)]
    pub log: LogArgs,
}

/// A share and its mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentMount {
    /// The name of the share; empty for the only one without a name.
    pub share: String,
    /// The directory.
    pub dir: PathBuf,
}

impl FromStr for AgentMount {
    type Err = String;

    fn from_str(text: &str) -> Result<AgentMount, String> {
        match text.split_once('=') {
            Some((share, dir)) if dir.starts_with('/') => Ok(AgentMount {
                share: share.into(),
                dir: dir.into(),
            }),
            _ => Err("expected SHARE=DIR with an absolute path".into()),
        }
    }
}
