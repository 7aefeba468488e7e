//! How a service begins and ends: what its manager wants to know.

use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// What is still open when a mount is told to stop has so long to be closed.
pub(crate) const FAREWELL: Duration = Duration::from_secs(2);

/// READY=1, as sd_notify(3) has it, and what is to be seen of it.
pub(crate) fn tell_ready(status: &str) {
    tell(&format!("READY=1\nSTATUS={status}\n"));
}

/// RELOADING=1: until the next [`tell_ready`] it is not settled what is served.
pub(crate) fn tell_reloading() {
    let now = clock_gettime(ClockId::Monotonic);
    let micros = i128::from(now.tv_sec) * 1_000_000 + i128::from(now.tv_nsec) / 1_000;
    tell(&format!("RELOADING=1\nMONOTONIC_USEC={micros}\n"));
}

/// Without a service manager nothing.
fn tell(what: &str) {
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
        tracing::warn!("cannot tell the service manager how it goes: {error}");
    }
}
