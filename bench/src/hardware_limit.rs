//! Hardware limits: memory copies, and round trips of messages over a connection whose ends ignore
//! the contents.
//!
//! Whole batches of messages go back and forth, with one system call in each direction if they fit
//! the socket buffer. A server that answers messages one by one cannot be faster; one that overlaps
//! the two directions could be, by half.

use std::io::{Read, Result, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// The hardware limit of a row.
pub(super) enum HardwareLimit {
    /// A copy of so many bytes.
    Copy(usize),
    Exchange(Exchange),
}

/// Round trips of messages.
pub(super) struct Exchange {
    pub(super) tcp: bool,
    /// Bytes of a request and of its reply.
    pub(super) bytes: (usize, usize),
    /// Requests in flight.
    pub(super) depth: usize,
    /// Round trips in an operation, one after the other.
    pub(super) steps: usize,
    pub(super) connections: usize,
}

/// Approximate size in bytes of a message without payload, with its names and attributes.
pub(super) const BASE_MESSAGE_SIZE: usize = 100;

/// A connection, readable and writable.
trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

impl HardwareLimit {
    /// Returns the description for reports.
    pub(super) fn description(&self) -> &'static str {
        match self {
            HardwareLimit::Copy(_) => "memory copy",
            HardwareLimit::Exchange(Exchange { tcp: true, .. }) => {
                "bare messages over loopback TCP"
            }
            HardwareLimit::Exchange(_) => "bare messages over a Unix socket",
        }
    }

    /// Returns operations per second, measured for about `time`.
    pub(super) fn rate(&self, time: Duration) -> Result<f64> {
        match self {
            HardwareLimit::Copy(bytes) => Ok(copy_rate(*bytes, time)),
            HardwareLimit::Exchange(exchange) => exchange.rate(time),
        }
    }
}

fn copy_rate(bytes: usize, time: Duration) -> f64 {
    // The source is as large as the benches' data file and is read throughout; the destination is
    // always the same.
    const SOURCE_SIZE: usize = 64 << 20;
    let from = vec![7_u8; SOURCE_SIZE.max(bytes)];
    let mut to = vec![0_u8; bytes];
    let (mut at, mut done, began) = (0, 0_u64, Instant::now());
    loop {
        // Small copies are timed in batches: reading the clock takes long compared with one.
        for _ in 0..1 + 65_536 / bytes.max(1) {
            to.copy_from_slice(&from[at..at + bytes]);
            std::hint::black_box(&mut to);
            at = if at + 2 * bytes > from.len() {
                0
            } else {
                at + bytes
            };
            done += 1;
        }
        let took = began.elapsed();
        if took >= time {
            return done as f64 / took.as_secs_f64();
        }
    }
}

impl Exchange {
    fn rate(&self, time: Duration) -> Result<f64> {
        let connected: Result<Vec<_>> = (0..self.connections).map(|_| self.connect()).collect();
        std::thread::scope(|scope| {
            let mut clients = Vec::new();
            for (near, far) in connected? {
                scope.spawn(move || self.send_replies(far));
                clients.push(scope.spawn(move || self.send_requests(near, time)));
            }
            let ended = clients.into_iter().map(|client| {
                let panicked = || std::io::Error::other("a thread panicked");
                client.join().map_err(|_| panicked())?
            });
            ended.sum()
        })
    }

    fn connect(&self) -> Result<(Box<dyn Stream>, Box<dyn Stream>)> {
        if !self.tcp {
            let (near, far) = UnixStream::pair()?;
            return Ok((Box::new(near), Box::new(far)));
        }
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let near = TcpStream::connect(listener.local_addr()?)?;
        let (far, _) = listener.accept()?;
        near.set_nodelay(true)?;
        far.set_nodelay(true)?;
        Ok((Box::new(near), Box::new(far)))
    }

    /// Sends batches of requests and reads the replies; returns operations per second.
    fn send_requests(&self, mut near: Box<dyn Stream>, time: Duration) -> Result<f64> {
        let request = vec![1; self.depth * self.bytes.0];
        let mut reply = vec![0; self.depth * self.bytes.1];
        let (mut done, began) = (0, Instant::now());
        loop {
            near.write_all(&request)?;
            near.read_exact(&mut reply)?;
            done += self.depth;
            let took = began.elapsed();
            if took >= time {
                return Ok(done as f64 / self.steps as f64 / took.as_secs_f64());
            }
        }
    }

    /// Answers batches until the client disconnects.
    fn send_replies(&self, mut far: Box<dyn Stream>) {
        let mut request = vec![0; self.depth * self.bytes.0];
        let reply = vec![1; self.depth * self.bytes.1];
        while far.read_exact(&mut request).is_ok() && far.write_all(&reply).is_ok() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_found() {
        let exchange = |tcp, depth, connections| {
            HardwareLimit::Exchange(Exchange {
                tcp,
                bytes: (BASE_MESSAGE_SIZE, 1 << 20),
                depth,
                steps: 2,
                connections,
            })
        };
        for bound in [
            HardwareLimit::Copy(1),
            HardwareLimit::Copy(100 << 20),
            exchange(false, 1, 1),
            exchange(true, 4, 2),
        ] {
            let rate = bound.rate(Duration::ZERO).expect("measured");
            assert!(rate > 0.0, "{}: {rate}", bound.description());
        }
    }
}
