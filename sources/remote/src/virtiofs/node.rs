//! Nodes: each holds one lookup, which is forgotten when it is dropped.

use std::any::Any;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use fuse::Request;
use fuse::client::{attr, request};
use fuse::layout::{
    AccessIn, AttrOut, EntryOut, GetattrIn, GetxattrIn, StatFs as KStatFs, StatxIn, StatxOut,
};
use fuse::message::{Rest, SetxattrIn, Text};
use fuse::numbers::{GETATTR_FH, InitFlags, ROOT_ID, statx};
use vfs::lock::{ForeignLock, HostLock, LockKind, LockRange};
use vfs::{
    Access, Attr, AttrMask, Cx, Entry, Errno, File, Handle, Kind, Mode, Name, NewNode, Node,
    NodeId, OpenFlags, RenameFlags, Result, SetAttr, StatFs, XattrFlags,
};

use super::channel::{Channel, ReplySize};
use super::file::FuseFile;
use super::fs::Shared;
use crate::xattr::{MAX_SIZE, check_name};

/// A node.
pub(super) struct FuseNode {
    pub(super) shared: Arc<Shared>,
    pub(super) this: Weak<FuseNode>,
    /// The server's node ID.
    pub(super) nodeid: u64,
    id: NodeId,
    kind: Kind,
}

impl FuseNode {
    pub(super) fn new(shared: &Arc<Shared>, nodeid: u64, attr: &Attr) -> Arc<FuseNode> {
        Arc::new_cyclic(|this| FuseNode {
            shared: shared.clone(),
            this: this.clone(),
            nodeid,
            id: attr.id,
            kind: attr.kind,
        })
    }

    /// Creates a node from a lookup reply. Returns `ENOENT` for a negative entry.
    pub(super) fn looked_up_entry(shared: &Arc<Shared>, entry: &EntryOut) -> Result<Entry> {
        if entry.nodeid == 0 {
            return Err(Errno::ENOENT);
        }
        let attr = attr::of(&entry.attr, entry.generation);
        let Ok(attr) = attr else {
            shared.channel.forget(entry.nodeid);
            return Err(Errno::EIO);
        };
        let node = FuseNode::new(shared, entry.nodeid, &attr);
        Ok(Entry { node, attr })
    }

    pub(super) fn channel(&self) -> &Channel {
        &self.shared.channel
    }

    /// Sends a request whose reply is empty.
    pub(super) fn call_empty(&self, cx: &Cx<'_>, request: &Request<'_>) -> Result<()> {
        let reply_size = ReplySize::Fixed(0);
        self.channel()
            .call(cx, self.nodeid, request, reply_size)
            .map(drop)
    }

    /// Sends a request whose reply is an entry.
    pub(super) fn call_entry(&self, cx: &Cx<'_>, request: &Request<'_>) -> Result<Entry> {
        let reply_size = ReplySize::Fixed(EntryOut::SIZE);
        let answer = self.channel().call(cx, self.nodeid, request, reply_size)?;
        FuseNode::looked_up_entry(&self.shared, &answer.decode(EntryOut::decode)?)
    }

    /// Sends a request whose reply is attributes.
    pub(super) fn call_attr(&self, cx: &Cx<'_>, request: &Request<'_>) -> Result<Attr> {
        let reply_size = ReplySize::Fixed(AttrOut::SIZE);
        let answer = self.channel().call(cx, self.nodeid, request, reply_size)?;
        self.check_same_file(attr::of(&answer.decode(AttrOut::decode)?.attr, 0)?)
    }

    /// Returns `ESTALE` if the server has reused the node ID for another file.
    fn check_same_file(&self, attr: Attr) -> Result<Attr> {
        match (attr.id, attr.kind) == (self.id, self.kind) {
            true => Ok(attr),
            false => Err(Errno::ESTALE),
        }
    }

    /// Gets attributes, with the open file handle `fh` if there is one.
    pub(super) fn attr_with(&self, cx: &Cx<'_>, fh: Option<u64>, want: AttrMask) -> Result<Attr> {
        let getattr_flags = fh.map_or(0, |_| GETATTR_FH);
        let fh = fh.unwrap_or(0);
        let mut attr = self.call_attr(
            cx,
            &Request::Getattr {
                args: GetattrIn { getattr_flags, fh },
            },
        )?;
        if want.contains(AttrMask::BTIME) && !self.shared.no_statx.load(Ordering::Relaxed) {
            let args = StatxIn {
                getattr_flags,
                fh,
                sx_flags: 0,
                sx_mask: statx::BASIC_STATS | statx::BTIME,
            };
            let reply_size = ReplySize::Fixed(StatxOut::SIZE);
            let reply = self
                .channel()
                .call(cx, self.nodeid, &Request::Statx { args }, reply_size);
            match reply {
                Ok(answer) => attr.btime = attr::birth(&answer.decode(StatxOut::decode)?.stat),
                Err(Errno::EOPNOTSUPP) => self.shared.no_statx.store(true, Ordering::Relaxed),
                Err(errno) => return Err(errno),
            }
        }
        Ok(attr)
    }

