//! NBD: libnbd's tools and QEMU's.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Output};

use crate::served::{BARGE, ServerProcess, has, stderr_of, stdout_of};

/// A directory with the file `disk`, of 16 MiB, that is served over NBD at a socket in it.
struct Disk {
    dir: tempfile::TempDir,
    served: ServerProcess,
}

impl Disk {
    /// Serves the disk. Returns `None` with a message if one of `tools` is not installed.
    fn new(tools: &[&str], options: &[&str]) -> Option<Disk> {
        for tool in tools {
            if !has(tool) {
                eprintln!("skipped: {tool} (Debian's libnbd-bin and qemu-utils) is not installed");
                return None;
            }
        }
        let dir = tempfile::tempdir().expect("a directory");
        let disk = File::create(dir.path().join("disk")).expect("made");
        disk.set_len(16 << 20).expect("sized");
        let data: Vec<u8> = (0..1 << 20).map(|at: u32| ((at * 7) >> 3) as u8).collect();
        disk.write_all_at(&data, 5 << 20).expect("written");
        let mut command = Command::new(BARGE);
        command.arg("serve").arg(dir.path()).args(options);
        let socket = dir.path().join("socket");
        command
            .arg("--nbd")
            .arg(format!("unix:{}", socket.display()));
        let served = ServerProcess::run(command);
        Some(Disk { dir, served })
    }

    fn url(&self, name: &str) -> String {
        let socket = self.dir.path().join("socket");
        format!("nbd+unix:///{name}?socket={}", socket.display())
    }

    fn file(&self) -> Vec<u8> {
        std::fs::read(self.dir.path().join("disk")).expect("read")
    }
}

fn run(program: &str, args: &[&str]) -> Output {
    Command::new(program).args(args).output().expect("runs")
}

#[test]
fn libnbd_copies_there_and_back_and_keeps_holes() {
    let Some(disk) = Disk::new(&["nbdcopy", "nbdinfo"], &[]) else {
        return;
    };
    let url = disk.url("disk");
    let told = stdout_of(&run("nbdinfo", &["--map", &url]));
    let map: Vec<Vec<&str>> = told
        .lines()
        .map(|line| line.split_whitespace().take(3).collect())
        .collect();
    let expected = [
        ["0", "5242880", "3"],
        ["5242880", "1048576", "0"],
        ["6291456", "10485760", "3"],
    ];
    assert_eq!(map, expected, "{told}");
    let copy = disk.dir.path().join("copy");
    stdout_of(&run("nbdcopy", &[&url, &copy.display().to_string()]));
    assert!(std::fs::read(&copy).expect("read") == disk.file());
    let blocks = |path: &Path| path.metadata().expect("there").blocks();
    assert!(blocks(&copy) <= 4096, "{} blocks", blocks(&copy));

    let text = "x".repeat(16 << 20);
    std::fs::write(&copy, &text).expect("written");
    stdout_of(&run(
        "nbdcopy",
        &["--connections=2", &copy.display().to_string(), &url],
    ));
    assert!(disk.file() == text.as_bytes());
    assert!(disk.served.stop().success());
}

#[test]
fn qemu_reads_writes_zeroes_and_discards() {
    let Some(disk) = Disk::new(&["qemu-io", "qemu-img"], &[]) else {
        return;
    };
    let commands = [
        "write -P 5 1M 64k",
        "write -f -P 6 1088k 512",
        "write -z -u 5M 128k",
        "write -z 5248k 128k",
        "discard 5504k 64k",
        "flush",
        "read -P 5 1M 64k",
        "read -P 0 5M 256k",
    ];
    let mut args = vec!["-f", "raw"];
    args.extend(commands.iter().flat_map(|command| ["-c", command]));
    let url = disk.url("disk");
    args.push(&url);
    let told = stdout_of(&run("qemu-io", &args));
    assert!(!told.contains("failed"), "{told}");
    let file = disk.file();
    assert!(file[1 << 20..][..65536].iter().all(|&byte| byte == 5));
    assert!(file[1088 << 10..][..512].iter().all(|&byte| byte == 6));
    assert!(file[5 << 20..][..256 << 10].iter().all(|&byte| byte == 0));
    let path = disk.dir.path().join("disk").display().to_string();
    stdout_of(&run(
        "qemu-img",
        &["compare", "-f", "raw", "-F", "raw", &path, &url],
    ));
}

