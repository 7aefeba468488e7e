//! `barge serve` and `barge virtiofsd`: serve layered sources over protocols until a signal stops
//! them.
//!
//! A [`Plan`] has the sources and the [endpoints](endpoint::Endpoint), one for each protocol.
//! [`serve`] opens the sources, and binds, starts, announces and reloads the endpoints.

mod access;
mod activation;
pub(crate) mod agent;
mod announce;
pub(crate) mod args;
mod async_copy;
mod awaited;
pub(crate) mod broker;
pub(crate) mod control;
mod endpoint;
mod endpoints;
mod environment;
mod exports;
#[cfg(feature = "gss")]
mod gss;
mod handle_key;
mod host;
mod live;
pub(crate) mod modcaps;
mod nfs_tls;
mod notify;
mod opener;
mod operation;
pub(crate) mod plan;
mod project_quota;
mod quickstart;
pub(crate) mod recovery;
mod run;
mod share;
mod users;
mod vhost;
pub(crate) mod virtiofsd;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use command::log::LogArgs;
use engine::Engine;

use self::args::confinement::Sandbox;
use self::args::control::ReadyFormat;
use self::broker::upgrade::{self, TakenOver};
use self::broker::{BrokerClient, Part};
use self::control::Backend;
use self::endpoint::BindContext;
use self::host::Host;
use self::live::LiveServer;
use self::opener::AwaitedShare;
use self::operation::{Operation, OperationDescriptors};
use self::plan::Plan;
use self::recovery::etcd::ActiveServer;
use self::virtiofsd::Prepared;
use crate::config::Config;
use crate::signals::Reload;
use crate::status::{Figures, Observer, Serving};
use crate::{CommandResult, Failure, signals};

/// Runs `barge serve` with the configuration of its options and the options `log`. In a process
/// that a broker has started, the configuration is the broker's.
pub(crate) fn run(given: Config, log: &LogArgs) -> CommandResult {
    sys::limits::limit_heaps();
    sys::limits::raise_descriptors();
    if let Some(broker) = BrokerClient::of_this_process()? {
        return serve_part(broker);
    }
    let mut taken_over = TakenOver::of_this_process()?;
    // It differs from the file and the options after requests, and once the file was edited.
    let running = taken_over.as_mut().and_then(|it| it.running.take());
    let plan = Plan::from_config(&running.unwrap_or(given))?.with_certificates()?;
    if upgrade::is_check()? {
        return Ok(ExitCode::SUCCESS);
    }
    match plan.confinement.sandbox {
        Some(Sandbox::None) => serve_here(plan),
        _ => broker::run(plan, log, taken_over),
    }
}

/// Serves a part of the server of `broker` in this process.
fn serve_part(broker: Arc<BrokerClient>) -> CommandResult {
    let mut plan = broker.plan()?.with_certificates()?;
    broker::confinement::enter(&mut plan, &broker)?;
    serve(plan, Host::Brokered(broker))
}

/// Serves in this process.
fn serve_here(plan: Plan) -> CommandResult {
    let socket_group = users::socket_group(plan.socket_group.as_deref())?;
    let active = active_server(&plan)?;
    let host = Host::Direct {
        socket_group,
        active: active.clone(),
    };
    let status = serve(plan, host);
    if let Some(active) = active {
        active.release();
    }
    status
}

/// Waits until this server is the active one of several, if `plan` has standby servers. The process
/// ends when it no longer is.
fn active_server(plan: &Plan) -> Result<Option<Arc<ActiveServer>>, Failure> {
    let Some((settings, key)) = plan.shared_state()? else {
        return Ok(None);
    };
    let on_loss = |why: String| {
        tracing::error!("no longer the active server: {why}");
        // Without the time that a stop takes.
        std::process::exit(1);
    };
    ActiveServer::wait(settings, &key, &AtomicBool::new(false), on_loss)
}

/// Runs `barge virtiofsd`.
pub(crate) fn run_virtiofsd(args: &virtiofsd::args::VirtiofsdArgs) -> CommandResult {
    match virtiofsd::prepare(args)? {
        Prepared::Serve(plan, _socket) => {
            // Kata's runtime waits for this line of virtiofsd.
            tracing::info!("Waiting for vhost-user socket connection...");
            serve_here(*plan)
        }
        Prepared::Done(code) => Ok(code),
    }
}

