//! The shared suite over nfs-ganesha, an independent server (Debian's `nfs-ganesha-vfs`).
//!
//! It needs a portmapper and fixed ports, so it runs in a network namespace, which two sockets lead
//! out of.

use std::any::Any;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use remote::nfs::{Mount, Options, mount};
use rustix::process::{Pid, Signal, kill_process_group};
use tempfile::TempDir;
use transports::{Addr, StreamLink, dial};
use vfs_testkit::{Profile, TestSubject};

use super::conformance;

/// The programs that have to be installed.
const PROGRAMS: [&str; 4] = [
    "/usr/bin/ganesha.nfsd",
    "/usr/sbin/rpcbind",
    "/usr/bin/socat",
    "/usr/bin/unshare",
];

/// A script that runs in DIR.
const RUN: &str = "
set -e
mount -t tmpfs none /run
mkdir /run/ganesha
ip link set lo up
rpcbind -f &
socat UNIX-LISTEN:$DIR/nfs,fork,backlog=64 TCP:127.0.0.1:2049 &
socat UNIX-LISTEN:$DIR/mount,fork,backlog=64 TCP:127.0.0.1:2050 &
while ! rpcinfo -p 127.0.0.1 >$DIR/programs 2>&1; do sleep 0.05; done
exec ganesha.nfsd -F -f $DIR/config -L $DIR/log -p $DIR/pid -N NIV_EVENT
";

fn config(dir: &Path) -> String {
    let dir = dir.display();
    format!(
        "NFS_CORE_PARAM {{ NFS_Port = 2049; MNT_Port = 2050; Enable_NLM = false; Enable_RQUOTA = false; \
         Protocols = 3, 4; }}\n\
         NFSv4 {{ Graceless = true; Only_Numeric_Owners = true; RecoveryRoot = \"{dir}/recovery\"; \
         Minor_Versions = 0, 1, 2; }}\n\
         EXPORT {{ Export_Id = 1; Path = {dir}/export; Pseudo = /export; Access_Type = RW; \
         Squash = No_Root_Squash; SecType = sys; Transports = TCP; Protocols = 3, 4; \
         FSAL {{ Name = VFS; }} }}\n"
    )
}

/// A directory served by Ganesha.
struct Ganesha {
    process: Mutex<Child>,
    dir: TempDir,
}

impl Drop for Ganesha {
    fn drop(&mut self) {
        let mut process = self.process.lock();
        let group = Pid::from_child(&process);
        let _ = kill_process_group(group, Signal::KILL);
        let _ = process.wait();
    }
}

impl Ganesha {
    /// Returns the running server, starting one if there is none.
    fn get() -> Arc<Ganesha> {
        static RUNNING: Mutex<Weak<Ganesha>> = Mutex::new(Weak::new());
        let mut running = RUNNING.lock();
        if let Some(ganesha) = running.upgrade() {
            return ganesha;
        }
        let ganesha = Arc::new(Ganesha::start());
        *running = Arc::downgrade(&ganesha);
        ganesha
    }

