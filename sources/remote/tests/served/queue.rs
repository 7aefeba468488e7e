//! 9P through the queue of a device in the same process: the shared suite, many requests at once, and devices that lie.

use std::os::unix::net::UnixStream;
use std::sync::Arc;

use memory::Memory;
use p9::Dialect;
use remote::ninep::{Options, Remote9p};
use vfs::{Call, Caller, Cx, FileSystem, Name, OpenFlags, Patience};
use vfs_testkit::{Profile, Subject, clock};

use crate::device::Shared;
use crate::net::Served;

/// A device of a tree, and who mounts it.
fn mounted(
    fs: Arc<dyn FileSystem>,
    version: Dialect,
    msize: u32,
) -> ((Served, Shared), Arc<Remote9p>) {
    let served = Served::of(fs);
    let (shared, socket) = Shared::answering(served.queue_session());
    let mount = Remote9p::connect_device(socket, options(version, msize)).expect("mounted");
    ((served, shared), mount)
}

fn options(version: Dialect, msize: u32) -> Options {
    Options {
        version,
        msize,
        uname: "root".into(),
        ..Options::default()
    }
}

fn subject(version: Dialect, msize: u32, profile: Profile) -> Subject {
    let (kept, mount) = mounted(Memory::new(clock()), version, msize);
    let mut subject = Subject::new(mount, profile);
    subject.keep = Box::new(kept);
    subject
}

mod large_messages {
    fn subject() -> vfs_testkit::Subject {
        let linux = crate::conformance::linux();
        super::subject(p9::Dialect::Linux, (1 << 20) + 24, linux)
    }

    vfs_testkit::conformance!(subject);
}

mod small_messages {
    fn subject() -> vfs_testkit::Subject {
        super::subject(p9::Dialect::Linux, 8192, crate::conformance::linux())
    }

    vfs_testkit::conformance!(subject);
}

mod with_9p2000_u {
    fn subject() -> vfs_testkit::Subject {
        super::subject(p9::Dialect::Unix, 65536, crate::conformance::unix())
    }

    vfs_testkit::conformance!(subject);
}
