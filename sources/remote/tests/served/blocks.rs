//! A file for requests made by hand.

use p9::{Data, Fid, Names, Tmessage as T, Uid};
use remote::ninep::Connection;
use vfs_testkit::context::ok;

/// The fid of the file that [`create`] makes.
pub(crate) const FILE: Fid = Fid(1 << 20);

/// Creates [`FILE`] in the root, and opens it for reading and writing.
pub(crate) fn create(pipe: &Connection) {
    let (root, names) = (Fid(FILE.0 + 1), Names::new(&[]));
    let attach = T::Attach {
        fid: root,
        afid: Fid::NONE,
        uname: b"",
        aname: b"",
        n_uname: Uid(0),
    };
    drop(ok(pipe.call(&attach)));
    let (fid, newfid) = (root, FILE);
    drop(ok(pipe.call(&T::Walk { fid, newfid, names })));
    let create = T::Lcreate {
        fid: FILE,
        name: b"file",
        flags: 2,
        mode: 0o644,
        gid: 0,
    };
    drop(ok(pipe.call(&create)));
}

/// A request to read [`FILE`].
pub(crate) fn read(offset: u64, count: u32) -> T<'static> {
    let fid = FILE;
    T::Read { fid, offset, count }
}

/// A request to write to [`FILE`].
pub(crate) fn write(offset: u64, data: &[u8]) -> T<'_> {
    let (fid, data) = (FILE, Data(data));
    T::Write { fid, offset, data }
}
