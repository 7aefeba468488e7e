//! Notifications to the service manager (sd_notify(3)).

use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Time for open files of a mount to be closed after a signal to stop.
pub(crate) const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Sends the text of [`ready`].
pub(crate) fn notify_ready(status: &str) {
    notify(&ready(status));
}

/// Returns READY=1 with a status line, as described in sd_notify(3).
pub(crate) fn ready(status: &str) -> String {
    format!("READY=1\nSTATUS={status}\n")
}

/// Returns RELOADING=1: the shares are being replaced until the next [`ready`].
pub(crate) fn reloading() -> String {
    let now = clock_gettime(ClockId::Monotonic);
    let micros = i128::from(now.tv_sec) * 1_000_000 + i128::from(now.tv_nsec) / 1_000;
    format!("RELOADING=1\nMONOTONIC_USEC={micros}\n")
}

/// Sends `what` to the service manager. Does nothing without one.
pub(crate) fn notify(what: &str) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    let sent = UnixDatagram::unbound().and_then(|socket| {
        use std::os::linux::net::SocketAddrExt;
        use std::os::unix::ffi::OsStrExt;
        use std::os::unix::net::SocketAddr;
        let addr = match path.as_bytes().strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(&path)?,
        };
        socket.send_to_addr(what.as_bytes(), &addr)
    });
    if let Err(error) = sent {
        tracing::warn!("cannot notify the service manager: {error}");
    }
}
