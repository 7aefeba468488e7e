//! The broker as the process that serves uses it.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{IpAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::SuspendedConnection;
use parking_lot::Mutex;
use sandbox::Object;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use transports::{Addr, DatagramSocket, Listener};

use super::connections;
use super::kept_devices::DeviceChannel;
use super::message::{MAX_CONFIGURATION, MAX_FIGURES, Reply, Request, Wanted};
use super::parts::Part;
use crate::Failure;
use crate::child::message::{self, unexpected};
use crate::child::{self, users};
use crate::config::Config;
use crate::serve::handle_key;
use crate::serve::live::{LiveRequest, LiveServer};
use crate::serve::notify::ClientProgram;
use crate::serve::plan::Plan;
use crate::serve::recovery::{SharedState, brokered};
use crate::serve::share::{Place, Share};
use crate::status::{Check, CheckKind, Figures, Status};

/// The options that the broker passes to a process that serves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ChildOptions {
    /// The descriptor of the socket for requests to the broker.
    pub(super) channel: i32,
    /// The descriptor of the socket where figures are asked for.
    pub(super) control: i32,
    /// The broker's process id.
    pub(super) broker: u32,
    /// Number of sockets that a service manager passed to the broker.
    pub(super) listen_fds: i32,
    /// The part of the server that the process serves.
    pub(super) part: Part,
    /// Whether the process is prepared for namespaces.
    pub(super) namespaces: bool,
    /// Whether it connects to other hosts.
    pub(super) network: bool,
    /// Whether it replaces one that has crashed.
    pub(super) restarted: bool,
    /// Whether default addresses are used.
    pub(super) default_addrs: bool,
    /// The number of parts of the server.
    pub(super) parts: usize,
}

/// Returns the number of sockets that a service manager has passed to the broker of this process,
/// if it has one.
pub(in crate::serve) fn listen_fds() -> Option<i32> {
    let options: ChildOptions = child::options()?.ok()?;
    Some(options.listen_fds)
}

/// A connection to the broker.
pub(in crate::serve) struct BrokerClient {
    channel: OwnedFd,
    control: OwnedFd,
    options: ChildOptions,
    /// How often each address was listened at.
    listened: Mutex<HashMap<String, usize>>,
}

impl BrokerClient {
    /// Returns the broker that has started this process, if one has.
    pub(in crate::serve) fn of_this_process() -> Result<Option<Arc<BrokerClient>>, Failure> {
        let Some(options) = child::options() else {
            return Ok(None);
        };
        let options: ChildOptions = options?;
        Ok(Some(Arc::new(BrokerClient {
            channel: child::inherited(options.channel)?,
            control: child::inherited(options.control)?,
            options,
            listened: Mutex::default(),
        })))
    }

    /// Limits `plan` to the part that this process serves.
    pub(in crate::serve) fn limit(&self, plan: &mut Plan) {
        self.options.part.limit(plan, self.options.parts);
    }

    /// Returns the plan of the part that this process serves.
    pub(in crate::serve) fn plan(&self) -> Result<Plan, Failure> {
        let mut text = Vec::new();
        let passed = self.descriptor(&Request::Configuration);
        let read = passed.and_then(|passed| {
            File::from(passed)
                .take(MAX_CONFIGURATION)
                .read_to_end(&mut text)
        });
        read.map_err(Failure::new)?;
        let config: Config = serde_json::from_slice(&text).map_err(Failure::new)?;
        let mut plan = Plan::of_settings(&config)?;
        plan.default_addrs = Some(self.options.default_addrs);
        self.limit(&mut plan);
        Ok(plan)
    }

    /// Returns the broker's process id.
    pub(in crate::serve) fn id(&self) -> u32 {
        self.options.broker
    }

    /// Returns whether this process is prepared for namespaces.
    pub(super) fn prepared_namespaces(&self) -> bool {
        self.options.namespaces
    }

    /// Returns whether this process connects to other hosts.
    pub(super) fn uses_network(&self) -> bool {
        self.options.network
    }

    /// Finds where the objects of `plan` are for this process, which is confined.
    pub(in crate::serve) fn find_objects(&self, plan: &mut Plan) {
        for object in plan.sources.objects_mut() {
            let number = object.number();
            object.place = match self.has_own_root() {
                true if sandbox::root::has_object(number) => Place::Root,
                true => Place::Nowhere,
                false => self.object(number).map_or(Place::Nowhere, |descriptor| {
                    Place::Descriptor(Arc::new(descriptor))
                }),
            };
        }
    }

