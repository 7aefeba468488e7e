//! Access control by client address, as a line of exports(5) does.
//!
//! The remote end of a connection ([`vfs::Call::peer`]) is a client, and its first matching entry
//! applies: addresses come before networks, longer prefixes before shorter ones, `*` last. A client
//! that matches no entry gets `EACCES` for everything, also for handles and files that another
//! client opened. The entry is looked up once per connection. Calls without a connection, made by
//! this program itself or by a guest over its queues, are let through.
//!
//! `secure`, the default as in exports(5), requires clients of other hosts to use a port below
//! 1024, over every protocol. It does not apply to processes of this host, whose users the kernel
//! names, nor to guests.
//!
//! Deliberately absent: host names and netgroups, which can be forged.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use vfs::peer::Refusal;
use vfs::{Caller, Capabilities, Cx, Errno, Location, Node, Origin, Peer, Result, SetAttr};

use crate::squash::SquashMode;
use crate::{Layer, Noop, Opened, ReadOnly, Squash, forward};

mod parse;
mod pattern;

pub use self::parse::BadList;
pub use self::pattern::Pattern;

/// A list of admitted clients, and the options of each. Parsed from text as in exports(5):
/// `10.0.0.0/8(rw,no_root_squash) *(ro)`.
#[derive(Debug)]
pub struct Clients {
    /// Sorted by precedence, highest first.
    entries: Vec<Entry>,
    /// The key of this list's choice in [`vfs::Peer::choice`].
    choice_key: usize,
}

/// Some clients, and the options that apply to them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The clients that it matches.
    pub pattern: Pattern,
    /// Whether they are denied all changes.
    pub read_only: bool,
    /// The users among them who become anonymous.
    pub squash: Squash,
    /// Whether clients of other hosts must use ports below 1024, which only the super-user of their
    /// host can bind.
    pub secure: bool,
    /// Where other servers have the same file system.
    pub replicas: Vec<Location>,
}

impl Entry {
    /// Creates an entry with the defaults of exports(5): `ro,root_squash,secure`.
    fn new(pattern: Pattern) -> Entry {
        Entry {
            pattern,
            read_only: true,
            squash: Squash::new(SquashMode::Root),
            secure: true,
            replicas: Vec::new(),
        }
    }
}

/// The first port that every user may bind (`IPPORT_RESERVED`).
const IPPORT_RESERVED: u16 = 1024;

impl Clients {
    /// The maximum number of entries in a list.
    pub const MAX_ENTRIES: usize = 250;

    fn new(mut entries: Vec<Entry>) -> Clients {
        static LISTS: AtomicUsize = AtomicUsize::new(0);
        entries.sort_by_key(|entry| entry.pattern);
        Clients {
            entries,
            choice_key: LISTS.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// Returns the entries in order of precedence.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Returns the entry that applies to a client at `addr`, `None` if none matches.
    pub fn entry(&self, addr: Option<IpAddr>) -> Option<&Entry> {
        self.entries
            .iter()
            .find(|entry| entry.pattern.matches(addr))
    }

    /// Returns the entry of the calling client, `None` if the call has no connection. Returns
    /// `EACCES` if the client is refused.
    fn entry_of(&self, cx: &Cx<'_>) -> Result<Option<&Entry>> {
        let Some(peer) = cx.call.peer() else {
            return Ok(None);
        };
        let at = peer.choice(self.choice_key, || match self.admit(peer) {
            Ok(at) => at as u8,
            Err(why) => {
                if peer.refuse(why) {
                    log_refusal(peer, why);
                }
                Clients::MAX_ENTRIES as u8
            }
        });
        self.entries
            .get(usize::from(at))
            .map(Some)
            .ok_or(Errno::EACCES)
    }

    /// Returns the index of the entry that admits `peer`.
    fn admit(&self, peer: &Peer) -> std::result::Result<usize, Refusal> {
        let mut patterns = self.entries.iter().map(|entry| entry.pattern);
        let at = patterns.position(|pattern| pattern.matches(peer.addr()));
        let at = at.ok_or(Refusal::Unlisted)?;
        match peer.origin() {
            Origin::Remote { port, .. }
                if self.entries[at].secure && !(1..IPPORT_RESERVED).contains(port) =>
            {
                Err(Refusal::InsecurePort)
            }
            _ => Ok(at),
        }
    }

    /// Returns the layer that serves a client's request, and the caller to act as.
    pub(crate) fn choose<'a>(&self, cx: &Cx<'a>) -> Result<(&'static dyn Layer, Cow<'a, Caller>)> {
        Ok(match self.entry_of(cx)? {
            None => (&Noop, Cow::Borrowed(cx.caller)),
            Some(entry) => {
                let layer: &dyn Layer = if entry.read_only { &ReadOnly } else { &Noop };
                (layer, entry.squash.caller(cx))
            }
        })
    }

    /// Maps the owners in a client's request.
    pub(crate) fn request(&self, cx: &Cx<'_>, set: &SetAttr) -> Result<SetAttr> {
        let entry = self.entry_of(cx)?;
        Ok(entry.map_or(*set, |entry| entry.squash.request(set)))
    }
}

/// Logs the first refusal of a client for this reason.
fn log_refusal(peer: &Peer, why: Refusal) {
    let addr = peer.addr().map(|addr| addr.to_string());
    let peer = addr.unwrap_or_else(|| peer.key().to_string());
    match why {
        Refusal::InsecurePort => tracing::info!(
            peer,
            "client denied: expected a port below 1024, or the option insecure in its export list"
        ),
        Refusal::Unlisted => tracing::debug!(peer, "client denied: not in the export list"),
        // Of credentials, which this layer does not see.
        Refusal::WeakAuth | Refusal::Kerberos => {}
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
        let (layer, caller) = self.choose(cx)?;
        layer.setattr(inner, &cx.on_behalf_of(&caller), &self.request(cx, set)?)
    }

    fn file_setattr(&self, inner: Opened<'_>, cx: &Cx<'_>, set: &SetAttr) -> Result<vfs::Attr> {
        let (layer, caller) = self.choose(cx)?;
        layer.file_setattr(inner, &cx.on_behalf_of(&caller), &self.request(cx, set)?)
    }

    forward! { id above }

    forward! { to choose:
        root resolve sync
        handle attr access statfs open readlink lookup parent create make tmpfile link
        unlink rename xattr xattrs set_xattr remove_xattr host_lock host_lock_holder
        file_attr read write readdir fsync flush allocate seek extents copy lease
    }
}
