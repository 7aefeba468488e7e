//! Man pages of other programs: this system has none of them.

use std::io;
use std::path::Path;

use clap::Command;

/// Writes nothing.
pub(super) fn write(_: &Path) -> io::Result<()> {
    Ok(())
}

/// Returns nothing.
pub(super) fn page(_: &str) -> Option<String> {
    None
}

/// Returns nothing.
pub(super) fn program(_: &str) -> Option<Command> {
    None
}
