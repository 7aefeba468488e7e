//! The sockets of `--agent`: connections, and their bounds.

use std::collections::HashMap;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use engine::StopSignal;
use parking_lot::Mutex;
use transports::{Link, Listener, StreamLink};
use vfs::peer::PeerKey;

use super::{AgentShares, session};
use crate::Failure;

/// Maximum number of connections, and of those of one peer.
const MAX_CONNECTIONS: usize = 256;
const MAX_OF_A_PEER: usize = 64;

/// Time for an agent to receive a line.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// Time without a line from an agent that is connected: without an agent, a port of a virtual
/// machine stays connected.
const RECV_TIMEOUT: Duration = Duration::MAX;

/// A socket that agents connect to, until dropped.
pub(in crate::serve) struct AgentServer {
    stop: Arc<StopSignal>,
    open: Arc<Mutex<Connections>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Connections {
    /// The number of each peer's connections.
    counts: HashMap<PeerKey, usize>,
    links: HashMap<u64, Arc<StreamLink>>,
    next: u64,
    /// Whether there will be no more.
    ended: bool,
}

impl AgentServer {
    /// Starts a thread that serves the agents that connect to `listener`.
    pub(in crate::serve) fn start(
        listener: Listener,
        shares: Arc<AgentShares>,
    ) -> Result<AgentServer, Failure> {
        let mut server = AgentServer {
            stop: Arc::new(StopSignal::new().map_err(Failure::new)?),
            open: Arc::default(),
            thread: None,
        };
        let (stop, open) = (server.stop.clone(), server.open.clone());
        let thread = std::thread::Builder::new().name("barge-agents".into());
        let accept = move || {
            loop {
                match listener.accept(stop.fd()) {
                    Ok(Some(link)) => connect(Arc::new(link), &shares, &open),
                    Ok(None) => return,
                    Err(error) => return tracing::error!("--agent: {error}"),
                }
            }
        };
        server.thread = Some(thread.spawn(accept).map_err(Failure::new)?);
        Ok(server)
    }
}

impl Drop for AgentServer {
    fn drop(&mut self) {
        self.stop.raise();
        let mut open = self.open.lock();
        open.ended = true;
        open.links.values().for_each(|link| link.hang_up());
        drop(open);
        // It has the listener, which removes the file of its socket.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Serves a connection on a thread of its own, unless the number of connections forbids that.
fn connect(link: Arc<StreamLink>, shares: &Arc<AgentShares>, open: &Arc<Mutex<Connections>>) {
    let _ = link.set_timeouts(RECV_TIMEOUT, SEND_TIMEOUT);
    let Some(counted) = Counted::new(open, &link) else {
        return tracing::warn!("an agent was refused: too many connections");
    };
    let shares = shares.clone();
    let thread = std::thread::Builder::new().name("barge-agent".into());
    let serve = move || {
        let _counted = counted;
        // A monitor's port is connected before there is an agent.
        let is_local = link.origin().addr().is_none();
        let timeout = (!is_local).then_some(session::HELLO_TIMEOUT);
        let ended = session::serve(&*link, &shares, timeout);
        tracing::debug!("connection of an agent closed: {ended}");
    };
    if let Err(error) = thread.spawn(serve) {
        tracing::warn!("an agent was refused: {error}");
    }
}

/// An open connection, until dropped, also by a panic.
struct Counted {
    open: Arc<Mutex<Connections>>,
    peer: PeerKey,
    number: u64,
}

impl Counted {
    fn new(open: &Arc<Mutex<Connections>>, link: &Arc<StreamLink>) -> Option<Counted> {
        let peer = link.origin().key();
        let mut all = open.lock();
        let of_peer = all.counts.get(&peer).copied().unwrap_or(0);
        if all.ended || all.links.len() >= MAX_CONNECTIONS || of_peer >= MAX_OF_A_PEER {
            return None;
        }
        let number = all.next;
        all.next += 1;
        all.counts.insert(peer, of_peer + 1);
        all.links.insert(number, link.clone());
        Some(Counted {
            open: open.clone(),
            peer,
            number,
        })
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut all = self.open.lock();
        let link = all.links.remove(&self.number);
        if let Some(count) = all.counts.get_mut(&self.peer) {
            *count -= 1;
            if *count == 0 {
                all.counts.remove(&self.peer);
            }
        }
        drop(all);
        drop(link);
    }
}
