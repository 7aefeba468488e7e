//! What a server is asked in the protocol's own words ([`::nfs::client`]), much of it at a time from one thread.
//! What was begun leaves when somebody waits, or when there is enough of it.
//!
//! Calls whose connection is lost are made again over the next, and a client that the server has forgotten makes
//! itself known again. What it lacks on purpose: opening again what was open then, as [`super::mount()`] does.

use std::sync::Arc;
use std::time::Duration;

use ::nfs::client::v4::{Can, ClientId, Root, Steps, Traits};
use ::nfs::client::{Ask, Failure, Limits};
use vfs::{Call, Cx, Errno, Result};

use super::conn::{Conn, Dial, Flight, machine, own};
use super::fs::Options;
use super::mount::bounded;
use super::v3;
use super::v4::{Core, Keeper, Turn};
use crate::ConnectError;

/// A connection over which procedures are called: v3's, MOUNT's ([`::nfs::client::v3`]).
pub struct Procedures {
    conn: Conn,
}

impl Procedures {
    /// Connects.
    pub fn open(dial: Dial) -> std::result::Result<Procedures, ConnectError> {
        let conn = Conn::open(dial, &machine(), Core::MOST as usize, Options::default())?;
        conn.settle();
        Ok(Procedures { conn })
    }

    /// Asks.
    pub fn begin<A: Ask>(&self, cx: &Cx<'_>, ask: &A) -> Flight {
        self.conn.begin(cx, ask)
    }

    /// Waits for the answer to `ask`, which is what was asked, and gives it to `read`.
    pub fn end<A: Ask, T>(
        &self,
        cx: &Cx<'_>,
        flight: Flight,
        ask: &A,
        read: impl FnOnce(A::Answer<'_>) -> T,
    ) -> std::result::Result<T, Failure> {
        self.conn.end(cx, flight, ask, read)
    }

    /// Asks, and waits for the answer until the server does not put it off.
    pub fn call<A: Ask, T>(
        &self,
        cx: &Cx<'_>,
        ask: &A,
        read: impl FnMut(A::Answer<'_>) -> T,
    ) -> Result<T> {
        v3::call(&self.conn, cx, ask, read)
    }
}

/// A client of a v4 server, asked by compounds ([`::nfs::client::v4`]). It keeps its lease, and takes leave when
/// dropped.
pub struct Compounds {
    core: Arc<Core>,
    limits: Limits,
    _keeper: Keeper,
}

impl Compounds {
    /// Connects, and makes a client known by v4.`minor`.
    pub fn open(dial: Dial, minor: u32) -> std::result::Result<Compounds, ConnectError> {
        let machine = machine();
        let conn = Conn::open(dial, &machine, Core::MOST as usize, Options::default())?;
        let peer = conn.peer();
        Compounds::over(conn, minor, &machine).map_err(|errno| {
            let why = format!("NFS server {peer}: no client by v4.{minor}: {errno}");
            ConnectError::new(errno, why)
        })
    }

    fn over(conn: Conn, minor: u32, machine: &str) -> Result<Compounds> {
        let core = Core::open(conn, minor, machine, false)?;
        let (caller, call) = (own(), Call::detached());
        let cx = Cx::new(&caller, &call);
        let root = core.ask(&cx, Root, |made| made.handle)?;
        let handle = &root.ok_or(Errno::EIO)?;
        let Can { limits, lease, .. } = core.ask(&cx, Traits { handle }, |can| can)?;
        let keeper = Keeper::start(core.clone(), Duration::from_secs(lease.into()))?;
        Ok(Compounds {
            limits: core.limits(bounded(limits)),
            core,
            _keeper: keeper,
        })
    }

    /// The minor version.
    pub fn minor(&self) -> u32 {
        self.core.minor
    }

    /// The most bytes of a READ and of a WRITE.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// What the server knows the client by, as v4.0's opens say.
    pub fn client(&self) -> ClientId {
        self.core.client()
    }

    /// Asks; nothing if the session has no slot free: then something has to be ended first. What was begun has to
    /// be ended in any case, or its slot is lost.
    pub fn begin<S: Steps>(&self, cx: &Cx<'_>, steps: &S) -> Result<Option<Turn>> {
        self.core.begin(cx, steps, false)
    }

    /// Waits for the answer to `steps`, which is what was asked, and gives it to `read`.
    pub fn end<S: Steps, T>(
        &self,
        cx: &Cx<'_>,
        turn: Turn,
        steps: &S,
        read: impl FnMut(S::Answer<'_>) -> T,
    ) -> std::result::Result<T, Failure> {
        self.core.end(cx, turn, steps, read)
    }

    /// Asks, and waits for the answer until the server does not put it off. It may have to wait for a slot, which
    /// is for ever if this thread has begun what takes them all.
    pub fn call<S: Steps, T>(
        &self,
        cx: &Cx<'_>,
        steps: S,
        read: impl FnMut(S::Answer<'_>) -> T,
    ) -> Result<T> {
        self.core.ask(cx, steps, read)
    }
}
