//! What this machine does at best: memory copied, and messages there and back by a connection with nothing at its ends that looks at them.
//!
//! Batches of a depth go back and forth whole, by one system call each way where they fit the socket: no server that answers them one
//! by one can be faster. One that overlaps the two ways could be, by half.

use std::io::{Read, Result, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// A bound of some row.
pub(super) enum Physical {
    /// So many bytes copied.
    Copy(usize),
    Exchange(Exchange),
}

/// Messages there and back.
pub(super) struct Exchange {
    pub(super) tcp: bool,
    /// Bytes of a request and of its reply.
    pub(super) bytes: (usize, usize),
    /// How many are under way at a time.
    pub(super) depth: usize,
    /// How many one after the other are an operation.
    pub(super) steps: usize,
    pub(super) connections: usize,
}

/// About as long as a message without payload is, with its names and attributes.
pub(super) const BARE: usize = 100;

/// A connection: anything with both directions.
trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

impl Physical {
    /// What it is, for people.
    pub(super) fn what(&self) -> &'static str {
        match self {
            Physical::Copy(_) => "memory copied",
            Physical::Exchange(Exchange { tcp: true, .. }) => "bare messages by loopback",
            Physical::Exchange(_) => "bare messages by a Unix socket",
        }
    }

    /// Operations per second, tried for about `time`.
    pub(super) fn rate(&self, time: Duration) -> Result<f64> {
        match self {
            Physical::Copy(bytes) => Ok(copied(*bytes, time)),
            Physical::Exchange(exchange) => exchange.rate(time),
        }
    }
}

fn copied(bytes: usize, time: Duration) -> f64 {
    // What is copied comes from anywhere in as much as the benches' file is, and goes to one place.
    const FROM: usize = 64 << 20;
    let from = vec![7_u8; FROM.max(bytes)];
    let mut to = vec![0_u8; bytes];
    let (mut at, mut done, began) = (0, 0_u64, Instant::now());
    loop {
        // The clock is asked seldom beside the smallest copies.
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
                scope.spawn(move || self.answer(far));
                clients.push(scope.spawn(move || self.ask(near, time)));
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

    /// Batches asked for and had, as operations per second.
    fn ask(&self, mut near: Box<dyn Stream>, time: Duration) -> Result<f64> {
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

    /// Until whoever asks has gone.
    fn answer(&self, mut far: Box<dyn Stream>) {
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
            Physical::Exchange(Exchange {
                tcp,
                bytes: (BARE, 1 << 20),
                depth,
                steps: 2,
                connections,
            })
        };
        for bound in [
            Physical::Copy(1),
            Physical::Copy(100 << 20),
            exchange(false, 1, 1),
            exchange(true, 4, 2),
        ] {
            let rate = bound.rate(Duration::ZERO).expect("measured");
            assert!(rate > 0.0, "{}: {rate}", bound.what());
        }
    }
}
