//! Agents in guests, which repeat changes of the shares.

use std::sync::Arc;

use engine::Engine;
use transports::{Addr, Listener};

use crate::Failure;
use crate::serve::agent::{AgentServer, AgentShares};
use crate::serve::endpoint::{BindContext, Endpoint, EndpointEntry};
use crate::serve::exports::Catalog;

/// The channel of agents at its addresses. It is no protocol of clients: its addresses do not
/// replace the default addresses of others.
pub(super) struct Agents {
    addrs: Vec<Addr>,
    listeners: Vec<Listener>,
    bound: Vec<Addr>,
    shares: Option<Arc<AgentShares>>,
    servers: Vec<AgentServer>,
}

impl Agents {
    pub(super) fn new(addrs: &[Addr]) -> Agents {
        Agents {
            addrs: addrs.to_vec(),
            listeners: Vec::new(),
            bound: Vec::new(),
            shares: None,
            servers: Vec::new(),
        }
    }
}

impl Endpoint for Agents {
    fn serves_agents(&self) -> bool {
        !self.addrs.is_empty()
    }

    fn sockets(&self) -> Vec<Addr> {
        self.addrs.clone()
    }

    fn bind(&mut self, context: &BindContext<'_>) -> Result<(), Failure> {
        for addr in &self.addrs {
            let listener = context.listen(addr)?;
            self.bound.push(listener.addr().clone());
            self.listeners.push(listener);
        }
        self.shares = context.exports.opener.agents().cloned();
        Ok(())
    }

    fn start(&mut self, _: &Arc<Engine>) -> Result<(), Failure> {
        let Some(shares) = &self.shares else {
            return Ok(());
        };
        for listener in self.listeners.drain(..) {
            self.servers
                .push(AgentServer::start(listener, shares.clone())?);
        }
        Ok(())
    }

    fn entries(&self, catalog: &Catalog<'_>) -> Vec<EndpointEntry> {
        let share = catalog.shares.first();
        let share = share.map_or("", |share| share.name.as_str());
        let entry = |addr: &Addr| EndpointEntry {
            protocol: "agent".into(),
            address: addr.to_string(),
            commands: command(addr, share).into_iter().collect(),
            ..EndpointEntry::default()
        };
        self.bound.iter().map(entry).collect()
    }
}

/// Returns the command that a guest runs; `None` for an address that only its monitor reaches.
fn command(addr: &Addr, share: &str) -> Option<String> {
    match addr {
        Addr::Tcp { .. } => Some(format!("barge-agent --connect {addr} --mount {share}=/mnt")),
        Addr::Vsock { port, .. } => Some(format!(
            "barge-agent --connect vsock:{port} --mount {share}=/mnt"
        )),
        _ => None,
    }
}
