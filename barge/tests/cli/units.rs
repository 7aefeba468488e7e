//! The systemd units that packages install.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use barge_client::{Client, OpenOptions};
use tempfile::TempDir;

use crate::served::{BARGE, ServerProcess, has, stdout_of};

fn packaging() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/systemd/barge")
}

const UNITS: [&str; 3] = ["barge.service", "barge@.service", "barge.socket"];

/// Writes the units as they are installed, but with this program.
fn installed() -> TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    let hardening = std::fs::read(packaging().join("hardening.conf")).expect("read");
    for unit in UNITS {
        let text = std::fs::read_to_string(packaging().join(unit)).expect("read");
        let text = text.replace("/usr/bin/barge", BARGE);
        std::fs::write(dir.path().join(unit), &text).expect("written");
        let dropped = dir.path().join(format!("{unit}.d"));
        if unit.ends_with(".service") {
            std::fs::create_dir(&dropped).expect("made");
            std::fs::write(dropped.join("hardening.conf"), &hardening).expect("written");
        }
    }
    dir
}

fn analyze(dir: &Path, args: &[&str]) -> Output {
    let mut command = Command::new("systemd-analyze");
    command.current_dir(dir).args(args);
    command.output().expect("runs")
}

#[test]
fn units_make_sense_and_open_no_more_than_they_say() {
    if !has("systemd-analyze") {
        return eprintln!("skipped: there is no systemd-analyze here");
    }
    let dir = installed();
    let paths = UNITS.map(|unit| format!("./{unit}"));
    let [service, template, socket] = paths.each_ref().map(String::as_str);
    let verified = analyze(
        dir.path(),
        &["verify", "--man=no", service, template, socket],
    );
    let told = String::from_utf8_lossy(&verified.stderr);
    assert!(verified.status.success(), "{told}");
    // Its output may also be about other units of this host.
    assert!(!told.contains("barge"), "{told}");
    for unit in [service, template] {
        // The exposure is 4.1 with systemd 252; each version weighs differently.
        let secure = analyze(
            dir.path(),
            &[
                "security",
                "--no-pager",
                "--offline=true",
                "--threshold=50",
                unit,
            ],
        );
        stdout_of(&secure);
    }
}

#[test]
fn the_service_can_do_what_shares_need_with_the_capabilities_that_it_keeps() {
    if !has("setpriv") || !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: expected root and setpriv");
    }
    let hardening = std::fs::read_to_string(packaging().join("hardening.conf")).expect("read");
    let mut lines = hardening.lines();
    let kept = lines.find_map(|line| line.strip_prefix("CapabilityBoundingSet=CAP_"));
    let kept = kept.expect("a list").to_lowercase().replace(" cap_", ",+");
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("barge.toml");
    let share = dir.path().join("share");
    std::fs::create_dir(&share).expect("made");
    let state = dir.path().display();
    let text = format!(
        "9p = 'tcp:127.0.0.1:0'\nnfs = 'tcp:127.0.0.1:0'\nidentity = 'switch'\nnfs-state-dir = '{state}'\n[[share]]\nsource = '{}'\n",
        share.display()
    );
    std::fs::write(&file, text).expect("written");
    let mut command = Command::new("setpriv");
    command
        .args(["--no-new-privs", "--inh-caps=-all"])
        .arg(format!("--bounding-set=-all,+{kept}"))
        .args([BARGE, "serve", "--config"])
        .arg(&file);
    let served = ServerProcess::run(command);
    let client = Client::open(&format!("9p://127.0.0.1:{}/", served.port())).expect("connected");
    client.write("f", "hello").expect("written");
    client
        .set_owner("f", Some(1234), Some(1234))
        .expect("given away");
    client.set_mode("f", 0o4600).expect("changed");
    let metadata = client.metadata("f").expect("there");
    assert_eq!((metadata.uid(), metadata.mode()), (1234, 0o4600));
    let mut write = OpenOptions::new();
    write.write(true);
    let opened = client.open_with("f", &write).expect("root may");
    opened.write_all_at(b"H", 0).expect("written");
    assert_eq!(client.read("f").expect("read"), b"Hello");
    assert!(served.stop().success());
}
