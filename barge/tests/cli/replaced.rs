//! A share stays the object that its path led to: a user who changes where the path leads, or a
//! client that does so within a share, changes nothing that is served, whatever happens to the
//! processes.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use barge_client::Client;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use vfs_testkit::wait_until;

use crate::served::{BARGE, ServerProcess, stderr_of, stdout_of};

/// The ways in which the processes of a server are replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Crash,
    Upgrade,
    Reload,
}

const EVENTS: [Event; 3] = [Event::Crash, Event::Upgrade, Event::Reload];

/// A directory with the directories `share`, `other` and `outer/inner`, and a server.
struct Fixture {
    dir: TempDir,
    options: &'static str,
    served: ServerProcess,
}

/// The contents of the file `f` of a share of the fixture.
const SHARED: &str = "shared";

/// The contents of a file that no client may see.
const SECRET: &str = "secret";

impl Fixture {
    /// Starts a server whose file has the lines `options` and the tables `shares`; `{}` is the
    /// directory.
    fn new(options: &'static str, shares: &str) -> Fixture {
        Fixture::as_user(None, options, shares)
    }

    fn as_user(user: Option<u32>, options: &'static str, shares: &str) -> Fixture {
        let dir = tempfile::tempdir().expect("a directory");
        let base = dir.path();
        for (name, text) in [
            ("share", SHARED),
            ("outer/inner", SHARED),
            ("other", SECRET),
        ] {
            fs::create_dir_all(base.join(name)).expect("made");
            fs::write(base.join(name).join("f"), text).expect("written");
        }
        pack(&base.join("share"), &base.join("image"));
        pack(&base.join("other"), &base.join("other-image"));
        let program = match user {
            None => PathBuf::from(BARGE),
            Some(user) => {
                // The program may be in a directory of another user.
                let program = base.join("barge");
                let copied = Command::new("cp")
                    .args([Path::new(BARGE), &program])
                    .status();
                assert!(copied.expect("runs").success());
                let all = fs::Permissions::from_mode(0o777);
                fs::set_permissions(base, all).expect("changed");
                for name in ["share", "other", "outer", "outer/inner"] {
                    chown(base.join(name), Some(user), Some(user)).expect("given");
                }
                program
            }
        };
        let mut command = Command::new(program);
        if let Some(user) = user {
            use std::os::unix::process::CommandExt;
            command.uid(user).gid(user).env("HOME", "/");
        }
        write_config(base, options, shares);
        let log = fs::File::create(base.join("log")).expect("made");
        command.arg("serve").stderr(log);
        command.arg("--config").arg(base.join("barge.toml"));
        let served = ServerProcess::run(command);
        Fixture {
            dir,
            options,
            served,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Makes the path of `name` lead to `to`, if there is one.
    fn lead(&self, name: &str, to: Option<&Path>) {
        fs::rename(self.path(name), self.path("moved")).expect("moved");
        if let Some(to) = to {
            symlink(to, self.path(name)).expect("linked");
        }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("log")).expect("read")
    }

    /// Makes `event` happen, and waits until clients are served again.
    fn happen(&self, event: Event) {
        let before = self.served.serving_ids();
        match event {
            Event::Crash => self.served.crash(),
            Event::Upgrade => {
                self.signal(Signal::USR2);
                wait_until("another program serves", || {
                    let now = self.served.serving_ids();
                    !now.is_empty() && now.iter().all(|id| !before.contains(id))
                });
            }
            Event::Reload => self.reload(),
        }
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.served.id() as i32).expect("a process");
        kill_process(pid, signal).expect("asked");
    }

    /// Makes the server read its file again.
    fn reload(&self) {
        stdout_of(&self.ctl(&["reload"]));
    }

    fn ctl(&self, args: &[&str]) -> Output {
        let control = format!("--control=unix:{}", self.path("control").display());
        let mut command = Command::new(BARGE);
        command.arg("ctl").arg(control).args(args);
        command.output().expect("runs")
    }

    /// Returns the contents of the file `f` of the share `name`, as a new client sees it.
    fn read(&self, name: &str) -> String {
        let port = self.served.port();
        let client = Client::open(&format!("9p://127.0.0.1:{port}/")).expect("connected");
        let read = client.read(format!("{name}/f"));
        String::from_utf8(read.expect("read")).expect("text")
    }
}

fn write_config(base: &Path, options: &str, shares: &str) {
    let at = base.display().to_string();
    let text = format!(
        "9p = 'tcp:127.0.0.1:0'\ncontrol = 'unix:{{}}/control'\nadmit = '*'\n{options}{shares}"
    );
    fs::write(base.join("barge.toml"), text.replace("{}", &at)).expect("written");
}

