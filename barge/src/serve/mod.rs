//! `barge serve` and `barge virtiofsd`: serve layered sources over protocols until a signal stops
//! them.

mod access;
mod activation;
mod announce;
mod args;
mod block;
mod exports;
mod file;
#[cfg(feature = "gss")]
mod gss;
mod handle_key;
mod nfs;
mod notify;
mod opening;
mod plan;
mod recovery;
mod run;
mod secure;
mod share;
mod users;
mod vhost;
mod virtio9p;
mod virtiofs;
pub(crate) mod virtiofsd;
mod welcome;
mod work;

use std::process::ExitCode;
use std::sync::{Arc, PoisonError, RwLock};

use engine::{Engine, Service};
use p9::server::{ExportList, Server};
use tls::Acceptor;
use transports::{Addr, Listener};
use vfs::Export;

pub(crate) use self::args::ServeArgs;
use self::file::Live;
use self::plan::{Nine, Plan};
pub(crate) use self::share::{ShareArgs, TermsArgs};
pub(crate) use self::virtiofs::Cache;
pub(crate) use self::virtiofsd::VirtiofsdArgs;
use crate::config::Config;
use crate::seeing::{Seeing, Sources};
use crate::signals::Reload;
use crate::{Done, Failure, service, signals, trouble};

/// Runs `barge serve`.
pub(crate) fn run(args: &ServeArgs) -> Done {
    sys::limits::limit_heaps();
    sys::limits::raise_descriptors();
    serve(&match &args.file {
        Some(config) => file::plan(config)?,
        None => args.plan()?,
    })
}

/// Checks that `config` can be served, as far as this is known before anything is opened.
pub(crate) fn check(config: &Config) -> Result<(), Failure> {
    file::plan(config).map(drop)
}

/// Serves until a signal stops the engine, or until no client can connect any more.
fn serve(plan: &Plan) -> Done {
    // Without any address, 9P and NFS are served at their default addresses.
    let unnamed = plan.virtiofs.shares.is_empty()
        && plan.nfs.as_ref().is_none_or(|nfs| nfs.addrs.is_empty())
        && plan
            .nine
            .as_ref()
            .is_some_and(|nine| nine.addrs.is_empty() && nine.channels.is_empty())
        && plan.block.is_empty()
        && !activation::is_activated();
    let umask = sys::umask::current();
    let mut exports = exports::open(plan, unnamed)?;
    let descriptors = sys::limits::descriptors();
    if descriptors / 2 < plan.tuning.connections as u64 {
        tracing::info!("at most {descriptors} open files, connections included (RLIMIT_NOFILE)");
    }
    let engine = Engine::with_trust(plan.tuning, plan.trust.clone()).map_err(Failure::new)?;
    let group = plan.vhost.group()?;
    let listeners = match &plan.nine {
        Some(nine) => nine_listeners(nine, unnamed, group)?,
        None => Vec::new(),
    };
    let nfs = match &plan.nfs {
        Some(nfs) => nfs::place(&exports, nfs, unnamed, group)?,
        None => None,
    };
    let nbd = block::listeners(&plan.block, group)?;
    let http = plan.http.as_ref().map(|http| listen(&http.addr, group));
    let http = http.transpose()?;
    let addrs_of = |listeners: &[Listener]| listeners.iter().map(|at| at.addr().clone()).collect();
    let addrs = Addrs {
        nine: addrs_of(&listeners),
        nfs: nfs.as_ref().map_or(Vec::new(), nfs::Place::addrs),
        nbd: addrs_of(&nbd),
        http: http.as_ref().map(|at| at.addr().clone()),
    };
    let mut places = virtiofs::places(&exports, &plan.virtiofs, &plan.vhost)?;
    places.extend(block::places(&exports, &plan.block, &plan.vhost)?);
    let list = Arc::new(RwLock::new(ExportList(exports.list())));
    let nine = plan.nine.as_ref();
    let nine = nine.map(|nine| (nine, nine_server(Arc::new(Shares(list.clone())), nine)));
    if let Some((nine, server)) = &nine {
        places.extend(virtio9p::places(&exports, nine, &plan.vhost, server)?);
    }
    let stopped = engine.clone();
    let sources = Arc::new(Sources::new(std::mem::take(&mut exports.sources)));
    let live = plan.file.as_ref().map(|config| {
        let nfs = nfs.as_ref().map(nfs::Place::server);
        Arc::new(Live::new(config, &exports, list, nfs, sources.clone()))
    });
    let acceptor = nfs.as_ref().and_then(nfs::Place::acceptor);
    let reload = reload(acceptor, live.clone());
    let signals = signals::on_signal(move || stopped.stop(), reload)?;
    if let Some((_, server)) = nine {
        for listener in listeners {
            let hands_over = matches!(listener.addr(), Addr::Unix(_));
            let service = NineService(server.clone().handing_over(hands_over));
            engine
                .listen(listener, Arc::new(service))
                .map_err(Failure::new)?;
        }
    }
    block::serve(&engine, nbd, &exports)?;
    let tending = nfs.map(|place| place.serve(&engine)).transpose()?;
    vhost::serve(&engine, places, plan.vhost.once)?;
    if let (Some(listener), Some(http)) = (http, &plan.http) {
        Seeing::new(engine.clone(), sources).serve(listener, &http.names)?;
    }
    announce::ready(&addrs, &exports, plan, unnamed)?;
    // Without these references, a removed share closes its files.
    exports.each.clear();
    exports.gates.clear();
    let status = match &plan.run {
        Some(command) => {
            let status = run::run(command, &addrs, umask);
            engine.stop();
            status?
        }
        None => ExitCode::SUCCESS,
    };
    engine.wait();
    if let Some(calls) = &exports.calls {
        calls.finish();
    }
    drop(tending);
    drop(signals);
    exports
        .touched
        .iter()
        .try_for_each(|touched| touched.finish())?;
    live.map_or(Ok(()), |live| live.finish())?;
    Ok(status)
}

