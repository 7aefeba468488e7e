//! State of the broker, for the process that serves: requests in packets of a socket, one at a
//! time, and the end of the fence in a stream of its own.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use etcd::Fence;
use parking_lot::Mutex;
use rustix::fs::{MemfdFlags, memfd_create};
use serde::{Deserialize, Serialize};

use super::SharedState;
use super::etcd::ActiveServer;
use super::store::{Boot, RecordList, StateStore};
use crate::Failure;
use crate::child::message;

#[derive(Debug, Serialize, Deserialize)]
enum Request {
    /// Asks for a stream of the ends of the fence, each as nanoseconds in 8 bytes.
    Fence,
    Begin,
    List(RecordList),
    Put(RecordList, Vec<u8>),
    Remove(RecordList, Vec<u8>),
}

#[derive(Debug, Serialize, Deserialize)]
enum Reply {
    Done,
    Boot(Boot),
    /// The requested descriptor is passed: the stream, or a file of records, each after its length
    /// in 4 bytes.
    Descriptor,
    Failed(String),
}

/// Maximum size of a file of records: those that the store returns at most.
const MAX_RECORDS_FILE: u64 = (etcd::MAX_RECORDS * (etcd::MAX_RECORD + 4)) as u64;

/// Maximum number of sockets at a time: a process has one, and its successor may start before the
/// thread of that has ended.
const MAX_SOCKETS: usize = 4;

