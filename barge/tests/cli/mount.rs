//! `barge mount`: mounts a source on a directory of this host.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, OFlags, flock, fstat, open};
use rustix::process::{Pid, Signal, geteuid, kill_process};
use vfs_testkit::{copy_program, wait_until};

use crate::served::{BARGE, ServerProcess, has, serving_id, stderr_of, stdout_of};

/// A mount in the foreground, unmounted when dropped.
pub(crate) struct Mounted(Child);

impl Mounted {
    /// Mounts with `args`. A system call beyond the filter ends the mount, unless they say
    /// otherwise.
    pub(crate) fn new(args: &[&str], at: &Path) -> Mounted {
        Mounted::try_new(args, at).expect("ready")
    }

    /// Does [`Mounted::new`], and returns `None` if the command fails.
    pub(crate) fn try_new(args: &[&str], at: &Path) -> Option<Mounted> {
        let mut command = Command::new(BARGE);
        command
            .args(["mount", "-f", "-o", "seccomp=kill"])
            .args(args)
            .arg(at);
        Mounted::try_run(command)
    }

    /// Mounts with `command`.
    pub(crate) fn run(command: Command) -> Mounted {
        Mounted::try_run(command).expect("ready")
    }

    fn try_run(mut command: Command) -> Option<Mounted> {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("starts");
        let mut line = String::new();
        let out = child.stdout.as_mut().expect("piped");
        BufReader::new(out).read_line(&mut line).expect("read");
        let mounted = Mounted(child);
        (line == "ready\n").then_some(mounted)
    }

    /// Returns the id of the process that serves, the child of the holder.
    pub(crate) fn serving_id(&self) -> u32 {
        serving_id(self.0.id())
    }

    /// Returns the id of the holder.
    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    /// Returns whether the process that serves is running.
    pub(crate) fn is_running(&self) -> bool {
        self.serving_id() != self.id()
    }

    /// Kills the holder.
    pub(crate) fn kill(&self) {
        let pid = Pid::from_raw(self.0.id() as i32).expect("a process");
        kill_process(pid, Signal::KILL).expect("it runs");
    }

    pub(crate) fn signal(&self) {
        let pid = Pid::from_raw(self.0.id() as i32).expect("a process");
        kill_process(pid, Signal::TERM).expect("asked");
    }

