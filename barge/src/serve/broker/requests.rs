//! The broker's replies to the process that serves. It gets what the configuration names, and
//! nothing else, whatever it asks for.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use layers::Clients;
use parking_lot::Mutex;
use rustix::io::Errno;
use transports::{Addr, Listener};

use super::connections::{self, ConnectionDescriptors};
use super::kept_devices::KeptDevices;
use super::message::{Reply, Request, Wanted};
use super::objects::SharedObject;
use super::parts::Part;
use super::process::Process;
use super::supervisor::Broker;
use super::upgrade::PartSockets;
use crate::child::{message, users};
use crate::kept_files::KeptLimit;
use crate::listen::listen;
use crate::private_file;
use crate::serve::plan::{Plan, changeable_addrs};
use crate::serve::{activation, exports, notify};

/// The files and sockets that a configuration names.
#[derive(Clone, Debug, Default)]
pub(super) struct Permitted {
    /// The addresses to listen at, and how often each is there.
    addrs: HashMap<String, usize>,
    /// Those of the addresses at whose hosts and ports UDP sockets are bound as well.
    udp: HashSet<String>,
    read: HashSet<PathBuf>,
    /// The objects of the shares, by their numbers.
    objects: HashSet<u32>,
    created: HashSet<PathBuf>,
    /// Whether NFS is served, whose clients are called and whose state may be in etcd.
    serves_nfs: bool,
    /// The clients that may use each share; `None` for all.
    clients: Vec<Option<Arc<Clients>>>,
    /// Hosts and ports of OpenTelemetry collectors.
    #[cfg(feature = "otel")]
    collectors: HashSet<(String, u16)>,
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
            serves_nfs: plan.export_requirements(by_default).identity.is_some(),
            clients: client_lists(plan),
            objects: plan.sources.objects().map(|it| it.number()).collect(),
            created: created_files(plan),
            ..Permitted::default()
        };
        for endpoint in &plan.endpoints {
            let udp = endpoint.udp_sockets().into_iter();
            permitted.udp.extend(udp.map(|addr| addr.to_string()));
            permitted
                .read
                .extend(endpoint.files().into_iter().map(Path::to_owned));
        }
        #[cfg(feature = "otel")]
        if let Some(otlp) = &plan.otlp {
            permitted.collectors.extend(otlp.addresses());
        }
        permitted
    }
}

impl Permitted {
    /// Returns whether an NFS client at `to` may be called from the address `from`: one that may
    /// use a share.
    fn may_call(&self, from: Option<IpAddr>, to: IpAddr) -> bool {
        let listens = |from: IpAddr| {
            let mut addrs = self.addrs.keys().map(|addr| addr.parse());
            addrs.any(|addr| match addr {
                Ok(Addr::Tcp { host, .. }) => host.parse() == Ok(from),
                _ => false,
            })
        };
        let is_host = match to.to_canonical() {
            IpAddr::V4(to) => !to.is_unspecified() && !to.is_broadcast() && !to.is_multicast(),
            IpAddr::V6(to) => !to.is_unspecified() && !to.is_multicast(),
        };
        let admits = |list: &Option<Arc<Clients>>| {
            let list = list.as_ref();
            list.is_none_or(|list| list.entry(Some(to.to_canonical())).is_some())
        };
        let is_client = is_host && self.clients.iter().any(admits);
        self.serves_nfs && is_client && from.is_none_or(listens)
    }

    /// Returns those of `addition`, shares and endpoints to add to a running server.
    pub(super) fn of_addition(addition: &Plan) -> Permitted {
        let mut permitted = Permitted::of(addition, false, 0);
        permitted.addrs.clear();
        for addr in changeable_addrs(addition) {
            *permitted.addrs.entry(addr).or_default() += 1;
        }
        permitted
    }

    /// Adds the collectors of `other`.
    #[cfg(feature = "otel")]
    fn with_collectors_of(mut self, other: &Permitted) -> Permitted {
        self.collectors.extend(other.collectors.iter().cloned());
        self
    }

