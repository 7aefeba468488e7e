//! The virtiofs client: operations of one or more requests, many in flight.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fuse::Request;
use fuse::dirent::Dirent;
use fuse::layout::{
    AttrOut, CreateIn, EntryOut, GetattrIn, OpenIn, OpenOut, ReadIn, ReleaseIn, WriteIn, WriteOut,
};
use fuse::message::Text;
use fuse::numbers::{Flags, ROOT_ID};
use remote::virtiofs::{Channel, FuseReply, PendingRequest, ReplySize};
use vfs::{Caller, Errno, Result};
use wire::Reader;

use crate::protocol::{LARGE, Operation, SMALL};
use crate::rounds::{Measurement, run_pipelined};
use crate::workspace::{
    DATA_FILE, FILE_COUNT, OUT_SIZE, SMALL_FILE_SIZE, SMALL_FILES_DIR, file_name, next_random,
};

/// Returns the number of sequential requests in an operation.
pub(super) fn steps(operation: Operation) -> usize {
    match operation {
        Operation::SmallFile => 5,
        Operation::Create => 3,
        _ => 1,
    }
}

/// The state of a thread: the nodes and files that its operations use.
pub(crate) struct ClientState {
    channel: Arc<Channel>,
    queue: usize,
    small_files: u64,
    data: Open,
    out: Open,
    direct: Open,
    /// The offset of the next sequential read.
    next: u64,
    random: u64,
    number: usize,
}

#[derive(Clone, Copy, Default)]
struct Open {
    node: u64,
    fh: u64,
}

impl ClientState {
    /// Opens the files; `number` makes the file names of this thread unique.
    pub(crate) fn new(channel: Arc<Channel>, number: usize) -> Result<ClientState> {
        let mut prepared = ClientState {
            queue: number % channel.queues(),
            small_files: 0,
            data: Open::default(),
            out: Open::default(),
            direct: Open::default(),
            next: 0,
            random: 0x9e37_79b9_7f4a_7c15 ^ number as u64,
            number,
            channel,
        };
        prepared.small_files = prepared.lookup(ROOT_ID, SMALL_FILES_DIR)?;
        let data = prepared.lookup(ROOT_ID, DATA_FILE.0)?;
        prepared.data = prepared.open(data, Flags::empty())?;
        let name = format!("out{number}");
        let made = prepared.call(ROOT_ID, &create(&name), ENTRY_AND_OPEN, created_file)?;
        prepared.out = made;
        prepared.direct = prepared.open(made.node, Flags::RDWR | Flags::DIRECT)?;
        Ok(prepared)
    }

    fn lookup(&self, node: u64, name: &str) -> Result<u64> {
        let name = Text(name.as_bytes());
        let reply_size = ReplySize::Fixed(EntryOut::SIZE);
        let found = self.call(node, &Request::Lookup { name }, reply_size, |answer| {
            answer.decode(EntryOut::decode)
        });
        Ok(found?.nodeid)
    }

    fn open(&self, node: u64, flags: Flags) -> Result<Open> {
        let args = OpenIn {
            flags: flags.bits(),
            open_flags: 0,
        };
        let reply_size = ReplySize::Fixed(OpenOut::SIZE);
        let opened = self.call(node, &Request::Open { args }, reply_size, |answer| {
            answer.decode(OpenOut::decode)
        });
        let fh = opened?.fh;
        Ok(Open { node, fh })
    }

