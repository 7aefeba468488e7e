//! The transfer of a device's state during a migration (vhost-user, "Migrating back-end state").
//!
//! The monitor passes a pipe with SET_DEVICE_STATE_FD, and a thread writes the state to it or reads
//! it from there. CHECK_DEVICE_STATE waits for the thread and returns its result. The pipe is the
//! monitor's: no read or write of it outlasts the device.
//!
//! The state of the session follows that of the queues: the requests that the device has popped and
//! not answered, because they wait for an event such as a lock. The guest's memory still has them.
//!
//! ```text
//! "barge-vq" | version u16 | queues u16 | for each: requests u16, head descriptors u16
//! ```
//! Numbers are little-endian.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::FileType;
use rustix::pipe::{PipeFlags, pipe_with};
use vhost::vhost_user::message::VhostTransferStateDirection as Direction;

use crate::in_flight::Unanswered;
use crate::vhost_user::MAX_QUEUE_SIZE;

/// The state of a device that is not in its queues, for its migration. All queues are stopped
/// during a call, and at most one call runs at a time.
pub trait DeviceState: Send + Sync {
    /// Writes the state. After an error the device continues as before.
    fn save(&self, to: &mut dyn Write) -> io::Result<()>;

    /// Reads the state and continues with it. After an error the device is as after a reset.
    fn load(&self, from: &mut dyn Read) -> io::Result<()>;

    /// Continues after a save: the migration failed, or the monitor has only taken a snapshot.
    fn resume(&self);
}

const MAGIC: &[u8; 8] = b"barge-vq";
const VERSION: u16 = 1;

/// The requests of each queue that were popped and not answered.
pub(crate) type Requests = Vec<Vec<Unanswered>>;

/// A transfer in progress.
pub(crate) struct Transfer {
    thread: JoinHandle<io::Result<Requests>>,
    /// A pipe whose other end is closed when the thread ends.
    end: OwnedFd,
    /// Readable to end the transfer.
    cancel: OwnedFd,
}

impl Transfer {
    /// Starts a transfer over `pipe`. `requests` are those of all queues, which a load replaces.
    /// Returns an error if `pipe` is neither a pipe nor a socket: reads and writes of other files
    /// may block forever.
    pub(crate) fn start(
        state: Arc<dyn DeviceState>,
        direction: Direction,
        pipe: File,
        requests: Requests,
    ) -> io::Result<Transfer> {
        let kind = FileType::from_raw_mode(rustix::fs::fstat(&pipe)?.st_mode);
        if !matches!(kind, FileType::Fifo | FileType::Socket) {
            let why = "expected a pipe for the device's state";
            return Err(io::Error::new(ErrorKind::InvalidInput, why));
        }
        let cancel = eventfd(0, EventfdFlags::CLOEXEC)?;
        let mut pipe = StatePipe {
            pipe,
            cancel: cancel.try_clone()?,
        };
        let (end, running) = pipe_with(PipeFlags::CLOEXEC)?;
        let thread = std::thread::Builder::new().name("barge-state".into());
        let thread = thread.spawn(move || {
            let _running = running;
            match direction {
                Direction::SAVE => {
                    pipe.write_all(&encode(&requests))?;
                    state.save(&mut pipe)?;
                    Ok(requests)
                }
                Direction::LOAD => {
                    let requests = decode(&mut pipe, requests.len())?;
                    state.load(&mut pipe)?;
                    Ok(requests)
                }
            }
        })?;
        Ok(Transfer {
            thread,
            end,
            cancel,
        })
    }

    /// Returns a descriptor for poll(2) that is ready once the transfer has ended.
    pub(crate) fn end(&self) -> io::Result<OwnedFd> {
        self.end.try_clone()
    }

    /// Waits for its end and returns the requests of all queues.
    pub(crate) fn join(self) -> io::Result<Requests> {
        let panicked = |_| Err(io::Error::other("the transfer of the state failed"));
        self.thread.join().unwrap_or_else(panicked)
    }

    /// Ends it before it is complete.
    pub(crate) fn cancel(self) {
        // Fails only if it is readable already.
        let _ = rustix::io::write(&self.cancel, &1u64.to_ne_bytes());
        let _ = self.join();
    }
}

/// Returns the bytes of the queues' state.
fn encode(requests: &Requests) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    let mut number = |number: u16| bytes.extend(number.to_le_bytes());
    number(VERSION);
    number(requests.len() as u16);
    for heads in requests {
        number(heads.len() as u16);
        // The destination has no records of their service.
        heads.iter().for_each(|request| number(request.head));
    }
    bytes
}

