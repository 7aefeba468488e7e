//! NFS: v3 with MOUNT, and v4, all of them on each port.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use ::nfs::server::{Listed, Options, Ports, Server, Transports};
use engine::{Engine, Service};
use tls::{Acceptor, TlsLink};
use transports::{Addr, DatagramSocket, Link, Listener, StreamLink};
use vfs::Location;

use crate::Failure;
use crate::serve::args::NfsArgs;
use crate::serve::endpoint::{BindContext, Endpoint, EndpointEntry, addrs, serve};
use crate::serve::environment::variables;
use crate::serve::exports::{Catalog, clients_of};
#[cfg(feature = "gss")]
use crate::serve::gss::Security;
use crate::serve::nfs_tls::{self, Tls};
use crate::serve::recovery::{Recovery, ServerIdentity};
use crate::serve::{async_copy, notify};

/// NFS at its addresses. Without addresses, it is served at the default address if that is free and
/// no other protocol has addresses.
pub(super) struct Nfs {
    requested: Vec<Addr>,
    /// Whether a portmapper is served, and its address if it is not the default port of the first
    /// address.
    rpcbind: Option<Option<Addr>>,
    lease: Duration,
    /// Whether READ_PLUS is offered, which reports holes.
    read_plus: bool,
    /// Whether SELinux labels are reported and set.
    security_labels: bool,
    /// Whether delegations are granted to clients of v4.1 and later.
    delegations: bool,
    /// The directory of the state that clients need after a restart, if it is not the default.
    state_dir: Option<PathBuf>,
    /// Whether the state is in etcd instead, for several servers.
    is_shared: bool,
    /// The options of TLS, if TLS is offered.
    tls: Option<Tls>,
    /// The security flavors, if others than AUTH_SYS are configured.
    #[cfg(feature = "gss")]
    security: Option<Security>,
    sockets: Sockets,
    bound: Vec<Addr>,
    /// The server, if it has sockets.
    server: Option<Arc<Server>>,
    acceptor: Option<Arc<Acceptor>>,
    /// The sender of calls to clients, such as those that are notified of a restart.
    sender: Option<notify::Sender>,
    maintenance: Option<Maintenance>,
}

/// The sockets of NFS between bind and start.
#[derive(Default)]
struct Sockets {
    listeners: Vec<Listener>,
    /// Further listeners, at the portmapper's port.
    portmap: Vec<Listener>,
    datagrams: Vec<DatagramSocket>,
}

impl Nfs {
    pub(super) fn new(args: &NfsArgs) -> Result<Nfs, Failure> {
        Ok(Nfs {
            requested: args.addrs.clone(),
            rpcbind: args.rpcbind.clone(),
            lease: Duration::from_secs(args.nfs_lease.into()),
            read_plus: !args.no_read_plus,
            security_labels: args.nfs_security_label,
            delegations: args.delegations,
            state_dir: args.state_dir.clone(),
            is_shared: args.state.is_shared(),
            tls: args.tls.plan()?,
            #[cfg(feature = "gss")]
            security: args.sec.plan(),
            sockets: Sockets::default(),
            bound: Vec::new(),
            server: None,
            acceptor: None,
            sender: None,
            maintenance: None,
        })
    }

    /// Returns the identity of the server in the state directory after a restart; `first` is its
    /// first address.
    fn bound_identity(&self, first: &Addr) -> ServerIdentity {
        let addr = match self.requested.first() {
            // With port 0, not the port that was chosen.
            Some(ephemeral @ Addr::Tcp { port: 0, .. }) => ephemeral,
            _ => first,
        };
        ServerIdentity {
            dir: self.state_dir.clone(),
            addr: addr.clone(),
        }
    }

