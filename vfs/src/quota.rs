//! Quotas: bounds on the number of objects of one kind, for all clients together and for each.
//!
//! A table that a peer can fill has a [`Quota`] and keeps a [`Charge`] with each entry. Dropping
//! the entry drops the charge, which returns its part of the quota and of the memory budget. A
//! table that is refused a charge evicts an entry, or returns its protocol's error.
//!
//! A charge is made to an [`Account`], which each request has ([`crate::Call::account`]): the key
//! of limits per peer, and the [`MemoryBudget`] of the engine that serves the request. So tables do
//! not depend on the budget.
//!
//! An [`Allotment`] takes large portions of a quota for a holder whose entries change with every
//! request: most changes then need no lock.
//!
//! Lock order: an allotment's mutex, a quota's, the budget's. They are the innermost.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};

use crate::PeerKey;
use crate::memory::{MemoryBudget, Purpose, Reservation};

/// A client to which limits apply, and the budget of its memory. Two accounts are equal if they
/// belong to the same client.
#[derive(Clone, Default)]
pub struct Account(Option<Arc<Holder>>);

struct Holder {
    client: PeerKey,
    budget: Option<Arc<MemoryBudget>>,
}

impl Account {
    /// The account of barge itself, whose memory is not counted.
    pub const INTERNAL: Account = Account(None);

    /// Creates an account of `client`, whose memory is not counted.
    pub fn of(client: PeerKey) -> Account {
        Account(Some(Arc::new(Holder {
            client,
            budget: None,
        })))
    }

    /// Creates an account of `client` in `budget`.
    pub fn in_budget(budget: &Arc<MemoryBudget>, client: PeerKey) -> Account {
        Account(Some(Arc::new(Holder {
            client,
            budget: Some(budget.clone()),
        })))
    }

    /// Returns the client; `None` for barge itself.
    pub fn client(&self) -> Option<PeerKey> {
        self.0.as_ref().map(|holder| holder.client)
    }

    /// Reserves `bytes` of state. Returns [`QuotaExceeded::Memory`] if the client's share has no
    /// room.
    fn reserve(&self, bytes: usize) -> Result<Option<Reservation>, QuotaExceeded> {
        let Some(Holder {
            client,
            budget: Some(budget),
        }) = self.0.as_deref()
        else {
            return Ok(None);
        };
        let mut reservation = budget.reservation(*client, Purpose::State);
        match reservation.try_set(bytes) {
            true => Ok(Some(reservation)),
            false => Err(QuotaExceeded::Memory),
        }
    }
}

impl PartialEq for Account {
    fn eq(&self, other: &Account) -> bool {
        self.client() == other.client()
    }
}

impl Eq for Account {}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.client().fmt(f)
    }
}

/// A bound on a number of objects, in total and for each client.
pub struct Quota {
    total: usize,
    /// The maximum for each client; `None` bounds it by the number that it leaves to others.
    per_client: Option<usize>,
    /// The memory that each object takes, in bytes.
    unit_bytes: usize,
    used: Mutex<Used>,
}

#[derive(Default)]
struct Used {
    total: usize,
    by_client: HashMap<Option<PeerKey>, usize>,
}

/// The reason why a quota refuses a charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaExceeded {
    /// The total is used up.
    Total,
    /// This client's share is used up.
    Peer,
    /// This client's share of the memory budget has no room.
    Memory,
}

impl QuotaExceeded {
    /// Returns whether only objects of this client would make room.
    pub fn is_per_client(self) -> bool {
        self != QuotaExceeded::Total
    }
}

/// A part of a quota, held by a client until dropped.
pub struct Charge {
    quota: Arc<Quota>,
    account: Account,
    amount: usize,
    memory: Option<Reservation>,
}

impl Quota {
    /// Creates a quota of `total` objects for all clients together, and at most `each` for one.
    /// Each object takes `cost` bytes of memory.
    pub fn new(total: usize, each: usize, cost: usize) -> Arc<Quota> {
        Arc::new(Quota {
            total,
            per_client: Some(each),
            unit_bytes: cost,
            used: Mutex::default(),
        })
    }

    /// Creates a quota of `total` objects of `cost` bytes, of which a client may have as many as it
    /// leaves: the first client that takes all it can gets half, the next a quarter, and so on.
    pub fn shared(total: usize, cost: usize) -> Arc<Quota> {
        Arc::new(Quota {
            total,
            per_client: None,
            unit_bytes: cost,
            used: Mutex::default(),
        })
    }

