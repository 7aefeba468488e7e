//! Direct access to the protocol's procedures and compounds ([`::nfs::client`]), with many calls in
//! flight from one thread. Calls are sent when a caller waits, or when enough are queued.
//!
//! Calls are retransmitted after a lost connection, and a client that the server has forgotten
//! registers again. Unlike [`super::mount()`], this module deliberately does not reclaim opens.

use std::sync::Arc;
use std::time::Duration;

use ::nfs::client::v4::{Capabilities, ClientId, GetCapabilities, Operations, Root};
use ::nfs::client::{CallArguments, ClientCall, Failure, Limits};
use vfs::{Call, Cx, Errno, Result};

use super::mount::clamp_to_client_limits;
use super::options::Options;
use super::rpc_client::{Dial, PendingCall, RpcClient, process_credentials};
use super::v3;
use super::v4::{Core, Maintenance, PendingCompound};
use crate::{ClientOwner, ConnectError};

/// A connection for calling v3's and MOUNT's procedures ([`::nfs::client::v3`]).
pub struct Procedures {
    conn: RpcClient,
}

impl Procedures {
    /// Connects.
    pub fn open(dial: Dial) -> std::result::Result<Procedures, ConnectError> {
        let conn = RpcClient::open(
            dial,
            &sys::process::host_name(),
            Core::MAX_MESSAGE as usize,
            Options::default(),
        )?;
        conn.apply_soft_setting();
        Ok(Procedures { conn })
    }

    /// Begins a call.
    pub fn begin(&self, cx: &Cx<'_>, arguments: &dyn CallArguments) -> PendingCall {
        self.conn.begin(cx, arguments)
    }

    /// Waits for the reply to the call with `arguments`, and passes it to `read`.
    pub fn end<A: ClientCall, T>(
        &self,
        cx: &Cx<'_>,
        call: PendingCall,
        arguments: &A,
        read: impl FnOnce(A::Answer<'_>) -> T,
    ) -> std::result::Result<T, Failure> {
        self.conn.end(cx, call, arguments, read)
    }

    /// Makes a call, repeats it while the server answers `NFS3ERR_JUKEBOX`, and passes the reply to
    /// `read`.
    pub fn call<A: ClientCall, T>(
        &self,
        cx: &Cx<'_>,
        arguments: &A,
        read: impl FnMut(A::Answer<'_>) -> T,
    ) -> Result<T> {
        v3::call(&self.conn, cx, arguments, read)
    }
}

/// A client of a v4 server that sends compounds ([`::nfs::client::v4`]). It renews its lease, and
/// destroys its client ID when dropped.
pub struct Compounds {
    core: Arc<Core>,
    limits: Limits,
    _maintenance: Maintenance,
}

impl Compounds {
    /// Connects and establishes a client ID over v4.`minor`.
    pub fn open(dial: Dial, minor: u32) -> std::result::Result<Compounds, ConnectError> {
        let machine = sys::process::host_name();
        let conn = RpcClient::open(
            dial,
            &machine,
            Core::MAX_MESSAGE as usize,
            Options::default(),
        )?;
        let peer = conn.peer();
        Compounds::over(conn, minor).map_err(|errno| {
            let why =
                format!("NFS server {peer}: cannot establish a client with v4.{minor}: {errno}");
            ConnectError::new(errno, why)
        })
    }

    fn over(conn: RpcClient, minor: u32) -> Result<Compounds> {
        let core = Core::open(conn, minor, ClientOwner::random(), false)?;
        let (caller, call) = (process_credentials(), Call::detached());
        let cx = Cx::new(&caller, &call);
        let root = core.call_stateless(&cx, Root, |made| made.handle)?;
        let handle = &root.ok_or(Errno::EIO)?;
        let Capabilities { limits, lease, .. } =
            core.call_stateless(&cx, GetCapabilities { handle }, |can| can)?;
        let keeper = Maintenance::start(core.clone(), Duration::from_secs(lease.into()))?;
        Ok(Compounds {
            limits: core.limits(clamp_to_client_limits(limits)),
            core,
            _maintenance: keeper,
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

    /// The client ID, which v4.0's OPENs carry.
    pub fn client(&self) -> ClientId {
        self.core.client()
    }

    /// Begins a compound, or returns `None` if the session has no free slot: another compound must
    /// be ended first. Every compound that was begun has to be ended, or its slot is lost.
    pub fn begin<S: Operations>(
        &self,
        cx: &Cx<'_>,
        operations: &S,
    ) -> Result<Option<PendingCompound>> {
        self.core.begin(cx, operations, false)
    }

    /// Waits for the reply to `operations`, the compound that was begun, and passes it to `read`.
    pub fn end<S: Operations, T>(
        &self,
        cx: &Cx<'_>,
        pending: PendingCompound,
        operations: &S,
        read: impl FnMut(S::Answer<'_>) -> T,
    ) -> std::result::Result<T, Failure> {
        self.core.end(cx, pending, operations, read)
    }

    /// Sends a compound, repeats it while the server answers `NFS4ERR_DELAY` or the like, and
    /// passes the reply to `read`. It waits for a free slot, forever if this thread has begun
    /// compounds in all of them.
    pub fn call<S: Operations, T>(
        &self,
        cx: &Cx<'_>,
        operations: S,
        read: impl FnMut(S::Answer<'_>) -> T,
    ) -> Result<T> {
        self.core.call_stateless(cx, operations, read)
    }
}
