//! What the calling thread is permitted.

use rustix::thread::CapabilitySet;

/// The capabilities in force for the calling thread (capget(2)); none if the kernel will not say.
pub fn effective() -> CapabilitySet {
    rustix::thread::capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective)
}

/// Whether all of `wanted` are in force for the calling thread.
pub fn have(wanted: CapabilitySet) -> bool {
    effective().contains(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_super_user_may_and_nobody_lacks_nothing() {
        assert!(have(CapabilitySet::empty()));
        if rustix::process::geteuid().is_root() {
            assert_eq!(
                have(CapabilitySet::SETUID),
                effective().contains(CapabilitySet::SETUID)
            );
        }
    }
}
