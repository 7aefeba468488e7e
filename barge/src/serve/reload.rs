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

use std::sync::{Arc, Mutex, PoisonError};

use layers::{Bundle, Gate};
use vfs::Export;

use super::endpoint::Endpoint;
use super::exports::{self, Catalog, Exports};
use super::opening::{Opener, terms};
use super::plan::{self, Plan};
use crate::config::{Config, Setting};
use crate::read_trace::TraceFile;
use crate::signals::Reload;
use crate::{Failure, service, status};

/// Returns the handler of SIGHUP, or `None` if there is nothing to read again.
pub(super) fn handler(
    endpoints: Arc<[Box<dyn Endpoint>]>,
    shares: Option<Arc<LiveShares>>,
) -> Option<Reload> {
    if shares.is_none() && !endpoints.iter().any(|one| one.is_reloadable()) {
        return None;
    }
    Some(Box::new(move || {
        service::tell_reloading();
        endpoints.iter().for_each(|one| one.reload());
        let status = match shares.as_ref().map(|shares| shares.reload(&endpoints)) {
            None => "ready",
            Some(Ok(())) => {
                tracing::info!("the file is read again");
                "ready"
            }
            Some(Err(why)) => {
                for line in why.message.lines() {
                    tracing::error!("{line}");
                }
                tracing::error!("all stays as it was");
                "the file makes no sense: all stays as it was"
            }
        };
        service::tell_ready(status);
    }))
}

/// The shares that a reload can change.
pub(super) struct LiveShares {
    state: Mutex<State>,
    whole: Arc<Export>,
    /// The tree of all shares, or `None` if the only share has no name and is itself the root.
    bundle: Option<Arc<Bundle>>,
    opener: Arc<Opener>,
    sources: Arc<status::Sources>,
    /// The configuration at the start, which stays in force for everything but shares.
    begun: Config,
}

struct State {
    shares: Vec<Served>,
    traces: Vec<Arc<TraceFile>>,
}

#[derive(Clone)]
struct Served {
    opening: Vec<Setting>,
    export: Arc<Export>,
    gate: Arc<Gate>,
}

impl LiveShares {
    /// Takes the shares of `config`, which are open as `exports`.
    pub(super) fn new(config: &Config, exports: &Exports) -> LiveShares {
        let openings = config.shares().iter().map(|share| config.opening(share));
        let gates = exports.gates.iter().flatten();
        let shares = openings.zip(&exports.each).zip(gates);
        LiveShares {
            state: Mutex::new(State {
                shares: shares
                    .map(|((opening, export), gate)| Served {
                        opening,
                        export: export.clone(),
                        gate: gate.clone(),
                    })
                    .collect(),
                traces: Vec::new(),
            }),
            whole: exports.whole.clone(),
            bundle: exports.bundle.clone(),
            opener: exports.opener.clone(),
            sources: exports.sources.clone(),
            begun: config.clone(),
        }
    }

    /// Reads the file again, and passes the exports to `endpoints`. If the file is invalid, or a
    /// share cannot be opened, the previous state stays.
    fn reload(&self, endpoints: &[Box<dyn Endpoint>]) -> Result<(), Failure> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let config = plan::read_config(self.begun.path()).map_err(Failure::usage)?;
        let plan = Plan::of_file(&config)?;
        let names = exports::check(&plan.sources)?;
        let restart = self.takes_restart(&state, &config, &plan);
        let (mut shares, mut opened) = (Vec::new(), Vec::new());
        for ((name, share), said) in names.iter().zip(&plan.sources.shares).zip(config.shares()) {
            let clients = exports::clients_of(&plan.sources.client_lists, name);
            let opening = config.opening(said);
            let same = |served: &&Served| served.export.name == *name && served.opening == opening;
            if let Some(served) = state.shares.iter().find(same) {
                shares.push(served.clone());
                continue;
            }
            if self.bundle.is_none() {
                return Err(Failure::usage(
                    "a share without a name is the whole tree: to change it takes a restart",
                ));
            }
            let new = self.opener.open(name, share, clients)?;
            shares.push(Served {
                opening,
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
            each: &each,
            whole: &self.whole,
            client_lists: &plan.sources.client_lists,
        };
        endpoints.iter().for_each(|one| one.set_exports(&catalog));
        let stays = |old: &Served| shares.iter().any(|new| Arc::ptr_eq(&new.gate, &old.gate));
        for gone in state.shares.iter().filter(|old| !stays(old)) {
            gone.gate.close();
            tracing::info!(share = gone.export.name, "ended");
        }
        for new in opened {
            tracing::info!(
                share = new.export.name,
                source = new.unlayered.source,
                "begun"
            );
            self.sources.put(new.unlayered);
            state.traces.extend(new.trace);
        }
        self.sources.keep(&names);
        for what in restart {
            tracing::warn!("{what} has changed in the file: that takes a restart");
        }
        state.shares = shares;
        Ok(())
    }

    /// Returns the changes of `config` that take a restart.
    fn takes_restart(&self, state: &State, config: &Config, plan: &Plan) -> Vec<String> {
        let mut all = config.differs(&self.begun);
        let referral = |config: &Config| {
            let shares = config.shares().iter();
            let elsewhere = shares.filter(|share| share.source.0.starts_with("refer:"));
            let mut all: Vec<_> = elsewhere
                .map(|share| (share.name.clone(), share.source.0.clone()))
                .collect();
            all.sort();
            all
        };
        if referral(config) != referral(&self.begun) {
            all.push("a referral".into());
        }
        // The export of a device is chosen when its socket is opened.
        let of_device = |name: &str| {
            let mut devices = plan.endpoints.iter().flat_map(|one| one.devices());
            devices.any(|socket| socket.name.as_deref() == Some(name))
        };
        for share in config.shares() {
            let name = share.name.as_deref().unwrap_or_default();
            let opening = config.opening(share);
            let changed = state
                .shares
                .iter()
                .any(|old| old.export.name == name && old.opening != opening);
            if changed && of_device(name) {
                all.push(format!("the share {name}, which a device shows,"));
            }
        }
        all
    }

    /// Writes the read traces of shares that were added by a reload.
    pub(super) fn finish(&self) -> Result<(), Failure> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.traces.iter().try_for_each(|trace| trace.finish())
    }
}