/// A socket that counts.
struct Counted(Arc<ActiveServer>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.sockets.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Serves the state of `server` at a new socket, on a thread, and returns the other end. Returns
/// `EMFILE` if there are [`MAX_SOCKETS`].
pub(in crate::serve) fn serve(server: Arc<ActiveServer>) -> io::Result<OwnedFd> {
    let others = server.sockets.fetch_add(1, Ordering::SeqCst);
    let counted = Counted(server);
    if others >= MAX_SOCKETS {
        return Err(rustix::io::Errno::MFILE.into());
    }
    let (here, there) = message::pair()?;
    let thread = std::thread::Builder::new().name("barge-state".into());
    thread.spawn(move || {
        let Counted(server) = &counted;
        let mut has_fence = false;
        // The other end is closed when the process ends.
        while let Ok((request, _)) = message::receive::<Request>(here.as_fd()) {
            let is_fence = matches!(request, Request::Fence);
            let answered = match is_fence && std::mem::replace(&mut has_fence, true) {
                true => Err(io::Error::other("there is one stream for a socket")),
                false => answer(server, request),
            };
            let (reply, passed) =
                answered.unwrap_or_else(|error| (Reply::Failed(error.to_string()), None));
            let passed = passed.as_ref().map(AsFd::as_fd);
            if message::send(here.as_fd(), &reply, passed).is_err() {
                return;
            }
        }
    })?;
    Ok(there)
}

fn answer(server: &ActiveServer, request: Request) -> io::Result<(Reply, Option<OwnedFd>)> {
    match request {
        Request::Fence => {
            let (here, there) = UnixStream::pair()?;
            // A process that does not read loses the fence, and with it the right to act.
            here.set_nonblocking(true)?;
            server.fence().watch(move |until| {
                let nanos = u64::try_from(until.as_nanos()).unwrap_or(u64::MAX);
                (&here).write_all(&nanos.to_le_bytes()).is_ok()
            });
            Ok((Reply::Descriptor, Some(there.into())))
        }
        Request::Begin => Ok((Reply::Boot(server.begin()?), None)),
        Request::List(list) => {
            let records = server.list(list)?;
            let mut file = File::from(memfd_create("barge-records", MemfdFlags::CLOEXEC)?);
            let mut bytes = Vec::new();
            for record in records {
                bytes.extend((record.len() as u32).to_le_bytes());
                bytes.extend(&record[..]);
            }
            file.write_all(&bytes)?;
            file.rewind()?;
            Ok((Reply::Descriptor, Some(file.into())))
        }
        Request::Put(list, record) => server.put(list, &record).map(done),
        Request::Remove(list, record) => server.remove(list, &record).map(done),
    }
}

fn done(_: ()) -> (Reply, Option<OwnedFd>) {
    (Reply::Done, None)
}

/// The state of the broker.
struct BrokerStore(Mutex<OwnedFd>);

/// Returns the state that the broker serves at the other end of `socket`. Starts a thread that
/// reads the ends of the fence, and ends the process when there are no more.
pub(in crate::serve) fn connect(socket: OwnedFd) -> Result<SharedState, Failure> {
    let store = BrokerStore(Mutex::new(socket));
    let stream = store.descriptor(&Request::Fence).map_err(Failure::new)?;
    let fence = Arc::new(Fence::default());
    let mut stream = UnixStream::from(stream);
    follow(&fence, &mut stream).map_err(Failure::new)?;
    let followed = fence.clone();
    let thread = std::thread::Builder::new().name("barge-fence".into());
    let follow_all = move || {
        while follow(&followed, &mut stream).is_ok() {}
        // The broker has ended, or this process was stopped for long: it can never act again.
        followed.close();
        std::process::exit(1);
    };
    thread.spawn(follow_all).map_err(Failure::new)?;
    let store = Arc::new(store);
    Ok(SharedState { store, fence })
}

/// Reads the next end of the fence. Zero closes it: the broker is about to end this process.
fn follow(fence: &Fence, stream: &mut UnixStream) -> io::Result<()> {
    let mut nanos = [0; 8];
    stream.read_exact(&mut nanos)?;
    match u64::from_le_bytes(nanos) {
        0 => fence.close(),
        nanos => fence.extend(Duration::from_nanos(nanos)),
    }
    Ok(())
}

impl BrokerStore {
    fn ask(&self, request: &Request) -> io::Result<(Reply, Option<OwnedFd>)> {
        let socket = self.0.lock();
        message::send(socket.as_fd(), request, None)?;
        match message::receive(socket.as_fd())? {
            (Reply::Failed(why), _) => Err(io::Error::other(why)),
            reply => Ok(reply),
        }
    }

    fn descriptor(&self, request: &Request) -> io::Result<OwnedFd> {
        match self.ask(request)? {
            (Reply::Descriptor, Some(fd)) => Ok(fd),
            (other, _) => Err(message::unexpected(&other)),
        }
    }

    fn change(&self, request: &Request) -> io::Result<()> {
        match self.ask(request)? {
            (Reply::Done, _) => Ok(()),
            (other, _) => Err(message::unexpected(&other)),
        }
    }
}

impl StateStore for BrokerStore {
    fn begin(&self) -> io::Result<Boot> {
        match self.ask(&Request::Begin)? {
            (Reply::Boot(boot), _) => Ok(boot),
            (other, _) => Err(message::unexpected(&other)),
        }
    }

    fn list(&self, list: RecordList) -> io::Result<Vec<Box<[u8]>>> {
        let file = File::from(self.descriptor(&Request::List(list))?);
        let mut bytes = Vec::new();
        file.take(MAX_RECORDS_FILE).read_to_end(&mut bytes)?;
        records(&bytes).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    fn put(&self, list: RecordList, record: &[u8]) -> io::Result<()> {
        self.change(&Request::Put(list, record.into()))
    }

    fn remove(&self, list: RecordList, record: &[u8]) -> io::Result<()> {
        self.change(&Request::Remove(list, record.into()))
    }

    fn is_shared(&self) -> bool {
        true
    }
}

/// Parses a file of records.
fn records(mut bytes: &[u8]) -> Option<Vec<Box<[u8]>>> {
    let mut records = Vec::new();
    while !bytes.is_empty() {
        let (len, rest) = bytes.split_first_chunk()?;
        let (record, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
        records.push(record.into());
        bytes = rest;
    }
    Some(records)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_records_is_read_whole_or_not_at_all() {
        let bytes = [&3u32.to_le_bytes()[..], b"one", &0u32.to_le_bytes()].concat();
        let expected: Vec<Box<[u8]>> = vec![b"one"[..].into(), b""[..].into()];
        assert_eq!(records(&bytes), Some(expected));
        for len in [1, 4, 6, 8, 10] {
            assert_eq!(records(&bytes[..len]), None, "{len}");
        }
    }

    #[test]
    fn the_fence_of_a_process_follows_that_of_the_broker() {
        let (mut here, mut there) = UnixStream::pair().expect("a pair");
        let fence = Fence::default();
        for (nanos, until) in [(5u64, 5), (9, 9), (0, 0)] {
            here.write_all(&nanos.to_le_bytes()).expect("sent");
            assert!(follow(&fence, &mut there).is_ok());
            assert_eq!(fence.until(), Duration::from_nanos(until));
        }
        drop(here);
        assert!(follow(&fence, &mut there).is_err());
    }
}
