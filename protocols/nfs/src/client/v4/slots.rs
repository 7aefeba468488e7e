//! A session's slots, which bound the calls in flight and number them (RFC 8881 section 2.10.6).

use super::compound::Sequence;
use crate::v4::SessionId;

/// The slots of a session.
pub struct Slots {
    session: SessionId,
    /// The next sequence id of each slot.
    sequence_ids: Vec<u32>,
    /// The free slots, the lowest last.
    free: Vec<u32>,
    /// The number of slots that the server asks the client to use.
    target: u32,
}

/// A slot in use.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a slot that is not given back is of no use to anybody"]
pub struct Slot(u32);

impl Slots {
    /// Creates `count` unused slots.
    pub fn new(session: SessionId, count: u32) -> Slots {
        Slots {
            session,
            sequence_ids: vec![1; count as usize],
            free: (0..count).rev().collect(),
            target: count,
        }
    }

    /// Takes the lowest free slot; `None` if there is none within the server's target.
    pub fn take(&mut self) -> Option<Slot> {
        // The first slot is always usable.
        let slot = self.free.pop_if(|slot| *slot < self.target.max(1))?;
        Some(Slot(slot))
    }

    /// Returns the SEQUENCE arguments of a call that uses `slot`.
    pub fn sequence(&self, slot: &Slot) -> Sequence {
        let count = self.sequence_ids.len() as u32;
        let unused = self.free.iter().zip((0..count).rev());
        let unused = unused.take_while(|(free, highest)| **free == *highest);
        let highest = (count - 1).saturating_sub(unused.count() as u32);
        Sequence {
            session: self.session,
            slot: slot.0,
            sequence_id: self.sequence_ids[slot.0 as usize],
            highest,
        }
    }

    /// Advances the slot's sequence id: the server has accepted the call.
    pub fn advance(&mut self, slot: &Slot) {
        let sequence_id = &mut self.sequence_ids[slot.0 as usize];
        *sequence_id = sequence_id.wrapping_add(1);
    }

    /// Frees a slot.
    pub fn release(&mut self, slot: Slot) {
        let at = self.free.partition_point(|&free| free > slot.0);
        self.free.insert(at, slot.0);
    }

    /// Sets the server's target for the highest slot in use.
    pub fn set_target(&mut self, highest: u32) {
        self.target = highest
            .saturating_add(1)
            .min(self.sequence_ids.len() as u32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_taken_lowest_first_and_turn_when_the_server_says_so() {
        let mut slots = Slots::new([7; 16], 3);
        let (one, two) = (slots.take().expect("free"), slots.take().expect("free"));
        let want = Sequence {
            session: [7; 16],
            slot: 1,
            sequence_id: 1,
            highest: 1,
        };
        assert_eq!(slots.sequence(&two), want);
        slots.advance(&one);
        slots.release(one);
        let again = slots.take().expect("free");
        let sequence = slots.sequence(&again);
        assert_eq!((sequence.slot, sequence.sequence_id), (0, 2));
        let three = slots.take().expect("free");
        assert_eq!(slots.sequence(&three).highest, 2);
        assert_eq!(slots.take(), None);
        slots.set_target(0);
        slots.release(three);
        slots.release(two);
        assert_eq!(slots.take(), None, "the server wants one in use only");
        slots.release(again);
        assert_eq!(slots.take(), Some(Slot(0)));
        slots.set_target(u32::MAX);
        assert_eq!(slots.take(), Some(Slot(1)));
    }
}
