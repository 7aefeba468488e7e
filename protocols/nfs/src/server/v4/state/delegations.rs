//! Delegations: files that a client may keep to itself until it is asked to give them back (RFC 8881 sections
//! 10.2, 10.4 and 18.6).
//!
//! What sees others come is the source's lease of the file ([`vfs::Lease`]), which an `F` here has with it: dropping
//! that is giving back. A client that does not give back in time loses the delegation, and is told so.
//!
//! Where there is hardly room for more, clients are asked to give back what they do not use (RFC 8881 section 20.6). What
//! they choose to keep they keep.
//!
//! Who was asked for a file is not given another delegation of it for a while: others want it.

use core::hash::BuildHasher;
use core::time::Duration;
use std::collections::{HashMap, HashSet};
use std::hash::RandomState;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use vfs::{Charge, LogLimit, PeerKey};

use crate::v4::{ClientId, StateId, Status};

use super::client::{Client, ClientRef, Minor};
use super::gone::{Gone, NodeKey};
use super::holdings::{Held, Holdings, Share};
use super::stateid;
use super::table::lock;
use super::{State, status_flags};

/// A delegation.
pub(super) struct Delegation<F, N> {
    pub(super) key: NodeKey,
    pub(super) node: N,
    /// For reading, or for both.
    pub(super) kind: Share,
    /// The file, open for that, and its lease.
    pub(super) file: F,
    /// When it was asked for.
    recalled: Option<Duration>,
    /// Whether it is to be asked for in the next second.
    pub(super) again: bool,
    /// Among the delegations, and of bytes.
    _charges: [Charge; 2],
}

/// The bytes that a delegation takes, with its lease.
const DELEGATION: usize = 640;

/// The number of every delegation's one state.
pub(super) const SEQID: u32 = 1;

/// Why there is no delegation: `why_no_delegation4` (RFC 8881 section 18.16.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoDelegation {
    /// Others want the file.
    Contention,
    /// There are too many, or no way to call the client.
    Resource,
}

/// Which clients have delegations of which files.
pub(super) struct Delegations {
    hash: RandomState,
    parts: [Mutex<Part>; PARTS],
    count: AtomicUsize,
    /// One was refused since it was last looked, because the source has room for no more.
    refused: AtomicBool,
    recent: Mutex<Recent>,
}

/// Whose delegations there are of a file, by their serial numbers.
type Part = HashMap<NodeKey, Vec<(ClientId, u32)>>;

/// More than threads open files at once.
const PARTS: usize = 64;

/// Files that others wanted lately, in two halves of which the older is forgotten.
#[derive(Default)]
struct Recent {
    new: HashSet<NodeKey>,
    old: HashSet<NodeKey>,
    since: Duration,
}

impl Recent {
    /// How long a half is added to, as Linux's server has it.
    const HALF: Duration = Duration::from_secs(30);

    /// The most files of a half.
    const MOST: usize = 4096;

    fn turn(&mut self, now: Duration) {
        if self.new.len() >= Recent::MOST || now.saturating_sub(self.since) >= Recent::HALF {
            self.old = std::mem::take(&mut self.new);
            if now.saturating_sub(self.since) >= 2 * Recent::HALF {
                self.old.clear();
            }
            self.since = now;
        }
    }
}

/// The longest time that a client has to give a delegation back: less than a host's kernel waits for a lease.
const PATIENCE: Duration = Duration::from_secs(40);

/// How often a client is asked to keep less, as Linux's server does it.
const ASK_AGAIN: Duration = Duration::from_secs(5);

/// Whether there is hardly room for more.
fn is_tight(count: usize, most: usize) -> bool {
    count >= most - most / 8
}

impl Delegations {
    pub(super) fn new() -> Delegations {
        Delegations {
            hash: RandomState::new(),
            parts: std::array::from_fn(|_| Mutex::default()),
            count: AtomicUsize::new(0),
            refused: AtomicBool::new(false),
            recent: Mutex::default(),
        }
    }

    fn add(&self, key: NodeKey, client: ClientId, serial: u32) {
        self.part(&key)
            .entry(key)
            .or_default()
            .push((client, serial));
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn remove(&self, key: NodeKey, client: ClientId, serial: u32) {
        let mut part = self.part(&key);
        if let Some(all) = part.get_mut(&key) {
            let before = all.len();
            all.retain(|one| *one != (client, serial));
            self.count.fetch_sub(before - all.len(), Ordering::Relaxed);
            if all.is_empty() {
                part.remove(&key);
            }
        }
    }

    fn of(&self, key: NodeKey) -> Vec<(ClientId, u32)> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return Vec::new();
        }
        self.part(&key).get(&key).cloned().unwrap_or_default()
    }

    /// How many there are.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        let count = |part: &Mutex<Part>| lock(part).values().map(Vec::len).sum::<usize>();
        let counted: usize = self.parts.iter().map(count).sum::<usize>();
        assert_eq!(self.count.load(Ordering::SeqCst), counted);
        counted
    }

    fn part(&self, key: &NodeKey) -> MutexGuard<'_, Part> {
        lock(&self.parts[self.hash.hash_one(key) as usize % PARTS])
    }
}

