//! The shared suite over virtiofsd 1.14, an independent server (crates.io's `virtiofsd`).

use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use remote::virtiofs::{Options, RemoteFuse, WaitMode};
use tempfile::TempDir;
use vfs_testkit::{Profile, TestSubject};

/// A directory served by virtiofsd.
struct Daemon {
    process: Child,
    dir: TempDir,
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Daemon {
    /// Starts virtiofsd. Returns `None` if it is not installed.
    fn start() -> Option<Daemon> {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(dir.path().join("share")).expect("made");
        let process = Command::new("virtiofsd")
            .arg("--socket-path")
            .arg(dir.path().join("socket"))
            .arg("--shared-dir")
            .arg(dir.path().join("share"))
            .args(["--sandbox", "none", "--xattr"])
            // With file handles, an unlinked file could not be opened any more.
            .args(["--inode-file-handles=never", "--preserve-noatime"])
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        Some(Daemon { process, dir })
    }

    fn mount(&self) -> Arc<RemoteFuse> {
        let deadline = Instant::now() + Duration::from_secs(20);
        let socket = loop {
            match UnixStream::connect(self.dir.path().join("socket")) {
                Ok(socket) => break socket,
                Err(error) => {
                    assert!(
                        Instant::now() < deadline,
                        "virtiofsd does not listen: {error}"
                    );
                }
            }
            // virtiofsd does not signal that it listens.
            std::thread::sleep(Duration::from_millis(2));
        };
        RemoteFuse::mount(socket, Options::default()).expect("mounted")
    }
}

/// virtiofsd, or barge's own server if virtiofsd is missing, with the reason printed.
fn subject() -> TestSubject {
    let daemon = match rustix::process::geteuid().is_root() {
        true => Daemon::start().ok_or("virtiofsd is not installed"),
        false => Err("virtiofsd serves others only as user 0"),
    };
    match daemon {
        Ok(daemon) => {
            let mut subject = TestSubject::new(daemon.mount(), profile());
            subject.keep_alive = Box::new(daemon);
            subject
        }
        Err(why) => {
            eprintln!("skipped over virtiofsd: {why}");
            crate::device::subject(WaitMode::Adaptive(Duration::ZERO))
        }
    }
}

/// The deviations of virtiofsd 1.14.
fn profile() -> Profile {
    const PARENT: &str = "virtiofsd looks no parents up";
    const TMPFILE: &str = "virtiofsd does not know TMPFILE";
    Profile {
        // It leaves permission checks to its client's kernel.
        identity: false,
        groups: false,
        skip: vec![
            ("limits::a_deep_tree", PARENT),
            ("lookup::a_directory_knows_its_parent", PARENT),
            ("lookup::the_parent_follows_a_rename", PARENT),
            ("rename::exchange_swaps", PARENT),
            ("rename::moves_at_a_time_make_no_loop", PARENT),
            ("create::a_tmpfile_can_be_given_a_name", TMPFILE),
            ("create::an_exclusive_tmpfile_gets_no_name", TMPFILE),
            (
                "attributes::every_change_counts",
                "virtiofsd passes FATTR_CTIME over",
            ),
            (
                "data::executing_grants_reading",
                "it leaves permissions to its client's kernel",
            ),
            (
                "data::reads_what_was_written",
                "virtiofsd answers EINVAL at the largest offset",
            ),
        ],
        ..Profile::posix()
    }
}

vfs_testkit::conformance!(subject);
