//! The slots of a session: each request is served once, and each retry gets the cached reply (RFC
//! 8881 section 2.10.6.1).

use std::sync::Arc;

use vfs::{Account, Charge, Quota};

use crate::v4::Status;

/// The part of a peer's remaining slots that a session gets at most, so that sessions get fewer as
/// slots run out: 192 mounts of Linux get the 64 slots each that they ask for, the next 260 fewer.
const PART_OF_A_PEER: usize = 64;

/// A session's slots. The first one is not charged: a session without slots is useless, and the
/// number of sessions has a bound of its own.
pub(super) struct Slots {
    /// The quotas of all sessions' slots and of the bytes of their cached replies.
    quotas: (Arc<Quota>, Arc<Quota>),
    peer: Account,
    /// The charge of the slots after the first: see [`Slots::granted`].
    charge: Charge,
    /// The slots used so far.
    slots: Vec<Slot>,
    /// The maximum number of slots: as many as the client asked for.
    max: u32,
    /// The number of slots that the client should use.
    target: u32,
    /// The number of changes of `target`.
    generation: u32,
    busy: u32,
}

/// A slot. Its memory counts as [`Slots::SLOT_BYTES`].
#[derive(Default)]
struct Slot {
    /// The sequence number of the last completed request.
    seqid: u32,
    /// The sequence number of the request in progress.
    busy: Option<u32>,
    /// Whether the slot was used after it was last granted; otherwise `seqid` is from before.
    used: bool,
    /// The digest of the last request, to detect a false retry.
    digest: u64,
    reply: Option<(Arc<[u8]>, Charge)>,
    /// The generation of the `target` in the last reply.
    announced: u32,
}

/// The handling of a request.
#[derive(Debug)]
pub(super) enum SlotAction {
    Serve,
    Replay(Arc<[u8]>),
    /// The request was served before, without a cached reply.
    Uncached,
}

impl Slots {
    /// The bytes of a slot, without its cached reply.
    pub(super) const SLOT_BYTES: usize = size_of::<Slot>();

    /// Creates as many slots as the quota of slots allows for `peer`, at least one and at most
    /// `most`. The other quota is for the bytes of cached replies.
    pub(super) fn new(
        (slots, cached): (&Arc<Quota>, &Arc<Quota>),
        peer: &Account,
        most: u32,
    ) -> Slots {
        let mut slots = Slots {
            charge: slots.take_up_to(peer, 0),
            quotas: (slots.clone(), cached.clone()),
            peer: peer.clone(),
            slots: Vec::new(),
            max: most,
            target: 1,
            generation: 0,
            busy: 0,
        };
        slots.grow(most);
        slots.target = slots.granted();
        slots
    }

    /// Returns how many slots a new session of `peer` that asks for `most` would get, if its memory
    /// allows.
    pub(super) fn available(slots: &Quota, peer: &Account, most: u32) -> u32 {
        let more = slots.left_for(peer).div_ceil(PART_OF_A_PEER) as u32;
        most.min(more.saturating_add(1))
    }

    /// Returns the number of slots.
    pub(super) fn granted(&self) -> u32 {
        self.charge.amount() as u32 + 1
    }

    /// Adds slots up to `most`, as far as the quota allows.
    fn grow(&mut self, most: u32) {
        let slots = &self.quotas.0;
        let available = slots.left_for(&self.peer).div_ceil(PART_OF_A_PEER);
        let more = most.saturating_sub(self.granted()) as usize;
        let more = slots.take_up_to(&self.peer, more.min(available));
        self.charge.join(more);
    }

    pub(super) fn target(&self) -> u32 {
        self.target
    }

    pub(super) fn busy(&self) -> u32 {
        self.busy
    }

    /// Starts a request on a slot. `highest` is the highest slot that the client uses now.
    pub(super) fn take(
        &mut self,
        number: u32,
        seqid: u32,
        highest: u32,
        digest: u64,
    ) -> Result<SlotAction, Status> {
        if number >= self.granted() {
            return Err(Status::Badslot);
        }
        if self.slots.len() <= number as usize {
            self.slots.resize_with(number as usize + 1, Slot::default);
        }
        let slot = &mut self.slots[number as usize];
        if let Some(busy) = slot.busy {
            return Err(if busy == seqid {
                Status::Delay
            } else {
                Status::SeqMisordered
            });
        }
        // After a slot was revoked and granted again, some clients restart at 1, others continue.
        let is_next = seqid == slot.seqid.wrapping_add(1) || (!slot.used && seqid == 1);
        if !is_next {
            return match &slot.reply {
                _ if !slot.used || seqid != slot.seqid => Err(Status::SeqMisordered),
                _ if slot.digest != digest => Err(Status::SeqFalseRetry),
                Some((reply, _)) => Ok(SlotAction::Replay(reply.clone())),
                None => Ok(SlotAction::Uncached),
            };
        }
        let knows_target = slot.announced == self.generation;
        slot.busy = Some(seqid);
        slot.announced = self.generation;
        self.busy += 1;
        if knows_target && highest < self.target {
            self.shrink();
        }
        self.retarget(highest.max(number));
        self.slots[number as usize].announced = self.generation;
        Ok(SlotAction::Serve)
    }

