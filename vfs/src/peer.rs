//! The remote peer of a connection, as access control and limits see it.
//!
//! A connection has one [`Peer`] for its whole lifetime. Its [`Origin`] is the information that the
//! kernel reports about the peer; none of it comes from the peer's own messages. [`Peer::acts_as`]
//! maps the user that a peer claims to be to the one that it may act as, for all protocols alike.
//!
//! Deliberately absent: socket addresses, lookups and any system call (`transports` and `sys` have
//! those).

use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::memory::MemoryBudget;
use crate::{Account, Caller, Groups, perm};

/// The remote end of a connection, as the kernel reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A process of this host: the peer of a Unix socket, or a TCP socket of which the kernel names
    /// the owner.
    Local {
        /// Its IP address; `None` for a Unix socket.
        addr: Option<IpAddr>,
        /// The user that owns its socket.
        owner: Owner,
    },
    /// A process of this host whose user the kernel does not name: its socket is closed already, or
    /// belongs to another network namespace.
    Unidentified {
        /// Its IP address; `None` for a Unix socket.
        addr: Option<IpAddr>,
    },
    /// Another host.
    Remote {
        /// Its IP address.
        addr: IpAddr,
        /// Its port.
        port: u16,
    },
    /// A virtual machine of this host, over vsock(7) or a monitor's socket.
    Guest(GuestId),
    /// A descriptor that is not a socket, inherited or created by the process: a pipe, a serial
    /// port.
    Inherited,
}

/// The user that owns a socket of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// User id.
    pub uid: u32,
    /// Group id; unknown for TCP.
    pub gid: Option<u32>,
    /// Supplementary groups; unknown for TCP.
    pub groups: Option<Arc<[u32]>>,
}

/// A virtual machine of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GuestId {
    /// The context id of a vsock (vsock(7)).
    Cid(u32),
    /// The number of a listener that serves one virtual machine alone.
    Listener(u64),
}

/// The unit to which limits per peer apply. Values compare equal if their connections share a
/// limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PeerKey {
    /// A user of this host, over any socket.
    User(u32),
    /// A host: its IPv4 address, or the /64 network of its IPv6 address, within which a host
    /// chooses its addresses freely (RFC 4291 section 2.5.1). Also processes of this host whose
    /// user is unknown.
    Addr(IpAddr),
    /// A virtual machine.
    Guest(GuestId),
    /// A process of this host, over a Unix socket, whose user is unknown.
    Unidentified,
    /// An inherited descriptor.
    Inherited,
    /// A virtual machine's device, or a mount of this host, by the number of its queues' driver.
    Device(u64),
}

impl Origin {
    /// The address of a peer that has none and is not of this host: the only network that contains
    /// it is that of all addresses.
    pub const UNSPECIFIED: IpAddr = IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED);

    /// Returns the IP address; `None` for Unix sockets and inherited descriptors. IPv4-mapped
    /// addresses are returned as IPv4, guests have [`Origin::UNSPECIFIED`].
    pub fn addr(&self) -> Option<IpAddr> {
        match self {
            Origin::Local { addr, .. } | Origin::Unidentified { addr } => *addr,
            Origin::Remote { addr, .. } => Some(*addr),
            Origin::Guest(_) => Some(Origin::UNSPECIFIED),
            Origin::Inherited => None,
        }
        .map(|addr| addr.to_canonical())
    }

    /// Returns the user id of the socket's owner, for a process of this host.
    pub fn uid(&self) -> Option<u32> {
        match self {
            Origin::Local { owner, .. } => Some(owner.uid),
            _ => None,
        }
    }

    /// Returns the key for limits per peer.
    pub fn key(&self) -> PeerKey {
        match self {
            Origin::Local { owner, .. } => PeerKey::User(owner.uid),
            Origin::Guest(id) => PeerKey::Guest(*id),
            Origin::Inherited => PeerKey::Inherited,
            Origin::Unidentified { .. } | Origin::Remote { .. } => match self.addr() {
                Some(addr) => PeerKey::Addr(network(addr)),
                None => PeerKey::Unidentified,
            },
        }
    }
}