    /// Sets attributes, with the open file handle `fh` if there is one.
    pub(super) fn set_attr_with(
        &self,
        cx: &Cx<'_>,
        fh: Option<u64>,
        set: &SetAttr,
    ) -> Result<Attr> {
        match self.kind {
            Kind::File => {}
            Kind::Directory if set.size.is_some() => return Err(Errno::EISDIR),
            _ if set.size.is_some() => return Err(Errno::EINVAL),
            _ => {}
        }
        // A SETATTR without changes would make the server clear the set-id bits, as Linux means it
        // to.
        if *set == SetAttr::default() {
            return self.attr_with(cx, fh, AttrMask::STAT);
        }
        let mut set = *set;
        // Changing the owner clears the set-id bits, for which Linux sends a mode.
        let owner = set.mode.is_none() && set.uid.or(set.gid).is_some();
        let here = set.kill_priv && !self.channel().client().has(InitFlags::HANDLE_KILLPRIV_V2);
        if here || (owner && self.kind != Kind::Directory) {
            let mode = match set.mode {
                Some(mode) => mode,
                None => self.attr_with(cx, fh, AttrMask::BASIC)?.mode,
            };
            let less = Kind::File.mode_without_set_id(mode);
            if less != mode {
                set.mode = Some(less);
            }
        }
        let args = request::setattr(&set, fh);
        self.call_attr(cx, &Request::Setattr { args })
    }

    /// Downcasts a node of this mount. Returns `EXDEV` for other nodes.
    pub(super) fn of_same<'a>(&self, node: &'a dyn Node) -> Result<&'a FuseNode> {
        node.as_any()
            .downcast_ref::<FuseNode>()
            .filter(|node| Arc::ptr_eq(&node.shared, &self.shared))
            .ok_or(Errno::EXDEV)
    }

    /// The permission bits and the umask to send; the umask is applied here unless the server
    /// applies it.
    pub(super) fn mode(&self, mode: Mode) -> (u32, u32) {
        match self.channel().client().has(InitFlags::DONT_MASK) {
            true => (mode.bits, mode.umask),
            false => (mode.bits & !mode.umask, 0),
        }
    }
}

impl Drop for FuseNode {
    fn drop(&mut self) {
        if self.nodeid != ROOT_ID {
            self.shared.channel.forget(self.nodeid);
        }
    }
}

impl Node for FuseNode {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn id(&self) -> NodeId {
        self.id
    }

    fn kind(&self) -> Kind {
        self.kind
    }

    fn handle(&self, _cx: &Cx<'_>) -> Result<Handle> {
        Err(Errno::EOPNOTSUPP)
    }

    fn attr(&self, cx: &Cx<'_>, want: AttrMask) -> Result<Attr> {
        self.attr_with(cx, None, want)
    }

    fn setattr(&self, cx: &Cx<'_>, set: &SetAttr) -> Result<Attr> {
        self.set_attr_with(cx, None, set)
    }

    fn access(&self, cx: &Cx<'_>, want: Access) -> Result<Access> {
        let may = |want: Access| {
            let args = AccessIn { mask: want.bits() };
            match self.call_empty(cx, &Request::Access { args }) {
                // A server without ACCESS refuses no access.
                Ok(()) | Err(Errno::EOPNOTSUPP) => Ok(true),
                Err(Errno::EACCES | Errno::EROFS) => Ok(false),
                Err(errno) => Err(errno),
            }
        };
        if may(want)? {
            return Ok(want);
        }
        let mut allowed = Access::empty();
        for bit in want.iter() {
            allowed.set(bit, may(bit)?);
        }
        Ok(allowed)
    }

    fn statfs(&self, cx: &Cx<'_>) -> Result<StatFs> {
        let reply_size = ReplySize::Fixed(KStatFs::SIZE);
        let answer = self
            .channel()
            .call(cx, self.nodeid, &Request::Statfs {}, reply_size)?;
        Ok(attr::statfs(&answer.decode(KStatFs::decode)?))
    }

    fn open(&self, cx: &Cx<'_>, flags: OpenFlags) -> Result<Arc<dyn File>> {
        vfs::open_by_owner(self, cx, flags, |cx, flags| FuseFile::open(self, cx, flags))
    }

