//! The NFS client: operations of one or more calls, many in flight.

use std::time::Duration;

use remote::nfs::{Compounds, Procedures};
use vfs::Errno;

use super::connection::{Connection, Link, MAX_DEPTH, Open};
use super::servers::Server;
use crate::protocol::{LARGE, Operation, SMALL};
use crate::rounds::{Measurement, run_pipelined};
use crate::workspace::{DATA_FILE, FILE_COUNT, OUT_SIZE, next_random};

/// A version of the protocol; for v4, with the minor version.
#[derive(Clone, Copy)]
pub(crate) enum Version {
    V3,
    V4(u32),
}

impl Version {
    /// Returns the version of this name, such as `v4.1`.
    pub(super) fn named(name: &str) -> Version {
        let minor = name
            .strip_prefix("v4.")
            .and_then(|minor| minor.parse().ok());
        minor.map_or(Version::V3, Version::V4)
    }
}

/// Returns the number of sequential calls in an operation; `None` if there is no such operation.
pub(super) fn steps(operation: Operation, version: Version) -> Option<usize> {
    match (operation, version) {
        (Operation::SmallFile, _) => None,
        (Operation::Create, Version::V3) => Some(2),
        (Operation::Create, Version::V4(_)) => Some(3),
        _ => Some(1),
    }
}

/// A connection prepared for an operation.
pub(crate) struct Client {
    operation: Operation,
    connection: Connection,
    random: u64,
    /// Calls so far, for the offsets of sequential operations.
    count: u64,
}

impl Client {
    /// Connects; `number` makes the file names of this client unique.
    pub(crate) fn connect(
        server: &Server,
        version: Version,
        operation: Operation,
        number: usize,
    ) -> std::result::Result<Client, String> {
        let link = match version {
            Version::V3 => {
                Procedures::open(server.dial(false, 3)).map(|link| Link::V3(Box::new(link)))
            }
            Version::V4(minor) => Compounds::open(server.dial(false, 4), minor).map(Link::V4),
        };
        let link = link.map_err(|error| error.to_string())?;
        let prepared = Connection::new(link, server, operation, number);
        Ok(Client {
            operation,
            connection: prepared.map_err(|errno| format!("getting ready: {errno}"))?,
            random: 0x9e37_79b9_7f4a_7c15 ^ number as u64,
            count: 0,
        })
    }

    /// Repeats the operation, `depth` at a time, for about `time` or `most` times; returns the
    /// count and the time taken.
    pub(crate) fn run(&mut self, depth: usize, time: Duration, most: usize) -> Measurement {
        let (operation, with) = (self.operation, &self.connection);
        let piece = match operation {
            Operation::List => return with.list(time, most),
            Operation::ReadLarge => LARGE.min(with.limits.read),
            Operation::WriteLarge => LARGE.min(with.limits.write),
            _ => LARGE,
        };
        // A server with small limits gets its megabyte in as many calls as necessary, all at once.
        let pieces = LARGE.div_ceil(piece) as usize;
        let version = match &with.link {
            Link::V3(_) => Version::V3,
            Link::V4(_) => Version::V4(0),
        };
        let steps = steps(operation, version).ok_or(Errno::EINVAL)?;
        let (random, count) = (&mut self.random, &mut self.count);
        let (done, took) = run_pipelined(
            ((depth * pieces).min(MAX_DEPTH), steps),
            (time, most * pieces),
            |slot, step, found: Open| {
                *random = next_random(*random);
                *count += 1;
                let somewhere =
                    |within: u64| *random % (within / u64::from(SMALL)) * u64::from(SMALL);
                let next = |within: u64| *count % (within / u64::from(piece)) * u64::from(piece);
                let owner = &with.owners[slot];
                match (operation, step) {
                    (Operation::ReadSmall, _) => with.read(somewhere(DATA_FILE.1), SMALL),
                    (Operation::WriteSmall, _) => with.write(somewhere(OUT_SIZE), SMALL),
                    (Operation::ReadLarge, _) => with.read(next(DATA_FILE.1), piece),
                    (Operation::WriteLarge, _) => with.write(next(OUT_SIZE), piece),
                    (Operation::Attributes, _) => with.attributes(),
                    (Operation::LookUp, _) => {
                        with.look_up(&with.names[*random as usize % FILE_COUNT])
                    }
                    (Operation::Create, 0) => with.create(owner),
                    (Operation::Create, step) if step + 1 < steps => with.close(owner, found),
                    (Operation::Create, _) => with.remove(&owner.name),
                    (Operation::SmallFile | Operation::List, _) => Err(Errno::EINVAL),
                }
            },
            |_, pending| pending(),
        )?;
        Ok((done / pieces, took))
    }
}
