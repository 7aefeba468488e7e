//! A relay that adds latency: forwards TCP data on loopback half a millisecond later in each
//! direction, like a network with a round trip of 1 ms. The relay does not drop, reorder or
//! throttle data; only [`Relay::MAX_IN_FLIGHT`] bounds the data in flight. The kernels still
//! measure the round trip of loopback, so congestion control is not simulated.
//!
//! It also counts the 9P writes it forwards.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

/// Forwards connections until the process exits.
pub(super) struct Relay {
    /// The port for clients.
    pub(super) port: u16,
    writes: Arc<WriteCounts>,
}

/// The Twrites forwarded, and their payload bytes.
#[derive(Default)]
struct WriteCounts {
    messages: AtomicU64,
    bytes: AtomicU64,
}

/// A piece of data, with its time of arrival.
type TimedChunk = (Instant, Vec<u8>);

impl Relay {
    /// The delay in each direction.
    pub(super) const DELAY: Duration = Duration::from_micros(500);

    /// The most pieces in flight, of up to [`Relay::CHUNK_SIZE`] bytes each. At 256 MB/s, 128 KiB
    /// are in flight for half a millisecond, so the bound is never reached.
    const MAX_IN_FLIGHT: usize = 256;

    const CHUNK_SIZE: usize = 256 << 10;

    /// Starts to forward connections to `server`.
    pub(super) fn start(server: SocketAddr) -> std::io::Result<Relay> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let port = listener.local_addr()?.port();
        let writes = Arc::new(WriteCounts::default());
        let counts = writes.clone();
        spawn(move || {
            // A connection that cannot be forwarded is closed, so its client notices.
            for client in listener.incoming().flatten() {
                let _ = forward(client, server, &counts);
            }
        });
        Ok(Relay { port, writes })
    }

    /// Returns the mean payload of the 9P writes since the last call, in bytes; `None` if there
    /// were none.
    pub(super) fn mean_write(&self) -> Option<u64> {
        let messages = self.writes.messages.swap(0, Ordering::Relaxed);
        let bytes = self.writes.bytes.swap(0, Ordering::Relaxed);
        bytes.checked_div(messages)
    }
}

fn forward(
    client: TcpStream,
    server: SocketAddr,
    writes: &Arc<WriteCounts>,
) -> std::io::Result<()> {
    let server = TcpStream::connect(server)?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let count = WriteCounter {
        writes: writes.clone(),
        head: Vec::new(),
        rest: 0,
    };
    forward_direction(client.try_clone()?, server.try_clone()?, Some(count));
    forward_direction(server, client, None);
    Ok(())
}

/// Forwards one direction, with a thread to read and a thread to write.
fn forward_direction(mut from: TcpStream, to: TcpStream, mut count: Option<WriteCounter>) {
    let (sender, receiver): (SyncSender<TimedChunk>, _) = sync_channel(Relay::MAX_IN_FLIGHT);
    spawn(move || write_delayed(&receiver, to));
    spawn(move || {
        loop {
            let mut piece = vec![0; Relay::CHUNK_SIZE];
            match from.read(&mut piece) {
                Ok(got) if got > 0 => piece.truncate(got),
                _ => return,
            }
            if let Some(count) = &mut count {
                count.feed(&piece);
            }
            if sender.send((Instant::now(), piece)).is_err() {
                return;
            }
        }
    });
}

fn write_delayed(receiver: &Receiver<TimedChunk>, mut to: TcpStream) {
    for (received, piece) in receiver {
        sleep((received + Relay::DELAY).saturating_duration_since(Instant::now()));
        if to.write_all(&piece).is_err() {
            break;
        }
    }
    // An error means that the connection is already closed.
    let _ = to.shutdown(Shutdown::Both);
}

/// Finds the message boundaries in a client's byte stream, and counts its Twrites.
struct WriteCounter {
    writes: Arc<WriteCounts>,
    head: Vec<u8>,
    /// Bytes left of the current message.
    rest: usize,
}

impl WriteCounter {
    /// The bytes of size, type, tag, fid, offset and payload length (`Twrite`, write(5)).
    const HEADER_LEN: usize = 7 + 4 + 8 + 4;
    const TWRITE: u8 = 118;

    fn feed(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.rest > 0 {
                let over = self.rest.min(bytes.len());
                self.rest -= over;
                bytes = &bytes[over..];
                continue;
            }
            self.head.push(bytes[0]);
            bytes = &bytes[1..];
            let size = self
                .head
                .first_chunk()
                .map(|size| u32::from_le_bytes(*size));
            let size = size.map_or(usize::MAX, |size| size as usize);
            if self.head.len() < WriteCounter::HEADER_LEN.min(size) {
                continue;
            }
            if self.head.get(4) == Some(&WriteCounter::TWRITE) {
                self.writes.messages.fetch_add(1, Ordering::Relaxed);
                let payload = size.saturating_sub(WriteCounter::HEADER_LEN) as u64;
                self.writes.bytes.fetch_add(payload, Ordering::Relaxed);
            }
            self.rest = size.saturating_sub(self.head.len());
            self.head.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_passes_comes_later_and_in_order_and_is_counted() {
        let server = TcpListener::bind(("127.0.0.1", 0)).expect("bound");
        let relay = Relay::start(server.local_addr().expect("an address")).expect("started");
        let mut client = TcpStream::connect(("127.0.0.1", relay.port)).expect("connected");
        let message = |kind: u8, len: usize| {
            let size = (len as u32 + 7).to_le_bytes();
            [&size[..], &[kind, 0, 0], &vec![kind; len]].concat()
        };
        let sent = [
            message(120, 4),
            message(WriteCounter::TWRITE, 16 + 100),
            message(WriteCounter::TWRITE, 16 + 300_000),
            message(110, 0),
        ]
        .concat();
        let started = Instant::now();
        client.write_all(&sent).expect("sent");
        client.shutdown(Shutdown::Write).expect("said");
        let mut heard = Vec::new();
        let mut there = server.accept().expect("passed on").0;
        there.read_to_end(&mut heard).expect("read");
        assert!(heard == sent && started.elapsed() >= Relay::DELAY);
        assert_eq!(relay.mean_write(), Some(150_050));
        assert_eq!(relay.mean_write(), None);
    }
}