    fn readlink(&self, cx: &Cx<'_>) -> Result<Vec<u8>> {
        if self.kind != Kind::Symlink {
            return Err(Errno::EINVAL);
        }
        /// Linux's `PATH_MAX`.
        const PATH: usize = 4096;
        let request = Request::Readlink {};
        let answer = self
            .channel()
            .call(cx, self.nodeid, &request, ReplySize::Data(PATH))?;
        Ok(answer.data())
    }

    fn lookup(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<Entry> {
        let name = Text(name.bytes());
        self.call_entry(cx, &Request::Lookup { name })
    }

    fn parent(&self, cx: &Cx<'_>) -> Result<Entry> {
        if self.kind != Kind::Directory {
            return Err(Errno::ENOTDIR);
        }
        if self.nodeid == ROOT_ID {
            let attr = self.attr(cx, AttrMask::STAT)?;
            let node = self.this.upgrade().ok_or(Errno::ESTALE)?;
            return Ok(Entry { node, attr });
        }
        if !self.channel().client().has(InitFlags::EXPORT_SUPPORT) {
            return Err(Errno::EOPNOTSUPP);
        }
        let name = Text(b"..");
        self.call_entry(cx, &Request::Lookup { name })
    }

    fn create(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        flags: OpenFlags,
        mode: Mode,
    ) -> Result<(Entry, Arc<dyn File>)> {
        self.create_file(cx, Some(name), flags, mode)
    }

    fn make(&self, cx: &Cx<'_>, name: Name<'_>, what: NewNode<'_>, mode: Mode) -> Result<Entry> {
        self.make_node(cx, name, what, mode)
    }

    fn tmpfile(&self, cx: &Cx<'_>, flags: OpenFlags, mode: Mode) -> Result<(Entry, Arc<dyn File>)> {
        self.create_file(cx, None, flags, mode)
    }

    fn link(&self, cx: &Cx<'_>, name: Name<'_>, target: &dyn Node) -> Result<Entry> {
        self.add_link(cx, name, self.of_same(target)?)
    }

    fn unlink(&self, cx: &Cx<'_>, name: Name<'_>, dir: bool) -> Result<()> {
        let name = Text(name.bytes());
        match dir {
            true => self.call_empty(cx, &Request::Rmdir { name }),
            false => self.call_empty(cx, &Request::Unlink { name }),
        }
    }

    fn rename(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        to: &dyn Node,
        to_name: Name<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        self.move_name(cx, name, self.of_same(to)?, to_name, flags)
    }

    fn xattr(&self, cx: &Cx<'_>, name: &[u8]) -> Result<Vec<u8>> {
        check_name(name)?;
        let args = GetxattrIn {
            size: MAX_SIZE as u32,
        };
        let name = Text(name);
        let request = Request::Getxattr { args, name };
        let reply_size = ReplySize::Data(MAX_SIZE);
        Ok(self
            .channel()
            .call(cx, self.nodeid, &request, reply_size)?
            .data())
    }

    fn xattrs(&self, cx: &Cx<'_>) -> Result<Vec<u8>> {
        let args = GetxattrIn {
            size: MAX_SIZE as u32,
        };
        let request = Request::Listxattr { args };
        let reply_size = ReplySize::Data(MAX_SIZE);
        Ok(self
            .channel()
            .call(cx, self.nodeid, &request, reply_size)?
            .data())
    }

    fn set_xattr(&self, cx: &Cx<'_>, name: &[u8], value: &[u8], flags: XattrFlags) -> Result<()> {
        check_name(name)?;
        if value.len() > MAX_SIZE {
            return Err(Errno::E2BIG);
        }
        let args = SetxattrIn {
            size: value.len() as u32,
            flags: flags.bits(),
            setxattr_flags: 0,
        };
        let (name, value) = (Text(name), Rest(value));
        self.call_empty(cx, &Request::Setxattr { args, name, value })
    }

    fn remove_xattr(&self, cx: &Cx<'_>, name: &[u8]) -> Result<()> {
        check_name(name)?;
        let name = Text(name);
        self.call_empty(cx, &Request::Removexattr { name })
    }

    fn host_lock(&self, cx: &Cx<'_>, range: LockRange, state: HostLock) -> Result<()> {
        self.shared.mirrors.lock(self, cx, range, state)
    }

    fn host_lock_holder(
        &self,
        cx: &Cx<'_>,
        range: LockRange,
        kind: LockKind,
    ) -> Result<Option<ForeignLock>> {
        self.shared.mirrors.holder(self, cx, range, kind)
    }
}