    /// Adds the files and sockets of `other`. An address may be listened at as often as `count`
    /// returns for the two numbers.
    fn extend(&mut self, other: Permitted, count: impl Fn(usize, usize) -> usize) {
        for (addr, further) in other.addrs {
            let known = self.addrs.entry(addr).or_default();
            *known = count(*known, further);
        }
        self.udp.extend(other.udp);
        self.read.extend(other.read);
        self.objects.extend(other.objects);
        self.created.extend(other.created);
        self.serves_nfs |= other.serves_nfs;
        self.clients.extend(other.clients);
        #[cfg(feature = "otel")]
        self.collectors.extend(other.collectors);
    }

    /// Removes each of `addrs` once, and the objects and created files that `stays` does not have.
    fn remove(&mut self, addrs: &[String], stays: Permitted) {
        for addr in addrs {
            if let Entry::Occupied(mut known) = self.addrs.entry(addr.clone()) {
                *known.get_mut() -= 1;
                if *known.get() == 0 {
                    known.remove();
                }
            }
        }
        (self.objects, self.created) = (stays.objects, stays.created);
    }
}

/// Returns the files that the shares of `plan` create.
fn created_files(plan: &Plan) -> HashSet<PathBuf> {
    let shares = plan.sources.shares.iter();
    let traces = shares.filter_map(|share| share.read_trace.clone());
    traces.chain(plan.sources.record_calls.clone()).collect()
}

/// The state of the replies to a process.
pub(super) struct Responder {
    permitted: Mutex<Permitted>,
    /// During a reload, the files and sockets before it and after it.
    reloading: Mutex<Option<(Permitted, Permitted)>>,
    /// The group whose members may connect to Unix sockets.
    socket_group: Option<u32>,
    /// The open listeners, which later processes get again.
    listeners: Mutex<HashMap<(String, usize), Listener>>,
    connections: Mutex<PassedConnections>,
    /// The devices for a process that continues after a crash.
    pub(super) devices: KeptDevices,
}

/// Connections of a process that has ended, for the next one.
enum PassedConnections {
    /// The process may still send some.
    Arriving(JoinHandle<ConnectionDescriptors>),
    Complete(ConnectionDescriptors),
}

impl Responder {
    /// Returns that of a process which may use what is `permitted`, with the sockets of an earlier
    /// program. `kept` limits the descriptors that are kept for its successors.
    pub(super) fn new(
        permitted: Permitted,
        socket_group: Option<u32>,
        sockets: PartSockets,
        kept: KeptLimit,
    ) -> Responder {
        // Those at other addresses are closed.
        let known = |((addr, _), _): &(_, Listener)| permitted.addrs.contains_key(addr);
        let listeners = sockets.listeners.into_iter().filter(known).collect();
        Responder {
            permitted: Mutex::new(permitted),
            reloading: Mutex::default(),
            socket_group,
            listeners: Mutex::new(listeners),
            connections: Mutex::new(PassedConnections::Complete(sockets.connections)),
            devices: KeptDevices::new(kept),
        }
    }

    /// Returns the sockets for another program. The process has ended.
    pub(super) fn take_sockets(&self) -> PartSockets {
        PartSockets {
            listeners: self.listeners.lock().drain().collect(),
            connections: self.take_connections(),
        }
    }

    /// Restores what [`Responder::take_sockets`] has returned.
    pub(super) fn restore_sockets(&self, sockets: PartSockets) {
        self.listeners.lock().extend(sockets.listeners);
        *self.connections.lock() = PassedConnections::Complete(sockets.connections);
    }

    /// Removes the files of inherited listeners at the end from now on.
    pub(super) fn own_files(&self) {
        self.listeners.lock().values().for_each(Listener::own_file);
    }

    /// Returns a socket over which the process hands connections over, once.
    fn hand_over(&self) -> io::Result<OwnedFd> {
        let mut passed = self.connections.lock();
        if matches!(*passed, PassedConnections::Arriving(_)) {
            return Err(refused());
        }
        let (here, there) = message::pair()?;
        let most = usize::try_from(sys::limits::descriptors() / 2).unwrap_or(usize::MAX);
        let receive = move || connections::receive(here.as_fd(), most);
        let thread = std::thread::Builder::new().name("barge-connections".into());
        let receiving = thread.spawn(receive)?;
        *passed = PassedConnections::Arriving(receiving);
        Ok(there)
    }

