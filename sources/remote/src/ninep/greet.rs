//! How a session begins.

use p9::client::Client;
use transports::Link;
use vfs::Errno;

use crate::ConnectError;
use crate::pipe::{ECONNRESET, error_text};

/// Tversion and its reply.
pub(super) fn greet(
    link: &dyn Link,
    client: &mut Client,
    hello: &[u8],
) -> std::result::Result<(), ConnectError> {
    let broken = |error: std::io::Error| {
        let why = error_text::<Client>(link.peer(), &error);
        ConnectError::new(Errno::from(error), why)
    };
    let refused = |what: wire::Malformed| {
        ConnectError::new(Errno::EPROTO, error_text::<Client>(link.peer(), &what))
    };
    link.send(hello, true).map_err(broken)?;
    // Before anything is agreed on, a message is no longer than this.
    let mut buffer = vec![0; 8192];
    let mut end = 0;
    loop {
        let whole = client.frame(&buffer[..end]).map_err(refused)?;
        match whole {
            Some(len) if len > buffer.len() => {
                let what = format!("expected Rversion, got a message of {len} bytes");
                return Err(refused(wire::Malformed::new(what)));
            }
            Some(len) if len < end => {
                let what = format!("expected nothing behind Rversion, got {} bytes", end - len);
                return Err(refused(wire::Malformed::new(what)));
            }
            Some(len) if len == end => {
                return client.agree(&buffer[..len]).map_err(refused);
            }
            _ => {}
        }
        let room = whole.unwrap_or(buffer.len());
        match link.recv(&mut buffer[end..room], true).map_err(broken)? {
            0 => {
                let what = "the server ended the connection instead of answering Tversion";
                return Err(ConnectError::new(
                    ECONNRESET,
                    error_text::<Client>(link.peer(), &what),
                ));
            }
            got => end += got,
        }
    }
}
