//! The space of objects and of whole trees.

use std::collections::HashSet;
use std::sync::Arc;

use vfs::listing::for_each_entry;
use vfs::{
    Attr, AttrMask, Call, Caller, Cx, Entry, Errno, FileSystem, Kind, Node, OpenFlags, ReaddirMode,
    Result,
};

use super::{Amount, Measured, patient};

/// The measured space of an object in bytes.
#[derive(Clone, Copy)]
pub(super) enum Space {
    /// All of it.
    All(u64),
    /// That of its contents: the node is unknown, and so are its extended attributes.
    Contents(u64),
}

impl Space {
    pub(super) fn bytes(self) -> u64 {
        match self {
            Space::All(bytes) | Space::Contents(bytes) => bytes,
        }
    }
}

/// Estimates and measures the space of objects.
pub(super) struct Measure {
    /// The unit of space in bytes.
    granule: u64,
}

impl Measure {
    pub(super) fn granule(&self) -> u64 {
        self.granule
    }

    pub(super) fn round_up(&self, bytes: u64) -> u64 {
        bytes.div_ceil(self.granule).saturating_mul(self.granule)
    }

    /// Returns the space of `object`, which has the attributes `attr`.
    pub(super) fn space(&self, object: Measured<'_>, attr: &Attr, cx: &Cx<'_>) -> Result<Space> {
        let (all, contents) = (attr.allocated(), self.round_up(attr.size));
        if attr.kind != Kind::File || all <= contents {
            return Ok(Space::All(all));
        }
        match object.node() {
            Some(node) => {
                let xattrs = self.xattr_bytes(node, cx)?;
                Ok(Space::All(contents + xattrs.min(all - contents)))
            }
            None => Ok(Space::Contents(contents)),
        }
    }

    /// Returns the space of a new object: without contents that another client may have written
    /// since, which that client's operation counts.
    pub(super) fn initial_bytes(&self, new: &Entry, cx: &Cx<'_>) -> u64 {
        let all = new.attr.allocated();
        let space = self.space(Measured::from(&*new.node), &new.attr, cx);
        let contents = match new.attr.kind {
            Kind::File => all.min(self.round_up(new.attr.size)),
            _ => 0,
        };
        space.map_or(all, Space::bytes) - contents
    }

    /// Returns the space of `object` after an operation, or `None` if it cannot be measured.
    pub(super) fn space_after(&self, object: Measured<'_>, cx: &Cx<'_>) -> Option<Space> {
        let cx = &patient(cx);
        self.space(object, &object.attr(cx).ok()?, cx).ok()
    }

    /// Returns the most space that a file with `attr` needs in addition for `len` bytes at
    /// `offset`.
    pub(super) fn growth(&self, attr: &Attr, offset: u64, len: u64) -> u64 {
        let end = self.round_up(offset.saturating_add(len));
        let range = end - offset / self.granule * self.granule;
        let size = self.round_up(attr.size);
        let has = attr.allocated().min(size);
        match len {
            0 => 0,
            _ => range.min(size.max(end) - has),
        }
    }

    /// Returns the space that the extended attributes of `node` may need outside of its inode.
    fn xattr_bytes(&self, node: &dyn Node, cx: &Cx<'_>) -> Result<u64> {
        let cx = &cx.on_behalf_of(&Caller::ROOT);
        let names = match node.xattrs(cx) {
            Err(Errno::EOPNOTSUPP) => return Ok(0),
            names => names?,
        };
        let mut sum = 0;
        for name in names
            .split(|byte| *byte == 0)
            .filter(|name| !name.is_empty())
        {
            let len = match node.xattr(cx, name) {
                // It has been removed meanwhile, or is computed.
                Err(Errno::ENODATA | Errno::EOPNOTSUPP) => 0,
                value => value?.len(),
            };
            sum += (name.len() + len) as u64;
        }
        Ok(self.round_up(sum))
    }
}

/// Counts the tree `fs`, and returns the means to measure its objects, and its space.
pub(super) fn count(fs: &dyn FileSystem) -> Result<(Measure, Amount)> {
    let call = Call::detached();
    let cx = &Cx::new(&Caller::ROOT, &call);
    let root = fs.root(cx)?;
    let granule = u64::from(root.statfs(cx)?.bsize).max(512);
    let measure = Measure { granule };
    let attr = root.attr(cx, AttrMask::STAT)?;
    let mut counted = Counted {
        measure: &measure,
        used: Amount {
            bytes: attr.allocated(),
            inodes: 1,
        },
        several_names: HashSet::new(),
    };
    let mut dirs = vec![root];
    let mut unreadable = 0_u64;
    while let Some(dir) = dirs.pop() {
        match counted.directory(&*dir, cx, &mut dirs) {
            Ok(()) | Err(Errno::ENOENT | Errno::ESTALE) => {}
            Err(errno) => {
                unreadable += 1;
                tracing::debug!("a directory is not counted for the quota: {errno}");
            }
        }
    }
    if unreadable > 0 {
        tracing::warn!("the quota does not count {unreadable} directories, which are unreadable");
    }
    let used = counted.used;
    Ok((measure, used))
}

/// The part of a tree that has been counted.
struct Counted<'a> {
    measure: &'a Measure,
    used: Amount,
    /// The objects with several names that were counted: 8 bytes for each.
    several_names: HashSet<u64>,
}

impl Counted<'_> {
    /// Counts the entries of `dir`, and adds the directories among them to `dirs`.
    fn directory(
        &mut self,
        dir: &dyn Node,
        cx: &Cx<'_>,
        dirs: &mut Vec<Arc<dyn Node>>,
    ) -> Result<()> {
        let file = dir.open(cx, OpenFlags::READ)?;
        for_each_entry(cx, &*file, ReaddirMode::Entries, |entry| {
            let Some(Entry { node, attr }) = entry.entry else {
                return;
            };
            let is_dir = node.kind() == Kind::Directory;
            if !is_dir && attr.nlink > 1 && !self.several_names.insert(attr.id) {
                return;
            }
            let space = self.measure.space(Measured::from(&*node), &attr, cx);
            self.used.bytes += space.map_or(attr.allocated(), Space::bytes);
            self.used.inodes += 1;
            if is_dir {
                dirs.push(node);
            }
        })
    }
}
