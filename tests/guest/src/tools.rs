//! Programs needed by scripts that Debian does not package.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::Dirs;

/// Names and versions; `pjdfstest-skips.txt` uses the test names of this version of pjdfstest.
const TOOLS: &[(&str, &str)] = &[("pjdfstest", "0.2.2"), ("vhost-device-vsock", "0.3.0")];

/// Installs missing tools with cargo into the cache.
pub fn install(dirs: &Dirs) -> Result<()> {
    let root = install_root(&dirs.cache);
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

/// Returns their installation root, which has them in `bin`.
pub(crate) fn install_root(cache: &Path) -> PathBuf {
    cache.join("tools")
}
