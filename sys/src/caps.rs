//! Capabilities of the calling thread.

use std::io;

use rustix::thread::{CapabilitySet, CapabilitySets};

/// Returns the effective capabilities of the calling thread (capget(2)); none if the kernel
/// refuses.
pub fn effective() -> CapabilitySet {
    rustix::thread::capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective)
}

/// Returns whether all of `wanted` are effective for the calling thread.
pub fn have_all(wanted: CapabilitySet) -> bool {
    effective().contains(wanted)
}

/// The capabilities over files: those that a thread loses when its file-system user id changes from
/// 0 (`CAP_FS_SET` in Linux's `include/linux/capability.h`), and `CAP_SYS_RESOURCE`, which
/// overrides quotas and reserved blocks (`CAP_NFSD_SET` includes it, too).
const FS_CAPABILITIES: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::MKNOD)
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::LINUX_IMMUTABLE)
    .union(CapabilitySet::MAC_OVERRIDE)
    .union(CapabilitySet::SYS_RESOURCE);

/// Makes the calling thread's permitted capabilities over files effective, or ineffective,
/// regardless of its user.
pub fn set_fs_capabilities(in_force: bool) -> rustix::io::Result<()> {
    let now = rustix::thread::capabilities(None)?;
    let effective = match in_force {
        true => now.effective | (now.permitted & FS_CAPABILITIES),
        false => now.effective - FS_CAPABILITIES,
    };
    rustix::thread::set_capabilities(None, CapabilitySets { effective, ..now })
}

/// Runs `what` while `fewer` are ineffective for the calling thread.
pub fn run_without<T>(
    fewer: CapabilitySet,
    what: impl FnOnce() -> rustix::io::Result<T>,
) -> rustix::io::Result<T> {
    let now = rustix::thread::capabilities(None)?;
    let less = CapabilitySets {
        effective: now.effective - fewer,
        ..now
    };
    rustix::thread::set_capabilities(None, less)?;
    let done = what();
    rustix::thread::set_capabilities(None, now)?;
    done
}

/// Drops all capabilities of the calling thread except `retained`, permanently, and thereby those
/// of the threads that it starts later. Programs that it executes get none beyond `retained`
/// either, if it has `CAP_SETPCAP`.
pub fn limit(retained: CapabilitySet) -> io::Result<()> {
    let now = rustix::thread::capabilities(None)?;
    if now.effective.contains(CapabilitySet::SETPCAP) {
        // Also those that only the running kernel knows.
        for bit in 0..u64::BITS {
            let one = CapabilitySet::from_bits_retain(1 << bit);
            match rustix::thread::capability_is_in_bounding_set(one) {
                Ok(true) if !retained.contains(one) => {
                    rustix::thread::remove_capability_from_bounding_set(one)?;
                }
                Ok(_) => {}
                Err(_) => break,
            }
        }
    }
    let less = CapabilitySets {
        effective: now.effective & retained,
        permitted: now.permitted & retained,
        inheritable: CapabilitySet::empty(),
    };
    Ok(rustix::thread::set_capabilities(None, less)?)
}

/// Passes `all` on to the next program that this thread executes, also if its user is not the
/// super-user. Returns `EPERM` if one is not permitted to this thread.
pub fn pass_on(all: CapabilitySet) -> io::Result<()> {
    let now = rustix::thread::capabilities(None)?;
    rustix::thread::set_capabilities(
        None,
        CapabilitySets {
            inheritable: now.inheritable | all,
            ..now
        },
    )?;
    for one in all.iter() {
        rustix::thread::configure_capability_in_ambient_set(one, true)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_up_does_not_come_back() {
        let thread = std::thread::spawn(|| {
            let before = effective();
            let retained = before - CapabilitySet::CHOWN;
            limit(retained).expect("less is always permitted");
            assert_eq!(effective(), retained);
            limit(before).expect("less is always permitted");
            assert_eq!(effective(), retained);
        });
        thread.join().expect("it holds");
    }

    #[test]
    fn what_is_out_of_force_for_a_while_is_in_force_again() {
        let before = effective();
        let during = run_without(CapabilitySet::FSETID, || Ok(effective()));
        assert_eq!(during, Ok(before - CapabilitySet::FSETID));
        assert_eq!(effective(), before);
    }

    #[test]
    fn the_super_user_may_and_nobody_lacks_nothing() {
        assert!(have_all(CapabilitySet::empty()));
        if rustix::process::geteuid().is_root() {
            assert_eq!(
                have_all(CapabilitySet::SETUID),
                effective().contains(CapabilitySet::SETUID)
            );
        }
    }
}
