//! Records the commit and the compiler of the program, for `barge --version` and the metrics.
//!
//! The commit is that of `BARGE_COMMIT`, which packages set, otherwise of the git repository. A
//! debug build does not ask git, so that a commit does not compile the crate again.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=BARGE_COMMIT");
    let commit = match std::env::var("BARGE_COMMIT") {
        Ok(commit) if !commit.is_empty() => checked(commit),
        _ if is_release() => commit_of_repository().unwrap_or_default(),
        _ => String::new(),
    };
    println!("cargo:rustc-env=BARGE_COMMIT={commit}");
    println!("cargo:rustc-env=BARGE_RUSTC={}", compiler());
}

fn is_release() -> bool {
    std::env::var("PROFILE").is_ok_and(|profile| profile == "release")
}

/// Returns `commit`, if it is a word that needs no quotes anywhere.
fn checked(commit: String) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._+-".contains(&byte);
    assert!(
        commit.len() <= 64 && commit.bytes().all(is_plain),
        "expected up to 64 letters, digits and ._+- in BARGE_COMMIT, got {commit:?}"
    );
    commit
}

/// Returns the commit of the repository of this workspace; `None` without a repository or git.
fn commit_of_repository() -> Option<String> {
    // Another repository may contain an unpacked archive of the sources.
    let repository = Path::new("../.git");
    if !repository.exists() {
        return None;
    }
    for file in ["HEAD", "logs/HEAD"] {
        if repository.join(file).exists() {
            println!("cargo:rerun-if-changed=../.git/{file}");
        }
    }
    let found = output(Command::new("git").args(["rev-parse", "HEAD"]))?;
    found
        .bytes()
        .all(|byte| byte.is_ascii_hexdigit())
        .then_some(found)
}

/// Returns the version of the compiler, as `1.90.0`.
fn compiler() -> String {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = output(Command::new(rustc).arg("--version")).unwrap_or_default();
    let version = version.split(' ').nth(1).unwrap_or("unknown");
    version.to_owned()
}

/// Returns the standard output of a command that succeeds, without white space around it.
fn output(command: &mut Command) -> Option<String> {
    let output = command.output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
