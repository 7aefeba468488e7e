//! Listings: what is above, and what is below and not hidden. Names stand in the order of a hash of theirs, which is their cookie: so a listing
//! goes on where it was, whatever was copied, made and removed since.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex};

use vfs::{
    Cx, DirEntry, DirSink, Entry, Errno, Kind, Name, Node, NodeId, OpenFlags, Plus, Result, Want,
    sip,
};

use super::marks::is_whiteout;
use super::node::{OverlayNode, State};
use super::ours;

/// The entries of a directory, by their cookies.
struct Listing(Vec<(u64, Item)>);

struct Item {
    name: Box<[u8]>,
    id: NodeId,
    kind: Kind,
}

/// Those that were asked for last: a client reads one in pieces, and several are read at once.
#[derive(Default)]
pub(super) struct Listings(Mutex<VecDeque<(Key, Arc<Listing>)>>);

/// How many are kept.
const KEPT: usize = 16;

/// A directory as it was: its number, how often it was changed here, and what the host says of it.
type Key = (NodeId, u64, u64);

impl OverlayNode {
    /// [`vfs::File::readdir`].
    pub(super) fn list(
        &self,
        cx: &Cx<'_>,
        cookie: u64,
        plus: Plus,
        sink: &mut dyn DirSink,
    ) -> Result<()> {
        // Half a listing would have left a trace.
        cx.may_wait()?;
        let _names = self.tree.reading(cx)?;
        self.list_held(cx, cookie, plus, sink)
    }

    /// The same, the names being held.
    pub(super) fn list_held(
        &self,
        cx: &Cx<'_>,
        cookie: u64,
        plus: Plus,
        sink: &mut dyn DirSink,
    ) -> Result<()> {
        let listing = self.listing(&ours(cx))?;
        let first = listing.0.partition_point(|(at, _)| *at <= cookie);
        let this = self.this();
        for (at, item) in &listing.0[first..] {
            let entry = match plus {
                Plus::Names => None,
                Plus::Entries => match this.find(&ours(cx), Name::new(&item.name)?) {
                    Ok(found) => Some(found.entry()),
                    Err(errno) if errno.is_signal() => return Err(errno),
                    Err(_) => None,
                },
            };
            let told = sink.entry(DirEntry {
                name: &item.name,
                id: item.id,
                kind: Some(item.kind),
                cookie: *at,
                entry,
            });
            if !told {
                break;
            }
        }
        Ok(())
    }

    fn listing(&self, cx: &Cx<'_>) -> Result<Arc<Listing>> {
        let epoch = self.epoch();
        let change = self.real()?.attr(cx, Want::TIMES)?.change;
        let key = (self.id, epoch, change);
        let listings = &self.tree.listings;
        let kept = |listings: &VecDeque<(Key, Arc<Listing>)>| {
            let found = listings.iter().find(|(of, _)| *of == key);
            found.map(|(_, listing)| listing.clone())
        };
        if let Some(listing) = kept(&listings.0.lock().expect("no panic holds it")) {
            return Ok(listing);
        }
        let listing = Arc::new(self.gather(cx)?);
        let mut listings = listings.0.lock().expect("no panic holds it");
        listings.retain(|((id, ..), _)| *id != self.id);
        listings.truncate(KEPT - 1);
        listings.push_front((key, listing.clone()));
        Ok(listing)
    }

    fn gather(&self, cx: &Cx<'_>) -> Result<Listing> {
        let State { upper, lower, .. } = self.state();
        let mut hidden = HashSet::new();
        let mut items = Vec::new();
        if let Some(upper) = &upper {
            for (name, entry) in entries(&**upper, cx)? {
                if !is_whiteout(&entry.attr) {
                    // Its number is what a look-up finds, for it may have been a file below.
                    let this = self.this();
                    let found = this.found_above(cx, entry, Name::new(&name)?)?;
                    items.push((name.clone(), found.node.id, found.node.kind));
                }
                hidden.insert(name);
            }
        }
        if let Some(lower) = &lower {
            for (name, entry) in entries(&**lower, cx)? {
                if !hidden.contains(&name) {
                    let id = self.id_below(&entry.attr, Name::new(&name)?);
                    items.push((name, id, entry.node.kind()));
                }
            }
        }
        Ok(Listing::new(items))
    }
}

impl Listing {
    fn new(items: Vec<(Box<[u8]>, NodeId, Kind)>) -> Listing {
        /// Far from where protocols have cookies of their own, and from the sign.
        const MASK: u64 = (1 << 61) - 1;
        let mut cookies: HashMap<u64, u64> = HashMap::new();
        let mut listed: Vec<_> = items
            .into_iter()
            .map(|(name, id, kind)| {
                let cookie = sip::hash(&[0; 16], &name) & MASK;
                (cookie, Item { name, id, kind })
            })
            .collect();
        listed.sort_unstable_by(|(a, one), (b, other)| (a, &one.name).cmp(&(b, &other.name)));
        for (cookie, _) in &mut listed {
            // Two names of one hash, of which there are hardly any; and none is 0.
            let again = cookies.entry(*cookie).or_default();
            *again += 1;
            *cookie += *again;
        }
        listed.sort_by_key(|(cookie, _)| *cookie);
        Listing(listed)
    }
}

/// All entries of a directory of either tree.
fn entries(dir: &dyn Node, cx: &Cx<'_>) -> Result<Vec<(Box<[u8]>, Entry)>> {
    struct All(Vec<(Box<[u8]>, Option<Entry>)>);
    impl DirSink for All {
        fn entry(&mut self, entry: DirEntry<'_>) -> bool {
            self.0.push((entry.name.into(), entry.entry));
            true
        }
    }
    let mut all = All(Vec::new());
    let listing = dir.open(cx, OpenFlags::READ)?;
    listing.readdir(cx, 0, Plus::Entries, &mut all)?;
    let looked = |(name, entry): (Box<[u8]>, Option<Entry>)| match entry {
        Some(entry) => Some(Ok((name, entry))),
        None => match Name::new(&name).and_then(|name| dir.lookup(cx, name)) {
            Ok(entry) => Some(Ok((name, entry))),
            Err(Errno::ENOENT) => None,
            Err(errno) => Some(Err(errno)),
        },
    };
    all.0.into_iter().filter_map(looked).collect()
}
