//! Directory listings: the upper entries, and the lower ones that are not hidden.

use std::collections::HashSet;
use std::sync::Arc;

use vfs::{
    AttrMask, Cx, DirEntry, DirSink, Entry, Errno, Name, Node, OpenFlags, ReaddirMode, Result,
};

use super::listing_cache::Listing;
use super::node::{OverlayNode, State};
use super::tree::as_process;
use super::xattrs::is_whiteout;

impl OverlayNode {
    /// Implements [`vfs::File::readdir`].
    pub(super) fn list(
        &self,
        cx: &Cx<'_>,
        cookie: u64,
        plus: ReaddirMode,
        sink: &mut dyn DirSink,
    ) -> Result<()> {
        // A partial listing would leave a trace.
        cx.check_may_block()?;
        let _names = self.tree.names_shared(cx)?;
        self.list_locked(cx, cookie, plus, sink)
    }

    /// Lists the directory; the caller holds the names.
    pub(super) fn list_locked(
        &self,
        cx: &Cx<'_>,
        cookie: u64,
        plus: ReaddirMode,
        sink: &mut dyn DirSink,
    ) -> Result<()> {
        let listing = self.listing(&as_process(cx))?;
        let first = listing.entries.partition_point(|(at, _)| *at <= cookie);
        let this = self.this();
        for (at, item) in &listing.entries[first..] {
            let entry = match plus {
                ReaddirMode::Names => None,
                ReaddirMode::Entries => match this.find(&as_process(cx), Name::new(&item.name)?) {
                    Ok(found) => Some(found.entry()),
                    Err(errno) if errno.is_signal() => return Err(errno),
                    Err(_) => None,
                },
            };
            let accepted = sink.entry(DirEntry {
                name: &item.name,
                id: item.id,
                kind: Some(item.kind),
                cookie: *at,
                entry,
            });
            if !accepted {
                break;
            }
        }
        Ok(())
    }

    fn listing(&self, cx: &Cx<'_>) -> Result<Arc<Listing>> {
        let epoch = self.epoch();
        let change = self.real()?.attr(cx, AttrMask::TIMES)?.change;
        let key = (self.id, epoch, change);
        let listings = &self.tree.listings;
        match listings.get(key) {
            Some(listing) => Ok(listing),
            None => Ok(listings.insert(key, self.read_merged(cx)?, cx.call.account())),
        }
    }

    fn read_merged(&self, cx: &Cx<'_>) -> Result<Listing> {
        let State { upper, lower, .. } = self.state();
        let mut hidden = HashSet::new();
        let mut items = Vec::new();
        if let Some(upper) = &upper {
            for (name, entry) in entries(&**upper, cx)? {
                if !is_whiteout(&entry.attr) {
                    // The number that a look-up returns, for it may have been a lower file.
                    let this = self.this();
                    let found = this.found_upper(cx, entry, Name::new(&name)?)?;
                    items.push((name.clone(), found.node.id, found.node.kind));
                }
                hidden.insert(name);
            }
        }
        if let Some(lower) = &lower {
            for (name, entry) in entries(&**lower, cx)? {
                if !hidden.contains(&name) {
                    let id = self.lower_id(&entry.attr, Name::new(&name)?);
                    items.push((name, id, entry.node.kind()));
                }
            }
        }
        Ok(Listing::new(items))
    }
}

/// Returns all entries of a directory of either tree.
fn entries(dir: &dyn Node, cx: &Cx<'_>) -> Result<Vec<(Box<[u8]>, Entry)>> {
    let mut all: Vec<(Box<[u8]>, Option<Entry>)> = Vec::new();
    let mut take = |entry: DirEntry<'_>| {
        all.push((entry.name.into(), entry.entry));
        true
    };
    let listing = dir.open(cx, OpenFlags::READ)?;
    listing.readdir(cx, 0, ReaddirMode::Entries, &mut take)?;
    let looked = |(name, entry): (Box<[u8]>, Option<Entry>)| match entry {
        Some(entry) => Some(Ok((name, entry))),
        None => match Name::new(&name).and_then(|name| dir.lookup(cx, name)) {
            Ok(entry) => Some(Ok((name, entry))),
            Err(Errno::ENOENT) => None,
            Err(errno) => Some(Err(errno)),
        },
    };
    all.into_iter().filter_map(looked).collect()
}
