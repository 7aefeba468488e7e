//! A server of all protocols, and one interface to the clients of the tables `9p`, `nfs` and
//! `virtiofs`, for tables that compare loads and not servers.

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use remote::virtiofs::{Channel, Options, WaitMode};
use transports::Addr;

use crate::nfs::client::{Client as NfsClient, Version};
use crate::nfs::servers::Server as NfsServer;
use crate::p9::client::Client as P9Client;
use crate::process::free_port;
use crate::protocol::Operation;
use crate::rounds::Measurement;
use crate::virtiofs::client::ClientState;
use crate::workspace::Workspace;
use command::Failure;

/// A protocol with a client.
#[derive(Clone, Copy)]
pub(crate) enum AnyProtocol {
    P9,
    Nfs(Version),
    Virtiofs,
}

/// The protocols, with their names.
pub(crate) const PROTOCOLS: [(&str, AnyProtocol); 4] = [
    ("9P", AnyProtocol::P9),
    ("NFS v3", AnyProtocol::Nfs(Version::V3)),
    ("NFS v4.2", AnyProtocol::Nfs(Version::V4(2))),
    ("virtiofs", AnyProtocol::Virtiofs),
];

/// A server of the workspace's share over all protocols.
pub(crate) struct AnyServer {
    p9: Addr,
    nfs: NfsServer,
    /// The sockets of the devices, each of which serves one client.
    devices: Vec<PathBuf>,
}

/// A connected client, which repeats its operation. The arguments are the number of requests in
/// flight, the time to go on for, and the maximum number of operations.
pub(crate) type AnyClient = Box<dyn FnMut(usize, Duration, usize) -> Measurement + Send>;

impl AnyServer {
    /// Starts barge with `options`. `name` is unique in the workspace.
    pub(crate) fn start(
        workspace: &Workspace,
        name: &str,
        options: &[&str],
    ) -> Result<AnyServer, Failure> {
        let p9 = Addr::Tcp {
            host: "127.0.0.1".into(),
            port: free_port()?,
        };
        let device = |number: usize| workspace.run_dir.join(format!("{name}-{number}.sock"));
        let devices: Vec<_> = (0..AnyServer::DEVICES).map(device).collect();
        let mut all = vec!["--9p".to_owned(), p9.to_string()];
        for device in &devices {
            all.extend(["--virtiofs".to_owned(), device.display().to_string()]);
        }
        let all: Vec<_> = all.iter().map(String::as_str).collect();
        let (_, nfs) = crate::nfs::servers::barge(
            workspace.barge(),
            (&workspace.share, &workspace.run_dir),
            None,
            &[&all[..], options].concat(),
        )?;
        Ok(AnyServer { p9, nfs, devices })
    }

    /// The number of clients of virtiofs at a time.
    const DEVICES: usize = 2;

    /// Returns the id of the server's process.
    pub(crate) fn pid(&self) -> u32 {
        self.nfs.process.pid()
    }

    /// Connects the client `number`, at most one at a time for each number.
    pub(crate) fn connect(
        &self,
        protocol: AnyProtocol,
        operation: Operation,
        number: usize,
    ) -> Result<AnyClient, String> {
        Ok(match protocol {
            AnyProtocol::P9 => {
                let mut client = P9Client::connect(&self.p9, "", number)?;
                Box::new(move |depth, time, most| client.run(operation, depth, time, most))
            }
            AnyProtocol::Nfs(version) => {
                // Its user may differ from that of a client of 9P, and so the owner of its file.
                let number = number + AnyServer::DEVICES;
                let mut client = NfsClient::connect(&self.nfs, version, operation, number)?;
                Box::new(move |depth, time, most| client.run(depth, time, most))
            }
            AnyProtocol::Virtiofs => {
                let socket = &self.devices[number];
                let stream = UnixStream::connect(socket)
                    .map_err(|error| format!("{}: {error}", socket.display()))?;
                let options = Options {
                    queues: 1,
                    depth: 64,
                    waiting: WaitMode::Interrupts,
                    ..Options::default()
                };
                let channel = Channel::mount(stream, options).map_err(|error| error.to_string())?;
                let client = ClientState::new(channel, number);
                let mut client = client.map_err(|errno| format!("getting ready: {errno}"))?;
                Box::new(move |depth, time, most| client.run(operation, depth, time, most))
            }
        })
    }
}
