//! The table `virtiofs`: barge and virtiofsd on the same directory, driven without a virtual machine by barge's
//! own driver.

mod servers;
mod work;

use std::time::Duration;

use self::servers::{Running, Server};
use self::work::{Prepared, Work};
use super::BenchArgs;
use super::physical::Physical;
use super::place::Place;
use super::report::Results;
use super::rounds::{self, Done, measure_all};
use crate::Failure;

/// What is measured: by so many queues, with so many operations of each under way.
const CELLS: &[(Work, &[(usize, usize)])] = &[
    (
        Work::ReadSmall,
        &[(1, 1), (1, 16), (1, 64), (4, 1), (4, 16)],
    ),
    (
        Work::WriteSmall,
        &[(1, 1), (1, 16), (1, 64), (4, 1), (4, 16)],
    ),
    (Work::WriteLarge, &[(1, 1)]),
    (Work::ReadLarge, &[(1, 1), (1, 4)]),
    (Work::Attributes, &[(1, 1), (1, 16)]),
    (Work::LookUp, &[(1, 1), (1, 16)]),
    (Work::SmallFile, &[(1, 1), (1, 16)]),
    (Work::Create, &[(1, 1), (1, 16)]),
    (Work::List, &[(1, 1)]),
];

struct Cell {
    work: Work,
    queues: usize,
    depth: usize,
    /// How long the driver looks for replies before it sleeps.
    poll: Duration,
}

pub(super) fn run(args: &BenchArgs) -> Result<Results, Failure> {
    let place = Place::make(args)?;
    let mut notes = vec![args.note(&place)];
    let mut missing = Vec::new();
    let mut servers = vec![servers::barge(&place, &[])];
    let mut peers = Vec::new();
    for (peer, why) in servers::peers(&place) {
        match peer {
            Some(peer) => {
                peers.push(servers.len());
                servers.push(peer);
            }
            None => missing.push(why),
        }
    }
    servers.push(servers::barge(&place, &["--poll-us", "0"]));
    let cells = cells(args);
    let rows = measure_all(args, &servers, &cells, &place.run, &mut notes)?;
    notes.push(
        "interrupts: the driver sleeps for each reply; else it looks for them for up to 200 µs before \
         it sleeps"
            .into(),
    );
    notes.push("4 queues: a thread for each; virtiofsd has one queue, which they share".into());
    Ok(Results {
        title: "virtiofs, one driver, no virtual machine".into(),
        notes,
        missing,
        servers: servers.into_iter().map(|(name, _)| name).collect(),
        peers,
        limit: None,
        rows,
    })
}

/// How long the driver looks for replies where it does not sleep at once.
const POLLING: Duration = Duration::from_micros(200);

fn cells(args: &BenchArgs) -> Vec<Cell> {
    let mut cells = Vec::new();
    for &(work, sizes) in CELLS {
        for &(queues, depth) in sizes {
            // What sleeping costs shows with one at a time.
            let alone = (queues, depth) == (1, 1) && work != Work::List;
            let polls: &[Duration] = match alone {
                true => &[Duration::ZERO, POLLING],
                false => &[POLLING],
            };
            cells.extend(polls.iter().map(|&poll| Cell {
                work,
                queues,
                depth,
                poll,
            }));
        }
    }
    cells.retain(|cell| args.wants(&rounds::Cell::name(cell)));
    cells
}

impl rounds::Cell<Server> for Cell {
    /// A thread's part of the work, and the server that it is done on.
    type Client = (Prepared, Running);

    fn name(&self) -> String {
        let (queues, depth) = (self.queues, self.depth);
        let queues = if queues == 1 { "1 queue" } else { "4 queues" };
        let how = if self.poll.is_zero() {
            ", interrupts"
        } else {
            ""
        };
        format!("{queues}, {}, depth {depth}{how}", self.work.name())
    }

    fn unit(&self) -> (&'static str, f64) {
        self.work.unit()
    }

    /// virtiofsd serves one client and ends, so each has a server of its own.
    fn connect(&self, server: &Server) -> Result<Vec<Self::Client>, String> {
        let running = server.start(self.queues, self.poll)?;
        let connected = |number| {
            let prepared = Prepared::new(running.channel.clone(), number)
                .map_err(|errno| format!("getting ready: {errno}"))?;
            Ok((prepared, running.clone()))
        };
        (0..self.queues).map(connected).collect()
    }

    fn pid(&self, _: &Server, (_, running): &Self::Client) -> u32 {
        running.process.pid()
    }

    fn run(&self, (prepared, _): &mut Self::Client, time: Duration, most: usize) -> Done {
        prepared.run(self.work, self.depth, time, most)
    }

    fn counted(&self) -> Option<usize> {
        let times = if self.work == Work::List { 5 } else { 500 };
        (self.queues == 1 && !self.poll.is_zero()).then_some(times)
    }

    /// Memory is shared: what is moved has to be copied once.
    fn limit(&self) -> Option<Physical> {
        self.work.payload().map(Physical::Copy)
    }
}
