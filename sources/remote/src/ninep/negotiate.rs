//! Session setup.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use p9::client::Client;
use transports::Link;
use vfs::Errno;

use crate::connection::{ECONNRESET, error_text};
use crate::{ConnectError, Timeouts};

/// Exchanges Tversion and Rversion, which must arrive within `timeo`. Repeats the exchange with the
/// dialect alone if the server refuses the extensions offered with it.
pub(super) fn negotiate(
    link: &dyn Link,
    client: &mut Client,
    timeo: Duration,
) -> std::result::Result<(), ConnectError> {
    while !negotiate_once(link, client, timeo)? {}
    Ok(())
}

fn negotiate_once(
    link: &dyn Link,
    client: &mut Client,
    timeo: Duration,
) -> std::result::Result<bool, ConnectError> {
    let broken = |error: std::io::Error| {
        let why = error_text::<Client>(link.peer(), &error);
        ConnectError::new(Errno::from(error), why)
    };
    let refused = |what: wire::Malformed| {
        ConnectError::new(Errno::EPROTO, error_text::<Client>(link.peer(), &what))
    };
    let mut hello = Vec::new();
    client.version_request(&mut hello);
    link.send(&hello, true).map_err(broken)?;
    // The most that a reply to Tversion may be.
    let mut buffer = vec![0; 8192];
    let mut end = 0;
    let until = Instant::now() + timeo;
    loop {
        let whole = client.frame(&buffer[..end]).map_err(refused)?;
        match whole {
            Some(len) if len > buffer.len() => {
                let what = format!("expected Rversion, got a message of {len} bytes");
                return Err(refused(wire::Malformed::new(what)));
            }
            Some(len) if len < end => {
                let what = format!("expected no bytes after Rversion, got {}", end - len);
                return Err(refused(wire::Malformed::new(what)));
            }
            Some(len) if len == end => {
                return client.negotiate(&buffer[..len]).map_err(refused);
            }
            _ => {}
        }
        let limit = whole.unwrap_or(buffer.len());
        let got = match link.recv(&mut buffer[end..limit], true) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => match Instant::now() < until {
                true => continue,
                false => {
                    let what = "the server does not reply to Tversion";
                    let text = error_text::<Client>(link.peer(), &what);
                    return Err(ConnectError::new(Timeouts::ERRNO, text));
                }
            },
            done => done.map_err(broken)?,
        };
        match got {
            0 => {
                let what = "the server closed the connection instead of replying to Tversion";
                return Err(ConnectError::new(
                    ECONNRESET,
                    error_text::<Client>(link.peer(), &what),
                ));
            }
            got => end += got,
        }
    }
}
