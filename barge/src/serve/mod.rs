//! `barge serve` and `barge virtiofsd`: sources, behind layers, over protocols, until told to stop.

mod activation;
mod announce;
mod args;
mod block;
mod exports;
#[cfg(feature = "gss")]
mod gss;
mod nfs;
mod notify;
mod plan;
mod recovery;
mod run;
mod secure;
mod users;
mod vhost;
mod virtio9p;
mod virtiofs;
pub(crate) mod virtiofsd;
mod welcome;
mod work;

use std::process::ExitCode;
use std::sync::Arc;

use engine::{Engine, Service};
use p9::server::{ExportList, Server};
use transports::{Addr, Listener};

pub(crate) use self::args::ServeArgs;
use self::plan::{Nine, Plan};
pub(crate) use self::virtiofs::Cache;
pub(crate) use self::virtiofsd::VirtiofsdArgs;
use crate::seeing::Seeing;
use crate::{Done, Failure, signals, trouble};

/// `barge serve`
pub(crate) fn run(args: &ServeArgs) -> Done {
    sys::limits::raise_descriptors();
    serve(&args.plan()?)
}

/// Serves until told to stop, or until nobody can come any more.
fn serve(plan: &Plan) -> Done {
    // What is served if nothing is asked for: 9P and NFS at their usual places.
    let unnamed = plan.virtiofs.shares.is_empty()
        && plan.nfs.as_ref().is_none_or(|nfs| nfs.addrs.is_empty())
        && plan
            .nine
            .as_ref()
            .is_some_and(|nine| nine.addrs.is_empty() && nine.channels.is_empty())
        && plan.block.is_empty()
        && !activation::is_activated();
    let mut exports = exports::open(plan, unnamed)?;
    let engine = Engine::new(plan.tuning).map_err(Failure::new)?;
    let listeners = match &plan.nine {
        Some(nine) => nine_listeners(nine, unnamed)?,
        None => Vec::new(),
    };
    let nfs = match &plan.nfs {
        Some(nfs) => nfs::place(&exports, nfs, unnamed)?,
        None => None,
    };
    let nbd = block::listeners(&plan.block)?;
    let http = plan.http.as_ref().map(|http| listen(&http.addr));
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
    let nine = plan.nine.as_ref();
    let nine = nine.map(|nine| {
        (
            nine,
            nine_server(Arc::new(ExportList(exports.list())), nine),
        )
    });
    if let Some((nine, server)) = &nine {
        places.extend(virtio9p::places(&exports, nine, &plan.vhost, server)?);
    }
    let stopped = engine.clone();
    let acceptor = nfs.as_ref().and_then(nfs::Place::acceptor);
    let reload = acceptor.map(secure::reload);
    let signals = signals::on_signal(move || stopped.stop(), reload)?;
    if let Some((_, server)) = nine {
        let service = Arc::new(NineService(server));
        for listener in listeners {
            engine
                .listen(listener, service.clone())
                .map_err(Failure::new)?;
        }
    }
    block::serve(&engine, nbd, &exports)?;
    let tending = nfs.map(|place| place.serve(&engine)).transpose()?;
    vhost::serve(&engine, places, plan.vhost.once)?;
    if let (Some(listener), Some(http)) = (http, &plan.http) {
        let sources = std::mem::take(&mut exports.sources);
        Seeing::new(engine.clone(), sources).serve(listener, &http.names)?;
    }
    announce::ready(&addrs, &exports, plan, unnamed)?;
    let status = match &plan.run {
        Some(command) => {
            let status = run::run(command, &addrs);
            engine.stop();
            status?
        }
        None => ExitCode::SUCCESS,
    };
    engine.wait();
    if let Some(trace) = &exports.trace {
        trace.finish();
    }
    drop(tending);
    drop(signals);
    plan.touched
        .as_ref()
        .map_or(Ok(()), |touched| touched.finish())?;
    Ok(status)
}

/// Where clients connect.
struct Addrs {
    nine: Vec<Addr>,
    nfs: Vec<Addr>,
    nbd: Vec<Addr>,
    http: Option<Addr>,
}

/// Where 9P is served: at the usual place if nothing at all is asked for.
fn nine_listeners(nine: &Nine, unnamed: bool) -> Result<Vec<Listener>, Failure> {
    let mut listeners = activation::listeners()?;
    if unnamed {
        let usual = listen(&args::default_addr()).map_err(|failure| {
            let line = "(--9p tcp:127.0.0.1:0 takes a free one)";
            Failure::new(format!("{} {line}", failure.message))
        });
        listeners.push(usual?);
    }
    for addr in &nine.addrs {
        listeners.push(listen(addr)?);
    }
    Ok(listeners)
}

pub(crate) fn listen(addr: &Addr) -> Result<Listener, Failure> {
    Listener::bind(addr).map_err(|error| Failure::new(trouble::listening(addr, &error)))
}

/// 9P, as the engine sees it.
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
