//! The parts of the host that serving takes besides the sources: sockets, files that options name,
//! and the service manager. A confined process reaches them through the broker.

use std::fs::File;
use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::Arc;

use engine::SuspendedConnection;
use transports::{Addr, DatagramSocket, Listener};
use vfs::HandleKey;

use super::broker::{BrokerClient, DeviceChannel};
use super::handle_key;
use super::notify::{self, ClientProgram};
use super::plan::Plan;
use super::recovery::SharedState;
use super::recovery::etcd::ActiveServer;
use super::share::Share;
use crate::listen::listen;
use crate::{Failure, private_file};

/// The host as the process that serves reaches it.
#[derive(Clone)]
pub(super) enum Host {
    /// This process is not confined.
    Direct {
        /// The group whose members may connect to Unix sockets.
        socket_group: Option<u32>,
        /// This server as the active one of several.
        active: Option<Arc<ActiveServer>>,
    },
    Brokered(Arc<BrokerClient>),
}

impl Host {
    /// Listens at `addr`.
    pub(super) fn listen(&self, addr: &Addr) -> Result<Listener, Failure> {
        match self {
            Host::Direct { socket_group, .. } => listen(addr, *socket_group),
            Host::Brokered(broker) => broker.listen(addr),
        }
    }

    /// Returns the secret of a server that stores none. It is the same in all processes that serve,
    /// one after another.
    pub(super) fn temporary_key(&self) -> Result<HandleKey, Failure> {
        let bytes = match self {
            Host::Direct { .. } => handle_key::temporary()?,
            Host::Brokered(broker) => broker.temporary_key().map_err(Failure::new)?,
        };
        Ok(HandleKey::new(bytes))
    }

    /// Returns the connections of an earlier process.
    pub(super) fn take_over(&self) -> io::Result<Vec<SuspendedConnection>> {
        match self {
            Host::Brokered(broker) if broker.has_restarted() => broker.take_over(),
            _ => Ok(Vec::new()),
        }
    }

    /// Returns the keeper of the device at `addr`, for a process that continues after a crash of
    /// this one. Returns `None` if there is none then.
    pub(super) fn keep_device(&self, addr: &Addr) -> io::Result<Option<DeviceChannel>> {
        match self {
            Host::Direct { .. } => Ok(None),
            Host::Brokered(broker) => broker.keep_device(addr).map(Some),
        }
    }

    /// Hands `connections` over to the process that replaces this one.
    pub(super) fn hand_over(&self, connections: Vec<SuspendedConnection>) -> io::Result<()> {
        match self {
            Host::Direct { .. } => Err(io::ErrorKind::Unsupported.into()),
            Host::Brokered(broker) => broker.hand_over(connections),
        }
    }

    /// Closes the listening sockets at the address `addr`, and removes their files. The process's
    /// own copies are closed when they are dropped.
    pub(super) fn close(&self, addr: &str) {
        if let Host::Brokered(broker) = self
            && let Err(error) = broker.close(addr)
        {
            tracing::warn!("{addr}: cannot close the socket: {error}");
        }
    }

    /// Binds a UDP socket.
    pub(super) fn bind_udp(&self, host: &str, port: u16) -> Result<DatagramSocket, Failure> {
        let bound = match self {
            Host::Direct { .. } => DatagramSocket::bind(host, port),
            Host::Brokered(broker) => broker.bind_udp(host, port),
        };
        bound.map_err(|error| Failure::new(format!("udp:{host}:{port}: {error}")))
    }

    /// Connects a new UDP socket to `program` of the NFS client whose portmapper is at
    /// `portmapper`, from the address `from` if it is one of NFS.
    pub(super) fn call_client(
        &self,
        from: Option<IpAddr>,
        portmapper: SocketAddr,
        program: ClientProgram,
    ) -> io::Result<UdpSocket> {
        match self {
            Host::Direct { .. } => notify::connect(from, portmapper, program),
            Host::Brokered(broker) => broker.call_client(from, portmapper.ip(), program),
        }
    }

    /// Returns the state that this server, which is the active one of several, shares with the
    /// others.
    pub(super) fn nfs_state(&self) -> Result<SharedState, Failure> {
        match self {
            Host::Direct {
                active: Some(active),
                ..
            } => Ok(active.state()),
            Host::Direct { active: None, .. } => Err(Failure::new("no shared state")),
            Host::Brokered(broker) => broker.nfs_state(),
        }
    }

    /// Connects to an OpenTelemetry collector.
    #[cfg(feature = "otel")]
    pub(super) fn connect_collector(
        &self,
        host: &str,
        port: u16,
    ) -> io::Result<std::net::TcpStream> {
        match self {
            Host::Direct { .. } => crate::otel::connect(host, port),
            Host::Brokered(broker) => broker.connect_collector(host, port),
        }
    }

    /// Reads a file that the options name.
    pub(super) fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        match self {
            Host::Direct { .. } => std::fs::read(path),
            Host::Brokered(broker) => {
                let mut bytes = Vec::new();
                broker.open(path)?.read_to_end(&mut bytes)?;
                Ok(bytes)
            }
        }
    }

    /// Creates a file that the options name, for this user alone, or truncates it.
    pub(super) fn create(&self, path: &Path) -> io::Result<File> {
        match self {
            Host::Direct { .. } => private_file::create(path),
            Host::Brokered(broker) => broker.create(path),
        }
    }

    /// Limits `plan` to the part that this process serves.
    pub(super) fn limit(&self, plan: &mut Plan) {
        if let Host::Brokered(broker) = self {
            broker.limit(plan);
        }
    }

    /// Finds where the objects of `plan` are for this process.
    pub(super) fn find_objects(&self, plan: &mut Plan) {
        if let Host::Brokered(broker) = self {
            broker.find_objects(plan);
        }
    }

    /// Asks again for the objects of `share` that this process does not have.
    pub(super) fn find_missing_objects(&self, share: &mut Share) -> Result<(), Failure> {
        match self {
            Host::Direct { .. } => Ok(()),
            Host::Brokered(broker) => broker.find_missing_objects(share),
        }
    }

    /// Returns whether this process serves although none of its sources can be opened: it replaces
    /// another one, or others serve other sources.
    pub(super) fn serves_without_sources(&self) -> bool {
        match self {
            Host::Direct { .. } => false,
            Host::Brokered(broker) => broker.serves_without_sources(),
        }
    }

    /// Returns whether this process replaces one that has crashed.
    pub(super) fn has_restarted(&self) -> bool {
        match self {
            Host::Direct { .. } => false,
            Host::Brokered(broker) => broker.has_restarted(),
        }
    }

    /// Returns the id of the process that users know as the server.
    pub(super) fn server_id(&self) -> u32 {
        match self {
            Host::Direct { .. } => std::process::id(),
            Host::Brokered(broker) => broker.id(),
        }
    }
}
