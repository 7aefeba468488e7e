//! NFS: v3 with MOUNT, and v4, all of them on each port.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use engine::{Engine, Service};
use nfs::server::{Options, Ports, Server};
use tls::{Acceptor, TlsLink};
use transports::{Addr, Datagrams, Link, Listener, StreamLink};

use super::exports::Exports;
use super::notify;
use super::plan::Nfs;
use super::recovery::Recovery;
use super::secure::Tls;
use super::work;
use crate::{Failure, trouble};

/// The sockets of NFS, and the server.
pub(super) struct Place {
    listeners: Vec<Listener>,
    /// Further listeners, at the portmapper's port.
    portmap: Vec<Listener>,
    datagrams: Vec<Datagrams>,
    server: Arc<Server>,
    acceptor: Option<Arc<Acceptor>>,
}

/// Opens the sockets of `plan`, to which the members of `group` may connect as well. Without
/// addresses, opens the default address if it is free and no other protocol was requested
/// (`alone`).
pub(super) fn place(
    exports: &Exports,
    plan: &Nfs,
    alone: bool,
    group: Option<u32>,
) -> Result<Option<Place>, Failure> {
    let listen = |addr| super::listen(addr, group);
    let listeners = match plan.addrs.as_slice() {
        [] if alone => usual_listener().into_iter().collect(),
        addrs => addrs.iter().map(listen).collect::<Result<_, _>>()?,
    };
    if Vec::is_empty(&listeners) {
        return Ok(None);
    }
    let start = Instant::now();
    let recovery = Recovery::open(plan.state_dir.as_deref(), known_by(plan, &listeners[0]))?;
    let mut options = Options {
        name: recovery.name,
        stable: recovery.stable,
        monitored: recovery.monitored,
        call_back: notify::caller().map_err(Failure::new)?,
        run: Some(work::runner().map_err(Failure::new)?),
        lease: plan.lease,
        read_plus: plan.read_plus,
        security_labels: plan.security_labels,
        listed: exports.listed.clone(),
        referrals: exports.referrals.clone(),
        delegations: plan.delegations,
        ..Options::new(recovery.boot, Arc::new(move || start.elapsed()))
    };
    let acceptor = plan.tls.as_ref().map(Tls::acceptor).transpose()?;
    if let Some(tls) = &plan.tls {
        options.transports = tls.transports;
        options.users = tls.users.clone();
    }
    #[cfg(feature = "gss")]
    if let Some(security) = &plan.security {
        options.flavors = security.flavors.clone();
        options.mechanism = security.mechanism()?;
    }
    let (mut portmap, mut datagrams) = (Vec::new(), Vec::new());
    if let Some(at) = &plan.rpcbind {
        let Some(Addr::Tcp { host, port }) = first_tcp(&listeners) else {
            return Err(Failure::usage(
                "--nfs-rpcbind: expected --nfs tcp:HOST:PORT",
            ));
        };
        let at = at.clone().unwrap_or_else(|| Addr::Tcp {
            host: host.clone(),
            port: nfs::portmap::PORT,
        });
        let Addr::Tcp {
            host: map_host,
            port: map_port,
        } = &at
        else {
            return Err(Failure::usage(format!(
                "--nfs-rpcbind {at}: expected tcp:HOST:PORT"
            )));
        };
        portmap.push(listen(&at)?);
        for (host, port) in [(map_host, map_port), (&host, &port)] {
            let bound = Datagrams::bind(host, *port)
                .map_err(|error| Failure::new(format!("udp:{host}:{port}: {error}")));
            datagrams.push(bound?);
        }
        options.ports = Some(Ports {
            tcp: port,
            udp: port,
        });
    }
    Ok(Some(Place {
        server: Server::new(exports.whole.clone(), options),
        listeners,
        portmap,
        datagrams,
        acceptor,
    }))
}

/// Returns the address that identifies the server in the state directory after a restart.
fn known_by<'a>(plan: &'a Nfs, first: &'a Listener) -> &'a Addr {
    match plan.addrs.first() {
        // With port 0, not the port that was chosen.
        Some(anew @ Addr::Tcp { port: 0, .. }) => anew,
        _ => first.addr(),
    }
}

fn first_tcp(listeners: &[Listener]) -> Option<Addr> {
    let mut addrs = listeners.iter().map(|at| at.addr().clone());
    addrs.find(|addr| matches!(addr, Addr::Tcp { .. }))
}

/// Returns the address that identifies a server of `plan`, before its sockets are opened.
pub(super) fn known_addr(plan: &Nfs, alone: bool) -> Option<Addr> {
    plan.addrs.first().cloned().or(alone.then(usual_addr))
}

fn usual_addr() -> Addr {
    Addr::Tcp {
        host: "127.0.0.1".into(),
        port: 2049,
    }
}

/// Listens at the default address. Failure is only logged, as the address was not requested.
fn usual_listener() -> Option<Listener> {
    let addr = usual_addr();
    match Listener::bind(&addr) {
        Ok(listener) => Some(listener),
        Err(error) => {
            let why = trouble::listening(&addr, &error);
            tracing::warn!("NFS is not served: {why} (--nfs tcp:127.0.0.1:0 selects a free port)");
            None
        }
    }
}

impl Place {
    /// Returns the addresses that are listened at.
    pub(super) fn addrs(&self) -> Vec<Addr> {
        self.listeners.iter().map(|at| at.addr().clone()).collect()
    }

    /// Returns the server.
    pub(super) fn server(&self) -> Arc<Server> {
        self.server.clone()
    }

    /// Returns the TLS acceptor, if TLS is offered.
    pub(super) fn acceptor(&self) -> Option<Arc<Acceptor>> {
        self.acceptor.clone()
    }

    /// Serves clients until the engine stops.
    pub(super) fn serve(self, engine: &Arc<Engine>) -> Result<Tending, Failure> {
        let tending = Tending::start(&self.server).map_err(Failure::new)?;
        notify::start(&self.server).map_err(Failure::new)?;
        for datagrams in self.datagrams {
            let session = Box::new(self.server.datagrams());
            engine
                .serve_datagrams(datagrams, session)
                .map_err(Failure::new)?;
        }
        let service = Arc::new(NfsService {
            server: self.server,
            acceptor: self.acceptor,
        });
        for listener in self.listeners.into_iter().chain(self.portmap) {
            engine
                .listen(listener, service.clone())
                .map_err(Failure::new)?;
        }
        Ok(tending)
    }
}

/// The NFS service of the engine.
struct NfsService {
    server: Arc<Server>,
    acceptor: Option<Arc<Acceptor>>,
}

impl Service for NfsService {
    fn session(&self) -> Box<dyn wire::Session> {
        Box::new(self.server.session())
    }

    fn link(&self, link: StreamLink) -> Box<dyn Link> {
        match &self.acceptor {
            None => Box::new(link),
            Some(acceptor) => Box::new(TlsLink::server(link, acceptor.clone())),
        }
    }
}

/// A thread for the periodic work of a server, until dropped.
pub(super) struct Tending {
    _end: Sender<()>,
}

impl Tending {
    fn start(server: &Arc<Server>) -> std::io::Result<Tending> {
        const EVERY: Duration = Duration::from_secs(1);
        let (_end, ended) = channel::<()>();
        let server: Weak<Server> = Arc::downgrade(server);
        std::thread::Builder::new()
            .name("barge-nfs-tend".into())
            .spawn(move || {
                while ended.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout)
                    && let Some(server) = server.upgrade()
                {
                    server.maintain();
                }
            })?;
        Ok(Tending { _end })
    }
}
