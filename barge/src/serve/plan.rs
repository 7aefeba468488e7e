//! The plan of a server: all configurations that serve are parsed into it, whether they come from a
//! command line or from a file.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::FromArgMatches;
use engine::{Timeouts, Tuning};
use parking_lot::Mutex;
use transports::Addr;
use vfs::{HandleKey, LocalUsers};

use super::activation;
use super::args::control::ReadyFormat;
use super::args::{ServeArgs, TimeoutArgs};
use super::broker::Part;
use super::broker::confinement::ConfinementPlan;
use super::endpoint::Endpoint;
use super::endpoints;
use super::exports;
use super::handle_key;
use super::opener::ExportRequirements;
use super::recovery::etcd;
use super::share::{Share, Sources};
use super::users;
use crate::Failure;
use crate::config::{Config, ConfigErrors};
use crate::source::NamedSource;

pub(super) struct Plan {
    pub(super) sources: Sources,
    /// The configuration that this is the plan of; `None` for `barge virtiofsd`.
    pub(super) config: Option<Config>,
    /// The protocols, in the order of the ready message.
    pub(super) endpoints: Vec<Box<dyn Endpoint>>,
    /// The group whose members may connect to Unix sockets.
    pub(super) socket_group: Option<String>,
    /// Local users whose processes may act as any user.
    pub(super) trust: LocalUsers,
    pub(super) tuning: Tuning,
    /// The command of `--run`, after which the server ends.
    pub(super) run: Option<String>,
    /// The address of the control socket, if there is one.
    pub(super) control: Option<Addr>,
    pub(super) ready: ReadyFormat,
    /// The file for the process id.
    pub(super) pidfile: Option<PathBuf>,
    pub(super) confinement: ConfinementPlan,
    /// The state of NFS that this server shares with standby servers, if it has any.
    pub(super) nfs_state: Option<etcd::Settings>,
    /// Whether default addresses are used, if that is decided: a change of the addresses after the
    /// start does not change it.
    pub(super) default_addrs: Option<bool>,
    /// The part of the server that this is the plan of.
    pub(super) part: Part,
    /// The export to an OpenTelemetry collector, if there is one.
    #[cfg(feature = "otel")]
    pub(super) otlp: Option<crate::otel::Config>,
}

impl Plan {
    /// Returns the plan of `config`.
    pub(super) fn from_config(config: &Config) -> Result<Plan, Failure> {
        let plan = Plan::of_settings(config)?;
        // Those of a server with a control socket may all be added later.
        if plan.sources.shares.is_empty() && plan.control.is_none() {
            return Err(Failure::usage("expected a [[share]], got none"));
        }
        exports::check(&plan.sources)?;
        Ok(plan)
    }

    /// Returns the plan of `config`, which may lack shares that its endpoints and lists of clients
    /// are for.
    pub(super) fn of_settings(config: &Config) -> Result<Plan, Failure> {
        Plan::beside(0, config)
    }

    /// Does the same for a server with `others` shares more.
    fn beside(others: usize, config: &Config) -> Result<Plan, Failure> {
        let args = |matches: Result<clap::ArgMatches, String>| {
            let matches = matches.map_err(Failure::usage)?;
            ServeArgs::from_arg_matches(&matches).map_err(Failure::usage)
        };
        let all = args(config.matches())?;
        let shares = config.shares().iter().map(|share| {
            let named = NamedSource {
                name: share.name.clone(),
                source: share.source.1.clone(),
            };
            let args = args(config.share_matches(share))?;
            let mut planned = args.share.plan(named, config.files())?;
            planned.objects = share.objects.iter().cloned().map(Into::into).collect();
            planned.released = share.released;
            Ok(planned)
        });
        let shares: Vec<_> = shares.collect::<Result<_, Failure>>()?;
        all.share.check_single_source(shares.len() + others)?;
        Plan::from_shares(&all, shares, config)
    }

    /// Returns the configuration at the start, which changes of the server keep up to date.
    pub(super) fn running(&self) -> Option<Arc<Mutex<Config>>> {
        let config = self.config.clone();
        config.map(|config| Arc::new(Mutex::new(config)))
    }

