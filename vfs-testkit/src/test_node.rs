//! Shorthands for cases: nodes and files with a caller.

use std::sync::Arc;

use vfs::{
    Access, AllocateMode, Attr, AttrMask, Caller, CopyMode, DirEntry, DirSink, Entry, Extent, File,
    Handle, Kind, Mode, Name, NewNode, Node, NodeId, OpenFlags, ReaddirMode, RenameFlags, Result,
    SetAttr, StatFs, Whence, XattrFlags,
};

use crate::context::{ok, run};
use crate::payload::{ReplyBuffer, TestPayload};

/// A node with a caller.
#[derive(Clone)]
pub struct TestNode {
    /// The node.
    pub node: Arc<dyn Node>,
    /// The caller.
    pub caller: Caller,
}

/// An open file with a caller.
#[derive(Clone)]
pub struct TestFile {
    /// The file.
    pub file: Arc<dyn File>,
    /// The caller.
    pub caller: Caller,
}

/// A copy of a directory entry.
#[derive(Clone)]
pub struct ListedEntry {
    /// Its name.
    pub name: Vec<u8>,
    /// The node's number.
    pub id: NodeId,
    /// Its kind, if listed.
    pub kind: Option<Kind>,
    /// The cookie to continue after it.
    pub cookie: u64,
    /// The node, with [`ReaddirMode::Entries`].
    pub entry: Option<Entry>,
}

/// A sink for up to `capacity` entries.
struct EntryCollector {
    entries: Vec<ListedEntry>,
    capacity: usize,
}

impl DirSink for EntryCollector {
    fn entry(&mut self, entry: DirEntry<'_>) -> bool {
        if self.entries.len() == self.capacity {
            return false;
        }
        self.entries.push(ListedEntry {
            name: entry.name.to_vec(),
            id: entry.id,
            kind: entry.kind,
            cookie: entry.cookie,
            entry: entry.entry,
        });
        true
    }

    fn room(&self, _name: usize) -> usize {
        self.capacity - self.entries.len()
    }
}

/// Read and write.
pub const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

/// Read only.
pub const R: OpenFlags = OpenFlags::READ;

/// Write only.
pub const W: OpenFlags = OpenFlags::WRITE;

/// A name in a case: text or bytes.
pub trait AsName {
    /// Returns the name.
    fn name(&self) -> Name<'_>;
}

impl AsName for str {
    #[track_caller]
    fn name(&self) -> Name<'_> {
        ok(Name::new(self.as_bytes()))
    }
}

impl AsName for String {
    #[track_caller]
    fn name(&self) -> Name<'_> {
        self.as_str().name()
    }
}

impl AsName for [u8] {
    #[track_caller]
    fn name(&self) -> Name<'_> {
        ok(Name::new(self))
    }
}

impl AsName for Vec<u8> {
    #[track_caller]
    fn name(&self) -> Name<'_> {
        self.as_slice().name()
    }
}

/// Shorthands for the operations of [`Node`], with the same errors.
#[allow(missing_docs)]
impl TestNode {
    fn with_node(&self, entry: Entry) -> TestNode {
        assert_eq!(
            entry.attr.id,
            entry.node.id(),
            "an entry's node and attributes agree"
        );
        assert_eq!(
            entry.attr.kind,
            entry.node.kind(),
            "an entry's node and attributes agree"
        );
        TestNode {
            node: entry.node,
            caller: self.caller.clone(),
        }
    }

    fn with_file(&self, file: Arc<dyn File>) -> TestFile {
        TestFile {
            file,
            caller: self.caller.clone(),
        }
    }

    /// Returns the same node for `caller`.
    pub fn as_caller(&self, caller: &Caller) -> TestNode {
        TestNode {
            node: self.node.clone(),
            caller: caller.clone(),
        }
    }

    pub fn id(&self) -> NodeId {
        self.node.id()
    }