    fn start() -> Ganesha {
        let dir = tempfile::tempdir().expect("a directory");
        let all = fs::Permissions::from_mode(0o755);
        fs::set_permissions(dir.path(), all).expect("set");
        for name in ["export", "recovery"] {
            fs::create_dir(dir.path().join(name)).expect("made");
        }
        fs::write(dir.path().join("config"), config(dir.path())).expect("written");
        let process = Command::new("unshare")
            .args(["--net", "--mount", "sh", "-c", RUN])
            .env("DIR", dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .expect("it runs");
        let ganesha = Ganesha {
            process: Mutex::new(process),
            dir,
        };
        let until = Instant::now() + Duration::from_secs(60);
        let log = ganesha.dir.path().join("log");
        let serves = || {
            let log = fs::read_to_string(&log);
            let initialized = log.is_ok_and(|log| log.contains("NFS SERVER INITIALIZED"));
            let socket = |name| dial(&Addr::Unix(ganesha.dir.path().join(name)));
            initialized && socket("nfs").is_ok() && socket("mount").is_ok()
        };
        while !serves() {
            assert!(Instant::now() < until, "Ganesha does not come up");
            // Ganesha does not signal that it listens.
            std::thread::sleep(Duration::from_millis(20));
        }
        ganesha
    }

    /// Creates a directory, and returns its name.
    fn directory(&self) -> String {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = NEXT.fetch_add(1, Ordering::Relaxed).to_string();
        fs::create_dir(self.dir.path().join("export").join(&name)).expect("made");
        name
    }

    /// Creates and mounts a directory.
    fn mount(&self, version: (u32, u32)) -> Arc<dyn vfs::FileSystem> {
        let name = self.directory();
        let export = self.dir.path().join("export");
        // v3 mounts by path, v4 by pseudo path.
        let path = match version {
            (3, _) => export.join(&name).display().to_string(),
            _ => format!("export/{name}"),
        };
        let dir = self.dir.path().to_owned();
        let (tree, _) = mount(&Mount {
            dial: Arc::new(move |port| {
                let socket = if port.is_some() { "mount" } else { "nfs" };
                Ok(Box::new(dial(&Addr::Unix(dir.join(socket)))?))
            }),
            path: &path,
            require_full_path: true,
            options: Options {
                version: Some(version),
                mount_port: Some(2050),
                ..Options::default()
            },
        })
        .expect("mounted");
        tree
    }
}

fn why_not() -> Option<String> {
    let missing = PROGRAMS.iter().find(|path| !Path::new(path).exists());
    match missing {
        Some(path) => Some(format!("there is no {path}")),
        None if !rustix::process::geteuid().is_root() => {
            Some("a network of its own needs user 0".into())
        }
        None => None,
    }
}

/// Connects to Ganesha.
type Connect = Arc<dyn Fn() -> std::io::Result<StreamLink> + Send + Sync>;

/// Returns a function that connects to Ganesha, the v4 path of a new directory, and a guard that
/// keeps the server running; `None`, with the reason printed, if Ganesha is missing.
pub(super) fn directory() -> Option<(Connect, String, Box<dyn Any>)> {
    if let Some(why) = why_not() {
        eprintln!("skipped over Ganesha: {why}");
        return None;
    }
    let ganesha = Ganesha::get();
    let path = format!("export/{}", ganesha.directory());
    let socket = ganesha.dir.path().join("nfs");
    let connect = Arc::new(move || dial(&Addr::Unix(socket.clone())));
    Some((connect, path, Box::new(ganesha)))
}

/// Mounts a new directory of Ganesha; `None`, with the reason printed, if Ganesha is missing.
pub(super) fn mounted(version: (u32, u32)) -> Option<(Arc<dyn vfs::FileSystem>, Box<dyn Any>)> {
    if let Some(why) = why_not() {
        eprintln!("skipped over Ganesha: {why}");
        return None;
    }
    let ganesha = Ganesha::get();
    Some((ganesha.mount(version), Box::new(ganesha)))
}

/// Ganesha, or barge's own server if Ganesha is missing, with the reason printed.
fn subject(version: (u32, u32), ours: Profile) -> TestSubject {
    if let Some(why) = why_not() {
        eprintln!("skipped over Ganesha: {why}");
        return conformance::subject(version, ours);
    }
    let ganesha = Ganesha::get();
    let mut subject = TestSubject::new(ganesha.mount(version), theirs(ours));
    let watched = ganesha.clone();
    subject.ignore_failure = Box::new(move || {
        let ended = watched.process.lock().try_wait();
        let signal = ended.ok().flatten()?.signal()?;
        Some(format!("Ganesha has died of signal {signal}"))
    });
    subject.keep_alive = Box::new(ganesha);
    subject
}

/// The deviations of Ganesha 4.3.
fn theirs(ours: Profile) -> Profile {
    let mut profile = ours;
    profile.skip.extend([
        (
            "attributes::times_of_other_kinds_are_set",
            "Ganesha leaves the times of symbolic links",
        ),
        ("data::copies_holes_as_zeros", "Ganesha has no COPY"),
        ("data::copies_within_a_file", "Ganesha has no COPY"),
        ("data::copies_within_the_file_system", "Ganesha has no COPY"),
        (
            "data::reads_what_was_written",
            "Ganesha answers EFBIG at the largest offset",
        ),
        (
            "links::linking_a_directory_is_eperm",
            "Ganesha answers EINVAL by v3",
        ),
        (
            "permissions::an_open_file_outlasts_its_permissions",
            "Ganesha checks each read and write by itself",
        ),
        (
            "permissions::reading_and_writing_are_apart",
            "Ganesha has an owner always write",
        ),
        (
            "permissions::writing_takes_set_id_away",
            "Ganesha leaves set-id bits",
        ),
        (
            "unlink::a_removed_directory_takes_nothing",
            "Ganesha loses a directory with its name",
        ),
        (
            "unlinked::a_removed_directory_is_left_alone",
            "Ganesha loses a directory with its name",
        ),
    ]);
    profile
}

mod v3 {
    fn subject() -> vfs_testkit::TestSubject {
        super::subject((3, 0), super::conformance::v3())
    }

    vfs_testkit::conformance!(subject);
}

mod v4_0 {
    fn subject() -> vfs_testkit::TestSubject {
        super::subject((4, 0), super::conformance::v4_0())
    }

    vfs_testkit::conformance!(subject);
}

mod v4_1 {
    fn subject() -> vfs_testkit::TestSubject {
        super::subject((4, 1), super::conformance::v4_1())
    }

    vfs_testkit::conformance!(subject);
}

mod v4_2 {
    fn subject() -> vfs_testkit::TestSubject {
        super::subject((4, 2), super::conformance::v4_1())
    }

    vfs_testkit::conformance!(subject);
}
