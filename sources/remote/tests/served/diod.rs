//! The shared suite over diod, an independent server (Debian's `diod`).

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use p9::Dialect;
use parking_lot::Mutex;
use remote::ninep::{Options, Remote9p};
use tempfile::TempDir;
use transports::{Addr, dial};
use vfs_testkit::{Profile, TestSubject};

use crate::net::Served;

const DIOD: &str = "/usr/sbin/diod";

/// A directory served by diod.
struct Diod {
    process: Arc<Mutex<Child>>,
    dir: TempDir,
}

impl Drop for Diod {
    fn drop(&mut self) {
        let mut process = self.process.lock();
        let _ = process.kill();
        let _ = process.wait();
    }
}

impl Diod {
    fn start() -> Diod {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(dir.path().join("export")).expect("made");
        let all = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(dir.path(), all).expect("set");
        let process = Command::new(DIOD)
            // diod enables core files, which are removed with the directory.
            .current_dir(&dir)
            // Without authentication and user database, as the tests use numeric users.
            .args(["-f", "-n", "-N", "-l"])
            .arg(dir.path().join("socket"))
            .arg("-e")
            .arg(dir.path().join("export"))
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("diod runs");
        let process = Arc::new(Mutex::new(process));
        Diod { process, dir }
    }

    fn connect(&self, takes_files: bool) -> Arc<Remote9p> {
        let deadline = Instant::now() + Duration::from_secs(20);
        let link = loop {
            match dial(&Addr::Unix(self.dir.path().join("socket"))) {
                Ok(link) => break link,
                Err(error) => assert!(Instant::now() < deadline, "diod does not listen: {error}"),
            }
            // diod does not signal that it listens.
            std::thread::sleep(Duration::from_millis(5));
        };
        let aname = self.dir.path().join("export").display().to_string();
        let options = Options {
            aname,
            uname: "root".into(),
            msize: 65536,
            fd_passing: takes_files,
            ..Options::default()
        };
        Remote9p::connect(link, options).expect("attached")
    }
}

fn why_not() -> Option<&'static str> {
    if !Path::new(DIOD).exists() {
        Some("diod is not installed")
    } else if !rustix::process::geteuid().is_root() {
        Some("diod serves other users only as user 0")
    } else {
        None
    }
}

/// diod, or barge's own server if diod is missing, with the reason printed.
fn subject() -> TestSubject {
    if let Some(why) = why_not() {
        eprintln!("skipped over diod: {why}");
        let served = Served::new();
        let fs = served.speaking(Dialect::Linux, 65536);
        let mut subject = TestSubject::new(fs, profile());
        subject.keep_alive = Box::new(served);
        return subject;
    }
    let diod = Diod::start();
    let mut subject = TestSubject::new(diod.connect(false), profile());
    let process = diod.process.clone();
    // diod 1.0.24 has a race that crashes it now and then.
    subject.ignore_failure = Box::new(move || {
        let ended = process.lock().try_wait();
        let signal = ended.ok().flatten()?.signal()?;
        Some(format!("diod has died of signal {signal}"))
    });
    subject.keep_alive = Box::new(diod);
    subject
}

/// The deviations of diod 1.0.24.
fn profile() -> Profile {
    const PATHS: &str = "diod's fids are paths, which do not follow a rename or an unlink";
    Profile {
        // It acts as the attaching user, but keeps the superuser's capabilities.
        identity: false,
        groups: false,
        rename_flags: false,
        open_unlinked: false,
        skip: vec![
            ("links::a_file_lasts_as_long_as_a_name", PATHS),
            ("lookup::the_parent_follows_a_rename", PATHS),
            ("rename::a_renamed_node_stays_itself", PATHS),
            ("rename::an_open_file_survives_rename", PATHS),
            ("unlink::removing_changes_directory_and_node", PATHS),
            ("xattr::attributes_stay_with_the_node", PATHS),
            (
                "create::create_on_a_symlink_is_eloop",
                "diod follows links itself",
            ),
            (
                "create::pipes_and_sockets_cannot_be_opened",
                "diod opens pipes itself",
            ),
            (
                "data::reads_what_was_written",
                "diod answers EINVAL at the largest offset",
            ),
            (
                "locks::flock_does_not_see_byte_ranges",
                "9P has one kind of lock",
            ),
            (
                "xattr::what_was_set_is_there",
                "diod takes an empty value for a removal",
            ),
        ],
        ..Profile::posix()
    }
}

vfs_testkit::conformance!(subject);

/// diod accepts the connection of a client that offers to take file descriptors, too.
#[test]
fn it_knows_nothing_of_files_that_are_handed_over() {
    if let Some(why) = why_not() {
        return eprintln!("skipped: {why}");
    }
    let diod = Diod::start();
    let fs = diod.connect(true);
    let pipe = fs.connection();
    assert_eq!((pipe.dialect(), pipe.fd_passing()), (Dialect::Linux, false));
}