/// Serves until a signal stops the engine, or until no client can connect any more.
fn serve(mut plan: Plan, host: Host) -> CommandResult {
    let by_default = plan.uses_default_addrs();
    let umask = sys::umask::current();
    let operation = match &host {
        Host::Direct { .. } => Some(Operation::new(
            &plan,
            plan.running(),
            OperationDescriptors::default(),
        )?),
        Host::Brokered(_) => None,
    };
    let mut exports = exports::open(&plan.sources, plan.export_requirements(by_default), &host)?;
    plan.sources.close_objects();
    let descriptors = sys::limits::descriptors();
    if descriptors / 2 < plan.tuning.connections as u64 {
        tracing::info!("at most {descriptors} open files, connections included (RLIMIT_NOFILE)");
    }
    let engine = Engine::with_trust(plan.tuning, plan.trust.clone()).map_err(Failure::new)?;
    let sources = exports.sources.clone();
    let own = Arc::new(Observer::new(engine.clone(), sources, host.server_id()));
    let figures: Arc<dyn Figures> = match &host {
        Host::Direct { .. } => own.clone(),
        Host::Brokered(broker) => broker.share_figures(own.clone()),
    };
    #[cfg(feature = "otel")]
    let exporter = start_exporter(&plan, &host, &engine, &own, &figures)?;
    let context = BindContext {
        figures: &figures,
        exports: &exports,
        host: &host,
        use_default_addrs: by_default,
    };
    let adopted = host.take_over();
    engine.adopt(adopted.map_err(Failure::new)?);
    let mut endpoints = std::mem::take(&mut plan.endpoints);
    for endpoint in &mut endpoints {
        endpoint.bind(&context)?;
    }
    for endpoint in &mut endpoints {
        endpoint.start(&engine)?;
    }
    if !host.has_restarted() && plan.ready == ReadyFormat::Text {
        announce::print(&endpoints, &exports, &plan, by_default)?;
    }
    let environment = endpoints
        .iter()
        .flat_map(|one| one.environment(one.bound()));
    let environment: Vec<_> = environment.collect();
    let has_failed =
        |share: &Option<Arc<AwaitedShare>>| share.as_ref().is_some_and(|share| share.has_failed());
    let has_source = exports.awaited.is_empty() || !exports.awaited.iter().all(has_failed);
    let live = LiveServer::new(
        engine.clone(),
        host.clone(),
        figures,
        &plan,
        &exports,
        endpoints,
    );
    let live = Arc::new(live);
    exports.release();
    // Whether nothing but requests in flight is waited for.
    let waits = Arc::new(AtomicBool::new(false));
    let (stopped, waits_at_stop) = (engine.clone(), waits.clone());
    let stop = move || {
        stopped.stop();
        let waits = waits_at_stop.clone();
        after_stop_timeout(move || {
            if waits.load(Ordering::SeqCst) {
                tracing::warn!("stopping while requests are not answered");
                std::process::exit(0);
            }
        });
    };
    let running = Arc::downgrade(&live);
    own.set_started(move || {
        running
            .upgrade()
            .map_or(Serving::Draining, |it| it.serving())
    });
    let signals = match &host {
        Host::Direct { .. } => {
            let signals = signals::on_signal(stop, reload_handler(&live, operation.as_ref()))?;
            if let Some(operation) = &operation {
                let server: Arc<dyn Backend> = live.clone();
                operation.report_ready(&server, false)?;
            }
            signals
        }
        Host::Brokered(broker) => {
            broker.serve_requests(live.clone())?;
            // The broker alone reads the configuration again.
            let reload: Reload = Box::new(|| {});
            let signals = signals::on_parents_signal(stop, Some(reload))?;
            broker.report_ready(has_source).map_err(Failure::new)?;
            signals
        }
    };
    // An earlier program, if there is one, has given up.
    engine.end_resuming();
    let status = match (&host, &plan.run) {
        (Host::Direct { .. }, Some(command)) => {
            let status = run::run(command, environment, umask, |_| ());
            engine.stop();
            status?
        }
        _ => ExitCode::SUCCESS,
    };
    // The process of the status page may have no endpoint.
    if live.can_change() || plan.part == Part::Status {
        // The last endpoint may be removed, and another one added.
        engine.wait_for_stop().map_err(Failure::new)?;
    }
    waits.store(true, Ordering::SeqCst);
    engine.wait();
    waits.store(false, Ordering::SeqCst);
    if engine.is_handing_over()
        && let Err(error) = host.hand_over(engine.suspended())
    {
        tracing::error!("connections were lost: {error}");
    }
    #[cfg(feature = "otel")]
    if let Some(exporter) = exporter {
        exporter.finish();
    }
    if let Some(call_log) = &exports.call_log {
        call_log.finish();
    }
    drop((signals, operation));
    let added = live.end();
    exports.traces.iter().try_for_each(|trace| trace.finish())?;
    added?;
    Ok(status)
}

/// Time for the requests in flight to be answered when a server stops. It does not wait for those
/// of a source that hangs.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Calls `end` [`STOP_TIMEOUT`] from now, if this process has not ended by then.
fn after_stop_timeout(end: impl FnOnce() + Send + 'static) {
    let thread = std::thread::Builder::new().name("barge-stop".into());
    let spawned = thread.spawn(|| {
        std::thread::sleep(STOP_TIMEOUT);
        end();
    });
    if let Err(error) = spawned {
        tracing::warn!("a stop may wait for requests: {error}");
    }
}

/// Returns the handler of SIGHUP of a server of one process, or `None` if there is nothing to read
/// again.
fn reload_handler(live: &LiveServer, operation: Option<&Operation>) -> Option<Reload> {
    let controller = operation.map(|it| it.controller().clone());
    let controller = controller.filter(|_| live.is_reloadable())?;
    Some(Box::new(move || {
        if let Some(controller) = controller.get() {
            controller.reload_on_signal();
        }
    }))
}

/// Starts the export to an OpenTelemetry collector, if `plan` has one.
#[cfg(feature = "otel")]
fn start_exporter(
    plan: &Plan,
    host: &Host,
    engine: &Arc<Engine>,
    own: &Arc<Observer>,
    figures: &Arc<dyn Figures>,
) -> Result<Option<crate::otel::Exporter>, Failure> {
    use crate::otel::{Exported, Exporter};
    let exports =
        |config: &crate::otel::Config| config.metrics.is_some() || engine.traces().is_some();
    let Some(config) = plan.otlp.clone().filter(exports) else {
        return Ok(None);
    };
    let exported = Exported {
        figures: figures.clone(),
        own: plan.part != Part::Status,
        traces: engine.traces(),
        process: host.server_id(),
    };
    let host = host.clone();
    let connect = move |name: &str, port| host.connect_collector(name, port);
    let exporter = Exporter::start(config, exported, Box::new(connect))?;
    own.set_spans(exporter.counts());
    Ok(Some(exporter))
}
