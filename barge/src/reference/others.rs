//! Man pages of the other programs of this workspace, and of the configuration file.

use std::io;
use std::path::Path;

use ::connect::ConnectArgs;
use clap::{Command, CommandFactory};
use command::agent::AgentArgs;
use command::csi::CsiArgs;
use command::snapshotter::SnapshotterArgs;

use crate::config::page::page as config_page;

/// The man page of the configuration file of `barge serve`.
const CONFIG_PAGE: &str = "barge.toml";

/// Writes all pages to a directory.
pub(super) fn write(dir: &Path) -> io::Result<()> {
    for program in [
        AgentArgs::command(),
        ConnectArgs::command(),
        CsiArgs::command(),
        SnapshotterArgs::command(),
    ] {
        clap_mangen::generate_to(program, dir)?;
    }
    std::fs::write(dir.join(format!("{CONFIG_PAGE}.5")), config_page())
}

/// Returns the page of a file.
pub(super) fn page(name: &str) -> Option<String> {
    (name == CONFIG_PAGE).then(|| config_page().to_owned())
}

/// Returns the definition of the command line of a program.
pub(super) fn program(name: &str) -> Option<Command> {
    match name {
        "barge-agent" => Some(AgentArgs::command()),
        "barge-mount-9p" => Some(ConnectArgs::command()),
        "barge-csi" => Some(CsiArgs::command()),
        "barge-snapshotter" => Some(SnapshotterArgs::command()),
        _ => None,
    }
}
