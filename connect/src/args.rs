//! Options of `barge-mount-9p`: the one definition for its help and for the man page, which
//! `barge man` writes.

use std::path::PathBuf;

use clap::Parser;
use command::log::LogArgs;
use remote::ninep::Url;

use crate::ConnectOption;

/// Mount a 9P server in a guest, and keep the mount when the connection is lost
///
/// The kernel's 9P client mounts; this program relays between it and the server. It restores a lost
/// connection with all open files and locks, such as after a restart of the server. It has one
/// process and needs no other file. `barge connect` does the same, and confines itself.
#[derive(Parser)]
#[command(name = "barge-mount-9p", version, max_term_width = 100)]
#[allow(
    rustdoc::broken_intra_doc_links,
    reason = "brackets in help are no links"
)]
pub struct ConnectArgs {
    /// Server: 9p+vsock:[CID:]PORT, 9p://HOST[:PORT]/ANAME or 9p+unix:SOCKET
    pub source: Url,
    /// Directory to mount it on
    pub dir: PathBuf,
    /// Mount options
    ///
    /// Options of every file system (ro, nosuid, ...), of the kernel's 9P client (cache=, access=,
    /// msize=, ...), and retry=SECONDS: the time to wait for a server that is lost [default:
    /// without limit]. Options for fstab alone are ignored.
    #[arg(short, long = "options", value_name = "OPTION", value_delimiter = ',')]
    pub options: Vec<ConnectOption>,
    /// Stay in the foreground and print 'ready' to standard output
    #[arg(short, long)]
    pub foreground: bool,
    /// Options of logging.
    #[command(flatten)]
    pub log: LogArgs,
}
