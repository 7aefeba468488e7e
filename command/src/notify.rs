//! Notifications to the service manager (sd_notify(3)).

use std::io;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

/// Time for a service manager to read earlier notifications; one that hangs delays no client.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Returns READY=1 with a status line, as described in sd_notify(3). Control characters of `status`
/// become blanks: after a line break, the rest would be another assignment, such as MAINPID=.
pub fn ready(status: &str) -> String {
    let status = status.replace(char::is_control, " ");
    format!("READY=1\nSTATUS={status}\n")
}

/// Sends `what` to the service manager. Does nothing without one.
pub fn send(what: &str) {
    let sent = connect().and_then(|socket| match socket {
        Some(socket) => socket.send(what.as_bytes()).map(drop),
        None => Ok(()),
    });
    if let Err(error) = sent {
        tracing::warn!("cannot notify the service manager: {error}");
    }
}

/// Returns a socket connected to the service manager, or `None` without one.
pub fn connect() -> io::Result<Option<UnixDatagram>> {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::net::SocketAddr;
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else {
        return Ok(None);
    };
    let addr = match path.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(&path)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.connect_addr(&addr)?;
    socket.set_write_timeout(Some(TIMEOUT))?;
    Ok(Some(socket))
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_status_of_several_lines_assigns_nothing_else() {
        let text = super::ready("ready\nMAINPID=1\r\0\nX=y");
        assert_eq!(text, "READY=1\nSTATUS=ready MAINPID=1   X=y\n");
    }
}
