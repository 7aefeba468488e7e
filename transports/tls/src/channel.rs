//! A connection's TLS state, and the records in transit.

use std::io::{self, ErrorKind, IoSlice, Read, Write};

use parking_lot::{Mutex, MutexGuard};
use rustls::Connection;
use transports::Link;

/// A connection under TLS, during its handshake or after it.
pub(crate) struct Channel {
    input: Mutex<Input>,
    output: Mutex<Output>,
    state: Mutex<Connection>,
}

/// Received records that are not decrypted yet.
#[derive(Default)]
struct Input {
    raw: Vec<u8>,
    start: usize,
    end: usize,
    /// Whether the TLS state may hold data that can be read without receiving.
    more: bool,
}

/// Data to send.
#[derive(Default)]
struct Output {
    /// The number of bytes at the start of the next send that are encrypted already: their records
    /// are not completely sent, so these bytes were not yet reported as sent to the caller.
    encrypted_ahead: usize,
    /// Encrypted bytes that the link did not accept at once in a call that was to wait.
    pending: Vec<u8>,
}

/// The size of a receive in bytes: several records.
const RECEIVE_SIZE: usize = 128 << 10;

/// The size of the first receive in bytes: a record of the maximum size.
const FIRST_RECEIVE_SIZE: usize = 17 << 10;

/// The number of bytes encrypted before they are sent: eight records.
const MAX_ENCRYPTED: usize = 128 << 10;

/// The number of times that the TLS state is fed before its records are processed: it takes 4 KiB
/// at a time.
const MAX_FEEDS: usize = 4;