    pub fn kind(&self) -> Kind {
        self.node.kind()
    }

    #[track_caller]
    pub fn attr(&self) -> Attr {
        let want = AttrMask::STAT | AttrMask::BTIME | AttrMask::GENERATION;
        ok(run(&self.caller, |cx| self.node.attr(cx, want)))
    }

    pub fn set(&self, set: SetAttr) -> Result<Attr> {
        run(&self.caller, |cx| self.node.setattr(cx, &set))
    }

    pub fn chmod(&self, mode: u32) -> Result<Attr> {
        self.set(SetAttr {
            mode: Some(mode),
            ..SetAttr::default()
        })
    }

    pub fn chown(&self, uid: Option<u32>, gid: Option<u32>) -> Result<Attr> {
        self.set(SetAttr {
            uid,
            gid,
            ..SetAttr::default()
        })
    }

    pub fn truncate(&self, size: u64) -> Result<Attr> {
        self.set(SetAttr {
            size: Some(size),
            ..SetAttr::default()
        })
    }

    pub fn access(&self, want: Access) -> Result<Access> {
        run(&self.caller, |cx| self.node.access(cx, want))
    }

    pub fn statfs(&self) -> Result<StatFs> {
        run(&self.caller, |cx| self.node.statfs(cx))
    }

    pub fn handle(&self) -> Result<Handle> {
        run(&self.caller, |cx| self.node.handle(cx))
    }

    pub fn open(&self, flags: OpenFlags) -> Result<TestFile> {
        let file = run(&self.caller, |cx| self.node.open(cx, flags))?;
        Ok(self.with_file(file))
    }

    pub fn readlink(&self) -> Result<Vec<u8>> {
        run(&self.caller, |cx| self.node.readlink(cx))
    }

    pub fn lookup(&self, name: &(impl AsName + ?Sized)) -> Result<TestNode> {
        Ok(self.with_node(run(&self.caller, |cx| self.node.lookup(cx, name.name()))?))
    }

    pub fn parent(&self) -> Result<TestNode> {
        Ok(self.with_node(run(&self.caller, |cx| self.node.parent(cx))?))
    }

    pub fn create(
        &self,
        name: &(impl AsName + ?Sized),
        flags: OpenFlags,
        mode: u32,
    ) -> Result<(TestNode, TestFile)> {
        let mode = Mode::without_umask(mode);
        let (entry, file) = run(&self.caller, |cx| {
            self.node.create(cx, name.name(), flags, mode)
        })?;
        Ok((self.with_node(entry), self.with_file(file)))
    }

    /// Creates a file that contains `data`.
    pub fn file(&self, name: &(impl AsName + ?Sized), data: &[u8]) -> Result<TestNode> {
        let (node, file) = self.create(name, RW | OpenFlags::EXCL, 0o644)?;
        file.write_all(0, data)?;
        Ok(node)
    }

    pub fn make(
        &self,
        name: &(impl AsName + ?Sized),
        what: NewNode<'_>,
        mode: Mode,
    ) -> Result<TestNode> {
        Ok(self.with_node(run(&self.caller, |cx| {
            self.node.make(cx, name.name(), what, mode)
        })?))
    }

    pub fn mkdir(&self, name: &(impl AsName + ?Sized), mode: u32) -> Result<TestNode> {
        self.make(name, NewNode::Directory, Mode::without_umask(mode))
    }

    pub fn symlink(&self, name: &(impl AsName + ?Sized), target: &[u8]) -> Result<TestNode> {
        self.make(name, NewNode::Symlink(target), Mode::without_umask(0o777))
    }

    pub fn tmpfile(&self, flags: OpenFlags, mode: u32) -> Result<(TestNode, TestFile)> {
        let mode = Mode::without_umask(mode);
        let (entry, file) = run(&self.caller, |cx| self.node.tmpfile(cx, flags, mode))?;
        Ok((self.with_node(entry), self.with_file(file)))
    }