    /// Removes and returns the connections of an earlier process, which has ended.
    fn take_connections(&self) -> ConnectionDescriptors {
        let none = PassedConnections::Complete(Vec::new());
        match std::mem::replace(&mut *self.connections.lock(), none) {
            PassedConnections::Complete(all) => all,
            // It does not panic.
            PassedConnections::Arriving(receiving) => receiving.join().unwrap_or_default(),
        }
    }

    /// Returns a socket from which the process receives the connections of an earlier one.
    fn take_over(&self) -> io::Result<OwnedFd> {
        let (here, there) = message::pair()?;
        let mut all = self.take_connections();
        all.extend(self.devices.take_over());
        let send = move || {
            if let Err(error) = connections::pass_on(here.as_fd(), &all) {
                tracing::warn!("connections were lost: {error}");
            }
        };
        let thread = std::thread::Builder::new().name("barge-connections".into());
        thread.spawn(send)?;
        Ok(there)
    }

    /// Adds those files and sockets that are the only ones after a reload, until
    /// [`Responder::end_reload`].
    pub(super) fn begin_reload(&self, after: Permitted) {
        let mut permitted = self.permitted.lock();
        // A process that runs keeps its collector, and one that replaces it has the new one.
        #[cfg(feature = "otel")]
        let after = after.with_collectors_of(&permitted);
        let mut reloading = self.reloading.lock();
        // Another reload may not have ended.
        let before = reloading.take().map(|(before, _)| before);
        *reloading = Some((before.unwrap_or_else(|| permitted.clone()), after.clone()));
        permitted.extend(after, usize::max);
    }

    /// Keeps the files and sockets after the reload if it has succeeded, else those before it.
    pub(super) fn end_reload(&self, succeeded: bool) {
        let mut permitted = self.permitted.lock();
        if let Some((before, after)) = self.reloading.lock().take() {
            *permitted = if succeeded { after } else { before };
        }
    }

    /// Adds the files and sockets of an addition to the running set.
    pub(super) fn permit_also(&self, addition: Permitted) {
        self.permitted
            .lock()
            .extend(addition, |known, further| known + further);
    }

    /// Removes each of `addrs` once, and the objects and created files that `stays` does not have.
    pub(super) fn revoke(&self, addrs: &[String], stays: Permitted) {
        self.permitted.lock().remove(addrs, stays);
    }

