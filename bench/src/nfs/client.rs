//! The NFS client: operations of one or more calls, many in flight.

use std::time::Duration;

use remote::nfs::{Compounds, Procedures};
use vfs::Errno;

use super::prepared::{DEPTH, Link, Open, Prepared};
use super::servers::Server;
use crate::protocol::{LARGE, Operation, SMALL};
use crate::rounds::{Done, overlapped};
use crate::workspace::{DATA, FILES, OUT, next_random};

/// A version of the protocol; for v4, with the minor version.
#[derive(Clone, Copy)]
pub(crate) enum Version {
    Three,
    Four(u32),
}

impl Version {
    /// Returns the version of this name, such as `v4.1`.
    pub(super) fn named(name: &str) -> Version {
        let minor = name
            .strip_prefix("v4.")
            .and_then(|minor| minor.parse().ok());
        minor.map_or(Version::Three, Version::Four)
    }
}

/// Returns the number of sequential calls in an operation; `None` if there is no such operation.
pub(super) fn steps(operation: Operation, version: Version) -> Option<usize> {
    match (operation, version) {
        (Operation::SmallFile, _) => None,
        (Operation::Create, Version::Three) => Some(2),
        (Operation::Create, Version::Four(_)) => Some(3),
        _ => Some(1),
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
        let version = match &with.link {
            Link::Three(_) => Version::Three,
            Link::Four(_) => Version::Four(0),
        };
        let steps = steps(operation, version).ok_or(Errno::EINVAL)?;
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
                    (Operation::SmallFile | Operation::List, _) => Err(Errno::EINVAL),
                }
            },
            |_, flight| flight(),
        )?;
        Ok((done / pieces, took))
    }
}
