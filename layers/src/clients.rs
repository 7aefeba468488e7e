//! Lets in who is listed, each as the list says: what a line of exports(5) does.
//!
//! Whoever comes over a connection ([`vfs::Call::peer`]) is a client, and the first entry that he matches counts: an
//! address before a network, a longer prefix before a shorter one, everybody last. Who matches none gets `EACCES` for
//! everything, also by a handle or a file that somebody else was given. Which entry that is is found once for each
//! connection. What this program does of its own, and a guest by its queues, has no connection and is let through.
//!
//! `secure`, the default as in exports(5), asks clients of other hosts for a port below 1024,
//! whatever they speak. It does not count for processes of this host, whose users the kernel names,
//! nor for guests.
//!
//! What it lacks on purpose: host names and netgroups, which somebody else can make up.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use vfs::peer::Refusal;
use vfs::{Caller, Capabilities, Cx, Errno, Node, Origin, Peer, Result, SetAttr};

use crate::squash::Whom;
use crate::{Layer, Opened, ReadOnly, Squash, Through, forward};

mod parse;
mod pattern;

pub use self::parse::BadList;
pub use self::pattern::Pattern;

/// Which clients are let in, and as what. From text as in exports(5): `10.0.0.0/8(rw,no_root_squash) *(ro)`.
#[derive(Debug)]
pub struct Clients {
    /// What counts first stands first.
    entries: Vec<Entry>,
    /// Under which [`vfs::Peer::choice`] is kept.
    matter: usize,
}

/// Some clients, and as what they are let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Which.
    pub pattern: Pattern,
    /// Whether they can change nothing.
    pub read_only: bool,
    /// Who of them becomes anonymous.
    pub squash: Squash,
    /// Whether clients of other hosts have to come from ports below 1024, which only the super-user
    /// of their host can bind.
    pub secure: bool,
}

impl Entry {
    /// The defaults of exports(5): `ro,root_squash,secure`.
    fn new(pattern: Pattern) -> Entry {
        Entry {
            pattern,
            read_only: true,
            squash: Squash::new(Whom::Root),
            secure: true,
        }
    }
}

/// The first port that every user may bind (`IPPORT_RESERVED`).
const RESERVED: u16 = 1024;

impl Clients {
    /// The most entries of a list.
    pub const MOST: usize = 250;

    fn new(mut entries: Vec<Entry>) -> Clients {
        static LISTS: AtomicUsize = AtomicUsize::new(0);
        entries.sort_by_key(|entry| entry.pattern);
        Clients {
            entries,
            matter: LISTS.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// The entries, in the order that they count.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// As what a client at `addr` is let in; nothing if he is not.
    pub fn entry(&self, addr: Option<IpAddr>) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.pattern.has(addr))
    }

    /// The entry of the client whose call it is, if a client's it is.
    fn of(&self, cx: &Cx<'_>) -> Result<Option<&Entry>> {
        let Some(peer) = cx.call.peer() else {
            return Ok(None);
        };
        let at = peer.choice(self.matter, || match self.admit(peer) {
            Ok(at) => at as u8,
            Err(why) => {
                if peer.refuse(why) {
                    report(peer, why);
                }
                Clients::MOST as u8
            }
        });
        self.entries
            .get(usize::from(at))
            .map(Some)
            .ok_or(Errno::EACCES)
    }

    /// The number of the entry that lets `peer` in.
    fn admit(&self, peer: &Peer) -> std::result::Result<usize, Refusal> {
        let mut patterns = self.entries.iter().map(|entry| entry.pattern);
        let at = patterns.position(|pattern| pattern.has(peer.addr()));
        let at = at.ok_or(Refusal::Unlisted)?;
        match peer.origin() {
            Origin::Remote { port, .. }
                if self.entries[at].secure && !(1..RESERVED).contains(port) =>
            {
                Err(Refusal::InsecurePort)
            }
            _ => Ok(at),
        }
    }

    /// What becomes of a client's request, and on whose behalf.
    pub(crate) fn choose<'a>(&self, cx: &Cx<'a>) -> Result<(&'static dyn Layer, Cow<'a, Caller>)> {
        Ok(match self.of(cx)? {
            None => (&Through, Cow::Borrowed(cx.caller)),
            Some(entry) => {
                let layer: &dyn Layer = if entry.read_only { &ReadOnly } else { &Through };
                (layer, entry.squash.caller(cx))
            }
        })
    }

    /// The owners that a client's request asks for.
    pub(crate) fn request(&self, cx: &Cx<'_>, set: &SetAttr) -> Result<SetAttr> {
        let entry = self.of(cx)?;
        Ok(entry.map_or(*set, |entry| entry.squash.request(set)))
    }
}

/// Tells the log of a client that is refused for this reason for the first time.
fn report(peer: &Peer, why: Refusal) {
    let addr = peer.addr().map(|addr| addr.to_string());
    let peer = addr.unwrap_or_else(|| peer.key().to_string());
    match why {
        Refusal::InsecurePort => tracing::info!(
            peer,
            "a client is refused: expected a port below 1024, or insecure in the list of --export"
        ),
        Refusal::Unlisted => tracing::debug!(peer, "a client is refused: no list names it"),
    }
}

impl Layer for Clients {
    fn capabilities(&self, inner: Capabilities) -> Capabilities {
        Capabilities {
            read_only: inner.read_only || self.entries.iter().all(|entry| entry.read_only),
            ..inner
        }
    }

    fn setattr(&self, inner: &dyn Node, cx: &Cx<'_>, set: &SetAttr) -> Result<vfs::Attr> {
        let (layer, who) = self.choose(cx)?;
        layer.setattr(inner, &cx.on_behalf_of(&who), &self.request(cx, set)?)
    }

    fn file_setattr(&self, inner: Opened<'_>, cx: &Cx<'_>, set: &SetAttr) -> Result<vfs::Attr> {
        let (layer, who) = self.choose(cx)?;
        layer.file_setattr(inner, &cx.on_behalf_of(&who), &self.request(cx, set)?)
    }

    forward! { id above }

    forward! { to choose:
        root resolve sync
        handle attr access statfs open readlink lookup parent create make tmpfile link
        unlink rename xattr xattrs set_xattr remove_xattr host_lock host_lock_holder
        file_attr read write readdir fsync flush allocate seek extents copy lease
    }
}
