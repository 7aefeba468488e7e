//! The time stamp counter of the processor, by which QEMU's emulated processors count too, where both are of this kind.

use std::time::{Duration, Instant};

/// How fast it counts, kHz, tried for `time`; nothing where there is none.
pub fn khz(time: Duration) -> Option<u64> {
    let (from, began) = (ticks()?, Instant::now());
    std::thread::sleep(time);
    let (to, took) = (ticks()?, began.elapsed());
    u64::try_from(u128::from(to.checked_sub(from)?) * 1_000_000 / took.as_nanos()).ok()
}

#[cfg(target_arch = "x86_64")]
fn ticks() -> Option<u64> {
    // SAFETY: every processor of this kind has the instruction, which touches no memory.
    #[allow(unsafe_code)]
    let ticks = unsafe { std::arch::x86_64::_rdtsc() };
    Some(ticks)
}

#[cfg(not(target_arch = "x86_64"))]
fn ticks() -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_counts_as_fast_as_processors_do() {
        let found = khz(Duration::from_millis(1));
        let is_likely = |khz: u64| (100_000..20_000_000).contains(&khz);
        assert_eq!(
            found.map(is_likely),
            cfg!(target_arch = "x86_64").then_some(true)
        );
    }
}