    /// Returns the configuration, if shares and endpoints may change while the server runs.
    pub(super) fn changeable_config(&self) -> Option<&Config> {
        self.config.as_ref().filter(|config| config.can_change())
    }

    /// Reads the certificates for the export to an OpenTelemetry collector, before confinement.
    #[cfg_attr(not(feature = "otel"), expect(unused_mut))]
    pub(super) fn with_certificates(mut self) -> Result<Plan, Failure> {
        #[cfg(feature = "otel")]
        if let Some(otlp) = &mut self.otlp {
            otlp.load_certificates()?;
        }
        Ok(self)
    }

    /// Returns the plan to serve `shares` with the options `args` of `config`.
    fn from_shares(args: &ServeArgs, shares: Vec<Share>, config: &Config) -> Result<Plan, Failure> {
        #[cfg(feature = "otel")]
        let otlp = crate::otel::Config::new(args.observability.otlp.as_ref());
        let tuning = tuning(args);
        #[cfg(feature = "otel")]
        let tuning = Tuning {
            operation_stats: tuning.operation_stats || otlp.is_some(),
            traces: otlp
                .as_ref()
                .and_then(|otlp| otlp.trace_options(tuning.slow.is_some())),
            ..tuning
        };
        Ok(Plan {
            #[cfg(feature = "otel")]
            otlp,
            confinement: ConfinementPlan::new(args),
            nfs_state: args.nfs.state.plan()?,
            default_addrs: None,
            part: Part::Whole,
            sources: Sources {
                shares,
                client_lists: args.identity.export.clone(),
                socket_group: users::socket_group(args.identity.socket_group.as_deref())?,
                reloadable: config.can_change(),
                kernel_handles: false,
                record_calls: args.observability.record_calls.clone(),
            },
            config: Some(config.clone()),
            endpoints: endpoints::from_args(args)?,
            socket_group: args.identity.socket_group.clone(),
            trust: args
                .identity
                .trust_uids
                .clone()
                .map_or(LocalUsers::default(), LocalUsers::from),
            tuning,
            run: args.run.clone(),
            control: args.control.control.clone(),
            ready: args.control.ready,
            pidfile: args.control.pidfile.clone(),
        })
    }

    /// Returns whether the endpoints with default addresses use them: the options name no address.
    pub(super) fn uses_default_addrs(&self) -> bool {
        if let Some(decided) = self.default_addrs {
            return decided;
        }
        let mut endpoints = self.endpoints.iter();
        self.part == Part::Whole
            && !activation::is_activated()
            && endpoints.all(|one| one.requested().is_empty() && one.devices().is_empty())
    }

    /// Returns the demands on the exports. `by_default` is [`Plan::uses_default_addrs`].
    pub(super) fn export_requirements(&self, by_default: bool) -> ExportRequirements {
        let mut endpoints = self.endpoints.iter();
        ExportRequirements {
            identity: endpoints.find_map(|one| one.identity(by_default)),
            connected: by_default || self.is_connected(),
            images: self.endpoints.iter().any(|one| one.serves_images()),
            connections: self.tuning.connections,
            counts: self.tuning.operation_stats,
            agents: self.serves_agents(),
        }
    }

    /// Returns the state of NFS that this server shares with standby servers, and the secret that
    /// seals its file handles, or `None` if it has no standby servers.
    pub(super) fn shared_state(&self) -> Result<Option<(&etcd::Settings, HandleKey)>, Failure> {
        let identity = self.export_requirements(self.uses_default_addrs()).identity;
        match (&self.nfs_state, identity) {
            (Some(settings), Some(identity)) => {
                let temporary = HandleKey::new(handle_key::temporary()?);
                let key = handle_key::server_key(&identity, &temporary)?;
                Ok(Some((settings, key)))
            }
            _ => Ok(None),
        }
    }

    /// Returns whether agents in guests may repeat changes.
    pub(super) fn serves_agents(&self) -> bool {
        self.endpoints.iter().any(|one| one.serves_agents())
    }

