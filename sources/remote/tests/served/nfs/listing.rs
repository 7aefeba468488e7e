//! Failing listings.

use std::sync::Arc;
use std::time::Duration;

use layers::Fault;
use layers::fault::{FaultKind, Trigger};
use memory::Memory;
use remote::nfs::Options;
use vfs::{
    Call, Caller, Cx, DirEntry, DirSink, Errno, Mode, Name, NewNode, Op, OpenFlags, ReaddirMode,
};

use super::net::Served;

struct Names(Vec<Box<[u8]>>);

impl DirSink for Names {
    fn entry(&mut self, entry: DirEntry<'_>) -> bool {
        self.0.push(entry.name.into());
        true
    }
}

/// Some servers return `ENOENT` if an entry vanishes during the listing: the page is requested
/// again, but not forever.
#[test]
fn an_entry_on_its_way_out_ends_no_listing() {
    for version in [(3, 0), (4, 0), (4, 1), (4, 2)] {
        for (when, expected) in [
            (Trigger::Nth(1), Ok(())),
            (Trigger::Always, Err(Errno::ENOENT)),
        ] {
            let fault = Fault::new(1, Arc::new(|| Duration::ZERO));
            fault.add(Op::Readdir, when, FaultKind::Fail(Errno::ENOENT));
            let served = Served::over(layers::stack(Memory::new(vfs_testkit::clock()), fault));
            let tree = served.mount(Options {
                version: Some(version),
                ..Options::default()
            });
            let call = Call::detached();
            let cx = Cx::new(&Caller::ROOT, &call);
            let root = tree.root(&cx).expect("a root");
            let name = Name::new(b"file").expect("a name");
            root.make(&cx, name, NewNode::File, Mode::without_umask(0o644))
                .expect("made");
            let dir = root.open(&cx, OpenFlags::READ).expect("open");
            let mut names = Names(Vec::new());
            assert_eq!(
                dir.readdir(&cx, 0, ReaddirMode::Entries, &mut names),
                expected
            );
            assert_eq!(names.0.len(), usize::from(expected.is_ok()));
        }
    }
}
