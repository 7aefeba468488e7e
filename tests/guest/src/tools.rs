//! Programs the scripts need and no Debian package has.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::Dirs;

/// Each with its version; that of pjdfstest is the one whose test names `pjdfstest-skips.txt` uses.
const TOOLS: &[(&str, &str)] = &[("pjdfstest", "0.2.2"), ("vhost-device-vsock", "0.3.0")];

/// Installs what is missing, by cargo, below the cache.
pub fn install(dirs: &Dirs) -> Result<()> {
    let root = place(&dirs.cache);
    for (name, version) in TOOLS {
        if root.join("bin").join(name).exists() {
            continue;
        }
        let words = ["install", "--quiet", "--locked", name];
        let status = Command::new("cargo")
            .args(words)
            .args(["--version", version, "--root"])
            .arg(&root)
            .status()
            .context("cannot run cargo")?;
        ensure!(status.success(), "cargo install {name} ended with {status}");
    }
    Ok(())
}

/// Where they are: in `bin` there.
pub(crate) fn place(cache: &Path) -> PathBuf {
    cache.join("tools")
}
