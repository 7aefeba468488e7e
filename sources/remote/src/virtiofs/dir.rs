//! Directory listing: READDIRPLUS if attributes are wanted and the server supports it, else
//! READDIR.

use fuse::Request;
use fuse::dirent::Dirent;
use fuse::layout::ReadIn;
use fuse::numbers::InitFlags;
use vfs::{Cx, DirEntry, DirSink, Errno, Kind, Name, Node, ReaddirMode, Result};
use wire::Reader;

use super::channel::ReplySize;
use super::file::Opened;
use super::node::FuseNode;

impl Opened {
    /// Implements [`vfs::File::readdir`]. Cookies are the server's offsets, 0 being the start.
    pub(super) fn list(
        &self,
        cx: &Cx<'_>,
        cookie: u64,
        plus: ReaddirMode,
        sink: &mut dyn DirSink,
    ) -> Result<()> {
        let client = self.node.channel().client();
        let plus = plus == ReaddirMode::Entries;
        let attributes = plus && client.has(InitFlags::DO_READDIRPLUS);
        let mut offset = cookie;
        loop {
            let args = ReadIn {
                fh: self.fh,
                offset,
                size: Opened::READDIR_SIZE as u32,
                ..ReadIn::default()
            };
            let request = match attributes {
                true => Request::Readdirplus { args },
                false => Request::Readdir { args },
            };
            let reply_size = ReplySize::Data(Opened::READDIR_SIZE);
            let channel = self.node.channel();
            let bytes = channel
                .call(cx, self.node.nodeid, &request, reply_size)?
                .data();
            let mut from = Reader::new(&bytes);
            let mut any = false;
            let mut more = true;
            // READDIRPLUS has looked up the entries beyond the sink's room, too; dropping their
            // nodes forgets them.
            while let Some(dirent) = Dirent::next(attributes, &mut from).map_err(|_| Errno::EIO)? {
                any = true;
                let entry = match dirent.entry {
                    Some(entry) if entry.nodeid != 0 => {
                        Some(FuseNode::looked_up_entry(&self.node.shared, &entry)?)
                    }
                    _ => None,
                };
                if more && !matches!(dirent.name, b"." | b"..") {
                    more = self.pass_entry(cx, &dirent, entry, plus, sink)?;
                }
                offset = dirent.off;
            }
            if !any || !more {
                return Ok(());
            }
        }
    }

    /// The bytes of entries to request at a time.
    const READDIR_SIZE: usize = 128 << 10;

    fn pass_entry(
        &self,
        cx: &Cx<'_>,
        dirent: &Dirent<'_>,
        entry: Option<vfs::Entry>,
        plus: bool,
        sink: &mut dyn DirSink,
    ) -> Result<bool> {
        let name = Name::new(dirent.name).map_err(|_| Errno::EIO)?;
        let entry = match entry {
            None if plus => match self.node.lookup(cx, name) {
                Err(errno) if errno.is_signal() => return Err(errno),
                // The entry has vanished or is inaccessible.
                found => found.ok(),
            },
            entry => entry,
        };
        Ok(sink.entry(DirEntry {
            name: dirent.name,
            id: dirent.ino.max(1),
            kind: Kind::from_d_type(dirent.kind),
            cookie: dirent.off,
            entry,
        }))
    }
}
