//! A way that takes longer: what comes by TCP on loopback is passed on half a millisecond later, in each direction, as a network of
//! 1 ms would have it. Nothing is dropped, reordered or held back beyond that: what is on its way is bounded by
//! [`Relay::ON_ITS_WAY`] alone. The kernels' own idea of a round trip stays that of loopback, so congestion control is not part of it.
//!
//! It also counts the writes of 9P that pass.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

/// Passes connections on, as long as this process lives.
pub(super) struct Relay {
    /// Where clients connect to.
    pub(super) port: u16,
    writes: Arc<Writes>,
}

/// Twrites that have passed, and their bytes.
#[derive(Default)]
struct Writes {
    messages: AtomicU64,
    bytes: AtomicU64,
}

/// What has come, and when.
type Come = (Instant, Vec<u8>);

impl Relay {
    /// Of each direction.
    pub(super) const DELAY: Duration = Duration::from_micros(500);

    /// Pieces of up to [`Relay::PIECE`] bytes: 256 MB/s take 128 KiB in half a millisecond, so this is never what is waited for.
    const ON_ITS_WAY: usize = 256;

    const PIECE: usize = 256 << 10;

    /// Begins to pass connections on to `server`.
    pub(super) fn start(server: SocketAddr) -> std::io::Result<Relay> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let port = listener.local_addr()?.port();
        let writes = Arc::new(Writes::default());
        let counts = writes.clone();
        spawn(move || {
            // A connection that cannot be passed on ends, which its client sees.
            for client in listener.incoming().flatten() {
                let _ = join(client, server, &counts);
            }
        });
        Ok(Relay { port, writes })
    }

    /// How many bytes the writes of 9P had on average since last asked; nothing if there were none.
    pub(super) fn mean_write(&self) -> Option<u64> {
        let messages = self.writes.messages.swap(0, Ordering::Relaxed);
        let bytes = self.writes.bytes.swap(0, Ordering::Relaxed);
        bytes.checked_div(messages)
    }
}

fn join(client: TcpStream, server: SocketAddr, writes: &Arc<Writes>) -> std::io::Result<()> {
    let server = TcpStream::connect(server)?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let count = Count {
        writes: writes.clone(),
        head: Vec::new(),
        rest: 0,
    };
    pass(client.try_clone()?, server.try_clone()?, Some(count));
    pass(server, client, None);
    Ok(())
}

/// Passes on what comes from one to the other, with a thread for each.
fn pass(mut from: TcpStream, to: TcpStream, mut count: Option<Count>) {
    let (tell, told): (SyncSender<Come>, _) = sync_channel(Relay::ON_ITS_WAY);
    spawn(move || give(&told, to));
    spawn(move || {
        loop {
            let mut piece = vec![0; Relay::PIECE];
            match from.read(&mut piece) {
                Ok(got) if got > 0 => piece.truncate(got),
                _ => return,
            }
            if let Some(count) = &mut count {
                count.take(&piece);
            }
            if tell.send((Instant::now(), piece)).is_err() {
                return;
            }
        }
    });
}

fn give(told: &Receiver<Come>, mut to: TcpStream) {
    for (came, piece) in told {
        sleep((came + Relay::DELAY).saturating_duration_since(Instant::now()));
        if to.write_all(&piece).is_err() {
            break;
        }
    }
    // An error means that it has ended already.
    let _ = to.shutdown(Shutdown::Both);
}

/// What a client says, as far as it is of interest: where messages begin.
struct Count {
    writes: Arc<Writes>,
    head: Vec<u8>,
    /// How much of a message is to come.
    rest: usize,
}

impl Count {
    /// Size, type and tag, fid and offset, and the payload's length (`Twrite`, write(5)).
    const HEAD: usize = 7 + 4 + 8 + 4;
    const TWRITE: u8 = 118;

    fn take(&mut self, mut bytes: &[u8]) {
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
            if self.head.len() < Count::HEAD.min(size) {
                continue;
            }
            if self.head.get(4) == Some(&Count::TWRITE) {
                self.writes.messages.fetch_add(1, Ordering::Relaxed);
                let payload = size.saturating_sub(Count::HEAD) as u64;
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
        let said = [
            message(120, 4),
            message(Count::TWRITE, 16 + 100),
            message(Count::TWRITE, 16 + 300_000),
            message(110, 0),
        ]
        .concat();
        let begun = Instant::now();
        client.write_all(&said).expect("sent");
        client.shutdown(Shutdown::Write).expect("said");
        let mut heard = Vec::new();
        let mut there = server.accept().expect("passed on").0;
        there.read_to_end(&mut heard).expect("read");
        assert!(heard == said && begun.elapsed() >= Relay::DELAY);
        assert_eq!(relay.mean_write(), Some(150_050));
        assert_eq!(relay.mean_write(), None);
    }
}
