//! The table `nfs`: barge and nfs-ganesha on the same directory, driven by the same client, over
//! loopback TCP.

mod calls;
pub(super) mod client;
mod connection;
pub(super) mod servers;

use std::sync::Arc;
use std::time::Duration;

use command::Failure;
use command::tools::Tool;

use self::client::{Client, Version};
use self::servers::Server;
use crate::context::Context;
use crate::network::Network;
use crate::protocol::{self, Cell, Medium, Protocol, Started};
use crate::report::results::Results;
use crate::rounds::Measurement;
use crate::workspace::Workspace;

pub(super) fn run(args: &Context) -> Result<Results, Failure> {
    let network = match servers::has_ganesha() {
        true => Network::with_portmapper().map(Arc::new),
        false => None,
    };
    protocol::run(args, &Nfs { network })
}

struct Nfs {
    /// The network namespace of all servers, if there is one.
    network: Option<Arc<Network>>,
}

impl Protocol for Nfs {
    type Server = Server;
    type Client = Client;

    const TABLE: &str = include_str!("table.toml");

    fn start(&self, workspace: &Workspace, server: &str) -> Result<Started<Server>, Failure> {
        let network = self.network.as_ref();
        let (started, missing) = match server {
            "ganesha" => {
                let ganesha = match network {
                    Some(network) => servers::ganesha(workspace, network)?,
                    None => None,
                };
                let missing = Tool::GANESHA.missing_message();
                let why = format!("{missing}; it also needs root, for a network namespace");
                (ganesha, why)
            }
            "barge over TLS" => {
                let missing = Tool::OPENSSL.missing_message();
                let why = format!("{missing} for the TLS certificate");
                (servers::barge_with_tls(workspace, network)?, why)
            }
            _ => {
                let options: Vec<&str> = server.split(' ').skip(1).collect();
                let dirs = (&*workspace.share, &*workspace.run_dir);
                let barge = servers::barge(workspace.barge(), dirs, network, &options)?;
                (Some(barge), String::new())
            }
        };
        Ok(match started {
            Some((name, server)) => Started::Running(name, server),
            None => Started::Missing(missing),
        })
    }

    fn connect(&self, server: &Server, cell: &Cell) -> Result<Vec<Client>, String> {
        let version = Version::named(&cell.variant);
        let connected = |number| Client::connect(server, version, cell.operation, number);
        (0..cell.connections).map(connected).collect()
    }

    fn pid(&self, server: &Server, _: &Client) -> u32 {
        server.process.pid()
    }

    fn run(&self, client: &mut Client, cell: &Cell, time: Duration, most: usize) -> Measurement {
        client.run(cell.depth, time, most)
    }

    fn steps(&self, cell: &Cell) -> Option<usize> {
        client::steps(cell.operation, Version::named(&cell.variant))
    }

    fn medium(&self, _: &Cell) -> Medium {
        Medium::Tcp
    }
}

#[test]
fn the_table_has_its_rows() {
    let names = protocol::names(&Nfs { network: None });
    assert_eq!(names.len(), 4 * 19);
    assert_eq!(names[3], "v3, 8 conn., 4 KiB random read, depth 1");
    assert_eq!(names[75], "v4.2, 1 conn., readdir of 10,000 entries");
}
