//! Notifications to the service manager (sd_notify(3)).

use std::os::unix::net::UnixDatagram;

/// Returns READY=1 with a status line, as described in sd_notify(3).
pub fn ready(status: &str) -> String {
    format!("READY=1\nSTATUS={status}\n")
}

/// Sends `what` to the service manager. Does nothing without one.
pub fn send(what: &str) {
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