    /// Completes the request on a slot, and caches the reply if there is room.
    pub(super) fn answer(&mut self, number: u32, digest: u64, reply: Option<Arc<[u8]>>) {
        let slot = &mut self.slots[number as usize];
        slot.reply = None;
        let cached = &self.quotas.1;
        let reply = reply.and_then(|reply| {
            let charge = cached.take(&self.peer, reply.len()).ok()?;
            Some((reply, charge))
        });
        if let Some(seqid) = slot.busy.take() {
            self.busy -= 1;
            (slot.seqid, slot.used, slot.digest, slot.reply) = (seqid, true, digest, reply);
        }
    }

    /// Undoes the start of the request on a slot.
    pub(super) fn undo(&mut self, number: u32) {
        if self.slots[number as usize].busy.take().is_some() {
            self.busy -= 1;
        }
    }

    /// Removes the slots beyond the target after the client has stopped using them.
    fn shrink(&mut self) {
        let busy = self.slots.iter().rposition(|slot| slot.busy.is_some());
        let keep = self.target.max(busy.map_or(0, |busy| busy as u32 + 1));
        if keep < self.granted() {
            for slot in self.slots.iter_mut().skip(keep as usize) {
                *slot = Slot {
                    seqid: slot.seqid,
                    ..Slot::default()
                };
            }
            self.charge.set(keep as usize - 1);
        }
    }

