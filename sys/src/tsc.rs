//! The processor's time stamp counter, which also drives QEMU's emulated x86-64 processors on
//! x86-64.

use std::time::{Duration, Instant};

/// Measures its frequency in kHz for `time`; `None` on processors without one.
pub fn khz(time: Duration) -> Option<u64> {
    let (from, began) = (ticks()?, Instant::now());
    std::thread::sleep(time);
    let (to, took) = (ticks()?, began.elapsed());
    u64::try_from(u128::from(to.checked_sub(from)?) * 1_000_000 / took.as_nanos()).ok()
}

#[cfg(target_arch = "x86_64")]
fn ticks() -> Option<u64> {
    // SAFETY: every x86-64 processor has the instruction, which accesses no memory.
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
