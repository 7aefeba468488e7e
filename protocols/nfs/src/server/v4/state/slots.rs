//! The slots of a session: each request once, each retry answered as before (RFC 8881 section
//! 2.10.6.1).

use std::sync::Arc;

use vfs::{Account, Charge, Quota};

use crate::v4::Status;

/// Whether sessions are to give back slots that they do not use.
fn is_tight(quota: &Quota) -> bool {
    quota.in_use() > quota.total() / 8 * 7
}

/// A session's slots.
pub(super) struct Slots {
    /// Of all sessions' slots, and of the bytes of the replies in them.
    quotas: (Arc<Quota>, Arc<Quota>),
    peer: Account,
    /// [`Slots::granted`].
    charge: Charge,
    /// Those that have ever been used.
    slots: Vec<Slot>,
    /// How many there may be: what the client asked for.
    most: u32,
    /// How many the client should use.
    target: u32,
    /// Counts the changes of `target`.
    generation: u32,
    busy: u32,
}

/// A slot, whose memory counts: [`Slots::SLOT`].
#[derive(Default)]
struct Slot {
    /// Of the last request that was answered.
    seqid: u32,
    /// Of the one that is being served.
    busy: Option<u32>,
    /// Whether `seqid` is of this life of the slot: it was used since it was last made.
    used: bool,
    /// What the request was, to tell a retry from another.
    digest: u64,
    reply: Option<(Arc<[u8]>, Charge)>,
    /// Which `target` its last reply told.
    told: u32,
}

/// What to do with a request.
#[derive(Debug)]
pub(super) enum Taken {
    Serve,
    Answer(Arc<[u8]>),
    /// It was served before, and the answer was not kept.
    Lost,
}

impl Slots {
    /// The bytes of a slot, the reply that it keeps aside.
    pub(super) const SLOT: usize = size_of::<Slot>();

    /// As many slots as the quota of slots has for `peer`, up to `most`; nothing if it has none.
    /// The other quota is of the bytes of replies that are kept.
    pub(super) fn new(
        (slots, cached): (&Arc<Quota>, &Arc<Quota>),
        peer: &Account,
        most: u32,
    ) -> Option<Slots> {
        let charge = slots.take_some(peer, most as usize);
        let granted = charge.amount() as u32;
        (granted > 0).then(|| Slots {
            quotas: (slots.clone(), cached.clone()),
            peer: peer.clone(),
            charge,
            slots: Vec::new(),
            most,
            target: granted,
            generation: 0,
            busy: 0,
        })
    }

    /// How many there are.
    pub(super) fn granted(&self) -> u32 {
        self.charge.amount() as u32
    }

    pub(super) fn target(&self) -> u32 {
        self.target
    }

    pub(super) fn busy(&self) -> u32 {
        self.busy
    }

    /// A request comes by a slot. `highest` is the highest slot that the client uses now.
    pub(super) fn take(
        &mut self,
        number: u32,
        seqid: u32,
        highest: u32,
        digest: u64,
    ) -> Result<Taken, Status> {
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
        // A slot that was taken back and given again: some clients begin anew, others go on.
        let is_next = seqid == slot.seqid.wrapping_add(1) || (!slot.used && seqid == 1);
        if !is_next {
            return match &slot.reply {
                _ if !slot.used || seqid != slot.seqid => Err(Status::SeqMisordered),
                _ if slot.digest != digest => Err(Status::SeqFalseRetry),
                Some((reply, _)) => Ok(Taken::Answer(reply.clone())),
                None => Ok(Taken::Lost),
            };
        }
        let knows_target = slot.told == self.generation;
        slot.busy = Some(seqid);
        slot.told = self.generation;
        self.busy += 1;
        if knows_target && highest < self.target {
            self.shrink();
        }
        self.retarget(highest.max(number));
        self.slots[number as usize].told = self.generation;
        Ok(Taken::Serve)
    }

    /// The request that came by a slot is answered. The reply is kept if there is room.
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

    /// The request that came by a slot is to be as if it had not come.
    pub(super) fn give_back(&mut self, number: u32) {
        if self.slots[number as usize].busy.take().is_some() {
            self.busy -= 1;
        }
    }

