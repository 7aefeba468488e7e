//! The shared conformance suite over directories of this host: as each caller and as the process,
//! with and without kernel handles, with many descriptors and with few.
//!
//! Run by an ordinary user, the subjects that switch act as the process too; the profile then
//! states that callers are not distinguished.

use std::path::Path;

use hostdir::{HostDir, Identity, Options};
use tempfile::TempDir;
use vfs::{Caller, Groups};
use vfs_testkit::{Profile, TestSubject};

/// The directory, removed as the user that the tests run as.
struct Kept {
    _dir: TempDir,
}

impl Drop for Kept {
    fn drop(&mut self) {
        let _ = hostdir::identity::release_thread();
    }
}

fn subject(below: &Path, options: Options) -> TestSubject {
    let _ = hostdir::identity::release_thread();
    let dir = TempDir::new_in(below).expect("a directory");
    let root = rustix::process::geteuid().is_root();
    let identity = root && options.identity != Identity::Fixed;
    let fs = HostDir::open(dir.path(), options).expect("exports");
    let caller = match root {
        true => Caller::ROOT,
        false => Caller {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            groups: Groups::Unknown,
        },
    };
    let profile = Profile {
        caller,
        identity,
        groups: identity,
        root,
        // A temporary directory may be on any file system; the common ones are considered.
        dir_links: !counts_no_links(below),
        ..Profile::posix()
    };
    let mut subject = TestSubject::new(fs, profile);
    subject.keep_alive = Box::new(Kept { _dir: dir });
    subject
}

/// Returns whether directories there have a link count without their subdirectories. No program is
/// run to find out: between fork and exec it would hold all open files of concurrent tests, and an
/// open file keeps its handle valid.
fn counts_no_links(path: &Path) -> bool {
    const BTRFS: u32 = 0x9123_683e;
    const OVERLAY: u32 = 0x794c_7630;
    let kind = rustix::fs::statfs(path).expect("a file system").f_type;
    [BTRFS, OVERLAY].contains(&(kind as u32))
}

fn fixed() -> Options {
    Options {
        identity: Identity::Fixed,
        ..Options::default()
    }
}

mod switching {
    fn subject() -> super::TestSubject {
        super::subject(&std::env::temp_dir(), super::Options::default())
    }

    vfs_testkit::conformance!(subject);
}

mod as_the_process {
    fn subject() -> super::TestSubject {
        super::subject(&std::env::temp_dir(), super::fixed())
    }

    vfs_testkit::conformance!(subject);
}

mod in_memory {
    fn subject() -> super::TestSubject {
        super::subject("/dev/shm".as_ref(), super::Options::default())
    }

    vfs_testkit::conformance!(subject);
}

mod with_few_descriptors {
    fn subject() -> super::TestSubject {
        let options = super::Options {
            descriptors: Some(48),
            ..super::Options::default()
        };
        super::subject(&std::env::temp_dir(), options)
    }

    vfs_testkit::conformance!(subject);
}

mod by_name_with_few_descriptors {
    fn subject() -> super::TestSubject {
        let options = super::Options {
            descriptors: Some(48),
            no_kernel_handles: true,
            ..super::fixed()
        };
        super::subject(&std::env::temp_dir(), options)
    }

    vfs_testkit::conformance!(subject);
}

mod mapped {
    fn subject() -> super::TestSubject {
        let options = super::Options {
            identity: super::Identity::MappedXattr,
            ..super::Options::default()
        };
        let mut subject = super::subject(&std::env::temp_dir(), options);
        // For any user that runs it, barge distinguishes callers and shows the root's owner
        // unchanged.
        subject.profile.identity = rustix::process::geteuid().is_root();
        subject.profile.groups = subject.profile.identity;
        subject
    }

    vfs_testkit::conformance!(subject);
}
