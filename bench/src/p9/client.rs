//! The 9P client: operations of one or more requests, many in flight.

use std::sync::Arc;
use std::time::{Duration, Instant};

use p9::numbers::{Getattr, Lopen};
use p9::{Data, Dialect, Fid, Names, Rmessage, Tmessage, Uid};
use remote::ninep::{Connection, Ticket};
use transports::{Addr, dial};
use vfs::{Errno, Result};

use crate::protocol::{LARGE, Operation, SMALL};
use crate::rounds::{Measurement, run_pipelined};
use crate::workspace::{DATA_FILE, FILE_COUNT, OUT_SIZE, SMALL_FILES_DIR, file_name, next_random};

/// A connection with the fids that the operations need.
pub(crate) struct Client {
    connection: Arc<Connection>,
    root: Fid,
    small_files: Fid,
    data: Fid,
    out: Fid,
    slot_fids: Vec<Fid>,
    names: Vec<String>,
    random: u64,
    buffer: Vec<u8>,
}

/// The most operations in flight.
const MAX_DEPTH: usize = 64;

impl Client {
    /// Connects; `number` makes the file names of this client unique.
    pub(crate) fn connect(
        addr: &Addr,
        aname: &str,
        number: usize,
    ) -> std::result::Result<Client, String> {
        let link = dial(addr).map_err(|error| format!("{addr}: {error}"))?;
        let connection = Connection::open(link, Dialect::Linux, LARGE + 24)
            .map_err(|error| error.to_string())?;
        Client::prepare(connection, aname, number).map_err(|errno| format!("{addr}: {errno}"))
    }

    fn prepare(connection: Arc<Connection>, aname: &str, number: usize) -> Result<Client> {
        let fids: Result<Vec<Fid>> = (0..MAX_DEPTH + 4).map(|_| connection.fid()).collect();
        let mut own = fids?;
        let [root, many, data, out] = [0, 1, 2, 3].map(|_| own.pop().unwrap_or(Fid::NONE));
        let (afid, uname, aname) = (Fid::NONE, &b"root"[..], aname.as_bytes());
        connection.call(&Tmessage::Attach {
            fid: root,
            afid,
            uname,
            aname,
            n_uname: Uid(0),
        })?;
        let walk = |newfid, name: &str| {
            connection.call(&Tmessage::Walk {
                fid: root,
                newfid,
                names: Names::new(&[name.as_bytes()]),
            })
        };
        walk(many, SMALL_FILES_DIR)?;
        walk(data, DATA_FILE.0)?;
        connection.call(&Tmessage::Lopen {
            fid: data,
            flags: 0,
        })?;
        connection.call(&Tmessage::Walk {
            fid: root,
            newfid: out,
            names: Names::new(&[]),
        })?;
        let name = format!("out{number}");
        let flags = (Lopen::RDWR | Lopen::CREATE).bits();
        connection.call(&Tmessage::Lcreate {
            fid: out,
            name: name.as_bytes(),
            flags,
            mode: 0o644,
            gid: 0,
        })?;
        let names = (0..MAX_DEPTH)
            .map(|slot| format!("new{number}-{slot}"))
            .collect();
        let random = 0x9e37_79b9_7f4a_7c15 ^ number as u64;
        Ok(Client {
            connection,
            root,
            small_files: many,
            data,
            out,
            slot_fids: own,
            names,
            random,
            buffer: vec![7; LARGE as usize],
        })
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
        let steps = steps(operation).ok_or(Errno::EINVAL)?;
        let connection = self.connection.clone();
        // A server with a small msize gets its megabyte in as many messages as necessary, all at
        // once.
        let pieces = match operation {
            Operation::ReadLarge | Operation::WriteLarge => {
                LARGE.div_ceil(connection.payload()) as usize
            }
            _ => 1,
        };
        let (done, took) = run_pipelined(
            ((depth * pieces).min(MAX_DEPTH), steps),
            (time, most * pieces),
            |slot, step, ()| self.submit(&connection, operation, slot, step),
            |step, ticket| check(operation, step, &connection.wait(ticket)?.message()?),
        )?;
        Ok((done / pieces, took))
    }

