//! The parsers of this crate, for fuzz targets.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use nfs::server::v4::state::Stable;

use crate::cli::Cli;
use crate::config::Config;
use crate::serve;

/// Reads `text` as `barge.toml`. Returns the error messages, one per line, if it cannot be served.
pub fn config(text: &[u8]) -> Result<(), String> {
    let config = Config::of_bytes("barge.toml".as_ref(), Ok(text.to_vec()));
    let checked = config.and_then(serve::plan::checked);
    checked.map(drop).map_err(|errors| errors.to_string())
}

/// Parses `line` as a request of the control socket, with the table that it adds. Returns the error
/// reply if it is invalid.
pub fn control(line: &[u8]) -> Result<(), Vec<u8>> {
    use serve::control::protocol::{Method, parse, reply};
    let request = parse(line).map_err(|(id, error)| reply(&id, Err(error)))?;
    if let Method::Add(text) = &request.method {
        // The server replies with the messages.
        let _ = Config::addition(text);
    }
    Ok(())
}

/// Opens the state file of a server of NFS at a fixed address in the directory `dir`, and returns
/// the records of clients that may reclaim state, or else an error message.
pub fn clients(dir: &Path) -> Result<Arc<dyn Stable>, String> {
    let identity = serve::recovery::ServerIdentity {
        dir: Some(dir.to_owned()),
        addr: "tcp:127.0.0.1:2049".parse().expect("an address"),
    };
    let recovery = serve::recovery::Recovery::open(&identity, &Arc::default());
    let recovery = recovery.map_err(|failure| failure.message)?;
    Ok(recovery.stable)
}

/// Starts the broker of `barge serve ARGS`, without processes, and returns the socket for requests
/// that the first process would have.
pub fn broker(args: &[&str]) -> OwnedFd {
    let config = Cli::serve_config(args).expect("valid arguments");
    serve::broker::channel(&config).expect("a broker")
}
