//! Files that released versions have left on disk (`tests/formats`).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

use crate::restart::{self, free_port};
use crate::served::{BARGE, ServerProcess, stderr_of, stdout_of};

/// The versions with an archive in `tests/formats`, and the NFS v3 handle of `f` in its image, as
/// the version sent it to clients (XDR: the length first).
const VERSIONS: &[(&str, &str)] = &[(
    "0.1.0",
    "00000019012a04d92e2d64237c0b000000000000000100000000000000000000",
)];

/// An unpacked archive.
struct Files(TempDir);

impl Files {
    fn of(version: &str) -> Files {
        let dir = tempfile::tempdir().expect("a directory");
        let archive = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/formats")
            .join(format!("{version}.tar.xz"));
        let mut tar = Command::new("tar");
        tar.arg("-xJf").arg(archive).arg("-C").arg(dir.path());
        assert!(tar.status().expect("runs").success());
        Files(dir)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

fn barge<const N: usize>(args: [&str; N], path: &Path) -> Output {
    let mut command = Command::new(BARGE);
    command.args(args).arg(path).output().expect("runs")
}

#[test]
fn images_of_released_versions_are_read() {
    let numbers: String = (1..=60_000).map(|number| format!("{number}\n")).collect();
    for (version, _) in VERSIONS {
        let files = Files::of(version);
        let key = files.path("images/key.pub");
        let key = ["check", "--verify-key", key.to_str().expect("UTF-8")];
        let image = files.path("images/image.erofs");
        let checked = barge(key, &image);
        assert!(
            checked.status.success(),
            "{version}: {}",
            stderr_of(&checked)
        );
        for name in ["image.erofs", "image.rofs"] {
            let image = files.path("images").join(name);
            let checked = barge(["check"], &image);
            assert!(
                checked.status.success(),
                "{version}: {}",
                stderr_of(&checked)
            );
            let read = barge(["cat"], &image.join("dir/numbers"));
            assert_eq!(stdout_of(&read), numbers, "{version}: {name}");
        }
    }
}

#[test]
fn handles_of_released_versions_stay_valid() {
    for (version, handle) in VERSIONS {
        let files = Files::of(version);
        let (state, port) = (files.path("nfs-state"), free_port());
        let of_port = |port| state.join(format!("nfs-tcp:127.0.0.1:{port}.redb"));
        fs::rename(of_port(2049), of_port(port)).expect("renamed");
        let mut serve = Command::new(BARGE);
        serve.arg("serve").arg(files.path("images/image.erofs"));
        serve.arg("--nfs-state-dir").arg(&state);
        serve.args(["--nfs", &format!("tcp:127.0.0.1:{port}")]);
        // It refuses to start if it cannot read the clients' records.
        let server = ServerProcess::run(serve);
        let found = restart::Client::connect(port).handle();
        let found: String = found.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(found, *handle, "{version}");
        assert!(server.stop().success());
    }
}

#[test]
fn caches_of_released_versions_are_used() {
    for (version, _) in VERSIONS {
        let files = Files::of(version);
        let verified = barge(["cache", "verify", "--dir"], &files.path("cache"));
        assert!(
            verified.status.success(),
            "{version}: {}",
            stderr_of(&verified)
        );
        let text = stdout_of(&verified);
        assert!(
            text.contains("/image.erofs: 23 segments match, 0 are damaged"),
            "{version}: {text}"
        );
    }
}