/// Returns the network of a host, within which it chooses its own addresses.
fn network(addr: IpAddr) -> IpAddr {
    match addr {
        IpAddr::V6(v6) if !v6.is_loopback() && !v6.is_unicast_link_local() => {
            IpAddr::V6((u128::from(v6) >> 64 << 64).into())
        }
        addr => addr,
    }
}

impl fmt::Display for PeerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PeerKey::User(uid) => write!(f, "uid {uid}"),
            PeerKey::Addr(addr) => addr.fmt(f),
            PeerKey::Guest(GuestId::Cid(cid)) => write!(f, "vsock:{cid}"),
            PeerKey::Guest(GuestId::Listener(number)) => write!(f, "guest {number}"),
            PeerKey::Unidentified => f.write_str("unidentified local process"),
            PeerKey::Inherited => f.write_str("inherited descriptor"),
            PeerKey::Device(number) => write!(f, "device {number}"),
        }
    }
}

/// Users of this host: those whose processes may act as any user, or those who may use a share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LocalUsers {
    /// Root, and the user of this process, who could do the same without a server.
    #[default]
    Privileged,
    /// Those, and the users with these ids.
    Users(Arc<[u32]>),
    /// All users, and processes whose user is unknown.
    All,
}

impl LocalUsers {
    /// Returns whether the user `uid` is one of those that are named beside the privileged ones.
    fn names(&self, uid: u32) -> bool {
        match self {
            LocalUsers::Privileged => false,
            LocalUsers::Users(users) => users.contains(&uid),
            LocalUsers::All => true,
        }
    }
}

/// The remote peer of one connection, and the cached access decisions for it. Shared by all threads
/// that serve the connection.
#[derive(Debug)]
pub struct Peer {
    origin: Origin,
    account: Account,
    effective_user: EffectiveUser,
    /// The user that owns the peer's socket, set before the first request.
    owner: OnceLock<Caller>,
    refusals: Arc<Refusals>,
    /// A bit for each reason for which it was refused.
    refused: AtomicU8,
    /// Each choice plus 1; 0 if not made yet.
    choices: [AtomicU8; Peer::CACHED_CHOICES],
}

/// The user that a peer acts as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EffectiveUser {
    /// The claimed user.
    Claimed,
    /// The owner of its socket.
    Owner,
    /// The user `nobody`.
    Nobody,
}

/// A reason to refuse a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No entry of the export's list matches its address.
    Unlisted,
    /// Its port is 1024 or above, and the entry of the export's list says `secure`.
    InsecurePort,
    /// A request has no credentials, or weaker ones than the server demands: another flavor, or no
    /// TLS.
    WeakAuth,
    /// Its Kerberos ticket or the signature of a request is not valid.
    Kerberos,
    /// It is a process of another user of this host, who is not admitted.
    LocalUser,
}

impl Refusal {
    /// All reasons.
    pub const ALL: [Refusal; 5] = [
        Refusal::Unlisted,
        Refusal::InsecurePort,
        Refusal::WeakAuth,
        Refusal::Kerberos,
        Refusal::LocalUser,
    ];

    /// Returns the name for metrics.
    pub fn name(self) -> &'static str {
        match self {
            Refusal::Unlisted => "unlisted",
            Refusal::InsecurePort => "insecure_port",
            Refusal::WeakAuth => "weak_auth",
            Refusal::Kerberos => "kerberos",
            Refusal::LocalUser => "local_user",
        }
    }
}

/// Counters of refused clients, by reason, since the process started. Any thread may count.
#[derive(Debug, Default)]
pub struct Refusals([AtomicU64; Refusal::ALL.len()]);

