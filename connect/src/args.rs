//! Options of `barge-mount-9p`: the one definition for its help and for the man page, which
//! `barge man` writes.

use std::env;
use std::path::PathBuf;

use clap::Parser;
use clap::builder::{PathBufValueParser, TypedValueParser};
use command::log::LogArgs;
use remote::absolute_path;
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
    #[arg(value_parser = absolute_url)]
    pub source: Url,
    /// Directory to mount it on
    #[arg(value_parser = PathBufValueParser::new().map(absolute_dir))]
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

/// Parses the URL of a server. A relative path begins in the current directory, which the program
/// leaves when it is in the background.
fn absolute_url(text: &str) -> Result<Url, String> {
    // Without the directory, absolute paths can be used.
    let dir = env::current_dir().unwrap_or_default();
    let text = remote::Url::absolute(text, &dir)?;
    text.parse().map_err(|bad: remote::BadUrl| bad.to_string())
}

/// Returns the path of the mount point, likewise.
fn absolute_dir(dir: PathBuf) -> PathBuf {
    absolute_path(&dir, &env::current_dir().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use remote::ninep::ServerAddr;
    use transports::Addr;

    use super::*;

    #[test]
    fn relative_paths_are_those_of_the_directory_of_the_start() {
        let dir = env::current_dir().expect("a directory");
        let parse = |url: &str, on: &str| {
            let given = ["barge-mount-9p", url, on];
            let args = ConnectArgs::try_parse_from(given).expect("valid");
            (args.source.addr.to_string(), args.dir)
        };
        let socket = |path: PathBuf| ServerAddr::Addr(Addr::Unix(path)).to_string();
        let relative = parse("9p+unix:./s?msize=8192", "mnt");
        assert_eq!(relative, (socket(dir.join("s")), dir.join("mnt")));
        let absolute = parse("9p+unix:/s", "/mnt");
        assert_eq!(absolute, (socket("/s".into()), "/mnt".into()));
    }
}
