//! Directory listing with Treaddir: the server's offsets are the cookies.

use std::sync::Arc;

use p9::Tmessage;
use p9::client::dir::{Dirent, entries};
use vfs::{Cx, DirEntry, DirSink, Entry, Errno, Name, ReaddirMode, Result};

use super::connection::Reply;
use super::fid::{Opened, Session, WalkGetattr};
use super::node::RemoteNode;

/// The bytes to request at a time: some 1,500 entries. More would delay callers that stop early.
const READDIR_SIZE: usize = 64 << 10;

/// The most entries to look up at a time.
const MAX_LOOKUPS: usize = 128;

/// Lists the open directory `opened`, whose node is `node`, from `cookie`.
pub(super) fn list(
    opened: &Opened,
    node: Option<&RemoteNode>,
    cx: &Cx<'_>,
    cookie: u64,
    plus: ReaddirMode,
    sink: &mut dyn DirSink,
) -> Result<()> {
    let session = &opened.held.session;
    let mut offset = cookie;
    loop {
        let request = Tmessage::Readdir {
            fid: opened.held.fid,
            offset,
            count: opened.max_io().min(READDIR_SIZE) as u32,
        };
        let reply = session.call(cx, &request)?;
        let listed = parse(&reply)?;
        let Some(last) = listed.last() else {
            return Ok(());
        };
        if last.offset == offset {
            // The listing would never end.
            return Err(Errno::EIO);
        }
        offset = last.offset;
        let mut rest = &listed[..];
        while !rest.is_empty() {
            let (some, found) = match plus {
                ReaddirMode::Names => (rest, Vec::new()),
                ReaddirMode::Entries => {
                    let some = &rest[..lookup_batch(rest, sink)];
                    (some, look_up(session, node, cx, some)?)
                }
            };
            rest = &rest[some.len()..];
            let mut found = found.into_iter();
            for dirent in some {
                let entry = found.next().flatten();
                if !dirent.is_dot() && !sink.entry(dir_entry(dirent, entry)) {
                    return Ok(());
                }
            }
        }
    }
}

/// Looks up entries with all requests in flight at once. Vanished entries are `None`.
fn look_up(
    wire: &Arc<Session>,
    node: Option<&RemoteNode>,
    cx: &Cx<'_>,
    listed: &[Dirent<'_>],
) -> Result<Vec<Option<Entry>>> {
    let node = node.ok_or(Errno::EIO)?;
    let dir = node.fid(cx)?;
    let mut failed = Ok(());
    let mut is_full = false;
    let finds: Vec<_> = map_entries(listed, &mut failed, |dirent| {
        Ok((!dirent.is_dot()).then(|| WalkGetattr::begin(wire, cx, dir.fid, &[dirent.name])))
    });
    // Waits for every walk that has begun, even after an error, to learn its fid.
    let found: Vec<_> = map_entries(finds, &mut failed, |find| match find {
        Some(find) => {
            let found = find?.walked(cx);
            is_full |= matches!(found, Err(Errno::EMFILE | Errno::ENFILE));
            found.map(Some)
        }
        None => Ok(None),
    });
    let mut found = found.into_iter();
    let found = map_entries(listed, &mut failed, |dirent| {
        let Some(found) = found.next().flatten() else {
            return Ok(None);
        };
        let (held, attr) = found.end(cx)?;
        let name = Name::new(dirent.name)?;
        Ok(Some(node.listed_entry(cx, name, held, attr)))
    });
    if is_full {
        // Entries that were not looked up are left to the caller.
        wire.held_fids.give_up_half();
    }
    failed.map(|()| found)
}

/// The number of `listed` to look up at once: an estimate of how many the sink has room for.
fn lookup_batch(listed: &[Dirent<'_>], sink: &dyn DirSink) -> usize {
    let bytes: usize = listed.iter().map(|dirent| dirent.name.len()).sum();
    let capacity = sink.room(bytes / listed.len());
    capacity.clamp(1, MAX_LOOKUPS.min(listed.len()))
}

/// Maps each item with `step`, to `None` where a single entry is inaccessible. Stores the first
/// other error in `failed`.
fn map_entries<T, U>(
    all: impl IntoIterator<Item = T>,
    failed: &mut Result<()>,
    mut step: impl FnMut(T) -> Result<Option<U>>,
) -> Vec<Option<U>> {
    let step = |one| match step(one) {
        Ok(done) => done,
        Err(errno) => {
            if failed.is_ok() && !is_entry_error(errno) {
                *failed = Err(errno);
            }
            None
        }
    };
    all.into_iter().map(step).collect()
}

/// Returns whether the error concerns a single entry, which has vanished, is inaccessible, cannot
/// be read, or for which the server has no fid.
fn is_entry_error(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::ENOENT | Errno::EACCES | Errno::EIO | Errno::ESTALE | Errno::EMFILE | Errno::ENFILE
    )
}

fn parse(reply: &Reply) -> Result<Vec<Dirent<'_>>> {
    entries(reply.data())
        .collect::<std::result::Result<Vec<_>, _>>()
        .map_err(|what| {
            tracing::error!("malformed directory entries: {what}");
            Errno::EIO
        })
}

fn dir_entry<'a>(dirent: &Dirent<'a>, entry: Option<Entry>) -> DirEntry<'a> {
    DirEntry {
        name: dirent.name,
        id: entry.as_ref().map_or(dirent.id, |entry| entry.attr.id),
        kind: entry.as_ref().map(|entry| entry.attr.kind).or(dirent.kind),
        cookie: dirent.offset,
        entry,
    }
}
