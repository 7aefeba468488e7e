//! Directory entries: creating, linking, renaming.

use std::sync::Arc;

use fuse::Request;
use fuse::client::request;
use fuse::layout::{CreateIn, EntryOut, LinkIn, MkdirIn, OpenOut, Rename2In, RenameIn};
use fuse::message::Text;
use vfs::{
    Cx, Entry, Errno, File, Kind, Mode, Name, NewNode, Node, OpenFlags, RenameFlags, Result,
};

use super::channel::ReplySize;
use super::file::{FuseFile, Opened};
use super::node::FuseNode;
use crate::file::may_open;

impl FuseNode {
    /// Creates a file with CREATE, or with TMPFILE if there is no name.
    pub(super) fn create_file(
        &self,
        cx: &Cx<'_>,
        name: Option<Name<'_>>,
        flags: OpenFlags,
        mode: Mode,
    ) -> Result<(Entry, Arc<dyn File>)> {
        let (mode, umask) = self.mode(mode);
        let args = CreateIn {
            flags: request::open(flags).bits(),
            mode: Kind::File.mode_bits() | mode,
            umask,
            open_flags: 0,
        };
        let request = match &name {
            Some(name) => Request::Create {
                args,
                name: Text(name.bytes()),
            },
            None => Request::Tmpfile {
                args,
                // The request requires a name, which is ignored.
                name: Text(b"tmpfile"),
            },
        };
        let reply_size = ReplySize::Fixed(EntryOut::SIZE + OpenOut::SIZE);
        let answer = self.channel().call(cx, self.nodeid, &request, reply_size);
        let answer = match (answer, name) {
            // virtiofsd's error for an existing file that is not regular. Linux looks the name up
            // first.
            (Err(Errno::EBADF), Some(name)) => {
                let found = self.lookup(cx, name)?.node.kind();
                return Err(file_only(found).err().unwrap_or(Errno::EBADF));
            }
            (answer, _) => answer?,
        };
        let entry = answer.decode(EntryOut::decode)?;
        let behind = answer.fixed().get(EntryOut::SIZE..).unwrap_or_default();
        let open = OpenOut::decode(behind).map_err(|_| Errno::EIO)?;
        let entry = FuseNode::looked_up_entry(&self.shared, &entry)?;
        let node = self.of_same(&*entry.node)?.this.upgrade();
        let opened = Opened::new(node.ok_or(Errno::EIO)?, open.fh);
        file_only(entry.node.kind())?;
        Ok((entry, Arc::new(FuseFile::new(opened, flags))))
    }

    pub(super) fn make_node(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        what: NewNode<'_>,
        mode: Mode,
    ) -> Result<Entry> {
        let name = Text(name.bytes());
        let (mode, umask) = self.mode(mode);
        let request = match (what, request::mknod(what, mode, umask)) {
            (_, Some(args)) => Request::Mknod { args, name },
            (NewNode::Symlink(target), _) => Request::Symlink {
                name,
                target: Text(target),
            },
            _ => {
                let args = MkdirIn { mode, umask };
                Request::Mkdir { args, name }
            }
        };
        self.call_entry(cx, &request)
    }

    pub(super) fn add_link(&self, cx: &Cx<'_>, name: Name<'_>, target: &FuseNode) -> Result<Entry> {
        let oldnodeid = target.nodeid;
        let args = LinkIn { oldnodeid };
        let name = Text(name.bytes());
        self.call_entry(cx, &Request::Link { args, name })
    }

    pub(super) fn move_name(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        to: &FuseNode,
        to_name: Name<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        let newdir = to.nodeid;
        let (name, newname) = (Text(name.bytes()), Text(to_name.bytes()));
        let request = match flags.bits() {
            0 => Request::Rename {
                args: RenameIn { newdir },
                name,
                newname,
            },
            flags => Request::Rename2 {
                args: Rename2In { newdir, flags },
                name,
                newname,
            },
        };
        self.call_empty(cx, &request)
    }
}

/// Returns an error if an existing node is not a regular file.
fn file_only(kind: Kind) -> Result<()> {
    may_open(kind, OpenFlags::WRITE)
}
