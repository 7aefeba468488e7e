//! The table `virtiofs`: barge and virtiofsd on the same directory, driven by barge's own driver
//! without a virtual machine.

pub(super) mod client;
mod servers;

use std::time::Duration;

use command::Failure;
use remote::virtiofs::WaitMode;

use self::client::ClientState;
use self::servers::{Running, Server};
use crate::context::Context;
use crate::protocol::{self, Cell, Medium, Protocol, Started};
use crate::report::results::Results;
use crate::rounds::Measurement;
use crate::workspace::Workspace;

/// A driver that polls for up to 200 µs before it sleeps.
const POLLING: WaitMode = WaitMode::Polling(Duration::from_micros(200));

pub(super) fn run(args: &Context) -> Result<Results, Failure> {
    protocol::run(args, &Virtiofs)
}

struct Virtiofs;

impl Protocol for Virtiofs {
    type Server = Server;
    /// The state of a thread, and the server that it uses.
    type Client = (ClientState, Running);

    const TABLE: &str = include_str!("table.toml");

    fn start(&self, workspace: &Workspace, server: &str) -> Result<Started<Server>, Failure> {
        Ok(servers::named(workspace, server))
    }

    /// Starts a server for each cell: virtiofsd serves one client and exits.
    fn connect(&self, server: &Server, cell: &Cell) -> Result<Vec<Self::Client>, String> {
        let waiting = match cell.interrupts {
            true => WaitMode::Interrupts,
            false => POLLING,
        };
        let running = server.start(cell.connections, waiting)?;
        let connected = |number| {
            let prepared = ClientState::new(running.channel.clone(), number)
                .map_err(|errno| format!("getting ready: {errno}"))?;
            Ok((prepared, running.clone()))
        };
        (0..cell.connections).map(connected).collect()
    }

    fn pid(&self, _: &Server, (_, running): &Self::Client) -> u32 {
        running.process.pid()
    }

    fn run(
        &self,
        (prepared, _): &mut Self::Client,
        cell: &Cell,
        time: Duration,
        most: usize,
    ) -> Measurement {
        prepared.run(cell.operation, cell.depth, time, most)
    }

    fn steps(&self, cell: &Cell) -> Option<usize> {
        Some(client::steps(cell.operation))
    }

    fn medium(&self, _: &Cell) -> Medium {
        Medium::Memory
    }
}

#[test]
fn the_table_has_its_rows() {
    let names = protocol::names(&Virtiofs);
    assert_eq!(names.len(), 43);
    let first = "1 queue, 4 KiB random read, depth 1, interrupts";
    assert_eq!((&*names[0], &*names[1]), (first, &first[..35]));
    assert_eq!(names[42], "1 queue, readdirplus of 10,000 entries, depth 1");
}