impl<F: Clone, N: Clone> State<F, N> {
    /// Whether `client` may be given a delegation of `key`, if a lease can be had; `again` if it is one that it had
    /// before the server's restart.
    pub fn may_delegate(
        &self,
        client: &ClientRef<F, N>,
        key: NodeKey,
        again: bool,
    ) -> Result<(), NoDelegation> {
        let client = &client.0;
        if client.minor == Minor::V40
            || client.backchannels.load(Ordering::Acquire) == 0
            || self.delegations.count.load(Ordering::Relaxed) >= self.limits.all_delegations
            || lock(&client.holdings).delegations >= self.limits.delegations
            || !self.quotas.delegations.has_room(&client.peer, 1)
        {
            return Err(NoDelegation::Resource);
        }
        if self.shares.denier(key, Share::all()).is_some() {
            return Err(NoDelegation::Contention);
        }
        let was_wanted = {
            let mut recent = lock(&self.delegations.recent);
            recent.turn(self.now());
            recent.new.contains(&key) || recent.old.contains(&key)
        };
        // One is enough.
        let has = self
            .delegations
            .of(key)
            .iter()
            .any(|one| one.0 == client.id);
        match has || was_wanted && !again {
            true => Err(NoDelegation::Contention),
            false => Ok(()),
        }
    }

    /// A delegation: `file` is open as `kind` says, and leased.
    pub fn delegate(
        &self,
        client: &ClientRef<F, N>,
        key: NodeKey,
        node: N,
        kind: Share,
        file: F,
    ) -> Result<StateId, Status> {
        let client = &client.0;
        let one = self.quotas.delegations.take(&client.peer, 1);
        let charges = [
            one.map_err(|_| Status::Resource)?,
            client.charged(DELEGATION)?,
        ];
        let mut holdings = lock(&client.holdings);
        holdings.alive()?;
        let serial = holdings.insert(Held::Delegation(Delegation {
            key,
            node,
            kind,
            file,
            recalled: None,
            again: false,
            _charges: charges,
        }));
        self.delegations.add(key, client.id, serial);
        Ok(stateid::stateid(client.id, serial, SEQID))
    }

    /// The source has no room for another.
    pub fn no_room_for_delegations(&self) {
        self.delegations.refused.store(true, Ordering::Relaxed);
    }

    /// Somebody wants `key`: its delegations are to be given back. Whom to call ([`State::callbacks`]).
    pub fn recall(&self, key: NodeKey) -> Vec<ClientId> {
        let now = self.now();
        let all = self.delegations.of(key);
        if !all.is_empty() {
            let mut recent = lock(&self.delegations.recent);
            recent.turn(now);
            recent.new.insert(key);
        }
        let mut whom = Vec::new();
        for (id, serial) in all {
            let Some(client) = self.clients.get(&id) else {
                continue;
            };
            let mut holdings = lock(&client.holdings);
            if let Some(Held::Delegation(delegation)) = holdings.get_mut(serial)
                && delegation.recalled.is_none()
            {
                delegation.recalled = Some(now);
                holdings.to_call.push_back(serial);
                holdings.recalled.push(serial);
                whom.push(id);
            }
        }
        whom
    }

    /// DELEGRETURN (RFC 8881 section 18.6).
    pub fn delegation_return(
        &self,
        client: &ClientRef<F, N>,
        stateid: &StateId,
        key: NodeKey,
    ) -> Result<(), Status> {
        let client = &client.0;
        let serial = self.serial_of(client, stateid)?;
        let mut gone = Gone::default();
        {
            let mut holdings = lock(&client.holdings);
            holdings.delegation(client, serial, stateid, key)?;
            holdings.end_delegation(client, serial, &self.delegations, &mut gone);
        }
        self.release(gone);
        Ok(())
    }

    /// Whether others than `client` may do by themselves some of what is to be denied.
    pub fn is_delegated(&self, client: &ClientRef<F, N>, key: NodeKey, deny: Share) -> bool {
        let all = self.delegations.of(key);
        let mut others = all.into_iter().filter(|one| one.0 != client.0.id);
        others.any(|(id, serial)| {
            let other = self.clients.get(&id);
            other.is_some_and(|other| match lock(&other.holdings).get(serial) {
                Some(Held::Delegation(delegation)) => delegation.kind.intersects(deny),
                _ => false,
            })
        })
    }

    /// The file of the delegation `stateid` of `key`, for an OPEN that the client has done by itself (`CLAIM_DELEGATE_CUR`):
    /// for `access`, which it must cover.
    pub fn delegated(
        &self,
        client: &ClientRef<F, N>,
        stateid: &StateId,
        key: NodeKey,
        access: Share,
    ) -> Result<F, Status> {
        let client = &client.0;
        let serial = self.serial_of(client, stateid)?;
        let holdings = lock(&client.holdings);
        let delegation = holdings.delegation(client, serial, stateid, key)?;
        match delegation.kind.contains(access) {
            true => Ok(delegation.file.clone()),
            false => Err(Status::BadStateid),
        }
    }

