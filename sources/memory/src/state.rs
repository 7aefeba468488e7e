//! The state of a node: attributes, extended attributes, contents.

use vfs::{Attr, Caller, Device, Kind, Time};

use crate::dir::Dir;
use crate::node::MemNode;
use crate::pages::{PAGE, Pages};
use crate::perm;
use crate::xattr::{self, Xattrs};

/// Attributes.
pub(crate) struct Meta {
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// 0 for a directory that was removed, and for a file without a name.
    pub(crate) nlink: u32,
    pub(crate) atime: Time,
    pub(crate) mtime: Time,
    pub(crate) ctime: Time,
    pub(crate) btime: Time,
    pub(crate) change: u64,
}

/// The mutable state of a node.
pub(crate) struct State {
    pub(crate) meta: Meta,
    pub(crate) xattrs: Xattrs,
    pub(crate) body: Body,
    /// Created without a name by `tmpfile`, and may be linked.
    pub(crate) linkable: bool,
}

/// The contents of a node.
pub(crate) enum Body {
    File(Pages),
    Directory(Dir),
    Symlink(Box<[u8]>),
    /// No contents.
    Device(Device),
}

impl State {
    /// Records a change of attributes or links.
    pub(crate) fn changed(&mut self, now: Time) {
        self.meta.ctime = now;
        self.meta.change += 1;
    }

    /// Records a change of contents.
    pub(crate) fn modified(&mut self, now: Time) {
        self.meta.mtime = now;
        self.changed(now);
    }

    /// Removes privileges as a change of contents by `caller` does: set-id bits unless it is the
    /// super-user, file capabilities always (`file_remove_privs` of Linux).
    pub(crate) fn drop_privileges(&mut self, caller: &Caller) {
        if !perm::is_root(caller) {
            self.drop_set_id();
        }
        self.xattrs.remove(xattr::CAPABILITY);
    }

    /// Removes set-id bits; set-gid without group execution has another meaning and stays.
    pub(crate) fn drop_set_id(&mut self) {
        let set_gid = if self.meta.mode & 0o010 != 0 {
            0o2000
        } else {
            0
        };
        self.meta.mode &= !(0o4000 | set_gid);
    }

    pub(crate) fn size(&self) -> u64 {
        match &self.body {
            Body::File(pages) => pages.size(),
            Body::Symlink(target) => target.len() as u64,
            Body::Directory(_) | Body::Device(_) => 0,
        }
    }

    pub(crate) fn attr(&self, node: &MemNode) -> Attr {
        let allocated = match &self.body {
            Body::File(pages) => pages.allocated(),
            _ => 0,
        };
        let meta = &self.meta;
        Attr {
            id: node.id,
            generation: node.shared.generation,
            kind: node.kind,
            mode: meta.mode,
            nlink: meta.nlink,
            uid: meta.uid,
            gid: meta.gid,
            rdev: match self.body {
                Body::Device(device) => device,
                _ => Device::default(),
            },
            size: self.size(),
            blksize: PAGE as u32,
            blocks: allocated / 512,
            atime: meta.atime,
            mtime: meta.mtime,
            ctime: meta.ctime,
            btime: Some(meta.btime),
            change: meta.change,
            device: 0,
        }
    }

    pub(crate) fn dir(&self) -> Option<&Dir> {
        match &self.body {
            Body::Directory(dir) => Some(dir),
            _ => None,
        }
    }

    pub(crate) fn dir_mut(&mut self) -> Option<&mut Dir> {
        match &mut self.body {
            Body::Directory(dir) => Some(dir),
            _ => None,
        }
    }

    pub(crate) fn pages(&self) -> Option<&Pages> {
        match &self.body {
            Body::File(pages) => Some(pages),
            _ => None,
        }
    }

    pub(crate) fn pages_mut(&mut self) -> Option<&mut Pages> {
        match &mut self.body {
            Body::File(pages) => Some(pages),
            _ => None,
        }
    }

    /// Returns whether a read updates atime now: relatime, the default of Linux mounts.
    pub(crate) fn wants_atime(&self, now: Time) -> bool {
        /// Seconds after which a read updates atime in any case: a day.
        const OLD: i64 = 24 * 60 * 60;
        let meta = &self.meta;
        meta.atime <= meta.mtime || meta.atime <= meta.ctime || now.sec - meta.atime.sec >= OLD
    }
}

/// Returns the permission bits of a new node in the directory `dir`.
pub(crate) fn new_mode(kind: Kind, bits: u32, dir: &Meta, caller: &Caller) -> u32 {
    let inherits = dir.mode & 0o2000 != 0;
    match kind {
        Kind::Symlink => 0o777,
        Kind::Directory => bits & 0o1777 | if inherits { 0o2000 } else { 0 },
        // Only members of the directory's group may create set-gid programs of it.
        _ if inherits
            && bits & 0o2010 == 0o2010
            && !perm::is_root(caller)
            && !perm::in_group(caller, dir.gid) =>
        {
            bits & 0o5777
        }
        _ => bits & 0o7777,
    }
}
