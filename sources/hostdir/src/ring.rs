//! What a clock hand goes over.

/// Things in a circle, with gaps where one was taken out. Never larger than the most that there ever
/// were at once.
pub(crate) struct Ring<T> {
    slots: Vec<Option<T>>,
    gaps: Vec<u32>,
    hand: usize,
}

impl<T> Default for Ring<T> {
    fn default() -> Ring<T> {
        Ring {
            slots: Vec::new(),
            gaps: Vec::new(),
            hand: 0,
        }
    }
}

impl<T> Ring<T> {
    /// Puts one in, and says where it stands.
    pub(crate) fn insert(&mut self, one: T) -> u32 {
        let at = self.gaps.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as u32 - 1
        });
        self.slots[at as usize] = Some(one);
        at
    }

    /// Takes out what stands there.
    pub(crate) fn remove(&mut self, at: u32) {
        self.slots[at as usize] = None;
        self.gaps.push(at);
    }

    /// Moves the hand on, and says what it has come to, unless that is a gap.
    pub(crate) fn advance(&mut self) -> Option<&T> {
        self.hand = (self.hand + 1) % self.slots.len().max(1);
        self.slots.get(self.hand)?.as_ref()
    }

    /// How many places there are.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hand_comes_to_all_and_gaps_are_filled() {
        let mut ring = Ring::default();
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
