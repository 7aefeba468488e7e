//! The table `9p`: barge and diod on the same directory, driven by the same client.

pub(super) mod client;
mod servers;

use std::time::Duration;

use command::Failure;
use command::tools::Tool;

use self::client::Client;
use self::servers::Server;
use crate::context::Context;
use crate::protocol::{self, Cell, Medium, Protocol, Started};
use crate::report::results::Results;
use crate::rounds::Measurement;
use crate::workspace::Workspace;

pub(super) fn run(args: &Context) -> Result<Results, Failure> {
    protocol::run(args, &P9)
}

struct P9;

impl Protocol for P9 {
    type Server = Server;
    type Client = Client;

    const TABLE: &str = include_str!("table.toml");

    fn start(&self, workspace: &Workspace, server: &str) -> Result<Started<Server>, Failure> {
        let mut words = server.split(' ');
        if words.next() == Some("barge") {
            let options: Vec<&str> = words.collect();
            let barge = servers::barge(workspace, &options)?;
            return Ok(Started::Running(server.to_owned(), barge));
        }
        Ok(match servers::diod(workspace)? {
            Some((name, diod)) => Started::Running(name, diod),
            None => Started::Missing(Tool::DIOD.missing_message()),
        })
    }

    fn connect(&self, server: &Server, cell: &Cell) -> Result<Vec<Client>, String> {
        let addr = match self.medium(cell) {
            Medium::Tcp => &server.tcp,
            Medium::Unix | Medium::Memory => &server.unix,
        };
        let connected = |number| Client::connect(addr, &server.aname, number);
        (0..cell.connections).map(connected).collect()
    }

    fn pid(&self, server: &Server, _: &Client) -> u32 {
        server.process.pid()
    }

    fn run(&self, client: &mut Client, cell: &Cell, time: Duration, most: usize) -> Measurement {
        client.run(cell.operation, cell.depth, time, most)
    }

    fn steps(&self, cell: &Cell) -> Option<usize> {
        client::steps(cell.operation)
    }

    fn medium(&self, cell: &Cell) -> Medium {
        match &*cell.variant {
            "tcp" => Medium::Tcp,
            _ => Medium::Unix,
        }
    }
}

#[test]
fn the_table_has_its_rows() {
    let names = protocol::names(&P9);
    assert_eq!(names.len(), 38);
    assert_eq!(names[1], "unix, 8 conn., 4 KiB random read, depth 1");
    assert_eq!(names[37], "tcp, 8 conn., readdir of 10,000 entries");
}
