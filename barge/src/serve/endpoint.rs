//! The interface of a protocol at its addresses.
//!
//! An endpoint is created from options, without effects. Then the server calls `bind`, `start`,
//! `entries`, `reload` at each SIGHUP, and `set_exports` after each change of the shares. After the
//! engine has stopped, a drop ends the endpoint's own threads.

use std::any::Any;
use std::path::Path;
use std::sync::Arc;

use engine::{Engine, Service};
use serde::{Deserialize, Serialize};
use transports::{Addr, Listener};

use super::args::device::SocketArg;
use super::exports::{Catalog, Exports};
use super::host::Host;
use super::recovery::ServerIdentity;
use super::vhost::monitor_command;
use crate::Failure;
use crate::status::Figures;

/// A protocol at its addresses.
pub(super) trait Endpoint: Any + Send + Sync {
    /// Returns the addresses for clients that the options name.
    fn requested(&self) -> &[Addr] {
        &[]
    }

    /// Returns the devices of virtual machines that the options name.
    fn devices(&self) -> Vec<&SocketArg> {
        Vec::new()
    }

    /// Keeps the devices of the source called `name` alone. Returns whether there are any.
    fn keep_devices_of(&mut self, name: &str) -> bool {
        let _ = name;
        false
    }

    /// Returns whether the endpoint serves the status of the server, and no source.
    fn shows_status(&self) -> bool {
        false
    }

    /// Returns whether agents in guests may repeat changes.
    fn serves_agents(&self) -> bool {
        false
    }

    /// Returns the addresses at which [`Endpoint::bind`] may listen.
    fn sockets(&self) -> Vec<Addr> {
        let devices = self.devices().into_iter().map(|device| &device.addr);
        self.requested().iter().chain(devices).cloned().collect()
    }

    /// Returns those of [`Endpoint::sockets`] at whose hosts and ports [`Endpoint::bind`] may bind
    /// UDP sockets as well, once it listens there.
    fn udp_sockets(&self) -> Vec<Addr> {
        Vec::new()
    }

    /// Returns the files that options name, and that are read when binding and at a reload.
    fn files(&self) -> Vec<&Path> {
        Vec::new()
    }

    /// Returns whether the endpoint serves image files as disks.
    fn serves_images(&self) -> bool {
        false
    }

    /// Returns the identity of the server whose state, such as file handles, survives a restart.
    /// `by_default` is [`BindContext::use_default_addrs`].
    fn identity(&self, by_default: bool) -> Option<ServerIdentity> {
        let _ = by_default;
        None
    }

    /// Shares the limits of all clients of a protocol with `other`, an endpoint of the running
    /// server that may be of the same protocol. Called before [`Endpoint::bind`].
    fn share_limits(&mut self, other: &dyn Endpoint) {
        let _ = other;
    }

    /// Opens the sockets: clients can connect, and wait until [`Endpoint::start`].
    fn bind(&mut self, context: &BindContext<'_>) -> Result<(), Failure>;

    /// Serves clients until the engine stops.
    fn start(&mut self, engine: &Arc<Engine>) -> Result<(), Failure>;

    /// Returns its addresses, with the commands that mount or use the exports of `catalog`.
    fn entries(&self, catalog: &Catalog<'_>) -> Vec<EndpointEntry>;

    /// Returns the option, and its value, whose addresses can be added and removed while the server
    /// runs.
    fn setting(&self) -> Option<(&'static str, String)> {
        None
    }

    /// Returns the addresses that clients can connect to, once they are bound.
    fn bound(&self) -> &[Addr] {
        &[]
    }

    /// Returns the variables of the environment of `--run` for the addresses `bound`. The broker
    /// asks its own endpoint, which is not bound, with the addresses of the sockets that it has
    /// opened.
    fn environment(&self, bound: &[Addr]) -> Vec<(String, String)> {
        let _ = bound;
        Vec::new()
    }

    /// Returns whether [`Endpoint::bind`] serves at the sockets of a service manager.
    fn inherits_sockets(&self) -> bool {
        false
    }

    /// Returns the bound addresses whose clients name the users that they act as.
    fn claimed_user_addrs(&self) -> &[Addr] {
        &[]
    }

    /// Returns whether [`Endpoint::reload`] has any effect.
    fn is_reloadable(&self) -> bool {
        false
    }

    /// Reads files that options name, such as certificates, again. An error is logged, and the
    /// previous contents stay in force.
    fn reload(&self) {}

    /// Replaces the exports that clients can choose from.
    fn set_exports(&self, catalog: &Catalog<'_>) {
        let _ = catalog;
    }
}

/// An address of an endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct EndpointEntry {
    /// The option of `barge serve` for it, without dashes.
    pub(super) protocol: String,
    /// The address that clients connect to. A port that the system chose is in it.
    pub(super) address: String,
    /// The only share that it serves; `None` if it serves all of them.
    pub(super) share: Option<String>,
    pub(super) state: State,
    /// Shell commands that mount or use the exports: on a client, or in the guest.
    pub(super) commands: Vec<String>,
    /// The options of QEMU for a device.
    pub(super) qemu: Option<String>,
}

/// The state of an endpoint or share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum State {
    #[default]
    Serving,
    /// Its source is not open: clients get errors until it is.
    Failed,
    /// It accepts no more clients, and ends soon.
    Draining,
}

impl EndpointEntry {
    /// Returns the lines of the ready message.
    pub(super) fn text(&self) -> String {
        let monitor = self.qemu.as_deref().map(monitor_command);
        let commands = self.commands.iter().map(|command| format!("{command}\n"));
        monitor.into_iter().chain(commands).collect()
    }
}

/// The surroundings in which endpoints are bound.
pub(super) struct BindContext<'a> {
    pub(super) exports: &'a Exports,
    pub(super) host: &'a Host,
    /// The figures of the status page.
    pub(super) figures: &'a Arc<dyn Figures>,
    /// Whether the options name no address of any endpoint: those with a default address use it.
    pub(super) use_default_addrs: bool,
}

impl BindContext<'_> {
    /// Listens at `addr`.
    pub(super) fn listen(&self, addr: &Addr) -> Result<Listener, Failure> {
        self.host.listen(addr)
    }
}

/// Returns the addresses of `listeners`.
pub(super) fn addrs(listeners: &[Listener]) -> Vec<Addr> {
    listeners.iter().map(|at| at.addr().clone()).collect()
}

/// Serves the clients of `listeners` with `service`.
pub(super) fn serve(
    engine: &Arc<Engine>,
    listeners: Vec<Listener>,
    service: &Arc<dyn Service>,
) -> Result<(), Failure> {
    for listener in listeners {
        engine
            .listen(listener, service.clone())
            .map_err(Failure::new)?;
    }
    Ok(())
}
