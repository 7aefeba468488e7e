//! The NFS operations: each of one or more calls, many in flight.

use std::fmt;
use std::time::Duration;

use remote::nfs::{Compounds, Procedures};
use vfs::Errno;

use super::prepared::{DEPTH, LARGE, Link, Open, Prepared};
use super::servers::Server;
use crate::hardware_limit::BARE;
use crate::rounds::{Done, overlapped};
use crate::workspace::{DATA, FILES, OUT, next_random};

const SMALL: u32 = 4096;

/// An operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// Reads 4 KiB at a random offset of a cached file.
    ReadSmall,
    /// Writes 4 KiB at a random offset of a file.
    WriteSmall,
    /// Reads the next 1 MiB of a cached file, in as few calls as the server allows.
    ReadLarge,
    /// Writes the next 1 MiB of a file.
    WriteLarge,
    /// Gets the attributes of a file.
    Attributes,
    /// Looks up the handle and attributes of a name.
    LookUp,
    /// Creates a file, and removes it.
    Create,
    /// Lists the directory of many files.
    List,
}

impl Operation {
    pub(super) fn name(self) -> &'static str {
        match self {
            Operation::ReadSmall => "4 KiB random read",
            Operation::WriteSmall => "4 KiB random write",
            Operation::ReadLarge => "1 MiB sequential read",
            Operation::WriteLarge => "1 MiB sequential write",
            Operation::Attributes => "getattr",
            Operation::LookUp => "lookup",
            Operation::Create => "create+remove",
            Operation::List => "readdir of 10,000 entries",
        }
    }

    /// Returns the unit, and the number of units in an operation.
    pub(super) fn unit(self) -> (&'static str, f64) {
        match self {
            Operation::ReadLarge | Operation::WriteLarge => ("MB/s", f64::from(LARGE) / 1e6),
            _ => ("op/s", 1.0),
        }
    }

    /// Returns the number of sequential calls in an operation.
    fn steps(self, version: Version) -> usize {
        match (self, version) {
            (Operation::Create, Version::Three) => 2,
            (Operation::Create, Version::Four(_)) => 3,
            _ => 1,
        }
    }

    /// Returns the bytes of a call and of its reply, and the calls in an operation; `None` if the
    /// server decides them.
    pub(super) fn exchange(self, version: Version) -> Option<((usize, usize), usize)> {
        let bytes = match self {
            Operation::ReadSmall => (BARE, BARE + SMALL as usize),
            Operation::WriteSmall => (BARE + SMALL as usize, BARE),
            Operation::ReadLarge => (BARE, BARE + LARGE as usize),
            Operation::WriteLarge => (BARE + LARGE as usize, BARE),
            Operation::Attributes | Operation::LookUp | Operation::Create => (BARE, BARE),
            Operation::List => return None,
        };
        Some((bytes, self.steps(version)))
    }
}

/// A version of the protocol; for v4, with the minor version.
#[derive(Clone, Copy)]
pub(crate) enum Version {
    Three,
    Four(u32),
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Version::Three => f.write_str("v3"),
            Version::Four(minor) => write!(f, "v4.{minor}"),
        }
    }
}

/// A connection prepared for an operation.
pub(crate) struct Client {
    operation: Operation,
    prepared: Prepared,
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
            Version::Three => Procedures::open(server.dial(false, 3)).map(Link::Three),
            Version::Four(minor) => Compounds::open(server.dial(false, 4), minor).map(Link::Four),
        };
        let link = link.map_err(|error| error.to_string())?;
        let prepared = Prepared::new(link, server, operation, number);
        Ok(Client {
            operation,
            prepared: prepared.map_err(|errno| format!("getting ready: {errno}"))?,
            random: 0x9e37_79b9_7f4a_7c15 ^ number as u64,
            count: 0,
        })
    }

    /// Repeats the operation, `depth` at a time, for about `time` or `most` times; returns the
    /// count and the time taken.
    pub(crate) fn run(&mut self, depth: usize, time: Duration, most: usize) -> Done {
        let (operation, with) = (self.operation, &self.prepared);
        let piece = match operation {
            Operation::List => return with.list(time, most),
            Operation::ReadLarge => LARGE.min(with.limits.read),
            Operation::WriteLarge => LARGE.min(with.limits.write),
            _ => LARGE,
        };
        // A server with small limits gets its megabyte in as many calls as necessary, all at once.
        let pieces = LARGE.div_ceil(piece) as usize;
        let steps = match &with.link {
            Link::Three(_) => operation.steps(Version::Three),
            Link::Four(_) => operation.steps(Version::Four(0)),
        };
        let (random, count) = (&mut self.random, &mut self.count);
        let (done, took) = overlapped(
            ((depth * pieces).min(DEPTH), steps),
            (time, most * pieces),
            |slot, step, found: Open| {
                *random = next_random(*random);
                *count += 1;
                let somewhere =
                    |within: u64| *random % (within / u64::from(SMALL)) * u64::from(SMALL);
                let next = |within: u64| *count % (within / u64::from(piece)) * u64::from(piece);
                let owner = &with.owners[slot];
                match (operation, step) {
                    (Operation::ReadSmall, _) => with.read(somewhere(DATA.1), SMALL),
                    (Operation::WriteSmall, _) => with.write(somewhere(OUT), SMALL),
                    (Operation::ReadLarge, _) => with.read(next(DATA.1), piece),
                    (Operation::WriteLarge, _) => with.write(next(OUT), piece),
                    (Operation::Attributes, _) => with.attributes(),
                    (Operation::LookUp, _) => with.look_up(&with.names[*random as usize % FILES]),
                    (Operation::Create, 0) => with.create(owner),
                    (Operation::Create, step) if step + 1 < steps => with.close(owner, found),
                    (Operation::Create, _) => with.remove(&owner.name),
                    (Operation::List, _) => Err(Errno::EINVAL),
                }
            },
            |_, flight| flight(),
        )?;
        Ok((done / pieces, took))
    }
}
