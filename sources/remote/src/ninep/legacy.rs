//! Requests that differ in 9P2000 and 9P2000.u: Topen, Tcreate, Tstat, Twstat, directories read as
//! files.
//!
//! Operations that these dialects lack return `EOPNOTSUPP`; the indispensable statfs returns
//! made-up values, as in Linux's client.

use std::sync::Arc;
use std::time::SystemTime;

use p9::client::{dir, request};
use p9::message::DATA_HEAD;
use p9::numbers::{Dm, V9FS_MAGIC};
use p9::{Dialect, Extension, Fid, Rmessage, Stat, Tmessage};
use parking_lot::Mutex;
use vfs::{
    Attr, Cx, DirEntry, DirSink, Entry, Errno, Kind, Mode, Name, NewNode, OpenFlags, ReaddirMode,
    Result, SetAttr, StatFs,
};
use wire::Reader;

use super::fid::{Opened, Session};
use super::node::RemoteNode;

/// Opens a clone of `fid`.
pub(super) fn open_fid(
    wire: &Arc<Session>,
    cx: &Cx<'_>,
    fid: Fid,
    flags: OpenFlags,
) -> Result<Opened> {
    let (held, _) = wire.walk(cx, fid, &[])?;
    let open = Tmessage::Open {
        fid: held.fid,
        mode: request::omode(flags, wire.dialect()),
    };
    match wire.call(cx, &open)?.message()? {
        Rmessage::Open { iounit, .. } => Ok(Opened::new(held.opened(), iounit)),
        _ => Err(Errno::EIO),
    }
}

pub(super) fn make(
    dir: &RemoteNode,
    cx: &Cx<'_>,
    name: Name<'_>,
    what: NewNode<'_>,
    mode: Mode,
) -> Result<Entry> {
    let dialect = dir.session().dialect();
    let (kind, extension) = request::create(what, dialect)?;
    let perm = request::perm(kind, mode.bits & !mode.umask, dialect);
    create(dir, cx, name, perm, 0, &extension)?;
    dir.find(cx, name)
}

/// Creates `name` in `dir` with Tcreate, which opens it.
pub(super) fn create(
    dir: &RemoteNode,
    cx: &Cx<'_>,
    name: Name<'_>,
    perm: Dm,
    mode: u8,
    extension: &[u8],
) -> Result<Opened> {
    let held = dir.fid(cx)?;
    let (held, _) = dir.session().walk(cx, held.fid, &[])?;
    let request = Tmessage::Create {
        fid: held.fid,
        name: name.bytes(),
        perm: perm.bits(),
        mode,
        extension: Extension(extension),
    };
    match dir.session().call(cx, &request)?.message()? {
        Rmessage::Create { iounit, .. } => Ok(Opened::new(held.opened(), iounit)),
        _ => Err(Errno::EIO),
    }
}

/// Links as 9P2000.u does, by creating a name with the number of the target's fid.
pub(super) fn link(
    wire: &Arc<Session>,
    cx: &Cx<'_>,
    dir: Fid,
    target: Fid,
    name: Name<'_>,
) -> Result<()> {
    if wire.dialect() != Dialect::Unix {
        return Err(Errno::EOPNOTSUPP);
    }
    let (held, _) = wire.walk(cx, dir, &[])?;
    let target = target.0.to_string();
    let request = Tmessage::Create {
        fid: held.fid,
        name: name.bytes(),
        perm: Dm::LINK.bits(),
        mode: 0,
        extension: Extension(target.as_bytes()),
    };
    wire.call(cx, &request).map(drop)
}

pub(super) fn rename(
    wire: &Arc<Session>,
    cx: &Cx<'_>,
    dir: Fid,
    name: Name<'_>,
    to_name: Name<'_>,
) -> Result<()> {
    let (held, _) = wire.walk(cx, dir, &[name.bytes()])?;
    let stat = Stat {
        name: to_name.bytes(),
        ..Stat::UNTOUCHED
    };
    let fid = held.fid;
    wire.call(cx, &Tmessage::Wstat { fid, stat }).map(drop)
}