    /// Returns the objects of `plan` that exist, to confine this process, and notes where they are
    /// for it then.
    pub(super) fn objects(&self, plan: &mut Plan) -> io::Result<Vec<Object>> {
        let mut objects = Vec::new();
        for it in plan.sources.objects_mut() {
            let Ok(descriptor) = self.object(it.number()) else {
                it.place = Place::Nowhere;
                continue;
            };
            it.place = match self.has_own_root() {
                true => Place::Root,
                false => Place::Descriptor(Arc::new(descriptor.try_clone()?)),
            };
            objects.push(Object {
                number: it.number(),
                descriptor,
                writable: it.is_writable(),
            });
        }
        Ok(objects)
    }

    /// Asks again for the objects of `share` that this process does not have.
    pub(in crate::serve) fn find_missing_objects(&self, share: &mut Share) -> Result<(), Failure> {
        for object in &mut share.objects {
            if !matches!(object.place, Place::Nowhere) {
                continue;
            }
            let number = object.number();
            match self.ask(&Request::MissingObject { number }) {
                Ok((_, None)) => object.place = Place::Root,
                Ok((_, Some(found))) => object.place = Place::Descriptor(Arc::new(found)),
                // The use of other files says why they are missing.
                Err(error) if object.is_of_source() => {
                    return Err(Failure::new(error));
                }
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// Returns whether this process serves although none of its sources can be opened: it replaces
    /// another one, or others serve other sources.
    pub(in crate::serve) fn serves_without_sources(&self) -> bool {
        self.options.restarted || self.options.parts > 1
    }

    /// Asks for the object `number`.
    fn object(&self, number: u32) -> io::Result<OwnedFd> {
        self.descriptor(&Request::Object { number })
    }

    /// Returns whether this process gets a root of its own.
    fn has_own_root(&self) -> bool {
        self.options.namespaces && !self.options.network
    }

    /// Returns whether this process replaces one that has crashed.
    pub(in crate::serve) fn has_restarted(&self) -> bool {
        self.options.restarted
    }

    fn ask(&self, request: &Request) -> io::Result<(Reply, Option<OwnedFd>)> {
        message::ask(self.channel.as_fd(), request)
    }

    /// Makes this process ask the broker for users and groups.
    pub(super) fn query_users(self: &Arc<Self>) {
        let broker = self.clone();
        users::ask_with(move |query| match broker.ask(&Request::Users(query))? {
            (Reply::Users(found), _) => Ok(found),
            (other, _) => Err(unexpected(&other)),
        });
    }

    /// Asks for a descriptor.
    fn descriptor(&self, request: &Request) -> io::Result<OwnedFd> {
        match self.ask(request)? {
            (Reply::Descriptor, Some(fd)) => Ok(fd),
            other => Err(unexpected(&other.0)),
        }
    }

    pub(in crate::serve) fn listen(&self, addr: &Addr) -> Result<Listener, Failure> {
        let name = addr.to_string();
        let listening = self.listen_again(&name);
        if listening.is_err() {
            self.listened
                .lock()
                .entry(name)
                .and_modify(|count| *count -= 1);
        }
        listening
    }

    /// Listens at `addr` once more.
    fn listen_again(&self, addr: &str) -> Result<Listener, Failure> {
        let addr = addr.to_owned();
        let place = {
            let mut listened = self.listened.lock();
            let count = listened.entry(addr.clone()).or_default();
            *count += 1;
            *count - 1
        };
        let request = Request::Listen { addr, place };
        let (addr, socket) = match self.ask(&request).map_err(Failure::new)? {
            (Reply::Listening { addr }, Some(socket)) => (addr, socket),
            other => return Err(Failure::new(unexpected(&other.0))),
        };
        let addr = addr.parse().map_err(Failure::new)?;
        Listener::from_fd(socket, &addr).map_err(Failure::new)
    }

    pub(in crate::serve) fn close(&self, addr: &str) -> io::Result<()> {
        self.listened.lock().remove(addr);
        let addr = addr.to_owned();
        self.ask(&Request::Close { addr }).map(drop)
    }

    pub(in crate::serve) fn bind_udp(&self, host: &str, port: u16) -> io::Result<DatagramSocket> {
        let host = host.to_owned();
        let socket = self.descriptor(&Request::BindUdp { host, port })?;
        DatagramSocket::from_socket(socket.into())
    }

    pub(in crate::serve) fn call_client(
        &self,
        from: Option<IpAddr>,
        to: IpAddr,
        program: ClientProgram,
    ) -> io::Result<UdpSocket> {
        let request = Request::CallClient { from, to, program };
        self.descriptor(&request).map(Into::into)
    }

    /// Returns the state of NFS in etcd, which this server is the active one of.
    pub(in crate::serve) fn nfs_state(&self) -> Result<SharedState, Failure> {
        let socket = self.descriptor(&Request::NfsState).map_err(Failure::new)?;
        brokered::connect(socket)
    }

    /// Connects to an OpenTelemetry collector.
    #[cfg(feature = "otel")]
    pub(in crate::serve) fn connect_collector(
        &self,
        host: &str,
        port: u16,
    ) -> io::Result<std::net::TcpStream> {
        let host = host.to_owned();
        let request = Request::ConnectCollector { host, port };
        self.descriptor(&request).map(Into::into)
    }

    pub(in crate::serve) fn open(&self, path: &Path) -> io::Result<File> {
        let path = path.into();
        self.descriptor(&Request::Read { path }).map(Into::into)
    }

    pub(in crate::serve) fn create(&self, path: &Path) -> io::Result<File> {
        let path = path.into();
        self.descriptor(&Request::Create { path }).map(Into::into)
    }

    /// Returns the figures for the status page: `figures`, which are those of this process, or in
    /// the process of the status page those of all parts.
    pub(in crate::serve) fn share_figures(
        self: &Arc<Self>,
        figures: Arc<dyn Figures>,
    ) -> Arc<dyn Figures> {
        match self.options.part {
            Part::Status => Arc::new(PartFigures(self.clone())),
            _ => figures,
        }
    }

    /// Starts a thread that replies to the broker and the process of the status page about `live`.
    pub(in crate::serve) fn serve_requests(
        self: &Arc<Self>,
        live: Arc<LiveServer>,
    ) -> Result<(), Failure> {
        let broker = self.clone();
        let serve = move || {
            while let Ok((wanted, Some(to))) = message::receive::<Wanted>(broker.control.as_fd()) {
                match wanted {
                    Wanted::Status => send_json(to, &live.figures().status()),
                    // It waits for sources that may hang; figures do not.
                    Wanted::Checks { sources } => {
                        let live = live.clone();
                        let thread = std::thread::Builder::new().name("barge-checks".into());
                        // As below.
                        let _ =
                            thread.spawn(move || send_json(to, &live.figures().checks(sources)));
                    }
                    // The process ends after that, which closes the socket.
                    Wanted::HandOver => live.hand_over(),
                    // It may wait for requests in flight, or for another change.
                    Wanted::Live => {
                        let live = live.clone();
                        let thread = std::thread::Builder::new().name("barge-change".into());
                        // On failure, the closed socket is an error of the request.
                        let _ = thread.spawn(move || match live_request(&to) {
                            Ok(request) => send_json(to, &live.handle(request)),
                            Err(error) => tracing::error!("a request of the broker: {error}"),
                        });
                    }
                }
            }
        };
        let thread = std::thread::Builder::new().name("barge-figures".into());
        thread.spawn(serve).map(drop).map_err(Failure::new)
    }

    /// Returns the secret of a server that stores none.
    pub(in crate::serve) fn temporary_key(&self) -> io::Result<[u8; handle_key::LEN]> {
        match self.ask(&Request::TemporaryKey)? {
            (Reply::Key { key }, _) => Ok(key),
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// Hands `connections` over to the process that replaces this one.
    pub(in crate::serve) fn hand_over(
        &self,
        connections: Vec<SuspendedConnection>,
    ) -> io::Result<()> {
        let socket = self.descriptor(&Request::HandOver)?;
        connections::send(socket.as_fd(), connections)
    }

    /// Returns the broker as the keeper of the device at `addr`.
    pub(in crate::serve) fn keep_device(&self, addr: &Addr) -> io::Result<DeviceChannel> {
        let addr = addr.to_string();
        let socket = self.descriptor(&Request::KeepDevice { addr })?;
        Ok(DeviceChannel::new(socket))
    }

    /// Returns the connections of an earlier process.
    pub(in crate::serve) fn take_over(&self) -> io::Result<Vec<SuspendedConnection>> {
        let socket = self.descriptor(&Request::TakeOver)?;
        Ok(connections::connections(connections::receive(
            socket.as_fd(),
            usize::MAX,
        )))
    }

    /// Reports that clients are served. `has_source` is false if this process has sources, and all
    /// have failed to open.
    pub(in crate::serve) fn report_ready(&self, has_source: bool) -> io::Result<()> {
        self.ask(&Request::Ready { has_source }).map(drop)
    }
}

/// Reads the request of [`Wanted::Live`].
fn live_request(from: &OwnedFd) -> io::Result<LiveRequest> {
    let mut text = Vec::new();
    let socket = UnixStream::from(from.try_clone()?);
    socket.take(MAX_CONFIGURATION).read_to_end(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}

/// Sends a reply; the other end may have given up.
fn send_json(to: OwnedFd, reply: &impl Serialize) {
    let text = serde_json::to_vec(reply).unwrap_or_default();
    let _ = UnixStream::from(to).write_all(&text);
}

/// The figures of all parts of the server.
struct PartFigures(Arc<BrokerClient>);

/// Time for all parts to send their figures.
const FIGURES_TIMEOUT: Duration = Duration::from_secs(2);

/// Time for all parts to send the results of their checks: a source that hangs is known after 3 s.
pub(super) const CHECKS_TIMEOUT: Duration = Duration::from_secs(4);

impl PartFigures {
    /// Returns the parts that serve.
    fn parts(&self) -> io::Result<Vec<Part>> {
        match self.0.ask(&Request::Parts)? {
            (Reply::Parts { parts }, _) => Ok(parts),
            other => Err(unexpected(&other.0)),
        }
    }

    /// Asks a part, and returns the socket to read the reply from.
    fn ask(&self, part: Part, wanted: Wanted) -> io::Result<UnixStream> {
        let socket = self.0.descriptor(&Request::Figures { part, wanted })?;
        Ok(UnixStream::from(socket))
    }
}

/// Reads the reply of a part until `deadline`. After that, only a reply that is there already.
pub(super) fn reply<F: DeserializeOwned>(
    mut socket: UnixStream,
    deadline: Instant,
) -> io::Result<F> {
    let mut text = Vec::new();
    let mut buffer = vec![0; 64 << 10];
    loop {
        match deadline.saturating_duration_since(Instant::now()) {
            Duration::ZERO => socket.set_nonblocking(true)?,
            left => socket.set_read_timeout(Some(left))?,
        }
        match socket.read(&mut buffer) {
            Ok(0) => return Ok(serde_json::from_slice(&text)?),
            Ok(len) => text.extend_from_slice(&buffer[..len]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if text.len() > MAX_FIGURES as usize {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
}

impl Figures for PartFigures {
    fn status(&self) -> Status {
        let parts = self.parts().unwrap_or_default().into_iter();
        // All parts reply at the same time.
        let asked: Vec<_> = parts
            .filter_map(|part| self.ask(part, Wanted::Status).ok())
            .collect();
        let deadline = Instant::now() + FIGURES_TIMEOUT;
        let all = asked
            .into_iter()
            .filter_map(|socket| reply(socket, deadline).ok());
        Status {
            pid: self.0.id(),
            ..Status::sum(all)
        }
    }

    fn checks(&self, sources: bool) -> Vec<Check> {
        let processes = |problems| Check::new(CheckKind::Listeners, "processes", problems);
        let parts = match self.parts() {
            Ok(parts) => parts,
            Err(error) => return vec![processes(vec![format!("the server's processes: {error}")])],
        };
        let mut problems = Vec::new();
        let mut all = Vec::new();
        let several = parts.len() > 1;
        let ask = |part: Part| {
            // Short, and without spaces, as names of checks are.
            let name = match &part {
                Part::Share(name) => name.clone(),
                Part::Whole | Part::Status => "main".into(),
            };
            let title = part.title();
            (name, title, self.ask(part, Wanted::Checks { sources }))
        };
        // All parts run their checks at the same time.
        let asked: Vec<_> = parts.into_iter().map(ask).collect();
        let deadline = Instant::now() + CHECKS_TIMEOUT;
        for (name, title, socket) in asked {
            match socket.and_then(|socket| reply::<Vec<Check>>(socket, deadline)) {
                Ok(checks) => all.extend(checks.into_iter().map(|check| match several {
                    true => check.of_process(&name),
                    false => check,
                })),
                Err(error) => problems.push(format!("{title} does not answer: {error}")),
            }
        }
        all.insert(0, processes(problems));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_that_hang_take_no_time_of_others() {
        let pairs: Vec<_> = (0..3)
            .map(|_| UnixStream::pair().expect("a pair"))
            .collect();
        let (mut here, there): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
        here[2].write_all(b"7").expect("sent");
        let answered = here.pop();
        drop(answered);
        let deadline = Instant::now() + Duration::from_millis(50);
        let replies = there.into_iter().map(|it| reply::<u32>(it, deadline).ok());
        assert_eq!(replies.collect::<Vec<_>>(), [None, None, Some(7)]);
        drop(here);
    }

    #[test]
    fn options_arrive_as_they_were_given() {
        let options = ChildOptions {
            channel: 7,
            control: 8,
            broker: 4711,
            listen_fds: 2,
            part: Part::Share("a=b:c".into()),
            namespaces: true,
            network: false,
            restarted: false,
            default_addrs: true,
            parts: 3,
        };
        let text = serde_json::to_string(&options).expect("JSON");
        let parsed: ChildOptions = serde_json::from_str(&text).expect("options");
        assert_eq!(parsed, options);
    }
}