    fn call<T>(
        &self,
        node: u64,
        request: &Request<'_>,
        reply_size: ReplySize,
        read: impl FnOnce(&FuseReply<'_>) -> Result<T>,
    ) -> Result<T> {
        let draft = self.channel.begin(self.queue, false)?;
        let pending = draft.submit(&Caller::ROOT, node, request, 0, reply_size)?;
        read(&pending.wait()?)
    }

    /// Repeats `operation`, `depth` at a time, for about `time` or `most` times; returns the count
    /// and the time taken.
    pub(crate) fn run(
        &mut self,
        operation: Operation,
        depth: usize,
        time: Duration,
        most: usize,
    ) -> Measurement {
        if operation == Operation::List {
            return self.list(time, most);
        }
        let channel = self.channel.clone();
        run_pipelined(
            (depth, steps(operation)),
            (time, most),
            |slot, step, found| self.step(&channel, operation, slot, step, found),
            |step, (pending, mut found)| {
                check_reply(operation, step, &pending.wait()?, &mut found)?;
                // Like the kernel, forgets the node of a removed file.
                if operation == Operation::Create && step + 1 == steps(operation) {
                    channel.forget(found.node);
                }
                Ok(found)
            },
        )
    }

    /// Sends the request of a step, given the node and file handle that the operation has obtained.
    fn step<'c>(
        &mut self,
        channel: &'c Channel,
        operation: Operation,
        slot: usize,
        step: usize,
        found: Open,
    ) -> Result<(PendingRequest<'c>, Open)> {
        self.random = next_random(self.random);
        let random = self.random;
        let somewhere =
            |size: u32, within: u64| random % (within / u64::from(size)) * u64::from(size);
        let name;
        let (node, request, payload, reply_size) = match (operation, step) {
            (Operation::ReadSmall, _) => read(self.data, somewhere(SMALL, DATA_FILE.1), SMALL),
            (Operation::ReadLarge, _) => {
                self.next = (self.next + u64::from(LARGE)) % DATA_FILE.1;
                read(self.data, self.next, LARGE)
            }
            (Operation::WriteSmall, _) => write(self.out, somewhere(SMALL, OUT_SIZE), SMALL),
            (Operation::WriteLarge, _) => write(self.direct, somewhere(LARGE, OUT_SIZE), LARGE),
            (Operation::Attributes, _) => attributes(self.data.node),
            (Operation::LookUp, _) | (Operation::SmallFile, 0) => {
                name = file_name(random as usize % FILE_COUNT);
                let name = Text(name.as_bytes());
                let reply_size = ReplySize::Fixed(EntryOut::SIZE);
                (self.small_files, Request::Lookup { name }, 0, reply_size)
            }
            (Operation::SmallFile, 1) => attributes(found.node),
            (Operation::SmallFile, 2) => {
                let args = OpenIn::default();
                let reply_size = ReplySize::Fixed(OpenOut::SIZE);
                (found.node, Request::Open { args }, 0, reply_size)
            }
            (Operation::SmallFile, 3) => read(found, 0, SMALL),
            (Operation::SmallFile, _) | (Operation::Create, 1) => {
                let args = ReleaseIn {
                    fh: found.fh,
                    ..ReleaseIn::default()
                };
                let reply_size = ReplySize::Fixed(0);
                (found.node, Request::Release { args }, 0, reply_size)
            }
            (Operation::Create, step) => {
                name = format!("new{}-{slot}", self.number);
                match step {
                    0 => (ROOT_ID, create(&name), 0, ENTRY_AND_OPEN),
                    _ => {
                        let name = Text(name.as_bytes());
                        (ROOT_ID, Request::Unlink { name }, 0, ReplySize::Fixed(0))
                    }
                }
            }
            (Operation::List, _) => return Err(Errno::EINVAL),
        };
        let draft = channel.begin(self.queue, false)?;
        let pending = draft.submit(&Caller::ROOT, node, &request, payload, reply_size)?;
        Ok((pending, found))
    }

    fn list(&mut self, time: Duration, most: usize) -> Measurement {
        let began = Instant::now();
        let mut done = 0;
        while done < most && (done == 0 || began.elapsed() < time) {
            let args = OpenIn::default();
            let reply_size = ReplySize::Fixed(OpenOut::SIZE);
            let opened = self.call(
                self.small_files,
                &Request::Opendir { args },
                reply_size,
                |answer| answer.decode(OpenOut::decode),
            )?;
            let (mut offset, mut seen) = (0, 0);
            loop {
                let args = ReadIn {
                    fh: opened.fh,
                    offset,
                    // The size that Linux requests: 32 pages.
                    size: 128 << 10,
                    ..ReadIn::default()
                };
                let reply_size = ReplySize::Data(args.size as usize);
                let request = Request::Readdirplus { args };
                let bytes = self.call(self.small_files, &request, reply_size, |answer| {
                    Ok(answer.data())
                })?;
                if bytes.is_empty() {
                    break;
                }
                let mut from = Reader::new(&bytes);
                while let Some(entry) = Dirent::next(true, &mut from).map_err(|_| Errno::EIO)? {
                    seen += usize::from(!matches!(entry.name, b"." | b".."));
                    offset = entry.off;
                }
            }
            if seen != FILE_COUNT {
                return Err(Errno::EIO);
            }
            let args = ReleaseIn {
                fh: opened.fh,
                ..ReleaseIn::default()
            };
            let request = Request::Releasedir { args };
            self.call(self.small_files, &request, ReplySize::Fixed(0), |_| Ok(()))?;
            done += 1;
        }
        Ok((done, began.elapsed()))
    }
}