    fn submit<'c>(
        &mut self,
        connection: &'c Connection,
        operation: Operation,
        slot: usize,
        step: usize,
    ) -> Result<Ticket<'c>> {
        let fid = self.slot_fids[slot];
        let name = self.names[slot].as_bytes();
        let piece = LARGE.min(connection.payload());
        let random = self.random;
        let walked;
        let found;
        let request = match (operation, step) {
            (Operation::ReadSmall, _) => {
                self.random = next_random(random);
                let offset = self.random % (DATA_FILE.1 / u64::from(SMALL)) * u64::from(SMALL);
                Tmessage::Read {
                    fid: self.data,
                    offset,
                    count: SMALL,
                }
            }
            (Operation::ReadLarge, _) => {
                self.random = random.wrapping_add(1);
                let offset = random % (DATA_FILE.1 / u64::from(piece)) * u64::from(piece);
                Tmessage::Read {
                    fid: self.data,
                    offset,
                    count: piece,
                }
            }
            (Operation::WriteLarge, _) => {
                self.random = random.wrapping_add(1);
                let offset = random % (OUT_SIZE / u64::from(piece)) * u64::from(piece);
                let data = Data(&self.buffer[..piece as usize]);
                Tmessage::Write {
                    fid: self.out,
                    offset,
                    data,
                }
            }
            (Operation::LookUp, 0) => {
                self.random = next_random(random);
                walked = file_name(self.random as usize % FILE_COUNT);
                found = [walked.as_bytes()];
                Tmessage::Walk {
                    fid: self.small_files,
                    newfid: fid,
                    names: Names::new(&found),
                }
            }
            (Operation::LookUp, 1) => Tmessage::Getattr {
                fid,
                mask: Getattr::BASIC.bits(),
            },
            (Operation::Create, 0) => Tmessage::Walk {
                fid: self.root,
                newfid: fid,
                names: Names::new(&[]),
            },
            (Operation::Create, 1) => {
                let flags = (Lopen::RDWR | Lopen::CREATE | Lopen::EXCL).bits();
                Tmessage::Lcreate {
                    fid,
                    name,
                    flags,
                    mode: 0o644,
                    gid: 0,
                }
            }
            (Operation::Create, 2) => Tmessage::Write {
                fid,
                offset: 0,
                data: Data(&self.buffer[..1024]),
            },
            // Tremove also clunks the fid. diod 1.0 lacks Tunlinkat.
            (Operation::Create, _) => Tmessage::Remove { fid },
            (Operation::LookUp, _) => Tmessage::Clunk { fid },
            (
                Operation::WriteSmall
                | Operation::Attributes
                | Operation::SmallFile
                | Operation::List,
                _,
            ) => return Err(Errno::EINVAL),
        };
        connection.submit(&request)
    }

    fn list(&mut self, time: Duration, most: usize) -> Measurement {
        let fid = self.slot_fids[0];
        let began = Instant::now();
        let mut done = 0;
        while done < most && (done == 0 || began.elapsed() < time) {
            self.connection.call(&Tmessage::Walk {
                fid: self.small_files,
                newfid: fid,
                names: Names::new(&[]),
            })?;
            self.connection.call(&Tmessage::Lopen {
                fid,
                flags: Lopen::DIRECTORY.bits(),
            })?;
            let (mut offset, mut seen) = (0, 0);
            loop {
                let count = self.connection.payload();
                let reply = self
                    .connection
                    .call(&Tmessage::Readdir { fid, offset, count })?;
                let mut last = None;
                for entry in p9::client::dir::entries(reply.data()) {
                    let entry = entry.map_err(|_| Errno::EIO)?;
                    seen += usize::from(!entry.is_dot());
                    last = Some(entry.offset);
                }
                match last {
                    Some(cookie) => offset = cookie,
                    None => break,
                }
            }
            if seen != FILE_COUNT {
                return Err(Errno::EIO);
            }
            self.connection.call(&Tmessage::Clunk { fid })?;
            done += 1;
        }
        Ok((done, began.elapsed()))
    }
}

/// Returns the number of sequential requests in an operation; `None` if 9P has no such operation.
pub(super) fn steps(operation: Operation) -> Option<usize> {
    Some(match operation {
        Operation::ReadSmall | Operation::ReadLarge | Operation::WriteLarge | Operation::List => 1,
        Operation::LookUp => 3,
        Operation::Create => 4,
        Operation::WriteSmall | Operation::Attributes | Operation::SmallFile => return None,
    })
}

/// Returns `EIO` if a reply is short: a server that returns less is not faster.
fn check(operation: Operation, step: usize, reply: &Rmessage<'_>) -> Result<()> {
    let whole = match (operation, reply) {
        (Operation::ReadSmall, Rmessage::Read { data }) => data.0.len() == SMALL as usize,
        (Operation::ReadLarge, Rmessage::Read { data }) => !data.0.is_empty(),
        (Operation::WriteLarge, Rmessage::Write { count }) => *count > 0,
        (Operation::LookUp, Rmessage::Walk { qids }) => qids.len() == 1,
        (Operation::Create, Rmessage::Write { count }) => *count == 1024,
        _ => step > 0 || operation == Operation::Create,
    };
    if whole { Ok(()) } else { Err(Errno::EIO) }
}
