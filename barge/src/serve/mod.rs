//! `barge serve`: sources, behind layers, over protocols, until told to stop.

mod activation;
mod announce;
mod args;
mod exports;
mod run;
mod signals;
mod users;
mod virtiofs;

use std::process::ExitCode;
use std::sync::Arc;

use engine::{Engine, Service};
use transports::{Addr, Listener};

pub(crate) use self::args::ServeArgs;
use crate::{Done, Failure};

/// `barge serve`
pub(crate) fn run(args: &ServeArgs) -> Done {
    sys::limits::raise_descriptors();
    let exports = exports::open(args)?;
    let names: Vec<String> = exports.iter().map(|export| export.name.clone()).collect();
    let service = Arc::new(Nine(p9::server::Server::new(
        Arc::new(p9::server::ExportList(exports.clone())),
        Arc::new(users::HostUsers),
        p9::server::Options {
            max_msize: args.msize,
            ..Default::default()
        },
    )));
    let engine = Engine::new(args.tuning()).map_err(Failure::new)?;
    let mut listeners = activation::listeners()?;
    let addrs = match args.nine.as_slice() {
        [] if listeners.is_empty() && args.virtiofs.is_empty() => vec![args::default_addr()],
        addrs => addrs.to_vec(),
    };
    for addr in &addrs {
        listeners.push(listen(addr)?);
    }
    let addrs: Vec<Addr> = listeners
        .iter()
        .map(|listener| listener.addr().clone())
        .collect();
    let signals = signals::stop_on_signal(engine.clone())?;
    for listener in listeners {
        engine
            .listen(listener, service.clone())
            .map_err(Failure::new)?;
    }
    virtiofs::serve(&engine, &exports, args)?;
    announce::ready(&addrs, &names, args)?;
    let status = match &args.run {
        Some(command) => {
            let status = run::run(command, &addrs);
            engine.stop();
            status?
        }
        None => ExitCode::SUCCESS,
    };
    engine.wait();
    drop(signals);
    Ok(status)
}

fn listen(addr: &Addr) -> Result<Listener, Failure> {
    Listener::bind(addr).map_err(|error| {
        let hint = match error.kind() {
            std::io::ErrorKind::AddrInUse => " (is another server running there?)",
            std::io::ErrorKind::PermissionDenied => " (ports below 1024 need privileges)",
            _ => "",
        };
        Failure::new(format!("{addr}: {error}{hint}"))
    })
}

/// 9P, as the engine sees it.
struct Nine(p9::server::Server);

impl Service for Nine {
    fn session(&self) -> Box<dyn wire::Session> {
        Box::new(self.0.session())
    }
}