fn pack(dir: &Path, image: &Path) {
    let mut command = Command::new(BARGE);
    command.arg("pack").args([dir, image]);
    stdout_of(&command.output().expect("runs"));
}

/// Returns the table of the share `name`, whose source is `path`.
fn share(name: &str, path: &str) -> String {
    format!("[[share]]\nname = '{name}'\nsource = '{{}}/{path}'\n")
}

/// The two ways in which a process reaches its sources: in a root of its own, and by descriptors.
const SANDBOXES: [&str; 2] = ["", "sandbox = 'landlock'\n"];

fn stays(fixture: &Fixture, what: &str) {
    for event in EVENTS {
        fixture.happen(event);
        wait_until("it is served", || {
            let port = fixture.served.port();
            Client::open(&format!("9p://127.0.0.1:{port}/")).is_ok()
        });
        assert_eq!(fixture.read("a"), SHARED, "{what} {event:?}");
    }
}

#[test]
fn a_share_whose_path_leads_elsewhere_stays_what_it_was() {
    for options in SANDBOXES {
        for (source, to) in [
            ("share", Some("other")),
            ("share", None),
            ("image", Some("other-image")),
            ("image", None),
        ] {
            let fixture = Fixture::new(options, &share("a", source));
            let to = to.map(|to| fixture.path(to));
            fixture.lead(source, to.as_deref());
            stays(&fixture, &format!("{options:?} {source} {to:?}"));
            assert!(fixture.served.stop().success());
        }
    }
}

#[test]
fn a_share_within_another_one_stays_what_it_was_when_a_client_replaces_it() {
    for options in SANDBOXES {
        let shares =
            share("outer", "outer") + &share("a", "outer/inner") + &share("secret", "other");
        let fixture = Fixture::new(options, &shares);
        let port = fixture.served.port();
        let client = Client::open(&format!("9p://127.0.0.1:{port}/")).expect("connected");
        client.rename("outer/inner", "outer/moved").expect("moved");
        client.symlink("../other", "outer/inner").expect("linked");
        stays(&fixture, &format!("{options:?}"));
        assert!(fixture.served.stop().success());
    }
}

#[test]
fn a_share_of_a_server_without_privileges_stays_what_it_was() {
    let fixture = Fixture::as_user(Some(65534), "", &share("a", "share"));
    let other = fixture.path("other");
    fixture.lead("share", Some(&other));
    stays(&fixture, "ordinary user");
    assert!(fixture.served.stop().success());
}

/// The option of a server without confinement, which is one process.
const NONE: &str = "sandbox = 'none'\n";

#[test]
fn a_path_is_followed_anew_by_a_reload_that_changes_the_share_and_by_reopen() {
    for options in [SANDBOXES[0], SANDBOXES[1], NONE] {
        let fixture = Fixture::new(options, &(share("a", "share") + &share("b", "outer/inner")));
        let other = fixture.path("other");
        fixture.lead("share", Some(&other));
        fixture.reload();
        assert_eq!(fixture.read("a"), SHARED, "{options:?}");
        stdout_of(&fixture.ctl(&["reopen", "a"]));
        assert_eq!(fixture.read("a"), SECRET, "{options:?}");
        assert_eq!(fixture.read("b"), SHARED, "{options:?}");
        let refused = fixture.ctl(&["reopen", "c"]);
        assert!(!refused.status.success());
        let told = stderr_of(&refused);
        assert!(
            told.contains("expected the name of a share, got 'c'"),
            "{told}"
        );
        // The first directory is there again, and a crash does not change the share back.
        fs::remove_file(fixture.path("share")).expect("removed");
        fs::rename(fixture.path("moved"), fixture.path("share")).expect("moved");
        if options != NONE {
            fixture.happen(Event::Crash);
        }
        assert_eq!(fixture.read("a"), SECRET, "{options:?}");
        let changed = share("a", "share") + "xattrmap = ':map::user.x.:'\n";
        write_config(fixture.dir.path(), fixture.options, &changed);
        fixture.reload();
        assert_eq!(fixture.read("a"), SHARED, "{options:?}");
        assert!(fixture.served.stop().success());
    }
}

#[test]
fn an_added_share_stays_what_it_was() {
    for options in SANDBOXES {
        let fixture = Fixture::new(options, &share("b", "outer"));
        let source = format!("a={}", fixture.path("share").display());
        stdout_of(&fixture.ctl(&["add", &source]));
        fixture.lead("share", Some(&fixture.path("other")));
        for event in [Event::Crash, Event::Upgrade] {
            fixture.happen(event);
            assert_eq!(fixture.read("a"), SHARED, "{options:?} {event:?}");
        }
        // Its name is free again, and it can be unmounted.
        stdout_of(&fixture.ctl(&["remove", "a"]));
        stdout_of(&fixture.ctl(&["add", &source]));
        assert_eq!(fixture.read("a"), SECRET, "{options:?}");
        assert!(fixture.served.stop().success());
    }
}

