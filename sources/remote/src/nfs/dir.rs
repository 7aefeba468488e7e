//! Directory listing: cookies are the server's.

use ::nfs::client::ListedEntry;
use parking_lot::{Mutex, MutexGuard};
use vfs::{Cx, DirEntry, DirSink, Entry, Errno, Name, ReaddirMode, Result};

use super::node::NfsNode;
use super::version::{Found, List, ProtocolVersion};

/// The listings of an open directory.
#[derive(Default)]
pub(super) struct Listing {
    /// The cookie verifier of the last READDIR.
    verifier: Mutex<[u8; 8]>,
}

impl Listing {
    /// The most retries of a page that failed with `ENOENT`. READDIR has no such error (RFC 7530,
    /// section 13.2), but Ganesha returns it now and then when an entry vanishes meanwhile.
    const MAX_RETRIES: usize = 16;

    pub(super) fn list<V: ProtocolVersion>(
        &self,
        node: &NfsNode<V>,
        cx: &Cx<'_>,
        cookie: u64,
        plus: ReaddirMode,
        sink: &mut dyn DirSink,
    ) -> Result<()> {
        node.shared.recommit_after_reconnect(cx);
        let mut at = cookie;
        let mut again = 0;
        let plus = plus == ReaddirMode::Entries;
        loop {
            let list = List {
                handle: node.handle(),
                cookie: at,
                // A listing from the start has no verifier.
                verifier: if at == 0 { [0; 8] } else { *self.verifier() },
                plus,
            };
            // Looking up needs another call, which cannot be made while this one's reply is
            // decoded.
            let mut behind = Vec::new();
            let page = match node.shared.version.list(cx, &list, &mut |listed| {
                // Entries without handle or attributes, such as mount points, and all entries after
                // them.
                let lacks = plus && (listed.handle.is_none() || listed.attr.is_none());
                if lacks || !behind.is_empty() {
                    behind.push(DeferredLookup::of(&listed));
                    return Ok(true);
                }
                let entry = listed_entry(node, &listed);
                Ok(sink.entry(dir_entry(&listed, entry)))
            }) {
                Err(Errno::ENOENT) if again < Self::MAX_RETRIES => {
                    again += 1;
                    continue;
                }
                page => page?,
            };
            *self.verifier() = page.verifier;
            for listed in behind {
                let entry = find(node, cx, &listed)?;
                if !sink.entry(listed.dir_entry(entry)) {
                    return Ok(());
                }
            }
            if page.end {
                return Ok(());
            }
            if page.cookie == at {
                // The listing would never end.
                return Err(Errno::EIO);
            }
            at = page.cookie;
        }
    }

    fn verifier(&self) -> MutexGuard<'_, [u8; 8]> {
        self.verifier.lock()
    }
}

/// The node of an entry, if it came with handle and attributes.
fn listed_entry<V: ProtocolVersion>(dir: &NfsNode<V>, listed: &ListedEntry<'_>) -> Option<Entry> {
    let (handle, attr) = (listed.handle.as_ref()?, listed.attr?);
    let handle = handle[..].into();
    let found = Found { handle, attr };
    let name = Name::new(listed.name).ok()?;
    Some(dir.child_entry(name, found))
}

fn find<V: ProtocolVersion>(
    dir: &NfsNode<V>,
    cx: &Cx<'_>,
    listed: &DeferredLookup,
) -> Result<Option<Entry>> {
    let Ok(name) = Name::new(&listed.name) else {
        return Ok(None);
    };
    match dir.find(cx, name) {
        Ok(entry) => Ok(Some(entry)),
        // The entry has vanished, is inaccessible, or cannot be read.
        Err(Errno::ENOENT | Errno::EACCES | Errno::EIO | Errno::ESTALE) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// An entry to look up after its page has been decoded.
struct DeferredLookup {
    name: Box<[u8]>,
    id: vfs::NodeId,
    kind: Option<vfs::Kind>,
    cookie: u64,
}

impl DeferredLookup {
    fn of(listed: &ListedEntry<'_>) -> DeferredLookup {
        DeferredLookup {
            name: listed.name.into(),
            id: listed.id,
            kind: listed.kind,
            cookie: listed.cookie,
        }
    }

    fn dir_entry(&self, entry: Option<Entry>) -> DirEntry<'_> {
        DirEntry {
            name: &self.name,
            id: entry.as_ref().map_or(self.id, |entry| entry.attr.id),
            kind: entry.as_ref().map(|entry| entry.attr.kind).or(self.kind),
            cookie: self.cookie,
            entry,
        }
    }
}

fn dir_entry<'a>(listed: &ListedEntry<'a>, entry: Option<Entry>) -> DirEntry<'a> {
    let attr = listed.attr.as_ref();
    DirEntry {
        name: listed.name,
        id: attr.map_or(listed.id, |attr| attr.id),
        kind: attr.map(|attr| attr.kind).or(listed.kind),
        cookie: listed.cookie,
        entry,
    }
}
