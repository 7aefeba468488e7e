//! The slots of a session: each request once, each retry answered as before (RFC 8881 section
//! 2.10.6.1).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::v4::Status;

/// How many slots all sessions together may have.
pub(super) struct Budget {
    all: usize,
    used: AtomicUsize,
}

impl Budget {
    pub(super) fn new(all: usize) -> Budget {
        Budget {
            all,
            used: AtomicUsize::new(0),
        }
    }

    /// Takes as many as `wanted`, but leaves three quarters of what is left to others.
    fn take(&self, wanted: u32) -> u32 {
        let mut taken = 0;
        let _ = self
            .used
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |used| {
                let left = self.all.saturating_sub(used);
                taken = wanted.min((left.div_ceil(4)).try_into().unwrap_or(u32::MAX));
                Some(used + taken as usize)
            });
        taken
    }

    fn give(&self, slots: u32) {
        self.used.fetch_sub(slots as usize, Ordering::AcqRel);
    }

    /// Whether sessions are to give back what they do not use.
    fn is_tight(&self) -> bool {
        self.used.load(Ordering::Acquire) > self.all / 8 * 7
    }

    #[cfg(test)]
    pub(super) fn used(&self) -> usize {
        self.used.load(Ordering::Acquire)
    }
}

/// A session's slots.
pub(super) struct Slots {
    budget: Arc<Budget>,
    /// Those that have ever been used.
    slots: Vec<Slot>,
    /// How many there may be: what the client asked for.
    most: u32,
    /// How many there are.
    granted: u32,
    /// How many the client should use.
    target: u32,
    /// Counts the changes of `target`.
    generation: u32,
    busy: u32,
}

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
    reply: Option<Arc<[u8]>>,
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
    /// As many slots as the budget has, up to `most`; nothing if it has none.
    pub(super) fn new(budget: &Arc<Budget>, most: u32) -> Option<Slots> {
        let granted = budget.take(most);
        (granted > 0).then(|| Slots {
            budget: budget.clone(),
            slots: Vec::new(),
            most,
            granted,
            target: granted,
            generation: 0,
            busy: 0,
        })
    }

    pub(super) fn granted(&self) -> u32 {
        self.granted
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
        if number >= self.granted {
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
                Some(reply) => Ok(Taken::Answer(reply.clone())),
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

    /// The request that came by a slot is answered.
    pub(super) fn answer(&mut self, number: u32, digest: u64, reply: Option<Arc<[u8]>>) {
        let slot = &mut self.slots[number as usize];
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
        if keep < self.granted {
            for slot in self.slots.iter_mut().skip(keep as usize) {
                *slot = Slot {
                    seqid: slot.seqid,
                    ..Slot::default()
                };
            }
            self.budget.give(self.granted - keep);
            self.granted = keep;
        }
    }

    /// Asks for slots back where they are scarce, and gives more where the client uses all it has.
    fn retarget(&mut self, highest: u32) {
        let target = if self.budget.is_tight() {
            self.target
                .min(highest.saturating_add(1).max(self.granted / 2).max(1))
        } else if highest.saturating_add(1) >= self.target && self.target < self.granted {
            self.granted
        } else if highest.saturating_add(1) >= self.granted && self.granted < self.most {
            let more = self.granted.min(self.most - self.granted);
            self.granted += self.budget.take(more);
            self.granted
        } else {
            self.target
        };
        if target != self.target {
            self.target = target;
            self.generation = self.generation.wrapping_add(1);
        }
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        self.budget.give(self.granted);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(all: usize, most: u32) -> Slots {
        Slots::new(&Arc::new(Budget::new(all)), most).expect("room")
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
        let budget = Arc::new(Budget::new(64));
        let mut one = Slots::new(&budget, 16).expect("room");
        assert_eq!(one.granted(), 16);
        let others: Vec<_> = std::iter::from_fn(|| Slots::new(&budget, 16)).collect();
        assert!(budget.is_tight());
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
        assert_eq!(budget.used(), 0);
    }
}
