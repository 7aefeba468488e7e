//! Runs a script in a directory of the host, without guest or server: this tests the script itself.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::Result;
use vfs_testkit::write_program;

use crate::guest::Case;
use crate::process_group::ProcessGroup;
use crate::run::Scratch;
use crate::{Dirs, quote};

/// Runs a case and returns its status. The command `host` is available and runs in the same
/// directory.
pub fn run(dirs: &Dirs, case: &Case, keep: bool) -> Result<i32> {
    let scratch = Scratch::new(dirs, keep)?;
    let share = scratch.create_share()?;
    run_in(dirs, case, (&scratch.dir, &share, &share), |command| {
        command.env("BARGE_LOCAL", "1");
    })
}

/// Runs a case in the directory `at`, and the command `host` in `share`; the harness's programs are
/// in `scratch`. `more` adds to the script's command.
pub(crate) fn run_in(
    dirs: &Dirs,
    case: &Case,
    (scratch, share, at): (&Path, &Path, &Path),
    more: impl FnOnce(&mut Command),
) -> Result<i32> {
    let bin = scratch.join("bin");
    fs::create_dir(&bin)?;
    let host = bin.join("host");
    let share = quote(&share.display().to_string());
    write_program(
        &host,
        format!("#!/bin/sh\ncd {share} && exec sh -c \"$1\"\n"),
    );

    let family = ProcessGroup::new()?;
    let mut command = Command::new("sh");
    command
        .args(["-c", &case.script])
        .current_dir(at)
        .stdin(Stdio::null());
    command
        .env_clear()
        .env("PATH", format!("{}:{}", bin.display(), dirs.path()));
    command
        .env("HOME", "/root")
        .env("LC_ALL", "C")
        .env("BARGE_SCRIPTS", &dirs.scripts);
    more(&mut command);
    let status = family.spawn(&mut command)?.wait()?;
    Ok(status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or_default()))
}
