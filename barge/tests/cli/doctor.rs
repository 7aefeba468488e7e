//! `barge doctor` on this host; its findings are tested with simulated hosts next to the code.

use std::process::Command;

use vfs_testkit::copy_program;

use crate::served::{BARGE, stdout_of};

#[test]
fn it_tells_people_and_programs_the_same() {
    let run = |args: &[&str]| {
        let output = Command::new(BARGE).arg("doctor").args(args).output();
        stdout_of(&output.expect("runs"))
    };
    let text = run(&[]);
    assert!(
        text.ends_with("barge can serve directories on this host: barge serve\n"),
        "{text}"
    );
    assert!(!text.contains('\x1b'), "colour in what is no terminal");
    let report: serde_json::Value = serde_json::from_str(&run(&["--json"])).expect("JSON");
    assert_eq!(report["works"], true);
    let findings = report["findings"].as_array().expect("a list");
    assert!(findings.len() > 20);
    for finding in findings {
        let found = finding["found"].as_bool().expect("told");
        let means = finding["means"].as_str().expect("told");
        let line = format!("{}  {:14} ", if found { "yes" } else { "no " }, "");
        let name = finding["name"].as_str().expect("told");
        let is_line =
            |text: &&str| text.trim_start().starts_with(line.trim()) && text.contains(name);
        assert!(
            text.lines()
                .filter(is_line)
                .any(|line| line.ends_with(means)),
            "{name}"
        );
        assert!(!found || finding["bring"].is_null(), "{name}");
    }
}

#[test]
fn without_privileges_it_works_and_says_what_they_would_bring() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: giving up root takes root");
        return;
    }
    // As another user, with a directory and a program that this user can access.
    let dir = tempfile::Builder::new()
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .tempdir();
    let dir = dir.expect("a directory");
    let program = dir.path().join("barge");
    copy_program(BARGE, &program);
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    let output = command
        .arg(&program)
        .arg("doctor")
        .current_dir(&dir)
        .output();
    let text = stdout_of(&output.expect("runs"));
    for name in ["caller identity", "file handles"] {
        assert!(text.contains(&format!("no   {name}")), "{text}");
    }
    assert!(text.contains("-> run barge as root"), "{text}");
}
