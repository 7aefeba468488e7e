//! Debian's newest erofs-utils, for codecs and image formats that the machine's version may lack.
//!
//! They come with their libraries, as tlshd does. Everything is made once, in `erofs-utils/` of the
//! cache: the unpacked packages, and in `erofs-utils/bin` a script for each tool.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;
use vfs_testkit::write_program;

use crate::kernel::{self, Apt};

/// A suite with version 1.8.
const SUITE: &str = "trixie";

/// The tools and their dependencies, whose package names depend on the suite.
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

/// Returns the directory of the tools, which is made if missing.
pub fn get(cache: &Path, mirror: Option<&str>) -> Result<PathBuf> {
    let _lock = kernel::lock(cache)?;
    let dir = cache.join("erofs-utils");
    if !dir.exists() {
        let tree = Apt::new(cache, SUITE, mirror)?.unpack(PACKAGES)?;
        fs::create_dir(tree.join("bin"))?;
        for tool in ["mkfs.erofs", "fsck.erofs", "dump.erofs", "erofsfuse"] {
            write_program(tree.join("bin").join(tool), wrapper_script(tool));
        }
        fs::rename(tree, &dir)?;
    }
    Ok(dir.join("bin"))
}

/// Returns a script that runs a tool with its own loader, at any location.
fn wrapper_script(tool: &str) -> String {
    format!(
        "#!/bin/sh\nusr=$(dirname \"$(readlink -f \"$0\")\")/../usr\nexec \"$usr/lib64/ld-linux-x86-64.so.2\" --library-path \"$usr/lib/x86_64-linux-gnu\" \"$usr/bin/{tool}\" \"$@\"\n"
    )
}
