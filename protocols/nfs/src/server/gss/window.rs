//! The window of sequence numbers (RFC 2203 section 5.3.3.1).

/// The window of a context: its highest sequence number, and the ones below that have been seen.
pub(super) struct Window {
    highest: u32,
    /// A bit for each number, indexed by the remainder.
    seen: [u64; Window::SIZE as usize / 64],
}

impl Window {
    /// The size of the window: the number of calls that several connections of a client may have in
    /// flight, because workers take them in any order.
    pub(super) const SIZE: u32 = 2048;

    pub(super) fn new() -> Window {
        Window {
            highest: 0,
            seen: [0; Window::SIZE as usize / 64],
        }
    }

    /// Records `number`; returns `false` if it is a duplicate or below the window.
    pub(super) fn admit(&mut self, number: u32) -> bool {
        if number > self.highest {
            if number - self.highest >= Window::SIZE {
                self.seen.fill(0);
            } else {
                for passed in self.highest + 1..=number {
                    let (word, bit) = Window::bit_of(passed);
                    self.seen[word] &= !bit;
                }
            }
            self.highest = number;
        } else if self.highest - number >= Window::SIZE {
            return false;
        }
        let (word, bit) = Window::bit_of(number);
        let is_new = self.seen[word] & bit == 0;
        self.seen[word] |= bit;
        is_new
    }

    fn bit_of(number: u32) -> (usize, u64) {
        let at = number % Window::SIZE;
        (at as usize / 64, 1 << (at % 64))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn rfc2203_5_3_3_1_each_number_counts_once_and_none_below_the_window() {
        const SIZE: u32 = Window::SIZE;
        let mut window = Window::new();
        assert!(window.admit(5) && window.admit(3) && window.admit(0));
        assert!(!window.admit(5) && !window.admit(3));
        assert!(window.admit(SIZE + 4), "5 is the last of the window now");
        assert!(!window.admit(4) && !window.admit(5) && window.admit(6));
        assert!(window.admit(0x8000_0000), "all below has passed");
        assert!(window.admit(0x8000_0000 - SIZE + 1));
        assert!(!window.admit(0x8000_0000 - SIZE));
    }

    proptest! {
        #[test]
        fn a_window_is_a_set_with_an_end(
            steps in proptest::collection::vec((any::<bool>(), 0..3 * Window::SIZE), 0..400),
        ) {
            let mut window = Window::new();
            let (mut come, mut top) = (HashSet::new(), 0u32);
            for (up, by) in steps {
                let number = if up { top + by } else { top.saturating_sub(by) };
                let expected = number > top || (top - number < Window::SIZE && !come.contains(&number));
                prop_assert_eq!(window.admit(number), expected, "{} at {}", number, top);
                come.insert(number);
                top = top.max(number);
            }
        }
    }
}
