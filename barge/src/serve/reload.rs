//! SIGHUP: reads certificates and the configuration file again, and changes the shares.
//!
//! A share stays the same while its name, its source and its opening options do: then its terms
//! change in place ([`layers::Gate`]) without its clients noticing. Other shares end or begin: all
//! calls through a closed gate return `ESTALE`.
//!
//! Sockets, and devices of changed shares, do not change at a reload. They take a restart, which is
//! logged.
//!
//! Lock order: the shares first. No client is called while they are locked.

use std::sync::Arc;

use layers::{Bundle, Gate};
use parking_lot::Mutex;
use vfs::Export;

use super::endpoint::Endpoint;
use super::exports::{self, Catalog, Exports};
use super::host::Host;
use super::opener::{Opener, terms};
use super::plan::{self, Plan};
use crate::config::{Config, Setting};
use crate::read_trace::TraceFile;
use crate::signals::Reload;
use crate::{Failure, status};

/// Returns the handler of SIGHUP, or `None` if there is nothing to read again.
pub(super) fn handler(
    endpoints: Arc<[Box<dyn Endpoint>]>,
    shares: Option<Arc<LiveShares>>,
    host: Host,
) -> Option<Reload> {
    if shares.is_none() && !endpoints.iter().any(|one| one.is_reloadable()) {
        return None;
    }
    Some(Box::new(move || {
        host.report_reloading();
        endpoints.iter().for_each(|one| one.reload());
        let status = match shares
            .as_ref()
            .map(|shares| shares.reload(&endpoints, &host))
        {
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
        host.report_reloaded(status);
    }))
}

/// The shares that a reload can change.
pub(super) struct LiveShares {
    state: Mutex<State>,
    default: Arc<Export>,
    /// The tree of all shares, or `None` if the only share has no name and is itself the root.
    bundle: Option<Arc<Bundle>>,
    opener: Arc<Opener>,
    sources: Arc<status::ObservedSources>,
    /// The configuration at the start, which stays in force for everything but shares.
    initial_config: Config,
}

struct State {
    shares: Vec<LiveShare>,
    traces: Vec<Arc<TraceFile>>,
}

#[derive(Clone)]
struct LiveShare {
    opening_settings: Vec<Setting>,
    export: Arc<Export>,
    gate: Arc<Gate>,
}

impl LiveShares {
    /// Takes the shares of `config`, which are open as `exports`.
    pub(super) fn new(config: &Config, exports: &Exports) -> LiveShares {
        let openings = config
            .shares()
            .iter()
            .map(|share| config.opening_settings(share));
        let gates = exports.gates.iter().flatten();
        let shares = openings.zip(&exports.shares).zip(gates);
        LiveShares {
            state: Mutex::new(State {
                shares: shares
                    .map(|((opening, export), gate)| LiveShare {
                        opening_settings: opening,
                        export: export.clone(),
                        gate: gate.clone(),
                    })
                    .collect(),
                traces: Vec::new(),
            }),
            default: exports.default.clone(),
            bundle: exports.bundle.clone(),
            opener: exports.opener.clone(),
            sources: exports.sources.clone(),
            initial_config: config.clone(),
        }
    }

    /// Reads the file again, and passes the exports to `endpoints`. If the file is invalid, or a
    /// share cannot be opened, the previous state stays.
    fn reload(&self, endpoints: &[Box<dyn Endpoint>], host: &Host) -> Result<(), Failure> {
        let mut state = self.state.lock();
        let config =
            plan::read_config_of(self.initial_config.path(), host).map_err(Failure::usage)?;
        let mut plan = Plan::from_config(&config)?;
        host.limit(&mut plan);
        let config = plan.file.clone().unwrap_or(config);
        let names = exports::check(&plan.sources)?;
        let restart = self.changes_requiring_restart(&state, &config, &plan);
        let (mut shares, mut opened) = (Vec::new(), Vec::new());
        for ((name, share), configured) in
            names.iter().zip(&plan.sources.shares).zip(config.shares())
        {
            let clients = exports::clients_of(&plan.sources.client_lists, name);
            let opening = config.opening_settings(configured);
            let same = |served: &&LiveShare| {
                served.export.name == *name && served.opening_settings == opening
            };
            if let Some(served) = state.shares.iter().find(same) {
                shares.push(served.clone());
                continue;
            }
            if self.bundle.is_none() {
                return Err(Failure::usage(
                    "a share without a name cannot change while it is served: restart the server",
                ));
            }
            let new = self.opener.open(name, share, clients, host)?;
            shares.push(LiveShare {
                opening_settings: opening,
                export: new.export.clone(),
                gate: new.gate.clone().expect("shares of files have gates"),
            });
            opened.push(new);
        }
        let each: Vec<_> = shares.iter().map(|served| served.export.clone()).collect();
        if let Some(bundle) = &self.bundle {
            let now = barge_client::source::now();
            bundle.change(&each, now).map_err(Failure::usage)?;
        }
        // Infallible from here on.
        for (served, (name, share)) in shares.iter().zip(names.iter().zip(&plan.sources.shares)) {
            let clients = exports::clients_of(&plan.sources.client_lists, name);
            served.gate.set(terms(share, clients));
        }
        let catalog = Catalog {
            shares: &each,
            default: &self.default,
            client_lists: &plan.sources.client_lists,
        };
        endpoints.iter().for_each(|one| one.set_exports(&catalog));
        let stays = |old: &LiveShare| shares.iter().any(|new| Arc::ptr_eq(&new.gate, &old.gate));
        for removed in state.shares.iter().filter(|old| !stays(old)) {
            removed.gate.close();
            tracing::info!(share = removed.export.name, "stopped serving a share");
        }
        for new in opened {
            tracing::info!(
                share = new.export.name,
                source = new.unlayered.source,
                "serving a share"
            );
            self.sources.put(new.unlayered);
            state.traces.extend(new.trace);
        }
        self.sources.retain(&names);
        for what in restart {
            tracing::warn!("{what} differs in the file: restart the server to apply it");
        }
        state.shares = shares;
        Ok(())
    }

    /// Returns the changes of `config` that take a restart.
    fn changes_requiring_restart(
        &self,
        state: &State,
        config: &Config,
        plan: &Plan,
    ) -> Vec<String> {
        let mut all = config.changed_keys(&self.initial_config);
        let referral = |config: &Config| {
            let shares = config.shares().iter();
            let elsewhere = shares.filter(|share| share.source.0.starts_with("refer:"));
            let mut all: Vec<_> = elsewhere
                .map(|share| (share.name.clone(), share.source.0.clone()))
                .collect();
            all.sort();
            all
        };
        if referral(config) != referral(&self.initial_config) {
            all.push("a referral".into());
        }
        // The export of a device is chosen when its socket is opened.
        let of_device = |name: &str| {
            let mut devices = plan.endpoints.iter().flat_map(|one| one.devices());
            devices.any(|socket| socket.name.as_deref() == Some(name))
        };
        for share in config.shares() {
            let name = share.name.as_deref().unwrap_or_default();
            let opening = config.opening_settings(share);
            let changed = state
                .shares
                .iter()
                .any(|old| old.export.name == name && old.opening_settings != opening);
            if changed && of_device(name) {
                all.push(format!("the share {name}, which a device serves,"));
            }
        }
        all
    }

    /// Writes the read traces of shares that were added by a reload.
    pub(super) fn finish(&self) -> Result<(), Failure> {
        let state = self.state.lock();
        state.traces.iter().try_for_each(|trace| trace.finish())
    }
}
