//! The options that add a layer to the source.

use std::os::unix::fs::{MetadataExt, PermissionsExt};

use crate::served::{ServerProcess, stderr_of, stdout_of};

#[test]
fn read_only_lets_nothing_change() {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("f"), "hello").expect("written");
    let served = ServerProcess::start(&["--read-only", dir.path().to_str().expect("text")]);
    assert_eq!(stdout_of(&served.barge(&["cat", "{}"], "f")), "hello");
    let from = dir.path().join("f");
    let told = stderr_of(&served.barge(&["cp", from.to_str().expect("text"), "{}"], "g"));
    assert!(told.contains("Read-only file system"), "{told}");
    assert!(!dir.path().join("g").exists());
}

#[test]
fn owners_are_squashed_and_mapped_on_the_way() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: acting as others needs root");
    }
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().to_str().expect("text");
    std::os::unix::fs::chown(dir.path(), Some(100_500), Some(100_500)).expect("given away");
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).expect("open");
    let from = dir.path().join("from");
    std::fs::write(&from, "hello").expect("written");
    let from = from.to_str().expect("text");
    let owner = |name: &str| {
        let made = std::fs::metadata(dir.path().join(name)).expect("made");
        (made.uid(), made.gid())
    };

    let squashed = ServerProcess::start(&[
        "--squash",
        "all",
        "--anon-uid",
        "1234",
        "--anon-gid",
        "4321",
        path,
    ]);
    stdout_of(&squashed.barge(&["cp", from, "{}"], "squashed"));
    assert_eq!(owner("squashed"), (1234, 4321));

    // The client's ids 0..1000 are 100000..101000 on the host.
    let range = "0:100000:1000";
    let mapped = ServerProcess::start(&["--map-uid", range, "--map-gid", range, path]);
    stdout_of(&mapped.barge(&["cp", from, "{}"], "mapped"));
    assert_eq!(owner("mapped"), (100_000, 100_000));
    let seen = stdout_of(&mapped.barge(&["stat", "{}"], ""));
    assert!(seen.contains("500"), "{seen}");
    assert!(!seen.contains("100500"), "{seen}");
}

#[test]
fn attributes_have_other_names_on_the_host() {
    use rustix::fs::{XattrFlags, getxattr, setxattr};

    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().to_str().expect("text");
    let from = dir.path().join("from");
    std::fs::write(&from, "hello").expect("written");
    // The client's super-user maps to another user of the host, and still has the super-user's
    // rights.
    let root = rustix::process::geteuid().is_root();
    let (name, range) = match root {
        true => ("trusted.a", "0:100000:1000"),
        false => ("user.a", "0:0:65534"),
    };
    if setxattr(&from, name, b"label", XattrFlags::empty()).is_err() {
        return eprintln!("skipped: no extended attributes here");
    }
    std::fs::set_permissions(&from, std::fs::Permissions::from_mode(0o644)).expect("open");
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).expect("open");
    let served = ServerProcess::start(&[
        "--xattrmap",
        "/map//user.guest./",
        "--map-uid",
        range,
        "--map-gid",
        range,
        path,
    ]);
    stdout_of(&served.barge(&["cp", "-a", from.to_str().expect("text"), "{}"], "to"));
    let mut value = [0; 16];
    let on_host = getxattr(
        dir.path().join("to"),
        format!("user.guest.{name}"),
        &mut value,
    );
    assert_eq!(
        on_host.map(|len| value[..len].to_vec()),
        Ok(b"label".into())
    );
}
