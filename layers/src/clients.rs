//! Access control by client address, as a line of exports(5) does.
//!
//! The remote end of a connection ([`vfs::Call::peer`]) is a client, and its first matching entry
//! applies: addresses come before networks, longer prefixes before shorter ones, `*` last. A client
//! that matches no entry gets `EACCES` for everything, also for handles and files that another
//! client opened. The entry is looked up once per connection. Calls without a connection, made by
//! this program itself or by a guest over its queues, are let through.
//!
//! A process of another user of this host gets `EACCES` as well, whatever address of the host it
//! connects from, unless the user is admitted ([`Admission::users`]) or the entry names this host
//! ([`Pattern::names_this_host`]): the server may have access that the user lacks.
//!
//! `secure`, the default as in exports(5), requires clients of other hosts to use a port below
//! 1024, over every protocol. It does not apply to processes of this host, whose users the kernel
//! names, nor to guests.
//!
//! Deliberately absent: host names and netgroups, which can be forged.

use std::borrow::Cow;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use vfs::peer::Refusal;
use vfs::{
    Caller, Capabilities, Cx, Errno, LocalUsers, Location, LogLimit, Node, Origin, Peer, PeerKey,
    Result, SetAttr,
};

use crate::squash::SquashMode;
use crate::{Layer, Noop, Opened, ReadOnly, Squash, forward};

mod parse;
mod pattern;

pub use self::parse::BadList;
pub use self::pattern::Pattern;

/// A list of admitted clients, and the options of each. Parsed from text as in exports(5):
/// `10.0.0.0/8(rw,no_root_squash) *(ro)`.
#[derive(Debug, PartialEq, Eq)]
pub struct Clients {
    /// Sorted by precedence, highest first.
    entries: Vec<Entry>,
}

/// The layer: the clients that may use a tree.
#[derive(Debug)]
pub struct Admission {
    /// The admitted clients; all hosts and guests, if there is no list.
    list: Option<Arc<Clients>>,
    users: LocalUsers,
    socket_group: Option<u32>,
    /// The key of its choice in [`vfs::Peer::choice`].
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
        entries.sort_by_key(|entry| entry.pattern);
        Clients { entries }
    }

    /// Returns the entries in order of precedence.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Returns the entry that applies to a client at `addr`, `None` if none matches.
    pub fn entry(&self, addr: Option<IpAddr>) -> Option<&Entry> {
        self.position(addr).map(|at| &self.entries[at])
    }

    fn position(&self, addr: Option<IpAddr>) -> Option<usize> {
        let mut patterns = self.entries.iter().map(|entry| entry.pattern);
        patterns.position(|pattern| pattern.matches(addr))
    }
}

/// Parses a list ([`Clients`]); of the users of this host, only the privileged are admitted.
impl FromStr for Admission {
    type Err = BadList;

    fn from_str(text: &str) -> std::result::Result<Admission, BadList> {
        let list = Arc::new(text.parse()?);
        Ok(Admission::new(Some(list), LocalUsers::default(), None))
    }
}

impl Default for Admission {
    fn default() -> Admission {
        Admission::new(None, LocalUsers::default(), None)
    }
}

/// Compares the terms, not the choices that connections cache.
impl PartialEq for Admission {
    fn eq(&self, other: &Admission) -> bool {
        (&self.list, &self.users, self.socket_group)
            == (&other.list, &other.users, other.socket_group)
    }
}

/// The choice of a client that is admitted without a list.
const WITHOUT_LIST: u8 = Clients::MAX_ENTRIES as u8;

/// The choice of a client that is refused.
const REFUSED: u8 = WITHOUT_LIST + 1;

impl Admission {
    /// Admits the clients on `list`, or all if there is none; of the users of this host only
    /// `users` and, over Unix sockets, the members of `socket_group`.
    pub fn new(
        list: Option<Arc<Clients>>,
        users: LocalUsers,
        socket_group: Option<u32>,
    ) -> Admission {
        static ALL: AtomicUsize = AtomicUsize::new(0);
        Admission {
            list,
            users,
            socket_group,
            choice_key: ALL.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// Returns the list, if there is one.
    pub fn list(&self) -> Option<&Arc<Clients>> {
        self.list.as_ref()
    }

    /// Returns the users of this host who are admitted.
    pub fn users(&self) -> &LocalUsers {
        &self.users
    }

    /// Returns the entry of the calling client, `None` if the call has no connection or there is no
    /// list. Returns `EACCES` if the client is refused.
    fn entry_of(&self, cx: &Cx<'_>) -> Result<Option<&Entry>> {
        let Some(peer) = cx.call.peer() else {
            return Ok(None);
        };
        let at = peer.choice(self.choice_key, || match self.admit(peer) {
            Ok(at) => at.map_or(WITHOUT_LIST, |at| at as u8),
            Err(why) => {
                if peer.refuse(why) {
                    log_refusal(peer, why);
                }
                REFUSED
            }
        });
        match (at, &self.list) {
            (REFUSED, _) => Err(Errno::EACCES),
            (at, Some(list)) => Ok(list.entries.get(usize::from(at))),
            (_, None) => Ok(None),
        }
    }

    /// Returns the index of the entry that admits `peer`, `None` if there is no list.
    fn admit(&self, peer: &Peer) -> std::result::Result<Option<usize>, Refusal> {
        let matched = match &self.list {
            Some(list) => {
                let at = list.position(peer.addr()).ok_or(Refusal::Unlisted)?;
                Some((at, &list.entries[at]))
            }
            None => None,
        };
        let names_this_host = matched.is_some_and(|(_, entry)| entry.pattern.names_this_host());
        if !names_this_host && !peer.is_admitted(&self.users, self.socket_group) {
            return Err(Refusal::LocalUser);
        }
        match (peer.origin(), matched) {
            (Origin::Remote { port, .. }, Some((_, entry)))
                if entry.secure && !(1..IPPORT_RESERVED).contains(port) =>
            {
                Err(Refusal::InsecurePort)
            }
            _ => Ok(matched.map(|(at, _)| at)),
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
    let client = addr.unwrap_or_else(|| peer.key().to_string());
    match why {
        Refusal::InsecurePort => tracing::info!(
            peer = client,
            "client denied: expected a port below 1024, or the option insecure in its export list"
        ),
        Refusal::Unlisted => {
            tracing::debug!(peer = client, "client denied: not in the export list");
        }
        Refusal::LocalUser => log_local_user(peer),
        // Of credentials, which this layer does not see.
        Refusal::WeakAuth | Refusal::Kerberos => {}
    }
}

/// Logs that `peer`, a process of another user of this host, is refused.
pub fn log_local_user(peer: &Peer) {
    static REFUSED: LogLimit<PeerKey> = LogLimit::new();
    let Some(suppressed) = REFUSED.permit(peer.key()) else {
        return;
    };
    let hint = "or a client list with localhost admits other users of this host";
    match peer.origin().uid() {
        Some(uid) => tracing::warn!(
            uid,
            suppressed,
            "local client denied: the option --admit {uid}, {hint}"
        ),
        None => tracing::warn!(
            peer = %peer.key(),
            suppressed,
            "local client of an unknown user denied: the option --admit '*', {hint}"
        ),
    }
}

impl Layer for Admission {
    fn capabilities(&self, inner: Capabilities) -> Capabilities {
        let list = self.list.as_ref();
        let entries = list.map_or(&[][..], |list| list.entries());
        let lists_readers = list.is_some() && entries.iter().all(|entry| entry.read_only);
        Capabilities {
            read_only: inner.read_only || lists_readers,
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

    forward! { to choose: all but setattr file_setattr }
}
