//! A relay for another client on a link that survives lost connections.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::thread;

use p9::message::HEADER;
use transports::Link;

use super::link::ReconnectingLink;

/// The largest message to relay, far beyond those of Linux's client.
const MAX_MESSAGE: usize = 64 << 20;

/// The initial buffer size: a large message of Linux's client and the start of the next.
const BUFFER_SIZE: usize = (1 << 20) + (64 << 10);

/// Relays between `client` and `server` until the client disconnects or the server is lost for
/// good.
pub fn relay(client: Arc<dyn Link>, server: Arc<ReconnectingLink>) -> io::Result<()> {
    let (from, to) = (client.clone(), server.clone());
    let request_relay = thread::Builder::new()
        .name("barge-asks".into())
        .spawn(move || {
            let end = relay_messages(&*from, &*to);
            to.hang_up();
            end
        })?;
    let end = relay_messages(&*server, &*client);
    client.hang_up();
    let request_result = request_relay.join().unwrap_or(Ok(()));
    end.and(request_result)
}

/// Relays whole messages.
fn relay_messages(from: &dyn Link, to: &dyn Link) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_SIZE];
    let mut end = 0;
    loop {
        match from.recv(&mut buffer[end..], true) {
            Ok(0) => return Ok(()),
            Ok(got) => end += got,
            // The message will arrive again from its beginning.
            Err(error) if error.kind() == ErrorKind::Interrupted => end = 0,
            // The receive timed out.
            Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error),
        }
        let mut whole = 0;
        let mut capacity = BUFFER_SIZE;
        while let Some(size) = buffer[whole..end].first_chunk() {
            let size = u32::from_le_bytes(*size) as usize;
            if !(HEADER..=MAX_MESSAGE).contains(&size) {
                return Err(ErrorKind::InvalidData.into());
            }
            if whole + size > end {
                capacity = capacity.max(size);
                break;
            }
            whole += size;
        }
        let mut sent = 0;
        while sent < whole {
            sent += to.send(&buffer[sent..whole], true)?;
        }
        buffer.copy_within(whole..end, 0);
        end -= whole;
        buffer.resize(capacity.max(buffer.len()), 0);
    }
}