    /// Returns the address of the socket that was opened for `addr` of the configuration, which may
    /// be there several times: `place` counts from 0.
    pub(super) fn bound(&self, addr: &Addr, place: usize) -> Option<Addr> {
        let listeners = self.listeners.lock();
        let listener = listeners.get(&(addr.to_string(), place))?;
        Some(listener.addr().clone())
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
                self.devices.remove(&addr);
                Ok((Reply::Done, None))
            }
            Request::Object { number } => self.object(number, broker, process).map(descriptor),
            Request::MissingObject { number } => self.missing_object(number, broker, process),
            Request::Configuration => broker.configuration(process).map(descriptor),
            Request::BindUdp { host, port } => self.bind_udp(&host, port),
            Request::CallClient { from, to, program } => {
                let may_call = self.permitted.lock().may_call(from, to);
                if !may_call {
                    return Err(refused());
                }
                // Without the lock, as it may take a while. The client's portmapper, not the
                // process, names the port.
                let portmapper = SocketAddr::new(to, nfs::portmap::PORT);
                notify::connect(from, portmapper, program).map(descriptor)
            }
            #[cfg(feature = "otel")]
            Request::ConnectCollector { host, port } => self.connect_collector(&host, port),
            Request::NfsState if !self.permitted.lock().serves_nfs => Err(refused()),
            Request::NfsState => broker.nfs_state().map(descriptor),
            Request::Read { path } => self.open(Path::new(&path), false),
            Request::Create { path } => self.open(Path::new(&path), true),
            Request::TemporaryKey => {
                let key = broker.temporary_key;
                Ok((Reply::Key { key }, None))
            }
            Request::HandOver if !broker.is_handing_over() => Err(refused()),
            Request::HandOver => self.hand_over().map(descriptor),
            Request::KeepDevice { addr } => {
                let is_known = self.permitted.lock().addrs.contains_key(&addr);
                match is_known {
                    true => self.devices.open(addr).map(descriptor),
                    false => Err(refused()),
                }
            }
            Request::TakeOver => self.take_over().map(descriptor),
            Request::Ready { has_source } => {
                process.has_source.store(has_source, Ordering::SeqCst);
                broker.note_ready(process);
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
                wanted: Wanted::Live | Wanted::HandOver,
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

    fn object(&self, number: u32, broker: &Broker, process: &Process) -> io::Result<OwnedFd> {
        let object = self.permitted_object(number, broker)?;
        let found = object.found().ok_or(io::ErrorKind::NotFound)?;
        if !process.rooted.load(Ordering::SeqCst) {
            return found.try_clone_to_owned();
        }
        // It sets the attributes of the mount itself, before it is confined.
        if process.reached.lock().contains(&number) {
            return Err(refused());
        }
        let copy = object.copy(number)?;
        match process.reached.lock().insert(number) {
            true => Ok(copy.descriptor),
            false => Err(refused()),
        }
    }

    fn missing_object(
        &self,
        number: u32,
        broker: &Broker,
        process: &Process,
    ) -> io::Result<(Reply, Option<OwnedFd>)> {
        let object = self.permitted_object(number, broker)?;
        let found = object.find_again()?;
        broker.apply_project_quota(process, number);
        if !process.rooted.load(Ordering::SeqCst) {
            return found.try_clone_to_owned().map(descriptor);
        }
        process.add_to_root(number, &object)?;
        Ok((Reply::Done, None))
    }

    fn permitted_object(&self, number: u32, broker: &Broker) -> io::Result<Arc<SharedObject>> {
        let is_permitted = self.permitted.lock().objects.contains(&number);
        let object = broker.objects.get(number).filter(|_| is_permitted);
        object.ok_or_else(refused)
    }

    fn bind_udp(&self, host: &str, port: u16) -> io::Result<(Reply, Option<OwnedFd>)> {
        let wanted = Addr::Tcp {
            host: host.to_owned(),
            port,
        };
        let permitted = self.permitted.lock();
        let listeners = self.listeners.lock();
        // The system chooses a port for TCP if that of the configuration is 0.
        let listens = |((addr, _), listener): (&(String, usize), &Listener)| {
            permitted.udp.contains(addr) && *listener.addr() == wanted
        };
        if !permitted.udp.contains(&wanted.to_string()) && !listeners.iter().any(listens) {
            return Err(refused());
        }
        UdpSocket::bind((host, port)).map(descriptor)
    }

    #[cfg(feature = "otel")]
    fn connect_collector(&self, host: &str, port: u16) -> io::Result<(Reply, Option<OwnedFd>)> {
        let address = (host.to_owned(), port);
        if !self.permitted.lock().collectors.contains(&address) {
            return Err(refused());
        }
        // Without the lock, as it may take a while.
        crate::otel::connect(host, port).map(descriptor)
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

/// Returns the clients that may use each share of `plan`; `None` for all.
fn client_lists(plan: &Plan) -> Vec<Option<Arc<Clients>>> {
    let lists = &plan.sources.client_lists;
    // The plan has been checked.
    let names = exports::check(&plan.sources).unwrap_or_default();
    let clients = |name: &String| exports::clients_of(lists, name).cloned();
    names.iter().map(clients).collect()
}

fn refused() -> io::Error {
    Errno::PERM.into()
}

fn descriptor(fd: impl Into<OwnedFd>) -> (Reply, Option<OwnedFd>) {
    (Reply::Descriptor, Some(fd.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(addr: &str, trace: &str) -> Permitted {
        Permitted {
            addrs: HashMap::from([(addr.to_owned(), 1)]),
            created: HashSet::from([trace.into()]),
            ..Permitted::default()
        }
    }

    fn responder() -> Responder {
        let (sockets, kept) = (PartSockets::default(), KeptLimit::for_one_of(1));
        Responder::new(at("unix:/a", "/t"), None, sockets, kept)
    }

    fn addrs(responder: &Responder) -> Vec<String> {
        let mut addrs: Vec<_> = responder.permitted.lock().addrs.keys().cloned().collect();
        addrs.sort();
        addrs
    }

    #[test]
    fn a_failed_reload_takes_no_permission_of_the_set_that_stays() {
        let responder = responder();
        for (succeeded, after) in [(false, "unix:/a"), (true, "unix:/b")] {
            responder.begin_reload(at("unix:/b", "/u"));
            assert_eq!(addrs(&responder), ["unix:/a", "unix:/b"]);
            responder.end_reload(succeeded);
            assert_eq!(addrs(&responder), [after]);
        }
    }

    #[test]
    fn clients_are_called_from_addresses_of_the_server_alone() {
        let mut permitted = at("tcp:10.0.0.7:2049", "/t");
        permitted.clients = vec![None];
        let [own, other] = ["10.0.0.7", "10.0.0.8"].map(|addr| addr.parse().ok());
        let to = "192.0.2.1".parse().expect("an address");
        assert!(!permitted.may_call(None, to));
        permitted.serves_nfs = true;
        assert!(permitted.may_call(None, to) && permitted.may_call(own, to));
        assert!(!permitted.may_call(other, to));
    }

    #[test]
    fn hosts_that_may_use_no_share_are_not_called() {
        let mut permitted = at("tcp:10.0.0.7:2049", "/t");
        permitted.serves_nfs = true;
        let may_call = |permitted: &Permitted, to: &str| {
            permitted.may_call(None, to.parse().expect("an address"))
        };
        assert!(!may_call(&permitted, "192.0.2.1"), "there is no share");
        let list = "192.0.2.0/24 ::1(rw)".parse().expect("a list");
        permitted.clients = vec![Some(Arc::new(list))];
        for (to, expected) in [
            ("192.0.2.1", true),
            ("::ffff:192.0.2.1", true),
            ("::1", true),
            ("127.0.0.1", false),
            ("198.51.100.1", false),
        ] {
            assert_eq!(may_call(&permitted, to), expected, "{to}");
        }
        permitted.clients.push(None);
        assert!(may_call(&permitted, "198.51.100.1"));
        for group in ["224.0.0.1", "255.255.255.255", "0.0.0.0", "::", "ff02::1"] {
            assert!(!may_call(&permitted, group), "{group}");
        }
    }

    #[test]
    fn udp_is_bound_where_tcp_is_and_at_no_other_port() {
        let addr = "tcp:127.0.0.1:0";
        let permitted = Permitted {
            udp: HashSet::from([addr.to_owned()]),
            ..at(addr, "/t")
        };
        let (sockets, kept) = (PartSockets::default(), KeptLimit::for_one_of(1));
        let responder = Responder::new(permitted, None, sockets, kept);
        let bind = |port| responder.bind_udp("127.0.0.1", port).map(drop);
        assert!(bind(2049).is_err());
        responder.listen(addr.to_owned(), 0).expect("it listens");
        let bound = responder.bound(&addr.parse().expect("an address"), 0);
        let Some(Addr::Tcp { port, .. }) = bound else {
            panic!("{bound:?}");
        };
        assert!(bind(port).is_ok());
        for other in [53, 2049, port ^ 1] {
            assert!(bind(other).is_err(), "{other}");
        }
        assert!(responder.bind_udp("0.0.0.0", port).is_err());
    }

    #[test]
    fn a_permission_ends_with_the_last_that_needs_it() {
        let responder = responder();
        responder.permit_also(at("unix:/a", "/u"));
        responder.revoke(&["unix:/a".into()], at("unix:/a", "/t"));
        assert_eq!(addrs(&responder), ["unix:/a"]);
        assert_eq!(
            responder.permitted.lock().created,
            HashSet::from(["/t".into()])
        );
        responder.revoke(&["unix:/a".into()], Permitted::default());
        assert!(addrs(&responder).is_empty());
    }
}
