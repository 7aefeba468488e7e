//! The broker's replies to the process that serves. It gets what the configuration names, and
//! nothing else, whatever it asks for.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::net::UdpSocket;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::io::Errno;
use transports::{Addr, Listener};

use super::message::{Reply, Request, Wanted};
use super::parts::Part;
use super::process::Process;
use super::supervisor::Broker;
use crate::child::users;
use crate::listen::listen;
use crate::private_file;
use crate::serve::activation;
use crate::serve::host::connect_udp;
use crate::serve::plan::Plan;

/// The files and sockets that a configuration names.
#[derive(Debug, Default)]
pub(super) struct Permitted {
    /// The addresses to listen at, and how often each is there.
    addrs: HashMap<String, usize>,
    /// Hosts of UDP sockets.
    hosts: HashSet<String>,
    read: HashSet<PathBuf>,
    created: HashSet<PathBuf>,
    /// Whether NFS is served, whose clients are called.
    calls_clients: bool,
}

impl Permitted {
    /// Returns those of `plan`, of which `listen_fds` sockets were inherited.
    pub(super) fn of(plan: &Plan, by_default: bool, listen_fds: i32) -> Permitted {
        let sockets = plan.endpoints.iter().flat_map(|one| one.sockets());
        let inherited = activation::addrs(listen_fds);
        let mut addrs = HashMap::new();
        for addr in sockets.chain(inherited) {
            *addrs.entry(addr.to_string()).or_default() += 1;
        }
        let mut permitted = Permitted {
            addrs,
            calls_clients: plan.export_requirements(by_default).identity.is_some(),
            ..Permitted::default()
        };
        for endpoint in &plan.endpoints {
            permitted.hosts.extend(endpoint.udp_hosts());
            permitted
                .read
                .extend(endpoint.files().into_iter().map(Path::to_owned));
        }
        permitted.read.extend(
            plan.file
                .iter()
                .filter_map(|file| file.file())
                .map(Path::to_owned),
        );
        let shares = plan.sources.shares.iter();
        permitted
            .created
            .extend(shares.filter_map(|share| share.read_trace.clone()));
        permitted.created.extend(plan.sources.record_calls.clone());
        permitted
    }
}

impl Permitted {
    /// Adds the files and sockets of `other`.
    fn extend(&mut self, other: Permitted) {
        for (addr, count) in other.addrs {
            let known = self.addrs.entry(addr).or_default();
            *known = count.max(*known);
        }
        self.read.extend(other.read);
        self.created.extend(other.created);
    }
}

/// The state of the replies to a process.
pub(super) struct Responder {
    permitted: Mutex<Permitted>,
    /// The group whose members may connect to Unix sockets.
    socket_group: Option<u32>,
    /// The open listeners, which later processes get again.
    listeners: Mutex<HashMap<(String, usize), Listener>>,
}

impl Responder {
    pub(super) fn new(permitted: Permitted, socket_group: Option<u32>) -> Responder {
        Responder {
            permitted: Mutex::new(permitted),
            socket_group,
            listeners: Mutex::default(),
        }
    }

    /// Replaces the files and sockets, after a reload.
    pub(super) fn permit(&self, permitted: Permitted) {
        *self.permitted.lock() = permitted;
    }

    /// Adds the files and sockets of an addition to the running set.
    pub(super) fn permit_also(&self, permitted: Permitted) {
        self.permitted.lock().extend(permitted);
    }

    /// Closes the listeners, and removes their files.
    pub(super) fn close(&self) {
        self.listeners.lock().clear();
    }

    /// Returns the reply of `broker` to `request` of `process`, and the descriptor to pass.
    pub(super) fn reply(
        &self,
        request: Request,
        broker: &Arc<Broker>,
        process: &Process,
    ) -> io::Result<(Reply, Option<OwnedFd>)> {
        match request {
            Request::Listen { addr, place } => self.listen(addr, place),
            Request::Close { addr } => {
                self.listeners.lock().retain(|(own, _), _| *own != addr);
                Ok((Reply::Done, None))
            }
            Request::RunningSet => broker.running_set().map(descriptor),
            Request::BindUdp { host, port } => self.bind_udp(&host, port),
            Request::ConnectUdp { to } => match self.permitted.lock().calls_clients {
                true => connect_udp(to).map(descriptor),
                false => Err(refused()),
            },
            Request::Read { path } => self.open(Path::new(&path), false),
            Request::Create { path } => self.open(Path::new(&path), true),
            Request::Ready { environment } => {
                broker.note_ready(process, environment);
                Ok((Reply::Done, None))
            }
            Request::Reloaded { status } => {
                broker.note_reloaded(process, &status);
                Ok((Reply::Done, None))
            }
            // The status page alone sees other parts.
            Request::Parts | Request::Figures { .. } if process.part != Part::Status => {
                Err(refused())
            }
            Request::Parts => {
                let parts = broker.processes.iter().map(|process| process.part.clone());
                let parts = parts.filter(|part| *part != Part::Status).collect();
                Ok((Reply::Parts { parts }, None))
            }
            Request::Figures {
                wanted: Wanted::Live(_),
                ..
            } => Err(refused()),
            Request::Figures { part, wanted } => broker.figures(&part, wanted).map(descriptor),
            Request::Users(query) => users::find(query).map(|found| (Reply::Users(found), None)),
        }
    }

    fn listen(&self, addr: String, place: usize) -> io::Result<(Reply, Option<OwnedFd>)> {
        let permitted = self.permitted.lock().addrs.get(&addr).copied();
        if permitted.is_none_or(|count| place >= count) {
            return Err(refused());
        }
        let parsed: Addr = addr.parse().map_err(io::Error::other)?;
        let mut listeners = self.listeners.lock();
        let listener = match listeners.entry((addr, place)) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let listener = listen(&parsed, self.socket_group);
                new.insert(listener.map_err(|failure| io::Error::other(failure.message))?)
            }
        };
        let addr = listener.addr().to_string();
        Ok((Reply::Listening { addr }, Some(listener.socket()?)))
    }

    fn bind_udp(&self, host: &str, port: u16) -> io::Result<(Reply, Option<OwnedFd>)> {
        match self.permitted.lock().hosts.contains(host) {
            true => UdpSocket::bind((host, port)).map(descriptor),
            false => Err(refused()),
        }
    }

    fn open(&self, path: &Path, create: bool) -> io::Result<(Reply, Option<OwnedFd>)> {
        let permitted = self.permitted.lock();
        let opened = match create {
            true if permitted.created.contains(path) => private_file::create(path),
            false if permitted.read.contains(path) => File::open(path),
            _ => Err(refused()),
        };
        opened.map(descriptor)
    }
}

fn refused() -> io::Error {
    Errno::PERM.into()
}

fn descriptor(fd: impl Into<OwnedFd>) -> (Reply, Option<OwnedFd>) {
    (Reply::Descriptor, Some(fd.into()))
}
