//! `barge serve` and `barge virtiofsd`: serve layered sources over protocols until a signal stops
//! them.
//!
//! A [`Plan`] has the sources and the [`Endpoint`]s, one for each protocol. [`serve`] opens the
//! sources, and binds, starts, announces and reloads the endpoints.

mod access;
mod activation;
mod announce;
pub(crate) mod args;
mod async_copy;
pub(crate) mod broker;
mod endpoint;
mod endpoints;
mod environment;
mod exports;
#[cfg(feature = "gss")]
mod gss;
mod handle_key;
mod host;
pub(crate) mod modcaps;
mod nfs_tls;
mod notify;
mod opener;
pub(crate) mod plan;
mod quickstart;
pub(crate) mod recovery;
mod reload;
mod run;
mod share;
mod users;
mod vhost;
pub(crate) mod virtiofsd;

use std::process::ExitCode;
use std::sync::Arc;

use engine::Engine;

use self::args::ServeArgs;
use self::args::confinement::Sandbox;
use self::broker::BrokerClient;
use self::endpoint::{BindContext, Endpoint};
use self::host::Host;
use self::plan::Plan;
use self::reload::LiveShares;
use self::virtiofsd::Prepared;
use crate::config::Config;
use crate::status::{Figures, Observer};
use crate::{CommandResult, Failure, signals};

/// Runs `barge serve`. `file` is the configuration file, if `args` name one.
pub(crate) fn run(args: &ServeArgs, file: Option<&Config>) -> CommandResult {
    let broker = BrokerClient::of_this_process()?;
    sys::limits::limit_heaps();
    sys::limits::raise_descriptors();
    let make_plan = || match file {
        Some(config) => Plan::from_config(config),
        None => Plan::from_args(args),
    };
    let mut plan = make_plan()?;
    match broker {
        Some(broker) => {
            broker.limit(&mut plan);
            broker::confinement::enter(&plan, &broker)?;
            serve(plan, Host::Brokered(broker))
        }
        None if plan.confinement.sandbox == Some(Sandbox::None) => serve_here(plan),
        None => broker::run(plan, &make_plan),
    }
}

/// Serves in this process.
fn serve_here(plan: Plan) -> CommandResult {
    let socket_group = users::socket_group(plan.socket_group.as_deref())?;
    serve(plan, Host::Direct { socket_group })
}

/// Runs `barge virtiofsd`.
pub(crate) fn run_virtiofsd(args: &virtiofsd::args::VirtiofsdArgs) -> CommandResult {
    match virtiofsd::prepare(args)? {
        Prepared::Serve(plan, _socket) => serve_here(*plan),
        Prepared::Done(code) => Ok(code),
    }
}

/// Serves until a signal stops the engine, or until no client can connect any more.
fn serve(mut plan: Plan, host: Host) -> CommandResult {
    let by_default = plan.uses_default_addrs();
    let umask = sys::umask::current();
    let mut exports = exports::open(&plan.sources, plan.export_requirements(by_default), &host)?;
    let descriptors = sys::limits::descriptors();
    if descriptors / 2 < plan.tuning.connections as u64 {
        tracing::info!("at most {descriptors} open files, connections included (RLIMIT_NOFILE)");
    }
    let engine = Engine::with_trust(plan.tuning, plan.trust.clone()).map_err(Failure::new)?;
    let sources = exports.sources.clone();
    let own = Arc::new(Observer::new(engine.clone(), sources, host.server_id()));
    let figures: Arc<dyn Figures> = match &host {
        Host::Direct { .. } => own,
        Host::Brokered(broker) => broker.share_figures(own)?,
    };
    let context = BindContext {
        figures: &figures,
        exports: &exports,
        host: &host,
        use_default_addrs: by_default,
    };
    let mut endpoints = std::mem::take(&mut plan.endpoints);
    for endpoint in &mut endpoints {
        endpoint.bind(&context)?;
    }
    for endpoint in &mut endpoints {
        endpoint.start(&engine)?;
    }
    let endpoints: Arc<[Box<dyn Endpoint>]> = endpoints.into();
    let config = plan.file.as_ref();
    let shares = config.map(|config| Arc::new(LiveShares::new(config, &exports)));
    let stopped = engine.clone();
    let reload = reload::handler(endpoints.clone(), shares.clone(), host.clone());
    let stop = move || stopped.stop();
    let signals = match &host {
        Host::Direct { .. } => signals::on_signal(stop, reload)?,
        Host::Brokered(_) => signals::on_parents_signal(stop, reload)?,
    };
    if !host.has_restarted() {
        announce::print(&endpoints, &exports, &plan, by_default)?;
    }
    exports.release();
    let environment = endpoints.iter().flat_map(|one| one.environment());
    let environment: Vec<_> = environment.collect();
    host.report_ready(&environment)?;
    let status = match (&host, &plan.run) {
        (Host::Direct { .. }, Some(command)) => {
            let status = run::run(command, environment, umask);
            engine.stop();
            status?
        }
        _ => ExitCode::SUCCESS,
    };
    engine.wait();
    if let Some(call_log) = &exports.call_log {
        call_log.finish();
    }
    drop(signals);
    drop(endpoints);
    exports.traces.iter().try_for_each(|trace| trace.finish())?;
    shares.map_or(Ok(()), |shares| shares.finish())?;
    Ok(status)
}
