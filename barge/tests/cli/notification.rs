//! Notification of changes: `barge watch`, and the caches of a mounted directory.

use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use hostdir::WriteEvents;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::process::{Pid, Signal, geteuid, kill_process};
use serde_json::Value;
use vfs_testkit::{copy_program, wait_until};

use crate::mount::{Mounted, OWN_DEVICE, may_mount, unmount};
use crate::served::{BARGE, has, stderr_of, stdout_of};

/// A running `barge watch`, killed when dropped.
struct Watch {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Watch {
    fn new(args: &[&str], dir: &Path) -> Watch {
        let mut command = Command::new(BARGE);
        command.arg("watch").args(args).arg(dir);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("starts");
        let lines = BufReader::new(child.stdout.take().expect("piped"));
        Watch { child, lines }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("reads");
        line.trim_end_matches('\n').into()
    }

    fn json(&mut self) -> Value {
        serde_json::from_str(&self.line()).expect("JSON")
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn changes_are_json_lines_until_a_signal() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut watch = Watch::new(&[], dir.path());
    let ready = watch.json();
    assert_eq!((&ready["v"], &ready["type"]), (&1.into(), &"ready".into()));
    fs::create_dir(dir.path().join("d")).expect("made");
    let created = watch.json();
    assert_eq!(created["type"], "created");
    assert_eq!(
        (&created["path"], &created["is_dir"]),
        (&"d".into(), &true.into())
    );
    assert!(created["time"].as_f64().is_some_and(|time| time > 1e9));
    fs::rename(dir.path().join("d"), dir.path().join("e")).expect("renamed");
    let renamed = watch.json();
    assert_eq!(renamed["type"], "renamed");
    assert_eq!(
        (&renamed["old_path"], &renamed["path"]),
        (&"d".into(), &"e".into())
    );
    fs::set_permissions(dir.path().join("e"), PermissionsExt::from_mode(0o700)).expect("set");
    let modified = watch.json();
    assert_eq!(
        (&modified["type"], &modified["path"]),
        (&"modified".into(), &"e".into())
    );
    assert_eq!(modified["parts"], serde_json::json!(["attributes"]));
    fs::remove_dir(dir.path().join("e")).expect("removed");
    assert_eq!(watch.json()["type"], "deleted");
    let pid = Pid::from_raw(watch.child.id() as i32).expect("a process");
    kill_process(pid, Signal::INT).expect("it runs");
    assert!(watch.child.wait().expect("ends").success());
}

#[test]
fn changes_are_lines_of_text_on_request() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut watch = Watch::new(&["--format", "text", "--overflow", "exit"], dir.path());
    assert_eq!(watch.line(), "ready");
    fs::write(dir.path().join("a\tb"), "").expect("written");
    assert_eq!(watch.line(), "created\ta?b");
}

#[test]
fn a_source_without_changes_is_refused_with_one_line() {
    let dir = tempfile::tempdir().expect("a directory");
    let missing = dir.path().join("missing");
    for (source, status, expected) in [
        ("mem:", 1, "mem:: this source does not report changes"),
        (
            missing.to_str().expect("text"),
            1,
            "no such file or directory",
        ),
        ("ftp://host/", 2, "ftp://host/"),
    ] {
        let output = Command::new(BARGE).args(["watch", source]).output();
        let output = output.expect("runs");
        assert_eq!(output.status.code(), Some(status), "{source}");
        assert!(output.stdout.is_empty());
        let error = stderr_of(&output);
        assert!(error.contains(expected), "{error}");
    }
}

/// Returns whether the process that serves a mount reads a queue of changes.
fn reads_changes(mounted: &Mounted) -> bool {
    let open = fs::read_dir(format!("/proc/{}/fd", mounted.serving_id())).expect("it runs");
    let mut targets = open
        .flatten()
        .filter_map(|fd| fs::read_link(fd.path()).ok());
    targets.any(|target| target.to_string_lossy().contains("fanotify"))
}

/// A directory and its mount, whose kernel is notified of changes.
struct Fixture {
    share: tempfile::TempDir,
    at: tempfile::TempDir,
    mounted: Mounted,
}

impl Fixture {
    /// Returns `None` where file systems cannot be watched.
    fn new(options: &str) -> Option<Fixture> {
        if !geteuid().is_root() || !may_mount() {
            eprintln!("skipped: watching a file system takes root");
            return None;
        }
        let (share, at) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        if let Err(error) = hostdir::FileSystemWatch::begin(share.path(), WriteEvents::OnClose) {
            eprintln!("skipped: {error}");
            return None;
        }
        let source = share.path().to_str().expect("text");
        let mounted = Mounted::new(&["-o", options, source], at.path());
        assert!(reads_changes(&mounted), "{options}");
        Some(Fixture { share, at, mounted })
    }
}

#[test]
fn a_mount_shows_changes_on_the_host() {
    for options in [
        "sandbox=namespace",
        "sandbox=none,notify=writes",
        "sandbox=landlock",
    ] {
        let Some(Fixture { share, at, mounted }) = Fixture::new(options) else {
            return;
        };
        let (host, seen) = (|name| share.path().join(name), |name| at.path().join(name));
        let size = |name| fs::metadata(seen(name)).map_or(0, |metadata| metadata.len());
        assert!(!seen("f").exists());
        fs::write(host("f"), "one").expect("written");
        wait_until("created after a look-up", || seen("f").exists());
        wait_until("written", || size("f") == 3);
        assert_eq!(fs::read(seen("f")).expect("read"), b"one");
        let mut file = OpenOptions::new().append(true).open(host("f")).unwrap();
        file.write_all(b", two").expect("written");
        wait_until("appended", || size("f") == 8);
        assert_eq!(fs::read(seen("f")).expect("read"), b"one, two");
        let private = fs::Permissions::from_mode(0o600);
        fs::set_permissions(host("f"), private).expect("set");
        let mode = |name| fs::metadata(seen(name)).map_or(0, |metadata| metadata.mode());
        wait_until("chmod", || mode("f") & 0o777 == 0o600);
        fs::create_dir(host("d")).expect("made");
        wait_until("made", || seen("d").is_dir());
        fs::rename(host("f"), host("d/g")).expect("renamed");
        wait_until("the old name", || !seen("f").exists());
        wait_until("the new name", || seen("d/g").exists());
        let listed = || fs::read_dir(seen("d")).expect("listed").count();
        wait_until("listed", || listed() == 1);
        fs::hard_link(host("d/g"), host("h")).expect("linked");
        let links = |name| fs::metadata(seen(name)).map_or(0, |metadata| metadata.nlink());
        wait_until("linked", || links("d/g") == 2 && links("h") == 2);
        fs::remove_file(host("d/g")).expect("removed");
        wait_until("removed", || !seen("d/g").exists() && links("h") == 1);
        fs::rename(host("d"), host("e")).expect("renamed");
        wait_until("the directory", || {
            seen("e").exists() && !seen("d").exists()
        });
        fs::remove_dir(host("e")).expect("removed");
        wait_until("the directory is gone", || !seen("e").exists());
        fs::write(host("new"), "replaced").expect("written");
        fs::rename(host("new"), host("h")).expect("renamed");
        wait_until("replaced", || {
            fs::read(seen("h")).is_ok_and(|read| read == b"replaced")
        });
        // Through the mount, as before.
        fs::write(seen("m"), "mount").expect("written");
        fs::remove_file(seen("h")).expect("removed");
        assert_eq!(fs::read(host("m")).expect("read"), b"mount");
        assert!(!host("h").exists() && !seen("h").exists());
        unmount(at.path());
        assert!(mounted.ended().success());
    }
}

#[test]
fn programs_that_watch_a_removed_file_on_the_mount_are_woken() {
    let Some(Fixture {
        share,
        at,
        mounted: _mounted,
    }) = Fixture::new("defaults")
    else {
        return;
    };
    fs::write(share.path().join("f"), "").expect("written");
    fs::create_dir(share.path().join("d")).expect("made");
    wait_until("created", || {
        at.path().join("f").exists() && at.path().join("d").exists()
    });
    let queue = inotify::init(CreateFlags::CLOEXEC).expect("a queue");
    let watch = |name| {
        let wanted = WatchFlags::DELETE_SELF;
        inotify::add_watch(&queue, at.path().join(name), wanted).expect("watched")
    };
    let watched = [watch("f"), watch("d")];
    fs::remove_file(share.path().join("f")).expect("removed");
    fs::remove_dir(share.path().join("d")).expect("removed");
    const LIMIT: Timespec = Timespec {
        tv_sec: 20,
        tv_nsec: 0,
    };
    let mut buffer = [std::mem::MaybeUninit::uninit(); 1024];
    let mut events = inotify::Reader::new(&queue, &mut buffer);
    let mut woken = Vec::new();
    while woken.len() < 2 {
        let mut ready = [PollFd::new(&queue, PollFlags::IN)];
        if events.is_buffer_empty() {
            let ready = poll(&mut ready, Some(&LIMIT)).expect("polled");
            assert_eq!(ready, 1, "an event");
        }
        let event = events.next().expect("an event");
        if event.events().contains(ReadFlags::DELETE_SELF) {
            woken.push(event.wd());
        }
    }
    // The kernel drops an inode once nothing uses it, and the event may be later than the other.
    woken.sort_unstable();
    assert_eq!(woken, watched);
}

#[test]
fn a_mount_survives_changes_while_its_directories_are_in_use() {
    let Some(Fixture { share, at, mounted }) = Fixture::new("defaults") else {
        return;
    };
    // Look-ups, listings and changes in one directory hold its lock in the kernel, while the
    // notifications about its names wait for that.
    let deadline = Instant::now() + Duration::from_secs(2);
    std::thread::scope(|scope| {
        let (share, at) = (share.path(), at.path());
        scope.spawn(move || {
            for number in 0.. {
                let name = share.join(format!("h{}", number % 50));
                match Instant::now() < deadline {
                    true if number % 100 < 50 => fs::write(name, "x").expect("written"),
                    true => drop(fs::remove_file(name)),
                    false => return,
                }
            }
        });
        for thread in 0..2 {
            scope.spawn(move || {
                for number in 0.. {
                    if Instant::now() >= deadline {
                        return;
                    }
                    let own = at.join(format!("m{thread}-{}", number % 20));
                    fs::write(&own, "y").expect("written");
                    fs::remove_file(&own).expect("removed");
                    let _ = fs::metadata(at.join(format!("h{}", number % 50)));
                    fs::read_dir(at).expect("listed").for_each(drop);
                }
            });
        }
    });
    wait_until("equal", || {
        let names = |dir: &Path| {
            let names = fs::read_dir(dir).expect("listed").flatten();
            let mut names: Vec<_> = names.map(|entry| entry.file_name()).collect();
            names.sort();
            names
        };
        names(share.path()) == names(at.path())
    });
    unmount(at.path());
    assert!(mounted.ended().success());
}

#[test]
fn a_mount_is_not_notified_on_request() {
    if !may_mount() {
        return;
    }
    let (share, at) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let source = share.path().to_str().expect("text");
    let mounted = Mounted::new(&["-o", "notify=off", source], at.path());
    assert!(!reads_changes(&mounted));
    assert!(!at.path().join("f").exists());
    fs::write(share.path().join("f"), "").expect("written");
    wait_until("visible", || at.path().join("f").exists());
}

#[test]
fn ordinary_users_mount_without_notification() {
    if !geteuid().is_root() || !may_mount() || !has("fusermount3") || !has("setpriv") {
        return eprintln!("skipped: this takes root, setpriv and fusermount3 (package fuse3)");
    }
    const SCRIPT: &str = r#"
        set -e
        cd "$1"
        as() { setpriv --reuid 65534 --regid 65534 --clear-groups "$@"; }
        as mkdir share at
        as ./barge mount share "$1/at"
        # grep also fails if any process ends meanwhile.
        served=$(grep -ls "$1/[a]t" /proc/[0-9]*/cmdline) || test -n "$served"
        for file in $served; do ls -l "${file%cmdline}fd"; done | grep fanotify && echo notified
        as test ! -e at/f
        as touch share/f
        tries=400
        until as test -e at/f; do tries=$((tries - 1)); test $tries -gt 0; sleep 0.05; done
        as fusermount3 -u at
        echo visible
    "#;
    let dir = tempfile::tempdir().expect("a directory");
    std::os::unix::fs::chown(dir.path(), Some(65534), Some(65534)).expect("given");
    copy_program(BARGE, dir.path().join("barge"));
    let mut script = Command::new("unshare");
    script
        .args(["-m", "sh", "-c", &format!("{OWN_DEVICE}{SCRIPT}"), "sh"])
        .arg(dir.path());
    assert_eq!(stdout_of(&script.output().expect("runs")), "visible\n");
}
