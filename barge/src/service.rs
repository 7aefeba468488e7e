//! How a service begins and ends: what its manager wants to know.

use std::os::unix::net::UnixDatagram;
use std::time::Duration;

/// What is still open when a mount is told to stop has so long to be closed.
pub(crate) const FAREWELL: Duration = Duration::from_secs(2);

/// READY=1, as sd_notify(3) has it; without a service manager nothing.
pub(crate) fn tell_ready() {
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
        socket.send_to_addr(b"READY=1\n", &addr)
    });
    if let Err(error) = sent {
        tracing::warn!("cannot tell the service manager that clients can connect: {error}");
    }
}
