//! Access to a tree as the super-user.

use std::sync::Arc;

use vfs::{Call, Caller, Cx, DirEntry, DirSink, File, Name, Node, OpenFlags, ReaddirMode, SetAttr};
use vfs_testkit::TestPayload;

/// Calls `act`, and returns its result, if there is one.
pub(crate) fn with<T>(act: impl FnOnce(&Cx<'_>) -> vfs::Result<T>) -> Option<T> {
    let call = Call::detached();
    act(&Cx::new(&Caller::ROOT, &call)).ok()
}

pub(crate) fn write(file: &dyn File, at: u64, bytes: &[u8]) {
    with(|cx| file.write(cx, at, &mut TestPayload::new(bytes)));
}

pub(crate) fn cut(file: &dyn File, size: u64) {
    let set = SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    with(|cx| file.setattr(cx, &set));
}

/// Lists the first names in a directory.
pub(crate) fn names(dir: &dyn Node) -> Vec<Vec<u8>> {
    struct Names(Vec<Vec<u8>>);
    impl DirSink for Names {
        fn entry(&mut self, entry: DirEntry<'_>) -> bool {
            self.0.push(entry.name.to_vec());
            true
        }
    }
    let mut names = Names(Vec::new());
    with(|cx| {
        let dir = dir.open(cx, OpenFlags::READ)?;
        dir.readdir(cx, 0, ReaddirMode::Names, &mut names)
    });
    names.0
}

/// Returns the node called `name`, if there is one.
pub(crate) fn lookup(dir: &dyn Node, name: &[u8]) -> Option<Arc<dyn Node>> {
    with(|cx| Ok(dir.lookup(cx, Name::new(name)?)?.node))
}
