//! `--config`: makes a plan of a file, and changes the shares when the file is read again.
//!
//! A share stays the same while its name, its source and its opening options do: then its terms
//! change in place ([`layers::Gate`]) without its clients noticing. Other shares end or begin: all
//! calls through a closed gate return `ESTALE`.
//!
//! Sockets, and devices of changed shares, do not change at a reload. They take a restart, which is
//! logged.
//!
//! Lock order: the shares first. No client is called while they are locked.

use std::sync::{Arc, Mutex, PoisonError, RwLock};

use ::nfs::server::Server;
use clap::FromArgMatches;
use layers::{Bundle, Gate};
use p9::server::ExportList;
use vfs::Export;

use super::args::ServeArgs;
use super::exports::{self, Exports};
use super::opening::{Opener, terms};
use super::plan::Plan;
use crate::config::{Config, Setting};
use crate::source::Named;
use crate::touched::TouchedFile;
use crate::{Failure, seeing};

/// Returns the plan of `config`.
pub(super) fn plan(config: &Config) -> Result<Plan, Failure> {
    let args = |matches: Result<clap::ArgMatches, String>| {
        let matches = matches.map_err(Failure::usage)?;
        ServeArgs::from_arg_matches(&matches).map_err(Failure::usage)
    };
    let mut all = args(config.matches())?;
    all.file = Some(config.clone());
    let shares = config.shares().iter().map(|share| {
        let named = Named {
            name: share.name.clone(),
            source: share.source.1.clone(),
        };
        args(config.share_matches(share))?.share.plan(named, false)
    });
    let shares: Vec<_> = shares.collect::<Result<_, _>>()?;
    if shares.is_empty() {
        return Err(Failure::usage("expected a [[share]], got none"));
    }
    all.share.check_alone(shares.len())?;
    let plan = all.plan_for(shares)?;
    exports::check(&plan)?;
    Ok(plan)
}

/// The shares that a reload can change.
pub(super) struct Live {
    state: Mutex<State>,
    /// The exports of 9P.
    list: Arc<RwLock<ExportList>>,
    whole: Arc<Export>,
    /// The tree of all shares, or `None` if the only share has no name and is itself the root.
    bundle: Option<Arc<Bundle>>,
    opener: Arc<Opener>,
    nfs: Option<Arc<Server>>,
    seen: Arc<seeing::Sources>,
    /// The configuration at the start, which stays in force for everything but shares.
    begun: Config,
}

struct State {
    shares: Vec<Served>,
    touched: Vec<Arc<TouchedFile>>,
}

#[derive(Clone)]
struct Served {
    opening: Vec<Setting>,
    export: Arc<Export>,
    gate: Arc<Gate>,
}

impl Live {
    /// Takes the shares of `config`, which are open as `exports`.
    pub(super) fn new(
        config: &Config,
        exports: &Exports,
        list: Arc<RwLock<ExportList>>,
        nfs: Option<Arc<Server>>,
        seen: Arc<seeing::Sources>,
    ) -> Live {
        let openings = config.shares().iter().map(|share| config.opening(share));
        let gates = exports.gates.iter().flatten();
        let shares = openings.zip(&exports.each).zip(gates);
        Live {
            state: Mutex::new(State {
                shares: shares
                    .map(|((opening, export), gate)| Served {
                        opening,
                        export: export.clone(),
                        gate: gate.clone(),
                    })
                    .collect(),
                touched: Vec::new(),
            }),
            list,
            whole: exports.whole.clone(),
            bundle: exports.bundle.clone(),
            opener: exports.opener.clone(),
            nfs,
            seen,
            begun: config.clone(),
        }
    }

    /// Reads the file again. If it is invalid, or a share cannot be opened, the previous state
    /// stays.
    pub(super) fn reload(&self) -> Result<(), Failure> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let config = Config::read(self.begun.path()).map_err(Failure::usage)?;
        let plan = plan(&config)?;
        let names = exports::check(&plan)?;
        let restart = self.takes_restart(&state, &config, &plan);
        let (mut shares, mut opened) = (Vec::new(), Vec::new());
        for ((name, share), said) in names.iter().zip(&plan.shares).zip(config.shares()) {
            let clients = exports::of(&plan.lists, name);
            let opening = config.opening(said);
            let same = |served: &&Served| served.export.name == *name && served.opening == opening;
            if let Some(served) = state.shares.iter().find(same) {
                shares.push(served.clone());
                continue;
            }
            if self.bundle.is_none() {
                return Err(Failure::usage(
                    "a share without a name cannot change while it is served: restart the server",
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
        for (served, (name, share)) in shares.iter().zip(names.iter().zip(&plan.shares)) {
            let clients = exports::of(&plan.lists, name);
            served.gate.set(terms(&share.layers, clients));
        }
        let list = ExportList(exports::list(&each, &self.whole));
        *self.list.write().unwrap_or_else(PoisonError::into_inner) = list;
        let stays = |old: &Served| shares.iter().any(|new| Arc::ptr_eq(&new.gate, &old.gate));
        for gone in state.shares.iter().filter(|old| !stays(old)) {
            gone.gate.close();
            tracing::info!(share = gone.export.name, "stopped serving a share");
        }
        if let Some(nfs) = &self.nfs {
            nfs.set_exports(exports::listed(&each, &self.whole, &plan.lists));
        }
        for new in opened {
            tracing::info!(
                share = new.export.name,
                source = new.seen.source,
                "serving a share"
            );
            self.seen.put(new.seen);
            state.touched.extend(new.touched);
        }
        self.seen.keep(&names);
        for what in restart {
            tracing::warn!("{what} differs in the file: restart the server to apply it");
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
            let sockets = plan.virtiofs.shares.iter();
            let nine = plan.nine.iter().flat_map(|nine| &nine.channels);
            let sockets = sockets
                .chain(nine.map(|channel| &channel.socket))
                .chain(plan.block.drives.iter().map(|drive| &drive.socket));
            sockets
                .into_iter()
                .any(|socket| socket.name.as_deref() == Some(name))
        };
        for share in config.shares() {
            let name = share.name.as_deref().unwrap_or_default();
            let opening = config.opening(share);
            let changed = state
                .shares
                .iter()
                .any(|old| old.export.name == name && old.opening != opening);
            if changed && of_device(name) {
                all.push(format!("the share {name}, which a device serves,"));
            }
        }
        all
    }

    /// Writes the read traces of shares that were added by a reload.
    pub(super) fn finish(&self) -> Result<(), Failure> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state
            .touched
            .iter()
            .try_for_each(|touched| touched.finish())
    }
}