    /// The file of whatever delegation `client` has of `key`, if that covers `access`: it need not be opened again.
    pub fn delegated_file(
        &self,
        client: &ClientRef<F, N>,
        key: NodeKey,
        access: Share,
    ) -> Option<F> {
        let client = &client.0;
        let all = self.delegations.of(key);
        let (_, serial) = all.into_iter().find(|one| one.0 == client.id)?;
        match lock(&client.holdings).get(serial) {
            Some(Held::Delegation(delegation)) if delegation.kind.contains(access) => {
                Some(delegation.file.clone())
            }
            _ => None,
        }
    }
}

impl<F, N: Clone> State<F, N> {
    /// Takes from clients what they should have given back, and says whom to call, or to call again. To be called about
    /// once a second.
    pub fn tend_callbacks(&self) -> Vec<ClientId> {
        let now = self.now();
        let in_time = self.lease.min(PATIENCE);
        let count = self.delegations.count.load(Ordering::Relaxed);
        let refused = self.delegations.refused.swap(false, Ordering::Relaxed);
        let all_tight = refused || is_tight(count, self.limits.all_delegations);
        let mut gone = Gone::default();
        let mut whom = Vec::new();
        for client in self.clients.all() {
            let tells = self.tell_unseen(&client);
            let is_expired = self.is_expired(&client);
            let mut holdings = lock(&client.holdings);
            for serial in holdings.recalled.clone() {
                let Some(Held::Delegation(delegation)) = holdings.get_mut(serial) else {
                    continue;
                };
                let since = delegation.recalled.unwrap_or(now);
                if is_expired || now.saturating_sub(since) > in_time {
                    self.revoke_delegation(&client, &mut holdings, serial, &mut gone);
                } else if std::mem::take(&mut delegation.again) {
                    holdings.to_call.push_back(serial);
                }
            }
            holdings.tend_copies(now, self.lease, is_expired);
            let count = holdings.delegations;
            let asked = holdings.asked_to_keep;
            if count > 0
                && (all_tight || is_tight(count, self.limits.delegations))
                && asked.is_none_or(|asked| now.saturating_sub(asked) >= ASK_AGAIN)
            {
                holdings.asked_to_keep = Some(now);
                holdings.keep = Some((count * 3 / 4) as u32);
            }
            if tells || holdings.keep.is_some() || !holdings.to_call.is_empty() {
                whom.push(client.id);
            }
        }
        self.release(gone);
        whom
    }

    fn revoke_delegation(
        &self,
        client: &Arc<Client<F, N>>,
        holdings: &mut Holdings<F, N>,
        serial: u32,
        gone: &mut Gone<F, N>,
    ) {
        static REVOKED: LogLimit<Option<PeerKey>> = LogLimit::new();
        if let Some(suppressed) = REVOKED.permit(client.peer.client()) {
            let client = client.id;
            tracing::warn!(
                client,
                suppressed,
                "a client did not give a delegation back"
            );
        }
        holdings.end_delegation(client, serial, &self.delegations, gone);
        holdings.lost_delegation(serial);
        let flag = status_flags::RECALLABLE_STATE_REVOKED;
        client.flags.fetch_or(flag, Ordering::AcqRel);
    }
}

impl<F, N: Clone> Holdings<F, N> {
    /// The delegation `serial`, if `given` is that of `key`.
    pub(super) fn delegation(
        &self,
        client: &Client<F, N>,
        serial: u32,
        given: &StateId,
        key: NodeKey,
    ) -> Result<&Delegation<F, N>, Status> {
        match self.get(serial) {
            Some(Held::Delegation(delegation)) if delegation.key == key => {
                stateid::check(client, given.seqid, SEQID)?;
                Ok(delegation)
            }
            Some(Held::RevokedDelegation) => Err(Status::DelegRevoked),
            Some(Held::Revoked) => Err(Status::Expired),
            _ => Err(Status::BadStateid),
        }
    }

    /// Takes the delegation `serial` away.
    pub(super) fn end_delegation(
        &mut self,
        client: &Client<F, N>,
        serial: u32,
        delegations: &Delegations,
        gone: &mut Gone<F, N>,
    ) {
        if let Some(Held::Delegation(delegation)) = self.remove(serial) {
            self.recalled.retain(|&one| one != serial);
            delegations.remove(delegation.key, client.id, serial);
            gone.files.push(delegation.file);
        }
    }
}

/// A client has said FREE_STATEID of all delegations that it has lost.
pub(super) fn nothing_revoked<F, N>(client: &Client<F, N>) {
    client
        .flags
        .fetch_and(!status_flags::RECALLABLE_STATE_REVOKED, Ordering::AcqRel);
}