pub(super) fn setattr(
    wire: &Arc<Session>,
    cx: &Cx<'_>,
    fid: Fid,
    kind: Kind,
    set: &SetAttr,
) -> Result<()> {
    if wire.dialect() == Dialect::Plan9 && (set.uid.is_some() || set.gid.is_some()) {
        // 9P2000 has owners by name only, and the names are unknown here.
        return Err(Errno::EOPNOTSUPP);
    }
    match set.size {
        // All ones mean no change, and servers ignore a directory's length as well.
        Some(size) if i64::try_from(size).is_err() => return Err(Errno::EFBIG),
        Some(_) if kind == Kind::Directory => return Err(Errno::EISDIR),
        Some(_) if kind != Kind::File => return Err(Errno::EINVAL),
        _ => {}
    }
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    let now = now.as_secs().min(u64::from(u32::MAX - 1)) as u32;
    let stat = request::wstat(set, kind, wire.dialect(), now);
    wire.call(cx, &Tmessage::Wstat { fid, stat }).map(drop)
}

pub(super) fn readlink(wire: &Arc<Session>, cx: &Cx<'_>, fid: Fid) -> Result<Vec<u8>> {
    match wire.call(cx, &Tmessage::Stat { fid })?.message()? {
        Rmessage::Stat { stat } => Ok(stat.unix.extension.to_vec()),
        _ => Err(Errno::EIO),
    }
}

/// Returns the values that Linux's client makes up (`simple_statfs`).
pub(super) fn statfs() -> StatFs {
    StatFs {
        magic: V9FS_MAGIC,
        bsize: 4096,
        namelen: Name::MAX as u32,
        ..StatFs::default()
    }
}

/// The whole directory as listed over 9P2000 and 9P2000.u, whose offsets allow reading only from
/// the start. It lets a listing resume at any entry.
#[derive(Default)]
pub(super) struct Listing(Mutex<Arc<Vec<ListedEntry>>>);

struct ListedEntry {
    name: Box<[u8]>,
    attr: Attr,
}

impl Listing {
    /// Lists from `cookie`, the number of entries to skip of the most recent listing from the
    /// start.
    pub(super) fn list(
        &self,
        opened: &Opened,
        node: Option<&RemoteNode>,
        cx: &Cx<'_>,
        cookie: u64,
        plus: ReaddirMode,
        sink: &mut dyn DirSink,
    ) -> Result<()> {
        if cookie == 0 {
            let whole = Arc::new(read_whole(opened, cx)?);
            *self.0.lock() = whole;
        }
        let listed = self.0.lock().clone();
        let behind = usize::try_from(cookie).unwrap_or(usize::MAX);
        for (at, entry) in listed.iter().enumerate().skip(behind) {
            let found = match (plus, node) {
                (ReaddirMode::Entries, Some(node)) => {
                    match node.find(cx, Name::new(&entry.name)?) {
                        Ok(found) => Some(found),
                        Err(Errno::ENOENT | Errno::EACCES) => None,
                        Err(errno) => return Err(errno),
                    }
                }
                _ => None,
            };
            let dirent = DirEntry {
                name: &entry.name,
                id: entry.attr.id,
                kind: Some(entry.attr.kind),
                cookie: at as u64 + 1,
                entry: found,
            };
            if !sink.entry(dirent) {
                break;
            }
        }
        Ok(())
    }
}

fn read_whole(opened: &Opened, cx: &Cx<'_>) -> Result<Vec<ListedEntry>> {
    /// The longest directory to list, in bytes.
    const MOST: u64 = 256 << 20;
    let wire = &opened.held.session;
    let dialect = wire.dialect();
    let mut listed = Vec::new();
    let mut offset = 0;
    loop {
        let request = Tmessage::Read {
            fid: opened.held.fid,
            offset,
            count: opened.max_io().min((64 << 10) - DATA_HEAD) as u32,
        };
        let reply = wire.call(cx, &request)?;
        if reply.data().is_empty() {
            return Ok(listed);
        }
        offset += reply.data().len() as u64;
        if offset > MOST {
            return Err(Errno::EOVERFLOW);
        }
        let mut from = Reader::new(reply.data());
        while let Some(stat) = dir::record(&mut from, dialect).map_err(|what| {
            tracing::error!("malformed directory entries: {what}");
            Errno::EIO
        })? {
            if !matches!(stat.name, b"." | b"..") {
                listed.push(ListedEntry {
                    name: stat.name.into(),
                    attr: p9::client::attr::of_stat(&stat, dialect),
                });
            }
        }
    }
}
