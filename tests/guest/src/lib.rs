//! Test harness that boots a Linux guest on a served tree and runs scripts in it: it tests the
//! server with a real kernel client.
//!
//! A **run** ([`run::run`]) consists of a scratch share, a server of it ([`server::Server`]), a
//! guest (`guest::Guest`) that mounts it at `/mnt`, and cases, each a script with an exit status.
//! The guest's root is a tmpfs over the host's root, which is read-only: every program of the host
//! is available. The **matrix** ([`matrix`]) runs many cases in one boot per kernel and cache mode.
//!
//! Not supported: guests other than Linux on amd64, hosts other than Debian.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

mod barrier;
pub mod bench;
mod channel;
pub mod config;
mod console;
mod cpio;
pub mod erofs_utils;
pub mod guest;
pub mod host_mount;
mod initramfs;
pub mod kernel;
pub mod local;
pub mod machine;
pub mod matrix;
pub mod migrate;
mod modules;
pub mod mounts;
mod process_group;
mod qemu_tree;
pub mod run;
pub mod server;
pub mod tlshd;
pub mod tools;

/// A requirement of the guest is missing on this machine: a reason to skip, not a failure.
#[derive(Debug)]
pub struct Unavailable(
    /// The missing requirement.
    pub String,
);

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unavailable {}

/// The run timed out.
#[derive(Debug)]
pub struct TimedOut(
    /// The condition waited for, and the end of the console log.
    pub String,
);

impl fmt::Display for TimedOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for TimedOut {}

/// The directories of the harness.
pub struct Dirs {
    /// The tests in the source tree.
    pub tests: PathBuf,
    /// The guest scripts among them.
    pub scripts: PathBuf,
    /// Kernels, tools and run directories.
    pub cache: PathBuf,
    /// The directory of cargo's executables, including this one.
    pub programs: PathBuf,
}

impl Dirs {
    /// Finds the directories of this workspace.
    pub fn find() -> Result<Self> {
        let programs = std::env::current_exe()?;
        // A test's executable is in the subdirectory `deps`.
        let programs = programs
            .ancestors()
            .skip(1)
            .find(|dir| !dir.ends_with("deps"))
            .context("a program has a directory")?;
        let target = programs
            .parent()
            .context("cargo's directory has a parent")?;
        let own = Path::new(env!("CARGO_MANIFEST_DIR"));
        let dirs = Self {
            tests: own.parent().context("tests has a directory")?.into(),
            scripts: own.join("scripts"),
            cache: target.join("guest"),
            programs: programs.into(),
        };
        for dir in [&dirs.tests, &dirs.cache] {
            // A guest has its own directories at these paths, which hide the host's.
            if ["/dev", "/proc", "/sys", "/mnt"]
                .iter()
                .any(|hidden| dir.starts_with(hidden))
            {
                bail!(
                    "{} would be hidden in the guest: build outside /dev and /mnt",
                    dir.display()
                );
            }
        }
        Ok(dirs)
    }

    /// Returns those that the tmpfs of a guest hide unless it mounts them again, such as those of a
    /// workspace below /tmp.
    fn below_tmpfs(&self) -> Vec<PathBuf> {
        let hides = |dir: &&PathBuf| {
            ["/tmp", "/run"]
                .iter()
                .any(|hidden| dir.starts_with(hidden))
        };
        let dirs = [&self.tests, &self.cache, &self.programs];
        dirs.into_iter().filter(hides).cloned().collect()
    }

    /// Returns the barge under test: `named`, or the one of this program's profile.
    pub fn barge(&self, named: Option<&Path>) -> Result<String> {
        let built = self.programs.join("barge");
        let barge = named.unwrap_or(&built);
        let barge = barge.canonicalize().with_context(|| {
            format!(
                "no {}: build it with cargo build -p barge, or name one with --barge",
                barge.display()
            )
        })?;
        Ok(barge.display().to_string())
    }

    /// Returns the search path for scripts: the harness's tools, then the system's.
    fn path(&self) -> String {
        format!(
            "{}:{}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            self.cache.join("tools/bin").display(),
            self.programs.display()
        )
    }
}

/// Runs a command and returns its output; if it fails, the error is its last line on standard
/// error.
fn command_output(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command
        .output()
        .with_context(|| format!("cannot run {program}"))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!(
            "{program}: {}",
            stderr.lines().last().unwrap_or("failed without a word")
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Quotes `text` as one shell word.
fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Replaces each `{name}` of a template with its value; other braces stay.
fn fill(template: &str, values: &[(&str, String)]) -> String {
    values
        .iter()
        .fold(template.to_owned(), |text, (name, value)| {
            text.replace(&format!("{{{name}}}"), value)
        })
}

/// Returns the last lines of a log, for an error message.
fn tail(log: &Path, lines: usize) -> String {
    let text = String::from_utf8_lossy(&std::fs::read(log).unwrap_or_default()).into_owned();
    let all: Vec<_> = text.lines().map(str::trim_end).collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workspace_below_tmp_is_mounted_again() {
        let dirs = Dirs {
            tests: "/tmp/barge/tests".into(),
            scripts: "/tmp/barge/tests/guest/scripts".into(),
            cache: "/var/target/guest".into(),
            programs: "/tmpfs/target/debug".into(),
        };
        assert_eq!(dirs.below_tmpfs(), [Path::new("/tmp/barge/tests")]);
    }

    #[test]
    fn templates_and_quotes() {
        assert_eq!(
            fill("a {x} {y} {z}", &[("x", "1".into()), ("y", "2".into())]),
            "a 1 2 {z}"
        );
        assert_eq!(quote("it's"), r"'it'\''s'");
    }
}
