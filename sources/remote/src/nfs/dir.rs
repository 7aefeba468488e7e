//! Directory listing: cookies are the server's.

use ::nfs::client::{DirPage, ListedEntry};
use vfs::{Cx, DirEntry, DirSink, Entry, Errno, Name, ReaddirMode, Result};

use super::file::NfsFile;
use super::node::NfsNode;
use super::version::{Found, List, PageEnd, ProtocolVersion};

impl<V: ProtocolVersion> NfsFile<V> {
    /// The most retries of a page that failed with `ENOENT`. READDIR has no such error (RFC 7530,
    /// section 13.2), but Ganesha returns it now and then when an entry vanishes meanwhile.
    const MAX_RETRIES: usize = 16;

    pub(super) fn list(
        &self,
        cx: &Cx<'_>,
        cookie: u64,
        plus: ReaddirMode,
        sink: &mut dyn DirSink,
    ) -> Result<()> {
        self.node.shared.recommit_after_reconnect(cx);
        let mut at = cookie;
        let mut again = 0;
        let plus = plus == ReaddirMode::Entries;
        loop {
            let list = List {
                handle: self.node.handle(),
                cookie: at,
                // A listing from the start has no verifier.
                verifier: if at == 0 { [0; 8] } else { *self.verifier() },
                plus,
            };
            // Looking up needs another call, which cannot be made while this one's reply is
            // decoded.
            let mut behind = Vec::new();
            let page = match self.node.shared.version.list(cx, &list, &mut |listed| {
                // Entries without handle or attributes, such as mount points, and all entries after
                // them.
                let lacks = plus && (listed.handle.is_none() || listed.attr.is_none());
                if lacks || !behind.is_empty() {
                    behind.push(DeferredLookup::of(&listed));
                    return Ok(true);
                }
                let entry = self.entry(&listed);
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
                let entry = self.find(cx, &listed)?;
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

    /// The node of an entry, if it came with handle and attributes.
    fn entry(&self, listed: &ListedEntry<'_>) -> Option<Entry> {
        let (handle, attr) = (listed.handle.as_ref()?, listed.attr?);
        let handle = handle[..].into();
        let found = Found { handle, attr };
        Some(NfsNode::child_entry(&self.node, listed.name, found))
    }

    fn find(&self, cx: &Cx<'_>, listed: &DeferredLookup) -> Result<Option<Entry>> {
        let Ok(name) = Name::new(&listed.name) else {
            return Ok(None);
        };
        match vfs::Node::lookup(&*self.node, cx, name) {
            Ok(entry) => Ok(Some(entry)),
            // The entry has vanished or is inaccessible.
            Err(Errno::ENOENT | Errno::EACCES | Errno::ESTALE) => Ok(None),
            Err(errno) => Err(errno),
        }
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

/// Passes the entries of a page to `each`, except `.` and `..`.
pub(super) fn pass_entries(
    page: DirPage<'_>,
    list: &List<'_>,
    each: &mut dyn FnMut(ListedEntry<'_>) -> Result<bool>,
) -> Result<PageEnd> {
    let mut paged = PageEnd {
        verifier: page.verifier,
        cookie: list.cookie,
        end: page.eof,
    };
    for listed in page.entries {
        paged.cookie = listed.cookie;
        // Skips invalid names that the server may send.
        if Name::new(listed.name).is_ok() && !each(listed)? {
            paged.end = true;
            return Ok(paged);
        }
    }
    Ok(paged)
}
