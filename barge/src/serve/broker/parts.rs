//! The parts of a server, each of which has a process of its own.

use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::serve::activation;
use crate::serve::args::confinement::Processes;
use crate::serve::live::LiveRequest;
use crate::serve::plan::Plan;

/// A part of a server.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(in crate::serve) enum Part {
    /// All sources and endpoints.
    Whole,
    /// The source with this name, and its devices.
    Share(String),
    /// The status page of all parts.
    Status,
}

/// The minimum of `--memory` for a process, in bytes.
const MIN_MEMORY: usize = 8 << 20;

impl Part {
    /// Returns the parts of `plan`. Sources that one endpoint serves together are one part, so that
    /// a source has one table of locks.
    pub(super) fn all(plan: &Plan) -> Vec<Part> {
        let mut devices = Vec::new();
        let mut status = false;
        let mut separable = plan.confinement.processes == Processes::Share
            && !activation::is_activated()
            && !plan.uses_default_addrs()
            && plan.control.is_none()
            && !plan.serves_agents()
            && plan.sources.record_calls.is_none();
        for endpoint in &plan.endpoints {
            status |= endpoint.shows_status();
            separable &= endpoint.requested().is_empty();
            devices.extend(endpoint.devices());
        }
        #[cfg(feature = "otel")]
        {
            status |= plan.otlp.as_ref().is_some_and(|it| it.metrics.is_some());
        }
        let mut parts = Vec::new();
        for device in devices {
            let Some(name) = &device.name else {
                return vec![Part::Whole];
            };
            let share = Part::Share(name.clone());
            if !parts.contains(&share) {
                parts.push(share);
            }
        }
        if !separable || parts.len() < 2 {
            return vec![Part::Whole];
        }
        parts.extend(status.then_some(Part::Status));
        parts
    }

    /// Limits `plan`, which is that of the whole server, to this part, one of `count`.
    pub(super) fn limit(&self, plan: &mut Plan, count: usize) {
        match self {
            Part::Whole => return,
            Part::Share(name) => {
                let is_it = |other: Option<&str>| other == Some(name);
                plan.sources
                    .shares
                    .retain(|share| is_it(share.named.name.as_deref()));
                plan.sources
                    .client_lists
                    .retain(|list| is_it(Some(&list.name)));
                plan.endpoints.retain_mut(|one| one.keep_devices_of(name));
            }
            Part::Status => {
                plan.sources.shares.clear();
                plan.sources.client_lists.clear();
                plan.endpoints.retain(|one| one.shows_status());
            }
        }
        // One process exports the metrics of all, and each its own traces.
        #[cfg(feature = "otel")]
        if let Some(otlp) = &mut plan.otlp {
            match self {
                Part::Status => otlp.traces = None,
                _ => otlp.metrics = None,
            }
        }
        if let Some(config) = &mut plan.config {
            self.limit_config(config);
        }
        plan.part = self.clone();
        let share = plan.tuning.memory / count.max(1);
        plan.tuning.memory = share.max(MIN_MEMORY).min(plan.tuning.memory);
    }

    /// Limits `config`, which is that of the whole server, to the shares of this part.
    pub(super) fn limit_config(&self, config: &mut Config) {
        match self {
            Part::Whole => {}
            Part::Share(own) => config.retain_shares(|name| name == own),
            Part::Status => config.retain_shares(|_| false),
        }
    }

    /// Limits the configuration of `request` to the shares of this part.
    pub(super) fn limit_request(&self, request: &LiveRequest) -> LiveRequest {
        let mut request = request.clone();
        if let LiveRequest::Reload {
            config: Some(config),
            ..
        } = &mut request
        {
            self.limit_config(config);
        }
        request
    }

    /// Returns the name of the part for messages.
    pub(super) fn title(&self) -> String {
        match self {
            Part::Whole => "the serving process".into(),
            Part::Share(name) => format!("the process that serves {name}"),
            Part::Status => "the process of the status page".into(),
        }
    }
}
