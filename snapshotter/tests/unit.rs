//! The systemd unit.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;

#[test]
fn the_unit_is_valid() {
    let unit = "barge-snapshotter.service";
    let packaging =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/systemd/barge-snapshotter");
    let text = fs::read_to_string(packaging.join(unit)).unwrap();
    let program = env!("CARGO_BIN_EXE_barge-snapshotter");
    let dir = tempfile::tempdir().unwrap();
    fs::write(
        dir.path().join(unit),
        text.replace("/usr/bin/barge-snapshotter", program),
    )
    .unwrap();
    let mut verify = Command::new("systemd-analyze");
    verify
        .current_dir(dir.path())
        .args(["verify", "--man=no"])
        .arg(format!("./{unit}"));
    let verified = match verify.output() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return eprintln!("skipped: there is no systemd-analyze here");
        }
        verified => verified.unwrap(),
    };
    // Its output may also be about other units of this host.
    let problems = String::from_utf8_lossy(&verified.stderr);
    assert!(
        verified.status.success() && !problems.contains("barge"),
        "{problems}"
    );
    // The kernel's mounts have to reach containerd: no option may give it a mount namespace.
    for option in [
        "Protect",
        "PrivateTmp",
        "PrivateMounts",
        "PrivateDevices",
        "ReadWritePaths",
    ] {
        let sets = text.lines().any(|line| line.starts_with(option));
        assert!(!sets, "{option}");
    }
}
