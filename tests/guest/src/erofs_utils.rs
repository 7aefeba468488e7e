//! The newest of EROFS's tools that Debian has: codecs and forms of images that those of the machine may lack.
//!
//! They come with the libraries they need, as tlshd does. All is made once, below the cache: in `erofs-utils/` the unpacked packages, and in `erofs-utils/bin`
//! a script for each tool, by its name.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::kernel::{self, Apt};

/// A suite that has 1.8.
const SUITE: &str = "trixie";

/// They, and what they need; how a package of it is called changes from suite to suite.
const PACKAGES: &[&str] = &[
    "erofs-utils",
    "erofsfuse",
    "libc6",
    "libdeflate0",
    "libfuse3-4",
    "libgcc-s1",
    "liblz4-1",
    "liblzma5",
    "libpcre2-8-0",
    "libselinux1",
    "libuuid1",
    "libxxhash0",
    "libzstd1",
    "zlib1g",
];

/// The directory of the tools, made if need be.
pub fn get(cache: &Path, mirror: Option<&str>) -> Result<PathBuf> {
    let _lock = kernel::lock(cache)?;
    let dir = cache.join("erofs-utils");
    if !dir.exists() {
        let tree = Apt::new(cache, SUITE, mirror)?.unpack(PACKAGES)?;
        fs::create_dir(tree.join("bin"))?;
        for tool in ["mkfs.erofs", "fsck.erofs", "dump.erofs", "erofsfuse"] {
            let script = tree.join("bin").join(tool);
            fs::write(&script, starts(tool))?;
            fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
        }
        fs::rename(tree, &dir)?;
    }
    Ok(dir.join("bin"))
}

/// A script that runs a tool by its own loader, wherever all of it is.
fn starts(tool: &str) -> String {
    format!(
        "#!/bin/sh\nusr=$(dirname \"$(readlink -f \"$0\")\")/../usr\nexec \"$usr/lib64/ld-linux-x86-64.so.2\" --library-path \"$usr/lib/x86_64-linux-gnu\" \"$usr/bin/{tool}\" \"$@\"\n"
    )
}