const ENTRY_AND_OPEN: ReplySize = ReplySize::Fixed(EntryOut::SIZE + OpenOut::SIZE);

type RequestParts<'a> = (u64, Request<'a>, usize, ReplySize);

fn read(open: Open, offset: u64, size: u32) -> RequestParts<'static> {
    let args = ReadIn {
        fh: open.fh,
        offset,
        size,
        ..ReadIn::default()
    };
    let reply_size = ReplySize::Data(size as usize);
    (open.node, Request::Read { args }, 0, reply_size)
}

/// Returns a write of `size` bytes; the payload is whatever the memory holds.
fn write(open: Open, offset: u64, size: u32) -> RequestParts<'static> {
    let args = WriteIn {
        fh: open.fh,
        offset,
        size,
        ..WriteIn::default()
    };
    let reply_size = ReplySize::Fixed(WriteOut::SIZE);
    (
        open.node,
        Request::Write { args },
        size as usize,
        reply_size,
    )
}

fn attributes(node: u64) -> RequestParts<'static> {
    let args = GetattrIn::default();
    let reply_size = ReplySize::Fixed(AttrOut::SIZE);
    (node, Request::Getattr { args }, 0, reply_size)
}

fn create(name: &str) -> Request<'_> {
    let args = CreateIn {
        flags: Flags::RDWR.bits(),
        mode: 0o100644,
        ..CreateIn::default()
    };
    let name = Text(name.as_bytes());
    Request::Create { args, name }
}

fn created_file(answer: &FuseReply<'_>) -> Result<Open> {
    let node = answer.decode(EntryOut::decode)?.nodeid;
    let behind = answer.fixed().get(EntryOut::SIZE..).unwrap_or_default();
    let fh = OpenOut::decode(behind).map_err(|_| Errno::EIO)?.fh;
    Ok(Open { node, fh })
}

/// Stores the results of a reply in `found`. Returns `EIO` if the reply is short: a server that
/// returns less is not faster.
fn check_reply(
    operation: Operation,
    step: usize,
    answer: &FuseReply<'_>,
    found: &mut Open,
) -> Result<()> {
    let whole = |len: usize| match answer.len() == len {
        true => Ok(()),
        false => Err(Errno::EIO),
    };
    match (operation, step) {
        (Operation::ReadSmall, _) => whole(SMALL as usize),
        (Operation::ReadLarge, _) => whole(LARGE as usize),
        (Operation::WriteSmall, _) => check_written(answer, SMALL),
        (Operation::WriteLarge, _) => check_written(answer, LARGE),
        (Operation::LookUp, _) | (Operation::SmallFile, 0) => {
            found.node = answer.decode(EntryOut::decode)?.nodeid;
            Ok(())
        }
        (Operation::Attributes, _) | (Operation::SmallFile, 1) => whole(AttrOut::SIZE),
        (Operation::SmallFile, 2) => {
            found.fh = answer.decode(OpenOut::decode)?.fh;
            Ok(())
        }
        (Operation::SmallFile, 3) => whole(SMALL_FILE_SIZE),
        (Operation::Create, 0) => {
            *found = created_file(answer)?;
            Ok(())
        }
        (Operation::SmallFile | Operation::Create | Operation::List, _) => Ok(()),
    }
}

fn check_written(answer: &FuseReply<'_>, size: u32) -> Result<()> {
    match answer.decode(WriteOut::decode)?.size == size {
        true => Ok(()),
        false => Err(Errno::EIO),
    }
}