impl Refusals {
    /// Counts a client that has no [`Peer`]; see [`Peer::refuse`] for others.
    pub fn count(&self, why: Refusal) {
        self.0[why as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of clients that were refused for this reason.
    pub fn of(&self, why: Refusal) -> u64 {
        self.0[why as usize].load(Ordering::Relaxed)
    }
}

/// The user that a peer acts as if its user is unknown: Linux's overflow ids (`nobody`).
const NOBODY: u32 = 65534;

impl Peer {
    /// The number of matters whose choice is cached: as many exports as configurations list. Beyond
    /// it, the choice is made each time.
    pub const CACHED_CHOICES: usize = 64;

    /// Creates the peer of a connection from `origin`, to a server that runs as user `server`.
    pub fn new(origin: Origin, trust: &LocalUsers, server: u32) -> Peer {
        let trusted = |uid| uid == 0 || uid == server || trust.names(uid);
        let standing = match &origin {
            Origin::Local { owner, .. } if !trusted(owner.uid) => EffectiveUser::Owner,
            Origin::Unidentified { .. } if *trust != LocalUsers::All => EffectiveUser::Nobody,
            _ => EffectiveUser::Claimed,
        };
        Peer {
            account: Account::of(origin.key()),
            origin,
            effective_user: standing,
            owner: OnceLock::new(),
            refusals: Arc::default(),
            refused: AtomicU8::new(0),
            choices: [const { AtomicU8::new(0) }; Peer::CACHED_CHOICES],
        }
    }

    /// Creates the peer of a connection from `port` of the host at `addr`.
    pub fn remote(addr: IpAddr, port: u16) -> Peer {
        Peer::new(Origin::Remote { addr, port }, &LocalUsers::default(), 0)
    }

    /// Returns the origin of the connection.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Returns [`Origin::addr`].
    pub fn addr(&self) -> Option<IpAddr> {
        self.origin.addr()
    }

    /// Returns [`Origin::key`].
    pub fn key(&self) -> PeerKey {
        self.origin.key()
    }

    /// Returns whether it is another host.
    pub fn is_remote(&self) -> bool {
        matches!(self.origin, Origin::Remote { .. })
    }

    /// Returns the same peer, counting refusals in `refusals`.
    pub fn with_refusals(self, refusals: Arc<Refusals>) -> Peer {
        Peer { refusals, ..self }
    }

    /// Returns the same peer, with its state reserved in `budget`.
    pub fn with_budget(self, budget: &Arc<MemoryBudget>) -> Peer {
        Peer {
            account: Account::in_budget(budget, self.key()),
            ..self
        }
    }

    /// Returns the account that tables charge the peer's state to.
    pub fn account(&self) -> &Account {
        &self.account
    }

    /// Counts the peer as refused for this reason. Returns whether this was the first time.
    pub fn refuse(&self, why: Refusal) -> bool {
        let bit = 1 << why as u8;
        let first = self.refused.fetch_or(bit, Ordering::Relaxed) & bit == 0;
        if first {
            self.refusals.count(why);
        }
        first
    }

    /// Sets the caller that corresponds to the owner of the peer's socket ([`Origin::Local`]), with
    /// [`Groups::Known`]. Only the first call has an effect.
    pub fn set_owner(&self, owner: Caller) {
        let _ = self.owner.set(owner);
    }

    /// Returns the caller that corresponds to the owner of the peer's socket, if known.
    pub fn owner(&self) -> Option<&Caller> {
        self.owner.get()
    }

    /// Returns whether the peer may act as any user that it claims.
    pub fn is_trusted(&self) -> bool {
        self.effective_user == EffectiveUser::Claimed
    }

    /// Returns whether the peer is no process of another user of this host, or if it is, whether
    /// the user is one of `users`, or the peer is connected over a Unix socket and its owner
    /// ([`Peer::owner`]) is in the group `socket_group`, whose members may connect to those.
    pub fn is_admitted(&self, users: &LocalUsers, socket_group: Option<u32>) -> bool {
        let is_member = || {
            let owner = self.owner();
            owner.is_some_and(|owner| socket_group.is_some_and(|gid| perm::in_group(owner, gid)))
        };
        self.is_trusted()
            || match &self.origin {
                Origin::Local { addr: None, owner } => users.names(owner.uid) || is_member(),
                Origin::Local { owner, .. } => users.names(owner.uid),
                _ => *users == LocalUsers::All,
            }
    }

    /// Returns whether the peer is a process whose user is unknown, and therefore acts as nobody.
    pub fn is_nobody(&self) -> bool {
        self.effective_user == EffectiveUser::Nobody
    }

    /// Returns the effective caller of a peer that claims to be `claimed` without proof. A peer
    /// whose socket's owner is not trusted acts as the owner, with the group of `claimed` if the
    /// owner is a member; a peer whose user is unknown acts as nobody. Authenticated users
    /// (Kerberos, certificates) need not be mapped here.
    pub fn acts_as(&self, claimed: Caller) -> Caller {
        match (self.effective_user, self.owner()) {
            (EffectiveUser::Claimed, _) => claimed,
            (EffectiveUser::Owner, Some(owner)) => Caller {
                gid: match perm::in_group(owner, claimed.gid) {
                    true => claimed.gid,
                    false => owner.gid,
                },
                ..owner.clone()
            },
            (EffectiveUser::Owner, None) | (EffectiveUser::Nobody, _) => nobody(),
        }
    }

    /// Returns the result of the first call of `choose` for the matter `of`. Results are at most
    /// [`u8::MAX`] - 1.
    pub fn choice(&self, of: usize, choose: impl FnOnce() -> u8) -> u8 {
        let Some(cached) = self.choices.get(of) else {
            return choose();
        };
        match cached.load(Ordering::Relaxed) {
            0 => {
                let chosen = choose();
                cached.store(chosen + 1, Ordering::Relaxed);
                chosen
            }
            chosen => chosen - 1,
        }
    }
}

fn nobody() -> Caller {
    Caller {
        uid: NOBODY,
        gid: NOBODY,
        groups: Groups::Known([].into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn local(uid: u32) -> Origin {
        Origin::Local {
            addr: None,
            owner: Owner {
                uid,
                gid: None,
                groups: None,
            },
        }
    }

    #[test]
    fn a_choice_is_made_once_where_it_is_kept() {
        let peer = Peer::new(Origin::Inherited, &LocalUsers::Privileged, 0);
        for (of, again) in [(0, 7), (1, 7), (Peer::CACHED_CHOICES, 8)] {
            assert_eq!(peer.choice(of, || 7), 7);
            assert_eq!(peer.choice(of, || 8), again);
        }
    }

    #[test]
    fn ipv4_is_the_same_however_it_came() {
        let mapped: IpAddr = "::ffff:10.0.0.1".parse().expect("an address");
        assert_eq!(Peer::remote(mapped, 700).addr(), "10.0.0.1".parse().ok());
        let plain: IpAddr = "10.0.0.1".parse().expect("an address");
        assert_eq!(Peer::remote(mapped, 700).key(), PeerKey::Addr(plain));
    }

    #[test]
    fn limits_count_a_host_once_whatever_addresses_it_takes() {
        let key = |addr: &str| Peer::remote(addr.parse().expect(addr), 700).key();
        assert_eq!(key("fd00::1"), key("fd00::ffff:1"));
        assert_ne!(key("fd00::1"), key("fd00:0:0:1::1"));
        assert_ne!(key("fe80::1"), key("fe80::2"));
        assert_ne!(key("10.0.0.1"), key("10.0.0.2"));
        assert_eq!(local(7).key(), PeerKey::User(7));
    }

    /// The groups of an owner are those that the kernel or the user database has, not those that
    /// the peer claims.
    #[test]
    fn a_local_user_acts_as_itself_whatever_it_claims() {
        let owner = Caller {
            uid: 1000,
            gid: 100,
            groups: Groups::Known([4].into()),
        };
        let peer = Peer::new(local(1000), &LocalUsers::Privileged, 0);
        assert_eq!(peer.acts_as(Caller::ROOT), nobody(), "not before it is set");
        peer.set_owner(owner.clone());
        peer.set_owner(Caller::ROOT);
        for (gid, acts) in [(0, 100), (100, 100), (4, 4), (5, 100)] {
            let claimed = Caller {
                uid: 0,
                gid,
                groups: Groups::Known([0, 42].into()),
            };
            let expected = Caller {
                gid: acts,
                ..owner.clone()
            };
            assert_eq!(peer.acts_as(claimed), expected);
        }
        assert_eq!(peer.owner(), Some(&owner));
    }

    #[test]
    fn another_local_user_is_admitted_only_if_named_or_in_the_group_of_unix_sockets() {
        let users = LocalUsers::Users([7].into());
        let at = |addr: &str, uid| match local(uid) {
            Origin::Local { owner, .. } => Origin::Local {
                addr: addr.parse().ok(),
                owner,
            },
            origin => origin,
        };
        for addr in ["", "127.0.0.1", "::1", "10.0.0.1"] {
            let addr_of = |uid| at(addr, uid);
            for (uid, admitted, group, expected) in [
                (0, LocalUsers::Privileged, None, true),
                (5, LocalUsers::Privileged, None, true),
                (7, LocalUsers::Privileged, None, false),
                (7, users.clone(), None, true),
                (8, users.clone(), None, false),
                (8, LocalUsers::All, None, true),
                (8, users.clone(), Some(4), addr.is_empty()),
                (8, users.clone(), Some(9), false),
            ] {
                let peer = Peer::new(addr_of(uid), &LocalUsers::Privileged, 5);
                peer.set_owner(Caller {
                    uid,
                    gid: 100,
                    groups: Groups::Known([4].into()),
                });
                let found = peer.is_admitted(&admitted, group);
                assert_eq!(found, expected, "{addr} {uid} {admitted:?} {group:?}");
            }
            let unknown = || Origin::Unidentified {
                addr: addr.parse().ok(),
            };
            for (admitted, expected) in [(users.clone(), false), (LocalUsers::All, true)] {
                let peer = Peer::new(unknown(), &LocalUsers::Privileged, 5);
                assert_eq!(peer.is_admitted(&admitted, Some(4)), expected, "{addr}");
            }
        }
        let trusted = Peer::new(local(7), &users, 5);
        assert!(trusted.is_admitted(&LocalUsers::Privileged, None));
        let remote = Peer::remote(Origin::UNSPECIFIED, 700);
        assert!(remote.is_admitted(&LocalUsers::Privileged, None));
    }

    #[test]
    fn root_the_server_s_user_and_those_named_may_act_as_anybody() {
        let users = LocalUsers::Users([7].into());
        let unidentified = || Origin::Unidentified { addr: None };
        let remote = || Origin::Remote {
            addr: Origin::UNSPECIFIED,
            port: 700,
        };
        for (origin, trust, server, believed) in [
            (local(0), LocalUsers::Privileged, 0, true),
            (local(5), LocalUsers::Privileged, 5, true),
            (local(5), LocalUsers::Privileged, 0, false),
            (local(7), users.clone(), 0, true),
            (local(0), users.clone(), 0, true),
            (local(8), users.clone(), 0, false),
            (local(8), LocalUsers::All, 0, true),
            (unidentified(), LocalUsers::Privileged, 0, false),
            (unidentified(), users, 0, false),
            (unidentified(), LocalUsers::All, 0, true),
            (remote(), LocalUsers::Privileged, 0, true),
            (Origin::Inherited, LocalUsers::Privileged, 0, true),
        ] {
            let peer = Peer::new(origin, &trust, server);
            let acts = peer.acts_as(Caller::new(3, 3));
            assert_eq!(acts.uid == 3, believed, "{peer:?}");
        }
    }
}