    pub fn link(&self, name: &(impl AsName + ?Sized), target: &TestNode) -> Result<TestNode> {
        Ok(self.with_node(run(&self.caller, |cx| {
            self.node.link(cx, name.name(), &*target.node)
        })?))
    }

    pub fn unlink(&self, name: &(impl AsName + ?Sized)) -> Result<()> {
        run(&self.caller, |cx| self.node.unlink(cx, name.name(), false))
    }

    pub fn rmdir(&self, name: &(impl AsName + ?Sized)) -> Result<()> {
        run(&self.caller, |cx| self.node.unlink(cx, name.name(), true))
    }

    pub fn rename(
        &self,
        name: &(impl AsName + ?Sized),
        to: &TestNode,
        to_name: &(impl AsName + ?Sized),
    ) -> Result<()> {
        self.rename_with(name, to, to_name, RenameFlags::empty())
    }

    pub fn rename_with(
        &self,
        name: &(impl AsName + ?Sized),
        to: &TestNode,
        to_name: &(impl AsName + ?Sized),
        flags: RenameFlags,
    ) -> Result<()> {
        run(&self.caller, |cx| {
            self.node
                .rename(cx, name.name(), &*to.node, to_name.name(), flags)
        })
    }

    pub fn xattr(&self, name: &[u8]) -> Result<Vec<u8>> {
        run(&self.caller, |cx| self.node.xattr(cx, name))
    }

    /// Returns the names of extended attributes, sorted.
    pub fn xattrs(&self) -> Result<Vec<Vec<u8>>> {
        let list = run(&self.caller, |cx| self.node.xattrs(cx))?;
        let mut names: Vec<Vec<u8>> = Vec::new();
        for name in list.split_inclusive(|byte| *byte == 0) {
            let name = name.strip_suffix(b"\0").expect("each name ends with a NUL");
            names.push(name.to_vec());
        }
        names.sort();
        Ok(names)
    }

    pub fn set_xattr(&self, name: &[u8], value: &[u8], flags: XattrFlags) -> Result<()> {
        run(&self.caller, |cx| {
            self.node.set_xattr(cx, name, value, flags)
        })
    }

    pub fn remove_xattr(&self, name: &[u8]) -> Result<()> {
        run(&self.caller, |cx| self.node.remove_xattr(cx, name))
    }

    /// Returns the contents of the file.
    pub fn content(&self) -> Result<Vec<u8>> {
        let file = self.open(R)?;
        file.read_all()
    }

    /// Returns all entries, in the order listed.
    pub fn list(&self) -> Result<Vec<ListedEntry>> {
        self.open(R)?.readdir(0, ReaddirMode::Names, usize::MAX)
    }

    /// Returns all names, sorted, without those that a client of NFS gives to open files that are
    /// removed.
    pub fn names(&self) -> Result<Vec<Vec<u8>>> {
        let mut names: Vec<_> = self.list()?.into_iter().map(|entry| entry.name).collect();
        names.retain(|name| !name.starts_with(b".nfs"));
        names.sort();
        Ok(names)
    }
}

/// Shorthands for the operations of [`File`], with the same errors.
#[allow(missing_docs)]
impl TestFile {
    #[track_caller]
    pub fn attr(&self) -> Attr {
        ok(run(&self.caller, |cx| self.file.attr(cx, AttrMask::STAT)))
    }

    pub fn set(&self, set: SetAttr) -> Result<Attr> {
        run(&self.caller, |cx| self.file.setattr(cx, &set))
    }

    /// Reads once.
    pub fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>> {
        let mut sink = ReplyBuffer::new(len);
        let read = run(&self.caller, |cx| {
            assert!(sink.data().is_empty(), "WOULD_BLOCK after bytes were read");
            self.file.read(cx, offset, len, &mut sink)
        })?;
        assert_eq!(read, sink.data().len(), "the count is what the sink got");
        Ok(sink.into_data())
    }