/// Reads the queues' state. Returns an error if it has more than `most` queues, or one more
/// requests than a queue has entries.
fn decode(from: &mut dyn Read, most: usize) -> io::Result<Requests> {
    let invalid = |expected: &str| {
        let why = format!("state of queues: expected {expected}");
        io::Error::new(ErrorKind::InvalidData, why)
    };
    let mut magic = [0; MAGIC.len()];
    from.read_exact(&mut magic)?;
    let mut number = || {
        let mut bytes = [0; 2];
        from.read_exact(&mut bytes)?;
        io::Result::Ok(u16::from_le_bytes(bytes))
    };
    if magic != *MAGIC || number()? != VERSION {
        return Err(invalid("version 1 of a device of barge"));
    }
    let queues = number()?;
    if usize::from(queues) > most {
        return Err(invalid(&format!("at most {most} queues, got {queues}")));
    }
    let mut requests = Vec::new();
    for _ in 0..queues {
        let count = number()?;
        if count > MAX_QUEUE_SIZE {
            return Err(invalid("fewer requests"));
        }
        let heads = (0..count).map(|_| number().map(Unanswered::new));
        requests.push(heads.collect::<io::Result<Vec<Unanswered>>>()?);
    }
    Ok(requests)
}

/// The monitor's pipe. Reads and writes end with an error once `cancel` is readable.
struct StatePipe {
    pipe: File,
    cancel: OwnedFd,
}

impl StatePipe {
    /// The most bytes that a pipe accepts without blocking once it is writable.
    const MOST: usize = 4096;

    fn wait(&self, events: PollFlags) -> io::Result<()> {
        let mut fds = [
            PollFd::new(&self.cancel, PollFlags::IN),
            PollFd::from_borrowed_fd(self.pipe.as_fd(), events),
        ];
        while let Err(error) = poll(&mut fds, None) {
            if error != rustix::io::Errno::INTR {
                return Err(error.into());
            }
        }
        match fds[0].revents().is_empty() {
            true => Ok(()),
            false => Err(io::Error::other("the transfer is cancelled")),
        }
    }
}

impl Read for StatePipe {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.wait(PollFlags::IN)?;
        self.pipe.read(bytes)
    }
}

impl Write for StatePipe {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.wait(PollFlags::OUT)?;
        self.pipe.write(&bytes[..bytes.len().min(StatePipe::MOST)])
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::Timespec;

    use super::*;

    const GOLDEN: &[u8] = b"barge-vq\x01\0\x03\0\x02\0\x07\0\0\x01\0\0\x01\0\x09\0";

    fn requests() -> Requests {
        [&[7, 256][..], &[], &[9]]
            .map(|heads| heads.iter().copied().map(Unanswered::new).collect())
            .into()
    }

    #[test]
    fn golden_bytes() {
        assert_eq!(encode(&requests()), GOLDEN);
        assert_eq!(decode(&mut &*GOLDEN, 3).expect("whole"), requests());
        for len in 0..GOLDEN.len() {
            let error = decode(&mut &GOLDEN[..len], 3).expect_err("truncated");
            assert_eq!(error.kind(), ErrorKind::UnexpectedEof, "{len}");
        }
    }

    #[test]
    fn other_states_of_queues_are_refused() {
        let with = |at: usize, byte: u8| {
            let mut bytes = GOLDEN.to_vec();
            bytes[at] = byte;
            decode(&mut &*bytes, 3).map_err(|error| error.kind())
        };
        for (at, byte) in [(0, b'B'), (8, 2), (10, 4), (13, 5)] {
            assert_eq!(with(at, byte), Err(ErrorKind::InvalidData), "{at}");
        }
    }

    struct Echo(parking_lot::Mutex<Vec<u8>>);

    impl DeviceState for Echo {
        fn save(&self, to: &mut dyn Write) -> io::Result<()> {
            to.write_all(&self.0.lock())
        }

        fn load(&self, from: &mut dyn Read) -> io::Result<()> {
            from.read_to_end(&mut self.0.lock()).map(drop)
        }

        fn resume(&self) {}
    }

    fn echo(len: usize) -> Arc<Echo> {
        let bytes = (0..len).map(|at| at as u8).collect();
        Arc::new(Echo(parking_lot::Mutex::new(bytes)))
    }

    /// A pipe holds less than the state.
    #[test]
    fn a_state_passes_a_pipe() {
        let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
        let (source, target) = (echo(1 << 20), echo(0));
        let save = Transfer::start(source.clone(), Direction::SAVE, writer.into(), requests());
        let loads = File::from(reader);
        let load = Transfer::start(target.clone(), Direction::LOAD, loads, vec![vec![]; 3]);
        save.expect("started").join().expect("saved");
        let loaded = load.expect("started").join().expect("loaded");
        assert_eq!(loaded, requests());
        assert!(*source.0.lock() == *target.0.lock());
    }

    #[test]
    fn a_transfer_ends_when_it_is_cancelled() {
        // The reader stays open and reads nothing.
        let (_reader, writer) = rustix::pipe::pipe().expect("a pipe");
        let transfer = Transfer::start(echo(1 << 20), Direction::SAVE, writer.into(), vec![]);
        let transfer = transfer.expect("started");
        let end = transfer.end().expect("a descriptor");
        let has_ended = |timeout: Option<&Timespec>| {
            let mut fds = [PollFd::new(&end, PollFlags::IN)];
            poll(&mut fds, timeout).expect("polled") == 1
        };
        assert!(!has_ended(Some(&Timespec::default())));
        transfer.cancel();
        assert!(has_ended(None));
    }

    #[test]
    fn a_file_is_no_pipe() {
        let file = tempfile::tempfile().expect("a file");
        assert!(Transfer::start(echo(1), Direction::SAVE, file, vec![]).is_err());
    }
}
