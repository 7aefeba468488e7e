//! Listing directories by Treaddir: the server's offsets are the cookies.

use std::sync::{Arc, Mutex};

use p9::client::dir::{Dirent, entries};
use p9::{Tmessage, client};
use vfs::{Cx, DirEntry, DirSink, Entry, Errno, Name, Plus, Result};

use super::fid::Walk;
use super::file::RemoteFile;
use super::pipe::Reply;

/// A directory as 9P2000 and 9P2000.u list it: whole, from front to back, so that it can be gone on with
/// anywhere.
#[derive(Default)]
pub(super) struct Listing(pub(super) Mutex<Arc<Vec<Listed>>>);

pub(super) struct Listed {
    pub(super) name: Box<[u8]>,
    pub(super) attr: vfs::Attr,
}

impl RemoteFile {
    /// What is asked for at a time, bytes: some 1,500 entries. More would come too late for who stops
    /// early.
    const AT_A_TIME: usize = 64 << 10;

    /// How many entries are looked up at a time.
    const LOOK_UPS: usize = 128;

    pub(super) fn list(
        &self,
        cx: &Cx<'_>,
        cookie: u64,
        plus: Plus,
        sink: &mut dyn DirSink,
    ) -> Result<()> {
        let mut offset = cookie;
        loop {
            let request = Tmessage::Readdir {
                fid: self.fid(),
                offset,
                count: self.opened.io().min(RemoteFile::AT_A_TIME) as u32,
            };
            let reply = self.wire().call(cx, &request)?;
            let listed = parse(&reply)?;
            let Some(last) = listed.last() else {
                return Ok(());
            };
            if last.offset == offset {
                // It would go on for ever.
                return Err(Errno::EIO);
            }
            offset = last.offset;
            for some in listed.chunks(RemoteFile::LOOK_UPS) {
                let found = match plus {
                    Plus::Names => Vec::new(),
                    Plus::Entries => self.look_up(cx, some)?,
                };
                let mut found = found.into_iter();
                for dirent in some {
                    let entry = found.next().flatten();
                    if !dirent.is_dot() && !sink.entry(told(dirent, entry)) {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// The nodes of entries, by requests that are all in flight at once; nothing for what has vanished.
    fn look_up(&self, cx: &Cx<'_>, listed: &[Dirent<'_>]) -> Result<Vec<Option<Entry>>> {
        let node = self.node.as_ref().ok_or(Errno::EIO)?;
        let (wire, dir) = (self.wire(), node.fid(cx)?);
        let mut walks = Vec::with_capacity(listed.len());
        for dirent in listed {
            walks.push(if dirent.is_dot() {
                None
            } else {
                Some(Walk::begin(wire, cx, dir.fid, &[dirent.name])?)
            });
        }
        let mut asked = Vec::with_capacity(listed.len());
        for walk in walks {
            let Some(walk) = walk else {
                asked.push(None);
                continue;
            };
            asked.push(match walk.end(cx) {
                Ok((held, _)) => {
                    let mask = client::attr::ASKED;
                    let fid = held.fid;
                    let ticket = wire.pipe.submit(&Tmessage::Getattr { fid, mask })?;
                    Some((held, ticket))
                }
                Err(errno) if passes(errno) => None,
                Err(errno) => return Err(errno),
            });
        }
        let mut found = Vec::with_capacity(listed.len());
        for (dirent, asked) in listed.iter().zip(asked) {
            let Some((held, ticket)) = asked else {
                found.push(None);
                continue;
            };
            found.push(match wire.pipe.wait_in(cx, ticket) {
                Ok(reply) => {
                    let attr = client::attr::of_getattr(&reply.message()?)?;
                    let name = Name::new(dirent.name)?;
                    Some(node.found(cx, Some(name), held, attr))
                }
                Err(errno) if passes(errno) => None,
                Err(errno) => return Err(errno),
            });
        }
        Ok(found)
    }
}

/// Errors that say of one entry only that it cannot be looked at (any more).
fn passes(errno: Errno) -> bool {
    matches!(errno, Errno::ENOENT | Errno::EACCES | Errno::ESTALE)
}

fn parse(reply: &Reply) -> Result<Vec<Dirent<'_>>> {
    entries(reply.data())
        .collect::<std::result::Result<Vec<_>, _>>()
        .map_err(|what| {
            tracing::error!("entries of a directory: {what}");
            Errno::EIO
        })
}

pub(super) fn told<'a>(dirent: &Dirent<'a>, entry: Option<Entry>) -> DirEntry<'a> {
    DirEntry {
        name: dirent.name,
        id: entry.as_ref().map_or(dirent.id, |entry| entry.attr.id),
        kind: entry.as_ref().map(|entry| entry.attr.kind).or(dirent.kind),
        cookie: dirent.offset,
        entry,
    }
}