    /// Returns whether clients of other hosts may connect, as far as the plan says: to a TCP port,
    /// or to an inherited socket that may be one.
    fn is_connected(&self) -> bool {
        let mut endpoints = self.endpoints.iter();
        endpoints.any(|one| !one.requested().is_empty()) || activation::is_activated()
    }
}

/// Checks that the shares and endpoints of `addition` can be added to `running`: the result can be
/// served, as far as this is known before anything is opened. Returns the plan of the addition
/// alone.
pub(super) fn check_addition(running: &Config, addition: &Config) -> Result<Plan, Failure> {
    let whole = running.with_shares_of(addition);
    let whole = Plan::beside(running.shares().len(), &whole)?;
    let all = running.shares().iter().chain(addition.shares());
    let names = all.map(|share| share.name.as_deref().unwrap_or_default());
    let names: Vec<_> = names.collect();
    exports::check_lists(&names, &whole.sources.client_lists)?;
    for endpoint in &whole.endpoints {
        for device in endpoint.devices() {
            if let Some(name) = device.name.as_deref().filter(|name| !names.contains(name)) {
                let message = format!(
                    "{}: expected the name of a share, got '{name}'",
                    device.addr
                );
                return Err(Failure::usage(message));
            }
        }
    }
    Plan::of_settings(&running.with_only(addition))
}

/// Returns the addresses of the endpoints of `plan` that can be added and removed.
pub(super) fn changeable_addrs(plan: &Plan) -> Vec<String> {
    let endpoints = plan.endpoints.iter();
    let endpoints = endpoints.filter(|one| one.setting().is_some());
    let addrs = endpoints.flat_map(|one| one.sockets());
    addrs.map(|addr| addr.to_string()).collect()
}

/// Reads the configuration file at `path`, and returns it if it can be served, or else all errors
/// found. Sources are not opened.
pub(crate) fn read_config(path: &Path) -> Result<Config, ConfigErrors> {
    Config::read(path).and_then(checked)
}

/// Returns `config` if it can be served, as far as this is known before anything is opened.
pub(crate) fn checked(config: Config) -> Result<Config, ConfigErrors> {
    match Plan::from_config(&config) {
        Ok(_) => Ok(config),
        Err(failure) => Err(ConfigErrors::of_file(config.path(), failure.message)),
    }
}

fn tuning(args: &ServeArgs) -> Tuning {
    let default = Tuning::default();
    Tuning {
        poll: args
            .limits
            .poll_us
            .map_or(default.poll, Duration::from_micros),
        operation_stats: args.observability.http.is_some(),
        slow: (args.observability.slow_ms).map(|ms| Duration::from_millis(ms.into())),
        workers: args.limits.workers.map_or(default.workers, usize::from),
        connections: args.limits.max_connections,
        connections_per_client: args.limits.max_connections_per_client,
        timeouts: timeouts(&args.limits.timeouts),
        memory: args
            .limits
            .memory
            .unwrap_or(default.memory)
            .min(client_memory(sys::limits::memory().unwrap_or(u64::MAX))),
        in_flight: args.limits.max_in_flight as usize,
        zerocopy: !args.limits.no_zerocopy,
        ..default
    }
}

fn timeouts(args: &TimeoutArgs) -> Timeouts {
    let seconds = |seconds: u32| Duration::from_secs(seconds.into());
    Timeouts {
        handshake: seconds(args.handshake_timeout),
        message: seconds(args.message_timeout),
        send: seconds(args.send_timeout),
        idle: (args.idle_timeout > 0).then(|| seconds(args.idle_timeout)),
    }
}

/// The memory in bytes of the two processes of an idle server, rounded up.
const IDLE_PROGRAM: u64 = 16 << 20;

/// Returns the most memory for clients in a control group with this memory limit: half of what that
/// leaves to a server without clients, but no less than an eighth. The rest is for threads, sockets
/// and sources: a connection takes more for its thread than the budget counts for it.
pub(crate) fn client_memory(limit: u64) -> usize {
    let most = (limit.saturating_sub(IDLE_PROGRAM) / 2).max(limit / 8);
    usize::try_from(most).unwrap_or(usize::MAX)
}
