//! Programs the scripts need and no Debian package has.

use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::Dirs;

/// The version whose test names `pjdfstest-skips.txt` uses.
const PJDFSTEST: &str = "0.2.2";

/// Installs what is missing, by cargo, below the cache.
pub fn install(dirs: &Dirs) -> Result<()> {
    let root = dirs.cache.join("tools");
    if root.join("bin/pjdfstest").exists() {
        return Ok(());
    }
    let status = Command::new("cargo")
        .args([
            "install",
            "--quiet",
            "--locked",
            "pjdfstest",
            "--version",
            PJDFSTEST,
            "--root",
        ])
        .arg(&root)
        .status()
        .context("cannot run cargo")?;
    ensure!(
        status.success(),
        "cargo install pjdfstest ended with {status}"
    );
    Ok(())
}