    /// Charges `amount` to `account`.
    pub fn take(
        self: &Arc<Self>,
        account: &Account,
        amount: usize,
    ) -> Result<Charge, QuotaExceeded> {
        let mut used = self.used();
        self.check(&used, account, amount)?;
        let memory = self.reserve(account, amount)?;
        used.add(account, amount);
        Ok(self.charge(account, amount, memory))
    }

    /// Charges at most `wanted` to `account`, and no more than a quarter of what is left, so that
    /// some remains for others.
    pub fn take_up_to(self: &Arc<Self>, account: &Account, wanted: usize) -> Charge {
        let mut used = self.used();
        let left = self.total.saturating_sub(used.total).div_ceil(4);
        let own = self.remaining_for(&used, account);
        let mut amount = wanted.min(left).min(own);
        let memory = loop {
            match self.reserve(account, amount) {
                Ok(memory) => break memory,
                Err(_) => amount /= 2,
            }
        };
        used.add(account, amount);
        self.charge(account, amount, memory)
    }

    /// Returns whether `amount` could be charged to `account`, regardless of memory.
    pub fn has_room(&self, account: &Account, amount: usize) -> bool {
        self.check(&self.used(), account, amount).is_ok()
    }

    /// Returns how much more may be charged to `account`, regardless of memory and of what is left
    /// for all.
    pub fn left_for(&self, account: &Account) -> usize {
        self.remaining_for(&self.used(), account)
    }

    /// Returns whether more than seven eighths of the bound for all clients are in use, or of the
    /// bound for `account` if there is one.
    pub fn is_scarce(&self, account: &Account) -> bool {
        let used = self.used();
        let scarce = |used: usize, bound: usize| used > bound / 8 * 7;
        let own = self.per_client;
        scarce(used.total, self.total) || own.is_some_and(|each| scarce(used.of(account), each))
    }

    /// Returns the amount in use.
    pub fn in_use(&self) -> usize {
        self.used().total
    }

    /// Returns the amount that `account` uses.
    pub fn used_by(&self, account: &Account) -> usize {
        self.used().of(account)
    }

    fn check(&self, used: &Used, account: &Account, amount: usize) -> Result<(), QuotaExceeded> {
        if amount > self.remaining_for(used, account) {
            return Err(QuotaExceeded::Peer);
        }
        if amount > self.total.saturating_sub(used.total) {
            return Err(QuotaExceeded::Total);
        }
        Ok(())
    }

    /// Returns how much more the share of `account` allows.
    fn remaining_for(&self, used: &Used, account: &Account) -> usize {
        let own = used.of(account);
        match self.per_client {
            Some(each) => each.saturating_sub(own),
            None => {
                let others = used.total - own;
                self.total
                    .saturating_sub(others)
                    .div_ceil(2)
                    .saturating_sub(own)
            }
        }
    }

    fn reserve(
        &self,
        account: &Account,
        amount: usize,
    ) -> Result<Option<Reservation>, QuotaExceeded> {
        match self.unit_bytes * amount {
            0 => Ok(None),
            bytes => account.reserve(bytes),
        }
    }

    fn charge(
        self: &Arc<Self>,
        account: &Account,
        amount: usize,
        memory: Option<Reservation>,
    ) -> Charge {
        Charge {
            quota: self.clone(),
            account: account.clone(),
            amount,
            memory,
        }
    }

    fn used(&self) -> MutexGuard<'_, Used> {
        self.used.lock()
    }
}

impl Used {
    fn of(&self, account: &Account) -> usize {
        self.by_client.get(&account.client()).copied().unwrap_or(0)
    }

    fn add(&mut self, account: &Account, amount: usize) {
        if amount > 0 {
            self.total += amount;
            *self.by_client.entry(account.client()).or_default() += amount;
        }
    }

    fn remove(&mut self, account: &Account, amount: usize) {
        if let Some(by) = self.by_client.get_mut(&account.client()) {
            self.total -= amount;
            *by -= amount;
            if *by == 0 {
                self.by_client.remove(&account.client());
            }
        }
    }
}

impl Charge {
    /// Returns its amount.
    pub fn amount(&self) -> usize {
        self.amount
    }

    /// Returns the charged account.
    pub fn account(&self) -> &Account {
        &self.account
    }

    /// Merges `more`, of the same quota and account, into this one.
    pub fn join(&mut self, mut more: Charge) {
        self.amount += std::mem::take(&mut more.amount);
        match (&mut self.memory, more.memory.take()) {
            (Some(memory), Some(more)) => memory.join(more),
            (None, more) => self.memory = more,
            (Some(_), None) => {}
        }
    }