    /// Opens the sockets of a portmapper, if one is served, and returns the ports that it reports.
    fn bind_portmapper(&mut self, context: &BindContext<'_>) -> Result<Option<Ports>, Failure> {
        let Some(at) = &self.rpcbind else {
            return Ok(None);
        };
        let Some(Addr::Tcp { host, port }) = first_tcp(&self.bound) else {
            return Err(Failure::usage(
                "--nfs-rpcbind: expected --nfs tcp:HOST:PORT",
            ));
        };
        let at = at.clone().unwrap_or_else(|| Addr::Tcp {
            host: host.clone(),
            port: ::nfs::portmap::PORT,
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
        self.sockets.portmap.push(context.listen(&at)?);
        for (host, port) in [(map_host, map_port), (&host, &port)] {
            self.sockets
                .datagrams
                .push(context.host.bind_udp(host, *port)?);
        }
        Ok(Some(Ports {
            tcp: port,
            udp: port,
        }))
    }

    /// Returns the security options of mount commands.
    fn mount_options(&self) -> String {
        let security = self.tls.as_ref().map_or("", |tls| match tls.transports {
            Transports { none: true, .. } => "",
            Transports { tls: true, .. } => ",xprtsec=tls",
            Transports { .. } => ",xprtsec=mtls",
        });
        #[cfg(feature = "gss")]
        let sec = self.security.as_ref().map_or("", Security::mount_option);
        #[cfg(not(feature = "gss"))]
        let sec = "";
        format!("{security}{sec}")
    }
}

impl Endpoint for Nfs {
    fn requested(&self) -> &[Addr] {
        &self.requested
    }

    fn identity(&self, by_default: bool) -> Option<ServerIdentity> {
        let requested = self.requested.first().cloned();
        let addr = requested.or(by_default.then(default_addr))?;
        Some(ServerIdentity {
            dir: self.state_dir.clone(),
            addr,
        })
    }

    fn sockets(&self) -> Vec<Addr> {
        let portmappers: Vec<Addr> = match &self.rpcbind {
            None => Vec::new(),
            Some(Some(addr)) => vec![addr.clone()],
            Some(None) => self.requested.iter().filter_map(usual_portmapper).collect(),
        };
        let requested = self.requested.iter().cloned();
        requested
            .chain(portmappers)
            .chain([default_addr()])
            .collect()
    }

    fn udp_sockets(&self) -> Vec<Addr> {
        match &self.rpcbind {
            None => Vec::new(),
            Some(_) => self.sockets(),
        }
    }

    fn files(&self) -> Vec<&Path> {
        self.tls.as_ref().map_or(Vec::new(), Tls::files)
    }

    fn bind(&mut self, context: &BindContext<'_>) -> Result<(), Failure> {
        let listeners = match self.requested.as_slice() {
            [] if context.use_default_addrs => default_listener(context).into_iter().collect(),
            requested => {
                let listeners = requested.iter().map(|addr| context.listen(addr));
                listeners.collect::<Result<Vec<_>, _>>()?
            }
        };
        let Some(first) = listeners.first() else {
            return Ok(());
        };
        self.bound = addrs(&listeners);
        let sender = notify::Sender {
            host: context.host.clone(),
            from: source(&self.bound),
        };
        let start = Instant::now();
        let storage = context.exports.sources.storage();
        let recovery = match self.is_shared {
            true => Recovery::shared(context.host.nfs_state()?, storage)
                .map_err(|error| Failure::new(format!("--nfs-state: {error}")))?,
            false => Recovery::open(&self.bound_identity(first.addr()), storage)?,
        };
        let mut options = Options {
            name: recovery.name,
            stable: recovery.stable,
            monitored: recovery.monitored,
            call_back: notify::caller(sender.clone()),
            run: Some(async_copy::executor()),
            lease: self.lease,
            read_plus: self.read_plus,
            security_labels: self.security_labels,
            listed: list_exports(&context.exports.catalog()),
            referrals: context.exports.referrals.clone(),
            delegations: self.delegations,
            may_act: recovery.may_act,
            ..Options::new(recovery.boot, Arc::new(move || start.elapsed()))
        };
        if let Some(tls) = &self.tls {
            self.acceptor = Some(tls.acceptor(context.host.clone())?);
            options.transports = tls.transports;
            options.users = tls.users.clone();
        }
        #[cfg(feature = "gss")]
        if let Some(security) = &self.security {
            options.flavors = security.flavors.clone();
            options.mechanism = security.mechanism()?;
        }
        self.sockets.listeners = listeners;
        options.ports = self.bind_portmapper(context)?;
        self.sender = Some(sender);
        self.server = Some(Server::new(context.exports.default.clone(), options));
        Ok(())
    }

    fn start(&mut self, engine: &Arc<Engine>) -> Result<(), Failure> {
        let Some(server) = &self.server else {
            return Ok(());
        };
        self.maintenance = Some(Maintenance::start(server).map_err(Failure::new)?);
        if let Some(sender) = &self.sender {
            notify::start(server, sender);
        }
        let sockets = std::mem::take(&mut self.sockets);
        for datagrams in sockets.datagrams {
            let session = Box::new(server.datagrams());
            engine
                .serve_datagrams(datagrams, session)
                .map_err(Failure::new)?;
        }
        let service: Arc<dyn Service> = Arc::new(NfsService {
            server: server.clone(),
            acceptor: self.acceptor.clone(),
        });
        serve(engine, sockets.listeners, &service)?;
        serve(engine, sockets.portmap, &service)
    }

    fn entries(&self, _: &Catalog<'_>) -> Vec<EndpointEntry> {
        let options = self.mount_options();
        let entry = |addr: &Addr| EndpointEntry {
            protocol: "nfs".into(),
            address: addr.to_string(),
            commands: mount_commands(addr, self.rpcbind.is_some(), &options),
            ..EndpointEntry::default()
        };
        self.bound.iter().map(entry).collect()
    }

    fn bound(&self) -> &[Addr] {
        &self.bound
    }

    fn environment(&self, bound: &[Addr]) -> Vec<(String, String)> {
        let socket = |path: &str| format!("nfs+unix:{path}");
        variables("NFS", "nfs", bound, socket)
    }

    fn claimed_user_addrs(&self) -> &[Addr] {
        &self.bound
    }

    fn is_reloadable(&self) -> bool {
        self.tls.is_some()
    }

    fn reload(&self) {
        if let Some(acceptor) = &self.acceptor {
            nfs_tls::reload_certificates(acceptor);
        }
    }

    fn set_exports(&self, catalog: &Catalog<'_>) {
        if let Some(server) = &self.server {
            server.set_exports(list_exports(catalog));
        }
    }
}

/// Returns each source for listings (MOUNT's EXPORT), and the tree of all sources, which is open to
/// all clients.
fn list_exports(catalog: &Catalog<'_>) -> Vec<Listed> {
    let whole = catalog.is_bundle().then(|| Listed {
        path: "/".into(),
        clients: Vec::new(),
        replicas: Vec::new(),
    });
    let each = catalog.shares.iter().map(|export| {
        let list = clients_of(catalog.client_lists, &export.name);
        let entries = list.map_or(&[][..], |list| list.entries());
        let clients = entries.iter().map(|entry| entry.pattern.to_string());
        let mut replicas: Vec<Location> = Vec::new();
        for replica in entries.iter().flat_map(|entry| &entry.replicas) {
            if !replicas.contains(replica) {
                replicas.push(replica.clone());
            }
        }
        Listed {
            path: format!("/{}", export.name),
            clients: clients.collect(),
            replicas,
        }
    });
    whole.into_iter().chain(each).collect()
}

fn first_tcp(addrs: &[Addr]) -> Option<Addr> {
    let tcp = |addr: &&Addr| matches!(addr, Addr::Tcp { .. });
    addrs.iter().find(tcp).cloned()
}

/// Returns the source address of calls to clients: the only address that NFS is served at.
fn source(bound: &[Addr]) -> Option<IpAddr> {
    let [Addr::Tcp { host, .. }] = bound else {
        return None;
    };
    let addr: IpAddr = host.parse().ok()?;
    (!addr.is_unspecified() && !addr.is_loopback()).then_some(addr)
}

/// Returns the usual address of a portmapper beside NFS at `addr`.
fn usual_portmapper(addr: &Addr) -> Option<Addr> {
    match addr {
        Addr::Tcp { host, .. } => Some(Addr::Tcp {
            host: host.clone(),
            port: ::nfs::portmap::PORT,
        }),
        _ => None,
    }
}

fn default_addr() -> Addr {
    Addr::Tcp {
        host: "127.0.0.1".into(),
        port: 2049,
    }
}

/// Listens at the default address. Failure is only logged, as the address was not requested.
fn default_listener(context: &BindContext<'_>) -> Option<Listener> {
    match context.listen(&default_addr()) {
        Ok(listener) => Some(listener),
        Err(failure) => {
            let why = failure.message;
            tracing::warn!("NFS is not served: {why} (--nfs tcp:127.0.0.1:0 selects a free port)");
            None
        }
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
struct Maintenance {
    _stop: Sender<()>,
}

impl Maintenance {
    fn start(server: &Arc<Server>) -> std::io::Result<Maintenance> {
        const INTERVAL: Duration = Duration::from_secs(1);
        let (_end, ended) = channel::<()>();
        let server: Weak<Server> = Arc::downgrade(server);
        std::thread::Builder::new()
            .name("barge-nfs-maint".into())
            .spawn(move || {
                while ended.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout)
                    && let Some(server) = server.upgrade()
                {
                    server.maintain();
                }
            })?;
        Ok(Maintenance { _stop: _end })
    }
}

/// Returns mount commands for v4 and for v3, whose locks need a portmapper (`locks`), with the
/// security options. Linux mounts over TCP only.
fn mount_commands(addr: &Addr, locks: bool, security: &str) -> Vec<String> {
    let Addr::Tcp { host, port } = addr else {
        return Vec::new();
    };
    let host = match host.contains(':') {
        true => format!("[{host}]"),
        false => host.clone(),
    };
    let nolock = if locks { "" } else { ",nolock" };
    let mount = |options: String| format!("mount -t nfs -o {options}{security} {host}:/ /mnt");
    vec![
        mount(format!("vers=4.2,tcp,port={port}")),
        mount(format!("vers=3,tcp,port={port},mountport={port}{nolock}")),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_commands_are_ones_to_copy() {
        let local = "tcp:[::1]:2049".parse().expect("an address");
        let secured = mount_commands(&local, true, ",xprtsec=tls");
        assert!(secured[0].contains("port=2049,xprtsec=tls [::1]:/"));
        let nfs = mount_commands(&local, false, "");
        assert_eq!(
            nfs,
            [
                "mount -t nfs -o vers=4.2,tcp,port=2049 [::1]:/ /mnt",
                "mount -t nfs -o vers=3,tcp,port=2049,mountport=2049,nolock [::1]:/ /mnt",
            ]
        );
    }
}