#[test]
fn what_is_read_only_or_not_there_is_told() {
    let Some(disk) = Disk::new(&["qemu-io", "nbdinfo"], &["--read-only"]) else {
        return;
    };
    let url = disk.url("disk");
    assert!(stdout_of(&run("nbdinfo", &[&url])).contains("is_read_only: true"));
    let before = disk.file();
    let told = run("qemu-io", &["-f", "raw", "-c", "write 0 512", &url]);
    assert!(!stderr_of(&told).is_empty());
    assert!(disk.file() == before);
    let told = stderr_of(&run("nbdinfo", &[&disk.url("nothing")]));
    assert!(told.contains("No such file or directory"), "{told}");
}

#[test]
fn a_drive_without_a_file_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().display().to_string();
    let socket = format!("{path}/socket");
    for (drive, expected) in [
        (
            format!("{socket},file=none"),
            "none: No such file or directory",
        ),
        (
            socket.clone(),
            "the source is no image; ,file=FILE names a file in it: Is a directory",
        ),
    ] {
        let told = run(BARGE, &["serve", &path, "--block", &drive]);
        assert_eq!(told.status.code(), Some(1));
        let told = stderr_of(&told);
        assert!(told.contains(expected), "{told}");
    }
    let told = run(BARGE, &["serve", &path, "--block", ",ro"]);
    assert_eq!(told.status.code(), Some(2));
}

/// Sends the largest requests that nbdkit accepts, with the protocol's oldest handshake and simple
/// replies (doc/proto.md): no tool here sends more than 32 MiB at once.
#[test]
fn requests_of_64_mib_are_written_and_read_back() {
    const LEN: usize = 64 << 20;
    let disk = Disk::new(&[], &[]).expect("needs no tools");
    let file = File::create(disk.dir.path().join("large")).expect("made");
    file.set_len(LEN as u64 + 4096).expect("sized");
    let mut stream = UnixStream::connect(disk.dir.path().join("socket")).expect("connected");
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting).expect("greeted");
    let export_name = [
        &3u32.to_be_bytes()[..],
        b"IHAVEOPT",
        &1u32.to_be_bytes(),
        &5u32.to_be_bytes(),
        b"large",
    ];
    stream.write_all(&export_name.concat()).expect("sent");
    // The size and the flags, without the zero padding.
    stream.read_exact(&mut [0; 10]).expect("an export");
    let request = |kind: u16| {
        let (magic, flags, cookie) = (0x2560_9513u32, 0u16, 7u64);
        [
            &magic.to_be_bytes()[..],
            &flags.to_be_bytes(),
            &kind.to_be_bytes(),
            &cookie.to_be_bytes(),
            &4096u64.to_be_bytes(),
            &(LEN as u32).to_be_bytes(),
        ]
        .concat()
    };
    let done = [
        &0x6744_6698u32.to_be_bytes()[..],
        &[0; 4],
        &7u64.to_be_bytes(),
    ]
    .concat();
    let (read, write) = (0, 1);
    let data: Vec<u8> = (0..LEN as u32).map(|at| (at / 251) as u8).collect();
    stream.write_all(&request(write)).expect("sent");
    stream.write_all(&data).expect("sent");
    let mut reply = [0; 16];
    stream.read_exact(&mut reply).expect("a reply");
    assert_eq!(reply, done[..]);
    stream.write_all(&request(read)).expect("sent");
    stream.read_exact(&mut reply).expect("a reply");
    assert_eq!(reply, done[..]);
    let mut back = vec![0; LEN];
    stream.read_exact(&mut back).expect("the data");
    assert!(back == data, "other data");
}