    /// Changes it to `amount`, even beyond the quota: for objects that multiplied without a
    /// request.
    pub fn set(&mut self, amount: usize) {
        let mut used = self.quota.used();
        used.remove(&self.account, self.amount);
        used.add(&self.account, amount);
        self.amount = amount;
        if let Some(memory) = &mut self.memory {
            memory.set(self.quota.unit_bytes * amount);
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if self.amount > 0 {
            self.quota.used().remove(&self.account, self.amount);
        }
    }
}

/// A part of a quota for one holder, such as a connection, whose entries come and go quickly. It
/// charges and returns [`Allotment::STEP`] at a time. Thread-safe.
pub struct Allotment {
    quota: Arc<Quota>,
    account: Account,
    /// The amount of the holder's entries.
    used: AtomicUsize,
    /// The amount of the charge.
    taken: AtomicUsize,
    charge: Mutex<Option<Charge>>,
}

/// A part of an [`Allotment`], held by an entry until dropped.
pub struct Portion {
    allotment: Arc<Allotment>,
    amount: usize,
}

impl Allotment {
    /// The amount charged at a time: 8 KiB if the quota is in bytes.
    pub const STEP: usize = 8 << 10;

    /// Creates an empty allotment of `quota`, on `account`.
    pub fn new(quota: &Arc<Quota>, account: &Account) -> Arc<Allotment> {
        Arc::new(Allotment {
            quota: quota.clone(),
            account: account.clone(),
            used: AtomicUsize::new(0),
            taken: AtomicUsize::new(0),
            charge: Mutex::default(),
        })
    }

    /// Takes `amount` until the portion is dropped.
    pub fn take(self: &Arc<Self>, amount: usize) -> Result<Portion, QuotaExceeded> {
        self.add(amount)?;
        Ok(Portion {
            allotment: self.clone(),
            amount,
        })
    }

    /// Takes `amount` until [`Allotment::remove`] returns it.
    pub fn add(&self, amount: usize) -> Result<(), QuotaExceeded> {
        let used = self.used.fetch_add(amount, Ordering::SeqCst) + amount;
        if used <= self.taken.load(Ordering::SeqCst) {
            return Ok(());
        }
        self.grow().inspect_err(|_| {
            self.used.fetch_sub(amount, Ordering::SeqCst);
        })
    }

    /// Returns `amount` to the allotment.
    pub fn remove(&self, amount: usize) {
        let used = self.used.fetch_sub(amount, Ordering::SeqCst) - amount;
        let spare = self.taken.load(Ordering::SeqCst).saturating_sub(used);
        if spare > 2 * Allotment::STEP || used == 0 {
            self.shrink();
        }
    }

    #[cold]
    fn grow(&self) -> Result<(), QuotaExceeded> {
        let mut charge = self.charge.lock();
        let (used, taken) = (self.used.load(Ordering::SeqCst), amount_of(&charge));
        let Some(missing @ 1..) = used.checked_sub(taken) else {
            return Ok(());
        };
        let more = self
            .quota
            .take(&self.account, missing.next_multiple_of(Allotment::STEP))
            .or_else(|_| self.quota.take(&self.account, missing))?;
        match &mut *charge {
            Some(charge) => charge.join(more),
            none => *none = Some(more),
        }
        self.taken.store(amount_of(&charge), Ordering::SeqCst);
        Ok(())
    }