    pub(crate) fn ended(mut self) -> ExitStatus {
        let deadline = Instant::now() + Duration::from_secs(20);
        while Instant::now() < deadline {
            if let Some(status) = self.0.try_wait().expect("a child") {
                return status;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("it did not end within 20 s");
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.0.try_wait().is_ok_and(|ended| ended.is_none()) {
            self.signal();
            let _ = self.0.wait();
        }
    }
}

/// Returns whether this process can mount here.
pub(crate) fn may_mount() -> bool {
    let may = Path::new("/dev/fuse").exists() && (geteuid().is_root() || has("fusermount3"));
    if !may {
        eprintln!("skipped: mounting takes /dev/fuse, and root or fusermount3 (package fuse3)");
    }
    may
}

/// The begin of a script of sh(1) that runs in a mount namespace of its own, with a directory `$1`:
/// all users may open the device there, as on most systems.
pub(crate) const OWN_DEVICE: &str = r#"
    mknod "$1/fuse" c 10 229 && chmod 666 "$1/fuse" && mount --bind "$1/fuse" /dev/fuse || exit
"#;

/// Returns whether `at` is a mount point: its device differs from its parent's.
fn is_mount(at: &Path) -> bool {
    let device = |path: &Path| fs::metadata(path).expect("there").dev();
    device(at) != device(at.parent().expect("not the root"))
}

/// Unmounts a directory. A program that another test starts has the files that this process has
/// open until it is executed.
pub(crate) fn unmount(at: &Path) {
    let command = || match geteuid().is_root() {
        true => Command::new("umount").arg(at).status(),
        false => Command::new("fusermount3").arg("-u").arg(at).status(),
    };
    wait_until("it is unmounted", || command().expect("runs").success());
}

#[test]
fn a_source_is_used_like_any_directory_until_it_is_unmounted() {
    if !may_mount() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let mounted = Mounted::new(&["mem:"], dir.path());
    assert!(is_mount(dir.path()));
    let text: Vec<u8> = (0..3_000_000u32).map(|at| (at * 7 / 3) as u8).collect();
    fs::create_dir(dir.path().join("d")).expect("made");
    fs::write(dir.path().join("d/f"), &text).expect("written");
    fs::rename(dir.path().join("d/f"), dir.path().join("g")).expect("renamed");
    assert!(fs::read(dir.path().join("g")).expect("read") == text);
    assert_eq!(fs::read_dir(dir.path()).expect("listed").count(), 2);
    unmount(dir.path());
    assert!(mounted.ended().success());
    assert_eq!(fs::read_dir(dir.path()).expect("listed").count(), 0);
}

#[test]
fn what_a_mount_does_can_be_seen() {
    if !may_mount() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let (_served, url) = served_at(dir.path());
    let at = dir.path().join("at");
    fs::create_dir(&at).expect("made");
    let http = format!("unix:{}", dir.path().join("http").display());
    let mounted = Mounted::new(&[&url, "-o", &format!("http={http}")], &at);
    fs::write(at.join("f"), vec![7; 10_000]).expect("written");
    assert_eq!(fs::read(at.join("f")).expect("read").len(), 10_000);
    let mut top = Command::new(BARGE);
    let json = top
        .args(["top", &http, "--json", "--once"])
        .output()
        .expect("runs")
        .stdout;
    let json: serde_json::Value = serde_json::from_slice(&json).expect("JSON");
    let names = json["operations"].as_array().expect("a list").iter();
    let names: Vec<_> = names.map(|operation| operation["name"].as_str()).collect();
    assert!(names.contains(&Some("FUSE_WRITE")), "{names:?}");
    assert!(
        json["exports"][0]["cache"]["bytes"]
            .as_u64()
            .is_some_and(|bytes| bytes > 0),
        "{json}"
    );
    unmount(&at);
    assert!(mounted.ended().success());
}

/// Serves a directory, and returns the server and the URL of its socket.
fn served_at(dir: &Path) -> (ServerProcess, String) {
    let (share, socket) = (dir.join("share"), dir.join("socket"));
    fs::create_dir(&share).expect("made");
    let socket = socket.to_str().expect("text");
    let addr = format!("unix:{socket}");
    let served = ServerProcess::start(&["--9p", &addr, share.to_str().expect("text")]);
    (served, format!("9p+unix:{socket}"))
}

#[test]
fn what_is_written_to_a_remote_source_is_there_when_it_is_closed() {
    if !may_mount() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let (_served, url) = served_at(dir.path());
    let (share, at) = (dir.path().join("share"), dir.path().join("at"));
    fs::create_dir(&at).expect("made");
    let text: Vec<u8> = (0..5_000_000u32).map(|at| (at * 7 / 3) as u8).collect();
    for cache in ["none", "readahead", "mmap", "mmap,cache_size=1M"] {
        let option = format!("cache={cache}");
        let mounted = Mounted::new(&[&url, "-o", &option], &at);
        let file = fs::File::create(at.join("f")).expect("made");
        for piece in text.chunks(10_007) {
            (&file).write_all(piece).expect("written");
        }
        drop(file);
        assert!(fs::read(share.join("f")).expect("read") == text, "{cache}");
        assert!(fs::read(at.join("f")).expect("read") == text, "{cache}");
        let other = format!("others have changed it behind {cache}");
        fs::write(share.join("f"), &other).expect("written");
        // The kernel caches for a while.
        let deadline = Instant::now() + Duration::from_secs(20);
        while fs::read(at.join("f")).expect("read") != other.as_bytes() {
            assert!(Instant::now() < deadline, "{cache}");
            std::thread::sleep(Duration::from_millis(50));
        }
        mounted.signal();
        assert!(mounted.ended().success(), "{cache}");
    }
}

/// A file that was only listed stays valid when it is renamed and removed. `O_PATH` makes no
/// request, so the mount knows the file by its name alone.
#[test]
fn a_file_that_was_listed_is_known_behind_its_name() {
    if !may_mount() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let (_served, url) = served_at(dir.path());
    let (share, at) = (dir.path().join("share"), dir.path().join("at"));
    fs::create_dir(&at).expect("made");
    for number in 0..200 {
        fs::write(share.join(format!("f{number}")), "x").expect("written");
    }
    let mounted = Mounted::new(&[&url], &at);
    let names = |at: &Path| {
        let entries = fs::read_dir(at).expect("listed");
        entries
            .map(|entry| entry.expect("an entry").path())
            .collect()
    };
    let listed: Vec<_> = names(&at);
    assert_eq!(listed.len(), 200);
    // Without CLOEXEC, a child of another test would keep the mount busy.
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let known: Vec<_> = (listed.iter())
        .map(|path| open(path, flags, rustix::fs::Mode::empty()).expect("known"))
        .collect();
    for (number, path) in listed.iter().enumerate() {
        fs::rename(path, at.join(format!("g{number}"))).expect("renamed");
    }
    let links = |known: &OwnedFd| fstat(known).map(|stat| stat.st_nlink);
    assert!(known.iter().all(|known| links(known) == Ok(1)));
    assert_eq!(fs::read(at.join("g7")).expect("read"), b"x");
    let listed: Vec<_> = names(&at);
    for path in &listed {
        fs::remove_file(path).expect("removed");
    }
    assert!(known.iter().all(|known| links(known) == Ok(0)));
    assert_eq!(names(&share), Vec::<std::path::PathBuf>::new());
    drop(known);
    unmount(&at);
    assert!(mounted.ended().success());
}

#[test]
fn who_is_sloppy_may_ask_for_what_is_not_known() {
    if !may_mount() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let _mounted = Mounted::new(&["mem:", "-s", "-o", "sparkling"], dir.path());
    assert!(is_mount(dir.path()));
}

#[test]
fn in_the_background_it_is_there_when_the_command_ends() {
    if !may_mount() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let source = tempfile::tempdir().expect("a directory");
    fs::write(source.path().join("f"), "text").expect("written");
    let at = dir.path().to_str().expect("text");
    let mut command = Command::new(BARGE);
    command.args(["mount", source.path().to_str().expect("text"), at]);
    assert_eq!(stdout_of(&command.output().expect("runs")), "");
    assert!(is_mount(dir.path()));
    let written = fs::read_to_string(dir.path().join("f")).expect("read");
    assert_eq!(written, "text");
    unmount(dir.path());
}

#[test]
fn a_signal_unmounts_what_was_written_before() {
    if !may_mount() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let source = tempfile::tempdir().expect("a directory");
    let from = source.path().to_str().expect("text");
    let mounted = Mounted::new(&[from, "-o", "writeback"], dir.path());
    fs::write(dir.path().join("f"), "text").expect("written");
    mounted.signal();
    assert!(mounted.ended().success());
    assert!(!is_mount(dir.path()));
    let there = fs::read_to_string(source.path().join("f")).expect("read");
    assert_eq!(there, "text");
}

#[test]
fn read_only_means_it() {
    if !may_mount() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let _mounted = Mounted::new(&["mem:", "-o", "ro,noexec"], dir.path());
    let refused = fs::write(dir.path().join("f"), "text").expect_err("read-only");
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    let mounts = fs::read_to_string("/proc/self/mounts").expect("there");
    let line = mounts
        .lines()
        .find(|line| line.contains(dir.path().to_str().expect("text")));
    let line = line.expect("mounted");
    assert!(
        line.starts_with("mem: ") && line.contains(" fuse.barge ro,") && line.contains("noexec"),
        "{line}"
    );
}

/// A process that waits for a stopped server can be killed, gets errors on a soft mount, and the
/// mount ends on a signal.
#[test]
fn a_server_that_stops_answering_holds_nobody() {
    if !may_mount() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let (served, url) = served_at(dir.path());
    fs::write(dir.path().join("share/f"), "text").expect("written");
    let at = dir.path().join("at");
    fs::create_dir(&at).expect("made");
    let serving = served.serving_id();
    let server = Pid::from_raw(serving as i32).expect("a process");
    let is_stopped = || {
        let stat = fs::read_to_string(format!("/proc/{serving}/stat")).expect("it runs");
        stat.contains(") T ")
    };
    for (options, errs) in [("cache=none,timeo=20", false), ("soft,timeo=20", true)] {
        let mounted = Mounted::new(&[&url, "-o", options], &at);
        kill_process(server, Signal::STOP).expect("asked");
        // Until one thread of the server has handled the signal, the others continue and may reply.
        wait_until("stopped", is_stopped);
        let mut cat = Command::new("cat");
        cat.arg(at.join("f")).stderr(Stdio::piped());
        let mut cat = cat.spawn().expect("starts");
        if errs {
            let output = cat.wait_with_output().expect("ends");
            let why = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(why.contains("timed out"), "{why}");
        } else {
            cat.kill().expect("asked");
            assert!(!cat.wait().expect("ends").success());
        }
        mounted.signal();
        assert!(mounted.ended().success(), "{options}");
        assert!(!is_mount(&at), "{options}");
        kill_process(server, Signal::CONT).expect("goes on");
    }
}

#[test]
fn everything_is_shown_as_whose_it_is_said_to_be() {
    if !may_mount() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    // The kernel lets other users write what is theirs alone.
    let owner = match geteuid() {
        user if user.is_root() => 12,
        user => user.as_raw(),
    };
    let options = format!("uid={owner},gid=34");
    let mounted = Mounted::new(&["mem:", "-o", &options], dir.path());
    let file = dir.path().join("f");
    fs::write(&file, "text").expect("written");
    for path in [dir.path(), &file] {
        let is = fs::metadata(path).expect("there");
        assert_eq!((is.uid(), is.gid()), (owner, 34));
    }
    if geteuid().is_root() {
        let give = |uid| std::os::unix::fs::chown(&file, Some(uid), None);
        give(12).expect("to whom it belongs");
        let refused = give(13).expect_err("to somebody else");
        assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied);
    }
    mounted.signal();
    assert!(mounted.ended().success());
}

/// The kernel may deliver the interrupt to another thread than the one with the request.
#[test]
fn who_waits_for_a_lock_can_be_interrupted() {
    if !may_mount() || !has("flock") {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let source = tempfile::tempdir().expect("a directory");
    let mounted = Mounted::new(&[source.path().to_str().expect("text")], dir.path());
    let held = fs::File::create(dir.path().join("f")).expect("made");
    flock(&held, FlockOperation::LockExclusive).expect("locked");
    for _ in 0..4 {
        let waited = Command::new("flock")
            .args(["-w", "0.2"])
            .arg(dir.path().join("f"))
            .arg("true")
            .status();
        assert_eq!(waited.expect("runs").code(), Some(1));
    }
    drop(held);
    mounted.signal();
    assert!(mounted.ended().success());
}

#[test]
fn who_is_not_root_mounts_by_fusermount3() {
    if !geteuid().is_root() || !may_mount() || !has("fusermount3") {
        eprintln!("skipped: this takes root, to be somebody else, and fusermount3 (package fuse3)");
        return;
    }
    const SCRIPT: &str = r#"
        set -e
        cd "$1"
        as() { setpriv --reuid 65534 --regid 65534 --clear-groups "$@"; }
        as mkdir at
        as ./barge mount mem: at -o fsname=data
        ! ls at 2>/dev/null && echo "not for root"
        as touch at/f && as ls at
        grep -o "^data $1/at fuse.barge rw,nosuid,nodev" /proc/mounts
        as fusermount3 -u at
        ls at
    "#;
    let dir = tempfile::tempdir().expect("a directory");
    std::os::unix::fs::chown(dir.path(), Some(65534), Some(65534)).expect("given");
    copy_program(BARGE, dir.path().join("barge"));
    let at = dir.path().to_str().expect("text");
    let output = Command::new("unshare")
        .args(["-m", "sh", "-c", &format!("{OWN_DEVICE}{SCRIPT}"), "sh", at])
        .output();
    let expected = format!("not for root\nf\ndata {at}/at fuse.barge rw,nosuid,nodev\n");
    assert_eq!(stdout_of(&output.expect("runs")), expected);
}

/// Runs a script of sh(1) in a mount namespace of its own, in an empty directory `$1`, where
/// mount(8) finds barge as the helper of fuse.barge and /etc can be written. Returns its output,
/// with `AT` in place of the directory, or `None` if such a namespace is not permitted.
fn by_mount(script: &str) -> Option<String> {
    if !geteuid().is_root() || !may_mount() {
        eprintln!("skipped: this takes root");
        return None;
    }
    const SETUP: &str = r#"
        set -e
        cd "$1"
        mkdir over at from && touch from/f
        mount -t tmpfs none over
        for dir in /usr/sbin /etc; do
            mkdir -p over/upper$dir over/work$dir
            mount -t overlay none -o "lowerdir=$dir,upperdir=over/upper$dir,workdir=over/work$dir" $dir
        done
        ln -s "$2" /usr/sbin/mount.fuse.barge
    "#;
    let dir = tempfile::tempdir().expect("a directory");
    let at = dir.path().to_str().expect("text");
    let output = Command::new("unshare")
        .args([
            "-m",
            "sh",
            "-c",
            &format!("{SETUP}{script}"),
            "sh",
            at,
            BARGE,
        ])
        .output();
    Some(stdout_of(&output.expect("runs")).replace(at, "AT"))
}

/// As with a line in /etc/fstab: mount(8) finds its helper.
#[test]
fn mount_finds_it_by_its_type() {
    const SCRIPT: &str = r#"
        mount -t fuse.barge "$1/from" at -o ro,noexec,_netdev,x-systemd.automount
        grep -o "^$1/from $1/at fuse.barge ro,nosuid,nodev,noexec" /proc/mounts
        ls at
        umount at
    "#;
    let expected = "AT/from AT/at fuse.barge ro,nosuid,nodev,noexec\nf\n";
    if let Some(said) = by_mount(SCRIPT) {
        assert_eq!(said, expected);
    }
}

#[test]
fn mount_remounts_it_by_its_directory_and_by_fstab() {
    const SCRIPT: &str = r#"
        state() {
            awk -v at="$1/at" '$2 == at { sub(",(relatime|user_id).*", "", $4); print $1, $4 }' /proc/mounts
            touch at/new 2>/dev/null && echo writable || echo read-only
        }
        mount -t fuse.barge "$1/from" at
        for options in ro rw ro,noexec; do mount -o remount,$options at && state "$1"; done
        umount at
        echo "$1/from $1/at fuse.barge noauto,noatime 0 0" >>/etc/fstab
        mount at
        for options in ro rw; do mount -o remount,$options "$1/at" && state "$1"; done
        umount at
    "#;
    let [ro, rw] = [
        "AT/from ro,nosuid,nodev\nread-only\n",
        "AT/from rw,nosuid,nodev\nwritable\n",
    ];
    let noexec = ro.replace("nodev", "nodev,noexec");
    let [ro_fstab, rw_fstab] = [ro, rw].map(|state| state.replace("nodev", "nodev,noatime"));
    let expected = [ro, rw, &noexec, &ro_fstab, &rw_fstab].concat();
    if let Some(said) = by_mount(SCRIPT) {
        assert_eq!(said, expected);
    }
}

#[test]
fn what_cannot_be_mounted_says_why() {
    let mount = |args: &[&str]| {
        Command::new(BARGE)
            .arg("mount")
            .args(args)
            .output()
            .expect("runs")
    };
    let wrong = mount(&["mem:", "/tmp", "-o", "ro,sparkling"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(stderr_of(&wrong).contains("sparkling"));
    if may_mount() {
        let nowhere = mount(&["mem:", "/nowhere/at/all"]);
        assert_eq!(nowhere.status.code(), Some(1));
        assert!(stderr_of(&nowhere).contains("/nowhere/at/all: no such directory"));
    }
}

/// Returns whether a process has a removed file of the file system of `dir` open.
pub(crate) fn holds_removed(process: u32, dir: &Path) -> bool {
    let of = fs::metadata(dir).expect("it exists").dev();
    let fds = fs::read_dir(format!("/proc/{process}/fd")).expect("a process");
    fds.flatten().any(|fd| {
        let file = fs::metadata(fd.path());
        file.is_ok_and(|file| file.dev() == of && file.is_file() && file.nlink() == 0)
    })
}

#[test]
fn the_space_of_a_removed_file_is_free_although_the_mount_is_idle() {
    if !may_mount() {
        return;
    }
    for protocol in ["--9p", "--nfs", "--virtiofs"] {
        let dir = tempfile::tempdir().expect("a directory");
        let [share, at, socket] = ["share", "at", "socket"].map(|name| dir.path().join(name));
        for made in [&share, &at] {
            fs::create_dir(made).expect("made");
        }
        let socket = socket.display().to_string();
        let (addr, url) = match protocol {
            "--9p" => (format!("unix:{socket}"), format!("9p+unix:{socket}")),
            "--nfs" => (format!("unix:{socket}"), format!("nfs+unix:{socket}")),
            _ => (socket.clone(), format!("virtiofs:{socket}")),
        };
        let mut command = Command::new(BARGE);
        command.args(["serve", protocol, &addr]).arg(&share);
        let served = ServerProcess::run(command);
        let mounted = Mounted::new(&[&url], &at);
        let make = |name: &str| fs::write(at.join(name), vec![7; 300_000]).expect("written");
        let freed = || !holds_removed(served.serving_id(), &share);
        make("written");
        fs::remove_file(at.join("written")).expect("removed");
        wait_until(protocol, freed);
        // More than a client forgets in one message.
        let names: Vec<_> = (0..500).map(|number| number.to_string()).collect();
        names.iter().for_each(|name| make(name));
        let names = names.iter();
        names.for_each(|name| fs::remove_file(at.join(name)).expect("removed"));
        wait_until(protocol, freed);
        make("open");
        let open = fs::File::open(at.join("open")).expect("opened");
        fs::remove_file(at.join("open")).expect("removed");
        drop(open);
        wait_until(protocol, freed);
        make("last");
        fs::remove_file(at.join("last")).expect("removed");
        unmount(&at);
        assert!(mounted.ended().success());
        wait_until(protocol, freed);
    }
}

/// Returns the options of the mount at `at`, from proc_pid_mounts(5).
fn options_of(at: &Path) -> Vec<String> {
    let mounts = fs::read_to_string("/proc/self/mounts").expect("read");
    let at = at.display().to_string();
    let mount = mounts.lines().rev().find_map(|line| {
        let fields: Vec<_> = line.split(' ').collect();
        (fields[1] == at).then(|| fields[3].to_owned())
    });
    let options = mount.expect("a mount");
    options.split(',').map(str::to_owned).collect()
}

#[test]
fn nobody_gains_privileges_by_a_mount_unless_that_is_asked_for() {
    if !may_mount() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let has = |option: &str| options_of(dir.path()).iter().any(|one| one == option);
    let image = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds/erofs_image/flat");
    let image = format!("image:{}", image.display());
    for source in ["mem:", &image] {
        let mounted = Mounted::new(&[source], dir.path());
        assert!(has("nosuid") && has("nodev"), "{source}");
        unmount(dir.path());
        assert!(mounted.ended().success());
        if geteuid().is_root() {
            let mounted = Mounted::new(&[source, "-o", "suid,dev"], dir.path());
            assert!(!has("nosuid") && !has("nodev"), "{source}");
            unmount(dir.path());
            assert!(mounted.ended().success());
        }
    }
}

#[test]
fn a_mount_becomes_read_only_and_writable_again() {
    if !may_mount() || !geteuid().is_root() {
        return eprintln!("skipped: remounting takes root");
    }
    let dir = tempfile::tempdir().expect("a directory");
    let barge = |options: &str| {
        let mut command = Command::new(BARGE);
        let command = command.args(["mount", "mem:", "-o", options]);
        command.arg(dir.path()).output().expect("runs")
    };
    let write = || fs::write(dir.path().join("f"), "x").map_err(|error| error.kind());
    let read_only = Err(std::io::ErrorKind::ReadOnlyFilesystem);
    for first in ["rw", "ro"] {
        let mounted = Mounted::new(&["mem:", "-o", first], dir.path());
        stdout_of(&barge("remount,ro"));
        assert_eq!(write(), read_only);
        stdout_of(&barge("remount,rw"));
        assert_eq!(write(), Ok(()));
        let options = options_of(dir.path());
        let has = |option: &str| options.iter().any(|one| one == option);
        assert!(has("rw") && has("nosuid") && has("nodev"), "{options:?}");
        // As mount(8) derives them from the current mount.
        stdout_of(&barge(
            "rw,nosuid,nodev,relatime,user_id=0,group_id=0,default_permissions,remount,ro",
        ));
        assert_eq!(write(), read_only);
        unmount(dir.path());
        assert!(mounted.ended().success());
    }
    let none = stderr_of(&barge("remount,ro"));
    assert!(none.contains("expected a mount of barge"), "{none}");
}
