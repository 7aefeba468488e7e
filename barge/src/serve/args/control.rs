//! The options of operation: the control socket, the ready message and the process id.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use transports::Addr;

#[derive(Args)]
#[command(next_help_heading = "Operation")]
pub(crate) struct ControlArgs {
    /// Unix socket to control the server at, as with `barge ctl`
    ///
    /// unix:PATH. It lists, adds and removes shares and endpoints while the server runs. The socket
    /// has mode 0600, and only processes of this user and of root are answered: they may serve any
    /// file that the server can open. All parts of the server are then one process.
    #[arg(long, value_name = "unix:PATH", value_parser = parse_addr)]
    pub(crate) control: Option<Addr>,
    /// Format of the message on standard output once clients can connect
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub(in crate::serve) ready: ReadyFormat,
    /// File to write the process id to once clients can connect
    ///
    /// The server locks it and removes it at the end. A second server with the same file fails.
    #[arg(long, value_name = "PATH")]
    pub(in crate::serve) pidfile: Option<PathBuf>,
}

/// The format of the ready message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(in crate::serve) enum ReadyFormat {
    /// Commands that mount the shares, and the line `ready`
    Text,
    /// One line with a JSON object of all shares and endpoints
    Json,
}

/// Parses the address of a control socket.
pub(crate) fn parse_addr(text: &str) -> Result<Addr, String> {
    match text.parse() {
        Ok(addr @ Addr::Unix(_)) => Ok(addr),
        _ => Err(format!("expected unix:PATH, got '{text}'")),
    }
}
