//! The circle of a clock algorithm.

/// Items in a circle, with gaps after removals. It is as large as the most items that it ever had.
pub(crate) struct ClockRing<T> {
    slots: Vec<Option<T>>,
    free: Vec<u32>,
    hand: usize,
}

impl<T> Default for ClockRing<T> {
    fn default() -> ClockRing<T> {
        ClockRing {
            slots: Vec::new(),
            free: Vec::new(),
            hand: 0,
        }
    }
}

impl<T> ClockRing<T> {
    /// Inserts an item, and returns its position.
    pub(crate) fn insert(&mut self, one: T) -> u32 {
        let at = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as u32 - 1
        });
        self.slots[at as usize] = Some(one);
        at
    }

    /// Removes the item at a position.
    pub(crate) fn remove(&mut self, at: u32) {
        self.slots[at as usize] = None;
        self.free.push(at);
    }

    /// Advances the hand, and returns the item there unless it is a gap.
    pub(crate) fn advance(&mut self) -> Option<&T> {
        self.hand = (self.hand + 1) % self.slots.len().max(1);
        self.slots.get(self.hand)?.as_ref()
    }

    /// Returns the number of positions.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hand_comes_to_all_and_gaps_are_filled() {
        let mut ring = ClockRing::default();
        assert_eq!(ring.advance(), None);
        let places = ["a", "b", "c"].map(|one| ring.insert(one));
        ring.remove(places[1]);
        let mut seen: Vec<_> = (0..3).map(|_| ring.advance().copied()).collect();
        seen.sort();
        assert_eq!(seen, [None, Some("a"), Some("c")]);
        assert_eq!(ring.insert("d"), places[1]);
        assert_eq!(ring.len(), 3);
    }
}