impl Channel {
    pub(crate) fn new(mut keys: Connection) -> Channel {
        // Encrypted data is sent before more is encrypted: SEALED is the bound.
        keys.set_buffer_limit(None);
        Channel {
            input: Mutex::default(),
            output: Mutex::default(),
            state: Mutex::new(keys),
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, Connection> {
        self.state.lock()
    }

    /// Does what [`Link::recv`] does, with the contents of the records.
    pub(crate) fn recv(&self, link: &dyn Link, buf: &mut [u8], wait: bool) -> io::Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        let mut input = self.input.lock();
        loop {
            if input.more || input.start < input.end {
                let (got, ended) = input.decrypt(&mut self.state(), buf)?;
                if got > 0 || ended {
                    return Ok(got);
                }
            }
            if input.receive(link, wait)? == 0 {
                return Ok(0);
            }
        }
    }

    /// Processes one more received piece of a handshake, without waiting. Returns false at the end
    /// of the stream.
    pub(crate) fn advance(&self, link: &dyn Link) -> io::Result<bool> {
        let mut input = self.input.lock();
        let got = input.receive(link, false)?;
        let mut keys = self.state();
        while input.start < input.end && keys.is_handshaking() {
            input.feed(&mut keys)?;
        }
        // Data after the handshake may have been received with it.
        input.more = true;
        Ok(got > 0)
    }

    /// Returns whether [`Channel::recv`] may have data without waiting for the link.
    pub(crate) fn has_more(&self) -> bool {
        self.input.lock().more
    }

    /// Does what [`Link::send_vectored`] does, in records. After `WouldBlock` or a short count, the
    /// rest must be sent again unchanged.
    pub(crate) fn send(
        &self,
        link: &dyn Link,
        pieces: &[IoSlice<'_>],
        wait: bool,
    ) -> io::Result<usize> {
        let mut output = self.output.lock();
        let whole: usize = pieces.iter().map(|piece| piece.len()).sum();
        let mut done = 0;
        loop {
            match self.flush(&mut output, link, wait) {
                Err(error) if error.kind() == ErrorKind::WouldBlock && done > 0 => return Ok(done),
                flushed => flushed?,
            }
            let sent = output.encrypted_ahead.min(whole - done);
            output.encrypted_ahead -= sent;
            done += sent;
            if done == whole {
                return Ok(done);
            }
            output.encrypted_ahead = self.encrypt(pieces, done)?;
        }
    }

    /// Sends encrypted data. Returns `WouldBlock` without `wait` if not all of it can be sent at
    /// once.
    fn flush(&self, output: &mut Output, link: &dyn Link, wait: bool) -> io::Result<()> {
        let mut keys = self.state();
        while keys.wants_write() {
            match keys.write_tls(&mut NonblockingWriter(link)) {
                Err(error) if wait && error.kind() == ErrorKind::WouldBlock => {
                    while keys.wants_write() {
                        keys.write_tls(&mut output.pending)?;
                    }
                    drop(keys);
                    let sent = link.send(&output.pending, true);
                    output.pending = Vec::new();
                    return sent.map(drop);
                }
                sent => drop(sent?),
            }
        }
        Ok(())
    }

    /// Sends the pending records of a handshake or an alert.
    pub(crate) fn flush_now(&self, link: &dyn Link) -> io::Result<()> {
        let mut output = self.output.lock();
        self.flush(&mut output, link, false)
    }

    /// Encrypts some of the bytes after the first `done` of `pieces`, and returns their number.
    fn encrypt(&self, pieces: &[IoSlice<'_>], done: usize) -> io::Result<usize> {
        let mut keys = self.state();
        let (mut skip, mut sealed) = (done, 0);
        for piece in pieces {
            let skipped = piece.len().min(skip);
            skip -= skipped;
            let rest = &piece[skipped..];
            let rest = &rest[..rest.len().min(MAX_ENCRYPTED - sealed)];
            keys.writer().write_all(rest)?;
            sealed += rest.len();
        }
        Ok(sealed)
    }

    /// Sends a close_notify alert, if that is possible at once and no other thread is sending.
    pub(crate) fn close(&self, link: &dyn Link) {
        let (Some(mut output), Some(mut keys)) = (self.output.try_lock(), self.state.try_lock())
        else {
            return;
        };
        if !keys.is_handshaking() {
            keys.send_close_notify();
        }
        drop(keys);
        let _ = self.flush(&mut output, link, false);
    }

    /// Releases memory that only a busy connection needs.
    pub(crate) fn release_memory(&self) {
        if let Some(mut input) = self.input.try_lock()
            && input.start == input.end
        {
            input.raw = Vec::new();
            (input.start, input.end) = (0, 0);
        }
    }
}

impl Input {
    /// Decrypts received data into `buf`; returns its length, and whether the peer has closed the
    /// stream.
    fn decrypt(&mut self, keys: &mut Connection, buf: &mut [u8]) -> io::Result<(usize, bool)> {
        let mut filled = 0;
        loop {
            match keys.reader().read(&mut buf[filled..]) {
                Ok(0) if filled < buf.len() => return Ok((filled, true)),
                Ok(got) => filled += got,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            self.more = filled == buf.len();
            if self.more || self.start == self.end {
                return Ok((filled, false));
            }
            self.feed(keys)?;
        }
    }

    /// Feeds roughly one record to the TLS state.
    fn feed(&mut self, keys: &mut Connection) -> io::Result<()> {
        let mut rest = &self.raw[self.start..self.end];
        for _ in 0..MAX_FEEDS {
            // Fails when the state is full: then it has enough to process.
            if rest.is_empty() || !matches!(keys.read_tls(&mut rest), Ok(1..)) {
                break;
            }
        }
        self.start = self.end - rest.len();
        keys.process_new_packets().map(drop).map_err(tls_error)
    }

    /// Receives more data. All earlier data must have been fed.
    fn receive(&mut self, link: &dyn Link, wait: bool) -> io::Result<usize> {
        let was_full = self.end == self.raw.len();
        let size = match (self.raw.len(), was_full) {
            (0, _) => FIRST_RECEIVE_SIZE,
            (_, true) => RECEIVE_SIZE,
            (have, false) => have,
        };
        self.raw.resize(size, 0);
        (self.start, self.end) = (0, 0);
        self.end = link.recv(&mut self.raw, wait)?;
        Ok(self.end)
    }
}

/// A link as a nonblocking writer.
struct NonblockingWriter<'a>(&'a dyn Link);

impl Write for NonblockingWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.send(bytes, false)
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.send_vectored(pieces, false)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn tls_error(error: rustls::Error) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("TLS: {error}"))
}