    #[cold]
    fn shrink(&self) {
        let mut charge = self.charge.lock();
        let Some(held) = &mut *charge else {
            return;
        };
        let mut keep = self.used.load(Ordering::SeqCst);
        if keep > 0 {
            keep = keep.next_multiple_of(Allotment::STEP).min(held.amount());
        }
        loop {
            self.taken.store(keep, Ordering::SeqCst);
            // A concurrent `add` may have succeeded against the larger value.
            match self.used.load(Ordering::SeqCst) {
                used if used > keep => keep = used,
                _ => break,
            }
        }
        held.set(keep);
    }
}

fn amount_of(charge: &Option<Charge>) -> usize {
    charge.as_ref().map_or(0, Charge::amount)
}

impl Portion {
    /// Leaves the return of the amount to [`Allotment::remove`]: for entries that do not store a
    /// portion.
    pub fn leave(mut self) {
        self.amount = 0;
    }
}

impl Drop for Portion {
    fn drop(&mut self) {
        if self.amount > 0 {
            self.allotment.remove(self.amount);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn client(number: u32) -> Account {
        Account::of(PeerKey::User(number))
    }

    #[test]
    fn a_peer_has_its_share_and_no_more_and_gives_it_back() {
        let quota = Quota::new(10, 6, 0);
        let [one, two] = [1, 2].map(client);
        let mut first = quota.take(&one, 5).expect("room");
        assert_eq!(quota.take(&one, 2).err(), Some(QuotaExceeded::Peer));
        let second = quota.take(&two, 5).expect("room");
        assert_eq!(quota.take(&one, 1).err(), Some(QuotaExceeded::Total));
        drop(second);
        first.join(quota.take(&one, 1).expect("room"));
        assert_eq!((first.amount(), quota.in_use()), (6, 6));
        first.set(2);
        assert_eq!(quota.take_up_to(&two, 9).amount(), 2, "a quarter of 8");
        assert_eq!(quota.take_up_to(&one, 1).amount(), 1);
        assert_eq!((quota.left_for(&one), quota.left_for(&two)), (4, 6));
        first.set(5);
        assert!(!quota.is_scarce(&two), "five of ten");
        first.set(6);
        assert!(quota.is_scarce(&one), "six of its six");
        drop(first);
        assert_eq!(quota.in_use(), 0);
        assert!(quota.used().by_client.is_empty());
    }

    #[test]
    fn of_a_shared_quota_each_has_as_much_as_it_leaves() {
        let quota = Quota::shared(1000, 0);
        let fill =
            |number| std::iter::from_fn(|| quota.take(&client(number), 1).ok()).collect::<Vec<_>>();
        let (first, second, third) = (fill(1), fill(2), fill(3));
        assert_eq!([&first, &second, &third].map(Vec::len), [500, 250, 125]);
        drop(first);
        assert_eq!(fill(2).len(), 188);
    }

    #[test]
    fn what_is_charged_is_reserved_in_the_budget_until_it_is_dropped() {
        let budget = MemoryBudget::new(64 * MIB);
        let account = Account::in_budget(&budget, PeerKey::User(1));
        let quota = Quota::new(1000, 1000, MIB);
        let mut charge = quota.take(&account, 10).expect("room");
        assert_eq!(budget.state_bytes(), 10 * MIB);
        // A quarter of the budget is one client's limit, though the quota has more.
        assert_eq!(quota.take(&account, 7).err(), Some(QuotaExceeded::Memory));
        assert_eq!(quota.take_up_to(&account, 7).amount(), 3, "half of it");
        assert_eq!(quota.in_use(), 10, "nothing was taken");
        charge.join(quota.take(&account, 6).expect("room"));
        charge.set(3);
        assert_eq!((charge.amount(), budget.state_bytes()), (3, 3 * MIB));
        drop(charge);
        assert_eq!((quota.in_use(), budget.used()), (0, 0));
    }

    #[test]
    fn an_allotment_takes_large_steps_and_gives_them_back() {
        let budget = MemoryBudget::new(64 * MIB);
        let account = Account::in_budget(&budget, PeerKey::User(1));
        let quota = Quota::shared(usize::MAX, 1);
        let allotment = Allotment::new(&quota, &account);
        let portions: Vec<_> = (0..1000)
            .map(|_| allotment.take(100).expect("room"))
            .collect();
        assert_eq!(budget.state_bytes(), 13 * Allotment::STEP);
        drop(portions);
        assert_eq!((budget.state_bytes(), quota.in_use()), (0, 0));
        // The share can be used up to its last byte, and not beyond.
        allotment.add(16 * MIB - 1).expect("room");
        allotment.add(1).expect("room");
        assert_eq!(allotment.add(1), Err(QuotaExceeded::Memory));
        assert_eq!(budget.state_bytes(), 16 * MIB);
        allotment.remove(16 * MIB);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn an_allotment_never_has_less_than_its_holder_uses() {
        let quota = Quota::shared(usize::MAX, 1);
        let allotment = Allotment::new(&quota, &client(1));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for round in 0..10_000 {
                        let amount = 1 + round * 7919 % (3 * Allotment::STEP);
                        allotment.add(amount).expect("room");
                        allotment.remove(amount);
                    }
                });
            }
        });
        assert_eq!(allotment.used.load(Ordering::SeqCst), 0);
        let (taken, charged) = (allotment.taken.load(Ordering::SeqCst), quota.in_use());
        assert_eq!((taken, charged), (0, 0));
    }
}
