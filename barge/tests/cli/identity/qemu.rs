//! QEMU that another user runs: its client of NBD needs `--admit`, and its devices the mode of a
//! socket.

use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};

use super::{Fixture, NOBODY};
use crate::served::{ServerProcess, has, stderr_of};

/// The user of the server.
const OWNER: u32 = 1001;

const QEMU: &str = "qemu-system-x86_64";

/// Commands of QMP. The devices are connected when they are read.
const QMP: &[u8] = b"{'execute':'qmp_capabilities'}\n{'execute':'quit'}\n";

/// Runs QEMU as `uid` up to a guest's first instruction.
fn qemu(uid: u32, args: &[&str]) -> Output {
    let mut command = Command::new(QEMU);
    command.args(["-S", "-nodefaults", "-display", "none", "-qmp", "stdio"]);
    command.args(args).uid(uid).gid(uid).current_dir("/");
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut ran = command.stderr(Stdio::piped()).spawn().expect("starts");
    // It has ended if it was refused.
    let _ = ran.stdin.take().expect("piped").write_all(QMP);
    ran.wait_with_output().expect("ended")
}

/// Returns whether QEMU as `uid` may connect with `args`, or is refused; nothing else happens.
fn is_admitted(uid: u32, args: &[&str]) -> bool {
    let ran = qemu(uid, args);
    if ran.status.success() {
        return true;
    }
    let told = stderr_of(&ran);
    assert!(told.contains("Permission denied"), "{args:?}: {told}");
    false
}

/// Returns a fixture, or `None` with a message.
fn fixture() -> Option<Fixture> {
    if !has(QEMU) {
        eprintln!("skipped: {QEMU} is not installed");
        return None;
    }
    let bed = Fixture::new()?;
    std::os::unix::fs::chown(bed.path("share"), Some(OWNER), Some(OWNER)).expect("given");
    let disk = fs::File::create(bed.path("share/disk")).expect("made");
    disk.set_len(1 << 20).expect("sized");
    fs::set_permissions(bed.path("share/disk"), Permissions::from_mode(0o644)).expect("changed");
    Some(bed)
}

/// Runs `barge serve` as `uid`, with its log in the file `log` and an empty directory `run`.
fn serve(bed: &Fixture, uid: u32, args: &[&str]) -> ServerProcess {
    let _ = fs::remove_dir_all(bed.path("run"));
    fs::create_dir(bed.path("run")).expect("made");
    std::os::unix::fs::chown(bed.path("run"), Some(uid), Some(uid)).expect("given");
    let mut command = Command::new(bed.path("barge"));
    command.uid(uid).gid(uid).env("HOME", "/").current_dir("/");
    command.stderr(fs::File::create(bed.path("log")).expect("made"));
    command.args(["serve", &bed.text("share")]).args(args);
    ServerProcess::run(command)
}

#[test]
fn qemu_of_another_user_reads_over_nbd_only_if_it_is_admitted() {
    let Some(bed) = fixture() else { return };
    for admitted in ["", "--admit=65534"] {
        let unix = bed.text("run/nbd");
        let nbd = format!("unix:{unix}");
        let mut args = vec!["--nbd", "tcp:127.0.0.1:0", "--nbd", &nbd];
        args.extend(Some(admitted).filter(|option| !option.is_empty()));
        let served = serve(&bed, OWNER, &args);
        fs::set_permissions(&unix, Permissions::from_mode(0o666)).expect("changed");
        let of_tcp = |line: &String| {
            let (_, port) = line.split_once("127.0.0.1 ")?;
            Some(port.split(' ').next()?.to_owned())
        };
        let port = served.output.iter().find_map(of_tcp).expect("a port");
        for server in [
            format!("server.type=inet,server.host=127.0.0.1,server.port={port}"),
            format!("server.type=unix,server.path={unix}"),
        ] {
            let disk = format!("driver=nbd,node-name=disk,export=disk,read-only=on,{server}");
            for uid in [0, OWNER, 1002, NOBODY] {
                let expected = [0, OWNER].contains(&uid) || uid == NOBODY && !admitted.is_empty();
                let connects = is_admitted(uid, &["-M", "none", "-blockdev", &disk]);
                assert_eq!(connects, expected, "{admitted} {uid} {server}");
            }
        }
        let log = fs::read_to_string(bed.path("log")).expect("read");
        assert!(log.contains("uid=1002"), "{log}");
        assert_eq!(log.contains("uid=65534"), admitted.is_empty(), "{log}");
        assert!(served.stop().success());
    }
}

/// The mode of a device's socket decides, without `--admit`.
#[test]
fn qemu_of_another_user_has_a_device_only_if_it_may_open_the_socket() {
    let Some(bed) = fixture() else { return };
    let socket = bed.text("run/device");
    let chardev = format!("socket,id=fs,path={socket}");
    let device = [
        "-M",
        "q35,accel=tcg",
        "-m",
        "64",
        "-object",
        "memory-backend-memfd,id=mem,size=64M,share=on",
        "-numa",
        "node,memdev=mem",
        "-chardev",
        &chardev,
        "-device",
        "vhost-user-fs-pci,chardev=fs,tag=share",
    ];
    for (server, option, admitted) in [
        (OWNER, "--admit=65534", &[0, OWNER][..]),
        (0, "--sandbox=namespace", &[0]),
        (0, "--socket-group=65534", &[0, NOBODY]),
    ] {
        let served = serve(&bed, server, &["--virtiofs", &socket, option]);
        for uid in [0, OWNER, NOBODY] {
            let expected = admitted.contains(&uid);
            let connects = is_admitted(uid, &device);
            assert_eq!(connects, expected, "{server} {option} {uid}");
        }
        // The owner of the socket gives it to all.
        fs::set_permissions(&socket, Permissions::from_mode(0o666)).expect("changed");
        assert!(is_admitted(NOBODY, &device), "{server} {option}");
        assert!(served.stop().success());
    }
}
