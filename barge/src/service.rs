//! Notifications to the service manager (sd_notify(3)).

pub(crate) use command::notify::{ready, send as notify};
use rustix::time::{ClockId, clock_gettime};

/// Sends the text of [`ready`].
pub(crate) fn notify_ready(status: &str) {
    notify(&ready(status));
}

/// Returns RELOADING=1: the shares are being replaced until the next [`ready`].
pub(crate) fn reloading() -> String {
    let now = clock_gettime(ClockId::Monotonic);
    let micros = i128::from(now.tv_sec) * 1_000_000 + i128::from(now.tv_nsec) / 1_000;
    format!("RELOADING=1\nMONOTONIC_USEC={micros}\n")
}