    /// Lowers the target if slots are scarce, and raises it if the client uses all of its slots.
    fn retarget(&mut self, highest: u32) {
        let granted = self.granted();
        let target = if self.quotas.0.is_scarce(&self.peer) {
            self.target
                .min(highest.saturating_add(1).max(granted / 2).max(1))
        } else if highest.saturating_add(1) >= self.target && self.target < granted {
            granted
        } else if highest.saturating_add(1) >= granted && granted < self.max {
            self.grow(self.max.min(granted.saturating_mul(2)));
            self.granted()
        } else {
            self.target
        };
        if target != self.target {
            self.target = target;
            self.generation = self.generation.wrapping_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(all: usize, most: u32) -> Slots {
        of_budget(&Quota::new(all, all * PART_OF_A_PEER, 0), most)
    }

    fn of_budget(budget: &Arc<Quota>, most: u32) -> Slots {
        Slots::new(
            (budget, &Quota::new(1000, 1000, 1)),
            &Account::INTERNAL,
            most,
        )
    }

    fn served(slots: &mut Slots, number: u32, seqid: u32, highest: u32) {
        let taken = slots.take(number, seqid, highest, 0);
        assert!(matches!(taken, Ok(SlotAction::Serve)), "{taken:?}");
        slots.answer(number, 0, None);
    }

    #[test]
    fn rfc8881_2_10_6_1_a_slot_serves_each_seqid_once() {
        let mut slots = slots(100, 4);
        assert_eq!(slots.take(0, 0, 0, 7).err(), Some(Status::SeqMisordered));
        assert_eq!(slots.take(0, 2, 0, 7).err(), Some(Status::SeqMisordered));
        assert!(matches!(slots.take(0, 1, 0, 7), Ok(SlotAction::Serve)));
        assert_eq!(slots.take(0, 1, 0, 7).err(), Some(Status::Delay));
        assert_eq!(slots.take(0, 2, 0, 7).err(), Some(Status::SeqMisordered));
        slots.answer(0, 7, Some(Arc::from(*b"reply")));
        assert!(
            matches!(slots.take(0, 1, 0, 7), Ok(SlotAction::Replay(reply)) if *reply == *b"reply")
        );
        assert_eq!(slots.take(0, 1, 0, 8).err(), Some(Status::SeqFalseRetry));
        assert_eq!(slots.take(0, 3, 0, 7).err(), Some(Status::SeqMisordered));
        assert_eq!(slots.take(4, 1, 0, 7).err(), Some(Status::Badslot));
    }

    #[test]
    fn rfc8881_2_10_6_1_3_an_uncached_reply_cannot_be_had_again() {
        let mut slots = slots(100, 4);
        served(&mut slots, 3, 1, 3);
        assert!(matches!(slots.take(3, 1, 3, 0), Ok(SlotAction::Uncached)));
        served(&mut slots, 3, 2, 3);
    }

    #[test]
    fn replies_are_kept_as_far_as_there_is_room() {
        let (budget, cached) = (Quota::new(9, 9, 0), Quota::new(10, 10, 1));
        let mut slots = Slots::new((&budget, &cached), &Account::INTERNAL, 2);
        for slot in 0..2 {
            assert!(matches!(slots.take(slot, 1, 1, 0), Ok(SlotAction::Serve)));
            slots.answer(slot, 0, Some(Arc::from(*b"a reply")));
        }
        assert!(matches!(slots.take(0, 1, 1, 0), Ok(SlotAction::Replay(_))));
        assert!(matches!(slots.take(1, 1, 1, 0), Ok(SlotAction::Uncached)));
        drop(slots);
        assert_eq!((budget.in_use(), cached.in_use()), (0, 0));
    }

    #[test]
    fn replies_are_kept_as_far_as_the_memory_budget_goes() {
        use vfs::PeerKey;
        use vfs::memory::MemoryBudget;
        let budget = MemoryBudget::new(64 << 10);
        let account = Account::in_budget(&budget, PeerKey::User(1));
        let (slots, cached) = (
            Quota::new(9, 999, Slots::SLOT_BYTES),
            Quota::new(1 << 20, 1 << 20, 1),
        );
        let mut slots = Slots::new((&slots, &cached), &account, 8);
        let most = slots.granted();
        for slot in 0..most {
            assert!(matches!(slots.take(slot, 1, 1, 0), Ok(SlotAction::Serve)));
            slots.answer(slot, 0, Some(vec![0; 12 << 10].into()));
            assert!(budget.state_bytes() <= budget.limit() / 4);
        }
        // One reply is the peer's share; the others' are not cached.
        assert!(matches!(slots.take(0, 1, 1, 0), Ok(SlotAction::Replay(_))));
        assert!(matches!(slots.take(1, 1, 1, 0), Ok(SlotAction::Uncached)));
        drop(slots);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn a_request_given_back_may_come_again() {
        let mut slots = slots(100, 1);
        assert!(matches!(slots.take(0, 1, 0, 0), Ok(SlotAction::Serve)));
        slots.undo(0);
        assert_eq!(slots.busy(), 0);
        served(&mut slots, 0, 1, 0);
    }

    #[test]
    fn rfc8881_2_10_6_1_a_seqid_goes_around() {
        let mut slots = slots(100, 1);
        served(&mut slots, 0, 1, 0);
        slots.slots[0].seqid = u32::MAX;
        served(&mut slots, 0, 0, 0);
        served(&mut slots, 0, 1, 0);
    }

    #[test]
    fn rfc8881_18_46_3_slots_are_asked_back_when_scarce_and_given_again() {
        let budget = Quota::new(64, 64 * PART_OF_A_PEER, 0);
        let mut one = of_budget(&budget, 16);
        assert_eq!(one.granted(), 16);
        let others: Vec<_> = (0..64).map(|_| of_budget(&budget, 16)).collect();
        assert!(budget.is_scarce(&Account::INTERNAL));
        served(&mut one, 9, 1, 9);
        assert_eq!((one.granted(), one.target()), (16, 10));
        // The client has seen the new target on slot 9, but perhaps not on slot 0.
        served(&mut one, 0, 1, 9);
        assert_eq!(one.granted(), 16);
        served(&mut one, 9, 2, 9);
        assert_eq!((one.granted(), one.target()), (10, 10));
        assert_eq!(one.take(10, 1, 9, 0).err(), Some(Status::Badslot));
        drop(others);
        served(&mut one, 9, 3, 9);
        assert_eq!((one.granted(), one.target()), (16, 16));
        served(&mut one, 15, 1, 15);
        drop(one);
        assert_eq!(budget.in_use(), 0);
    }

    #[test]
    fn rfc8881_18_36_3_sessions_get_fewer_slots_as_a_peer_runs_out_but_always_one() {
        let budget = Quota::new(1 << 16, 1 << 10, 0);
        let all: Vec<_> = (0..2000).map(|_| of_budget(&budget, 8)).collect();
        let granted: Vec<_> = all.iter().map(Slots::granted).collect();
        assert_eq!((granted[0], granted[63], granted[1999]), (8, 8, 1));
        assert!(granted.is_sorted_by(|one, next| one >= next));
        assert!(granted.contains(&4));
        assert_eq!(budget.in_use(), 1 << 10);
        drop(all);
        assert_eq!(budget.in_use(), 0);
    }
}