/// Returns the handler of SIGHUP, which reads certificates and the configuration file again, or
/// `None` if neither is used.
fn reload(acceptor: Option<Arc<Acceptor>>, live: Option<Arc<Live>>) -> Option<Reload> {
    if acceptor.is_none() && live.is_none() {
        return None;
    }
    Some(Box::new(move || {
        service::tell_reloading();
        if let Some(acceptor) = &acceptor {
            secure::reload(acceptor);
        }
        let status = match live.as_ref().map(|live| live.reload()) {
            None => "ready",
            Some(Ok(())) => {
                tracing::info!("configuration reloaded");
                "ready"
            }
            Some(Err(why)) => {
                for line in why.message.lines() {
                    tracing::error!("{line}");
                }
                tracing::error!("keeping the previous configuration");
                "invalid configuration: keeping the previous one"
            }
        };
        service::tell_ready(status);
    }))
}

/// The exports that 9P clients can attach to.
struct Shares(Arc<RwLock<ExportList>>);

impl p9::server::Exports for Shares {
    fn resolve<'a>(&self, aname: &'a [u8]) -> Option<(Arc<Export>, &'a [u8])> {
        let list = self.0.read().unwrap_or_else(PoisonError::into_inner);
        list.resolve(aname)
    }
}

/// The addresses that are listened at.
struct Addrs {
    nine: Vec<Addr>,
    nfs: Vec<Addr>,
    nbd: Vec<Addr>,
    http: Option<Addr>,
}

impl Addrs {
    /// Returns whether other hosts may connect over 9P or NFS, as far as the addresses say: an
    /// inherited socket may be a TCP socket.
    fn are_open(&self) -> bool {
        let is_open = |addr: &Addr| match addr {
            Addr::Tcp { host, .. } => {
                let ip = host.parse::<std::net::IpAddr>();
                ip.map_or(host != "localhost", |ip| !ip.is_loopback())
            }
            Addr::Fd(_) => true,
            Addr::Unix(_) | Addr::Vsock { .. } | Addr::VsockUds { .. } => false,
        };
        self.nine.iter().chain(&self.nfs).any(is_open)
    }
}

/// Opens the listeners of 9P: the default address if no address of any protocol is named
/// (`unnamed`).
fn nine_listeners(
    nine: &Nine,
    unnamed: bool,
    group: Option<u32>,
) -> Result<Vec<Listener>, Failure> {
    let mut listeners = activation::listeners()?;
    if unnamed {
        let usual = listen(&args::default_addr(), None).map_err(|failure| {
            let line = "(--9p tcp:127.0.0.1:0 selects a free port)";
            Failure::new(format!("{} {line}", failure.message))
        });
        listeners.push(usual?);
    }
    for addr in &nine.addrs {
        listeners.push(listen(addr, group)?);
    }
    Ok(listeners)
}

/// Listens at `addr`. Only this user and the members of `group` may connect to a Unix socket.
pub(crate) fn listen(addr: &Addr, group: Option<u32>) -> Result<Listener, Failure> {
    Listener::bind_for(addr, group).map_err(|error| Failure::new(trouble::listening(addr, &error)))
}

/// The 9P service of the engine.
struct NineService(Server);

fn nine_server(exports: Arc<dyn p9::server::Exports>, nine: &Nine) -> Server {
    let options = p9::server::Options {
        max_msize: nine.max_msize,
        wait_for_locks: nine.wait_for_locks,
        ..Default::default()
    };
    Server::new(exports, Arc::new(users::HostUsers), options)
}

impl Service for NineService {
    fn session(&self) -> Box<dyn wire::Session> {
        Box::new(self.0.session())
    }
}