#[test]
fn a_path_that_another_user_can_change_gets_a_warning() {
    let fixture = Fixture::new("", &share("a", "outer/inner"));
    assert!(
        !fixture.log().contains("can change where"),
        "{}",
        fixture.log()
    );
    chown(fixture.path("outer"), Some(65534), None).expect("given");
    stdout_of(&fixture.ctl(&["reopen", "a"]));
    let expected = format!("at {}", fixture.path("outer").display());
    let log = fixture.log();
    assert!(
        log.contains("other users can change where the path leads") && log.contains(&expected),
        "{log}"
    );
    assert!(fixture.served.stop().success());
}

/// Runs `program` in the mount namespace of `process`.
fn in_namespace_of(process: u32, program: &[&str]) -> Output {
    let mut command = Command::new("nsenter");
    command.args([&format!("--target={process}"), "--mount", "--"]);
    command.args(program).output().expect("runs")
}

#[test]
fn a_served_file_system_is_busy_until_its_share_is_released_or_removed() {
    for options in ["", "--sandbox=landlock"] {
        let dir = tempfile::tempdir().expect("a directory");
        let disk = dir.path().join("disk");
        fs::create_dir(&disk).expect("made");
        let (disk, control) = (disk.display().to_string(), dir.path().join("control"));
        let control = format!("--control=unix:{}", control.display());
        // Mounts stay in a namespace of the server.
        let line = format!(
            "mount --make-rshared / && mount -t tmpfs disk '{disk}' && mkdir '{disk}/d' && echo shared > '{disk}/d/f' && exec \
             '{BARGE}' serve --9p tcp:127.0.0.1:0 '{control}' {options} 'a={disk}/d' b=mem:"
        );
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", &line]);
        let served = ServerProcess::run(command);
        let unmount = || in_namespace_of(served.id(), &["umount", &disk]);
        for _ in 0..2 {
            let refused = stderr_of(&unmount());
            assert!(refused.contains("busy"), "{options}: {refused}");
            served.crash();
            let client = Client::open(&format!("9p://127.0.0.1:{}/", served.port()));
            let read = client.expect("connected").read("a/f").expect("read");
            assert_eq!(read, b"shared\n", "{options}");
        }
        // Later mounts are served as well, in the process that runs and in the next one.
        let inner = format!("{disk}/d/inner");
        let made = in_namespace_of(served.id(), &["mkdir", &inner]);
        assert!(made.status.success(), "{}", stderr_of(&made));
        let mount = ["mount", "-t", "tmpfs", "inner", &inner];
        stdout_of(&in_namespace_of(served.id(), &mount));
        let file = format!("{inner}/f");
        stdout_of(&in_namespace_of(
            served.id(),
            &["cp", "/etc/hostname", &file],
        ));
        for _ in 0..2 {
            let client = Client::open(&format!("9p://127.0.0.1:{}/", served.port()));
            let read = client.expect("connected").read("a/inner/f").expect("read");
            assert_eq!(read, fs::read("/etc/hostname").expect("read"), "{options}");
            served.crash();
        }
        wait_until("it is served", || {
            Client::open(&format!("9p://127.0.0.1:{}/", served.port())).is_ok()
        });
        stdout_of(&in_namespace_of(served.id(), &["umount", &inner]));
        let ctl = |args: &[&str]| {
            let mut ctl = Command::new(BARGE);
            ctl.args(["ctl", &control]).args(args);
            stdout_of(&ctl.output().expect("runs"))
        };
        let free = format!("it can be unmounted: {options}");
        ctl(&["release", "a"]);
        let listing = ctl(&["list"]);
        assert!(listing.contains("a: released: "), "{listing}");
        wait_until(&free, || unmount().status.success());
        served.crash();
        let again = format!(
            "mount -t tmpfs disk '{disk}' && mkdir '{disk}/d' && echo again > '{disk}/d/f'"
        );
        stdout_of(&in_namespace_of(served.id(), &["sh", "-c", &again]));
        ctl(&["reopen", "a"]);
        let read = served.barge(&["cat", "{}"], "a/f");
        assert_eq!(stdout_of(&read), "again\n", "{options}");
        ctl(&["remove", "a"]);
        wait_until(&free, || unmount().status.success());
        assert!(served.stop().success());
    }
}