    /// The client uses no more than the target: what is beyond goes.
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
            self.charge.set(keep as usize);
        }
    }

    /// Asks for slots back where they are scarce, and gives more where the client uses all it has.
    fn retarget(&mut self, highest: u32) {
        let (slots, granted) = (&self.quotas.0, self.granted());
        let target = if is_tight(slots) {
            self.target
                .min(highest.saturating_add(1).max(granted / 2).max(1))
        } else if highest.saturating_add(1) >= self.target && self.target < granted {
            granted
        } else if highest.saturating_add(1) >= granted && granted < self.most {
            let more = granted.min(self.most - granted);
            self.charge.join(slots.take_some(&self.peer, more as usize));
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
        of_budget(&Quota::new(all, all, 0), most).expect("room")
    }

    fn of_budget(budget: &Arc<Quota>, most: u32) -> Option<Slots> {
        Slots::new((budget, &Quota::new(1000, 1000, 1)), &Account::OURS, most)
    }

    fn served(slots: &mut Slots, number: u32, seqid: u32, highest: u32) {
        let taken = slots.take(number, seqid, highest, 0);
        assert!(matches!(taken, Ok(Taken::Serve)), "{taken:?}");
        slots.answer(number, 0, None);
    }

    #[test]
    fn rfc8881_2_10_6_1_a_slot_serves_each_seqid_once() {
        let mut slots = slots(100, 4);
        assert_eq!(slots.take(0, 0, 0, 7).err(), Some(Status::SeqMisordered));
        assert_eq!(slots.take(0, 2, 0, 7).err(), Some(Status::SeqMisordered));
        assert!(matches!(slots.take(0, 1, 0, 7), Ok(Taken::Serve)));
        assert_eq!(slots.take(0, 1, 0, 7).err(), Some(Status::Delay));
        assert_eq!(slots.take(0, 2, 0, 7).err(), Some(Status::SeqMisordered));
        slots.answer(0, 7, Some(Arc::from(*b"reply")));
        assert!(matches!(slots.take(0, 1, 0, 7), Ok(Taken::Answer(reply)) if *reply == *b"reply"));
        assert_eq!(slots.take(0, 1, 0, 8).err(), Some(Status::SeqFalseRetry));
        assert_eq!(slots.take(0, 3, 0, 7).err(), Some(Status::SeqMisordered));
        assert_eq!(slots.take(4, 1, 0, 7).err(), Some(Status::Badslot));
    }

    #[test]
    fn rfc8881_2_10_6_1_3_an_uncached_reply_cannot_be_had_again() {
        let mut slots = slots(100, 4);
        served(&mut slots, 3, 1, 3);
        assert!(matches!(slots.take(3, 1, 3, 0), Ok(Taken::Lost)));
        served(&mut slots, 3, 2, 3);
    }

    #[test]
    fn replies_are_kept_as_far_as_there_is_room() {
        let (budget, cached) = (Quota::new(9, 9, 0), Quota::new(10, 10, 1));
        let mut slots = Slots::new((&budget, &cached), &Account::OURS, 2).expect("room");
        for slot in 0..2 {
            assert!(matches!(slots.take(slot, 1, 1, 0), Ok(Taken::Serve)));
            slots.answer(slot, 0, Some(Arc::from(*b"a reply")));
        }
        assert!(matches!(slots.take(0, 1, 1, 0), Ok(Taken::Answer(_))));
        assert!(matches!(slots.take(1, 1, 1, 0), Ok(Taken::Lost)));
        drop(slots);
        assert_eq!((budget.in_use(), cached.in_use()), (0, 0));
    }

    #[test]
    fn replies_are_kept_as_far_as_the_memory_budget_goes() {
        use vfs::PeerKey;
        use vfs::memory::MemoryBudget;
        let budget = MemoryBudget::new(64 << 10);
        let account = Account::at(&budget, PeerKey::User(1));
        let (slots, cached) = (
            Quota::new(9, 9, Slots::SLOT),
            Quota::new(1 << 20, 1 << 20, 1),
        );
        let mut slots = Slots::new((&slots, &cached), &account, 8).expect("room");
        let most = slots.granted();
        for slot in 0..most {
            assert!(matches!(slots.take(slot, 1, 1, 0), Ok(Taken::Serve)));
            slots.answer(slot, 0, Some(vec![0; 12 << 10].into()));
            assert!(budget.kept() <= budget.limit() / 4);
        }
        // One has its share; what the others were answered cannot be had again.
        assert!(matches!(slots.take(0, 1, 1, 0), Ok(Taken::Answer(_))));
        assert!(matches!(slots.take(1, 1, 1, 0), Ok(Taken::Lost)));
        drop(slots);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn a_request_given_back_may_come_again() {
        let mut slots = slots(100, 1);
        assert!(matches!(slots.take(0, 1, 0, 0), Ok(Taken::Serve)));
        slots.give_back(0);
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
        let budget = Quota::new(64, 64, 0);
        let mut one = of_budget(&budget, 16).expect("room");
        assert_eq!(one.granted(), 16);
        let others: Vec<_> = std::iter::from_fn(|| of_budget(&budget, 16)).collect();
        assert!(is_tight(&budget));
        served(&mut one, 9, 1, 9);
        assert_eq!((one.granted(), one.target()), (16, 10));
        // That slot's client knows; the other's may not.
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
}