    /// Reads `len` bytes, or up to end of file.
    pub fn read_exact(&self, offset: u64, len: usize) -> Result<Vec<u8>> {
        let mut data = Vec::new();
        while data.len() < len {
            let piece = self.read(offset + data.len() as u64, len - data.len())?;
            if piece.is_empty() {
                break;
            }
            data.extend(piece);
        }
        Ok(data)
    }

    /// Returns the contents of the file.
    pub fn read_all(&self) -> Result<Vec<u8>> {
        let mut data = Vec::new();
        loop {
            let piece = self.read(data.len() as u64, 256 << 10)?;
            if piece.is_empty() {
                return Ok(data);
            }
            data.extend(piece);
        }
    }

    /// Writes once, in one piece.
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<usize> {
        run(&self.caller, |cx| {
            self.file.write(cx, offset, &mut TestPayload::new(data))
        })
    }

    /// Writes once, in pieces.
    pub fn write_pieces(&self, offset: u64, data: &[u8], piece: usize) -> Result<usize> {
        run(&self.caller, |cx| {
            let mut payload = TestPayload::in_pieces(data, piece);
            self.file.write(cx, offset, &mut payload)
        })
    }

    /// Writes all of `data`.
    pub fn write_all(&self, offset: u64, data: &[u8]) -> Result<()> {
        let mut done = 0;
        while done < data.len() {
            let wrote = self.write(offset + done as u64, &data[done..])?;
            assert!(wrote > 0, "a write of something wrote nothing");
            done += wrote;
        }
        Ok(())
    }

    /// Returns up to `most` entries after `cookie`.
    pub fn readdir(&self, cookie: u64, plus: ReaddirMode, most: usize) -> Result<Vec<ListedEntry>> {
        let mut keep = EntryCollector {
            entries: Vec::new(),
            capacity: most,
        };
        run(&self.caller, |cx| {
            assert!(
                keep.entries.is_empty(),
                "WOULD_BLOCK after entries were told"
            );
            self.file.readdir(cx, cookie, plus, &mut keep)
        })?;
        Ok(keep.entries)
    }

    /// Returns all entries, read `most` at a time.
    pub fn readdir_all(&self, plus: ReaddirMode, most: usize) -> Result<Vec<ListedEntry>> {
        let mut all: Vec<ListedEntry> = Vec::new();
        loop {
            let cookie = all.last().map_or(0, |last| last.cookie);
            let some = self.readdir(cookie, plus, most)?;
            if some.is_empty() {
                return Ok(all);
            }
            all.extend(some);
        }
    }

    pub fn fsync(&self, datasync: bool) -> Result<()> {
        run(&self.caller, |cx| self.file.fsync(cx, datasync))
    }

    pub fn flush(&self) -> Result<()> {
        run(&self.caller, |cx| self.file.flush(cx))
    }

    pub fn allocate(&self, how: AllocateMode, offset: u64, len: u64) -> Result<()> {
        run(&self.caller, |cx| self.file.allocate(cx, how, offset, len))
    }

    pub fn seek(&self, offset: u64, what: Whence) -> Result<u64> {
        run(&self.caller, |cx| self.file.seek(cx, offset, what))
    }

    pub fn extents(&self, offset: u64, len: u64) -> Result<Vec<Extent>> {
        let mut extents = Vec::new();
        run(&self.caller, |cx| {
            assert!(extents.is_empty(), "WOULD_BLOCK after extents were told");
            self.file.extents(cx, offset, len, &mut |extent| {
                extents.push(extent);
                true
            })
        })?;
        Ok(extents)
    }

    pub fn copy(
        &self,
        offset: u64,
        to: &TestFile,
        to_offset: u64,
        len: u64,
        how: CopyMode,
    ) -> Result<u64> {
        run(&self.caller, |cx| {
            self.file.copy(cx, offset, &*to.file, to_offset, len, how)
        })
    }
}
