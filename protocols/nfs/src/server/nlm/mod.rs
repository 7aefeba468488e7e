//! NLM v4 and NSM: v3's locks, in the lock table that all protocols share.
//!
//! A client is identified by the name that it claims (`caller_name`) and its address, over any
//! connection. Its locks outlive connections. They are released when the client unlocks them, or
//! when it reports its restart from the same address (SM_NOTIFY, FREE_ALL).
//! A LOCK that must wait is not answered with `BLOCKED` at once, because then the server would have
//! to call the client when it grants the lock, which NAT or a container may make impossible.
//! Instead the reply is delayed for up to two minutes, and is `BLOCKED` after that; Linux retries
//! half a minute later. So a short wait ends as soon as the lock is free. A signal to the waiting
//! process of the client takes effect only when the reply arrives.
//!
//! After the server's own restart, the driver notifies the clients (`recovery`).
//!
//! The asynchronous procedures (`*_MSG`, used by macOS) are answered by a call to the client, which
//! the driver makes as well.
//!
//! Deliberately absent: GRANTED, for the reason above, and share reservations, which only DOS
//! clients of v3 use.

mod clients;
mod recovery;
mod waiting;

use std::net::IpAddr;
use std::sync::Arc;

use vfs::lock::{Lock, LockFamily, LockKind, Owner, Wait};
use vfs::{Access, Call, Caller, Cx, Errno, LogLimit, Node, OpenFlags, PeerKey};
use wire::{ServeOutcome, Xdr};

pub(super) use self::clients::Clients;
pub use self::recovery::Monitored;
pub(super) use self::recovery::Recovery;
pub(super) use self::waiting::Waiting;
use super::filehandle::FileHandle;
use super::{CallError, RequestContext};
use crate::nlm::{
    CancelArgs, FreeArgs, Holder, LockArgs, LockResult, MAX_NAME, MAX_OBJECT, Procedure, ShareArgs,
    ShareResult, Status, TestArgs, TestResult, Tested, UnlockArgs,
};
use crate::nsm;
use crate::rpc::{AuthStat, CallRejection};

/// An NLM v4 call to a client: the result of its asynchronous call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NlmCallback {
    /// The client's address; its portmapper reports the port.
    pub addr: IpAddr,
    /// The procedure of the call.
    pub procedure: Procedure,
    /// The encoded arguments.
    pub arguments: Vec<u8>,
}

/// Serves an NLM call.
pub(super) fn serve(request: &mut RequestContext<'_>, procedure: u32) -> Result<(), CallError> {
    use Procedure as P;
    let procedure = P::from_number(procedure).ok_or(CallRejection::ProcedureUnavailable)?;
    if procedure != P::Null {
        request.check_local_user()?;
    }
    let addr = request.call.addr();
    if addr.is_none() && (P::TestMsg as u32..=P::UnlockMsg as u32).contains(&(procedure as u32)) {
        // A client without an address cannot be called.
        return Err(CallRejection::ProcedureUnavailable.into());
    }
    let (answer, call) = match procedure {
        P::Null => return Ok(()),
        P::Test => (request.test()?, None),
        P::TestMsg => (request.test()?, Some(P::TestRes)),
        P::Lock => (request.lock(true)?, None),
        P::LockMsg => (request.lock(true)?, Some(P::LockRes)),
        P::NmLock => (request.lock(false)?, None),
        P::Cancel => (request.cancel()?, None),
        P::CancelMsg => (request.cancel()?, Some(P::CancelRes)),
        P::Unlock => (request.unlock()?, None),
        P::UnlockMsg => (request.unlock()?, Some(P::UnlockRes)),
        P::Granted | P::TestRes | P::LockRes | P::CancelRes | P::UnlockRes => {
            return Err(CallRejection::ProcedureUnavailable.into());
        }
        P::Share | P::Unshare => {
            return request.serve(|_, args: ShareArgs<'_>| {
                Ok(ShareResult {
                    cookie: args.cookie,
                    status: Status::Failed,
                    sequence: 0,
                })
            });
        }
        P::FreeAll => {
            return request.serve(|request, args: FreeArgs<'_>| {
                request.release_client(args.caller);
                Ok(())
            });
        }
    };
    match call.zip(addr) {
        None => request.reply.out.bytes(&answer),
        // The result must not reach the client either, as a reply must not.
        Some(_) if request.server.check_may_act().is_err() => return Err(CallError::Unanswered),
        Some((procedure, addr)) => (request.server.options.call_back)(NlmCallback {
            addr,
            procedure,
            arguments: answer,
        }),
    }
    Ok(())
}

/// Encoded results.
type Answer = Result<Vec<u8>, CallError>;

fn bytes<'a>(results: &impl Xdr<'a>) -> Vec<u8> {
    let mut bytes = Vec::new();
    results.put(&mut bytes);
    bytes
}

/// Serves an NSM call.
pub(super) fn serve_nsm(request: &mut RequestContext<'_>, procedure: u32) -> Result<(), CallError> {
    let procedure =
        nsm::Procedure::from_number(procedure).ok_or(CallRejection::ProcedureUnavailable)?;
    match procedure {
        nsm::Procedure::Null => Ok(()),
        nsm::Procedure::Notify => {
            request.check_local_user()?;
            request.serve(|request, changed: nsm::StatChange<'_>| {
                request.release_client(changed.name);
                Ok(())
            })
        }
    }
}

/// A lock that a client requests, tests or unlocks.
struct LockRequest {
    node: Arc<dyn Node>,
    lock: Lock,
}

impl RequestContext<'_> {
    /// Refuses the call of a process of another user of this host that must not use any export: it
    /// could release the locks of this host's kernel by its name.
    fn check_local_user(&self) -> Result<(), CallError> {
        match self.is_refused(b"") {
            false => Ok(()),
            true => Err(CallRejection::Auth(AuthStat::TooWeak).into()),
        }
    }

    fn test(&mut self) -> Answer {
        let args: TestArgs<'_> = self.decode()?;
        let may = self.may_lock(args.lock.caller, false);
        let request = may.map_err(LockError::Status);
        let request = request.and_then(|()| self.lock_request(&args.lock, args.exclusive));
        let holder = request.and_then(|request| {
            let locks = &self.server.export.locks;
            Ok(locks.holder(&self.cx(), &*request.node, &request.lock)?)
        });
        let tested = match holder {
            Ok(None) => Tested::Other(Status::Granted),
            Ok(Some(ref held)) => Tested::Denied(Holder {
                exclusive: held.kind == LockKind::Exclusive,
                process: held.owner.pid as i32,
                owner: owner_of(held),
                offset: held.start,
                len: match held.end {
                    u64::MAX => 0,
                    end => end - held.start + 1,
                },
            }),
            Err(error) => Tested::Other(error.status()?),
        };
        Ok(bytes(&TestResult {
            cookie: args.cookie,
            tested,
        }))
    }

    /// Serves LOCK and NM_LOCK. A `monitored` client is notified when this server restarts.
    fn lock(&mut self, monitored: bool) -> Answer {
        let args: LockArgs<'_> = self.decode()?;
        let may = self.may_lock(args.lock.caller, args.reclaim);
        let request = may.map_err(LockError::Status);
        let request = request.and_then(|()| self.lock_request(&args.lock, args.exclusive));
        let status = match request {
            Ok(request) => {
                let recorded = !monitored || self.monitor(args.lock.caller)?;
                let client = request.lock.owner.client;
                let clients = &self.server.clients;
                if recorded && clients.begin_lock(client, &request.node) {
                    let served = match args.block {
                        true => self.wait_for(&request),
                        false => self.try_lock(&request, Wait::No).or_else(LockError::status),
                    };
                    // Also after a failure: without a lock the node must not stay recorded.
                    clients.end_lock(client, request.node.id(), || {
                        !is_parked(&served) && self.holds_nothing(&request)
                    });
                    served?
                } else {
                    Status::DeniedNoLocks
                }
            }
            Err(error) => error.status()?,
        };
        Ok(bytes(&LockResult {
            cookie: args.cookie,
            status,
        }))
    }

    /// Requests the lock. Without [`Wait::Yes`], returns `DENIED` if it would have to wait.
    fn try_lock(&self, request: &LockRequest, wait: Wait) -> Result<Status, LockError> {
        let locks = &self.server.export.locks;
        locks.lock(&self.cx(), &*request.node, request.lock.clone(), wait)?;
        Ok(Status::Granted)
    }

    /// Unlocks the range for the owner.
    fn unlock_range(&self, request: &LockRequest) -> Result<Status, LockError> {
        let (locks, lock) = (&self.server.export.locks, &request.lock);
        let (start, end) = (lock.start, lock.end);
        locks.unlock(
            &self.cx(),
            &*request.node,
            lock.family,
            start,
            end,
            &lock.owner,
        )?;
        Ok(Status::Granted)
    }

    fn cancel(&mut self) -> Answer {
        let args: CancelArgs<'_> = self.decode()?;
        let status = match self.requested_lock(&args.lock, args.exclusive) {
            Ok(request) => {
                // A lock that was granted meanwhile is unlocked by the client, which learns of it
                // from the reply or unlocks in any case.
                self.server.waiting.cancel(&request.lock.owner);
                Status::Granted
            }
            Err(error) => error.status()?,
        };
        Ok(bytes(&LockResult {
            cookie: args.cookie,
            status,
        }))
    }

    fn unlock(&mut self) -> Answer {
        let args: UnlockArgs<'_> = self.decode()?;
        let status = match self.requested_lock(&args.lock, false) {
            Ok(request) => {
                // A killed process unlocks: cancel the LOCK that it was waiting for as well.
                self.server.waiting.cancel(&request.lock.owner);
                let unlocked = self.unlock_range(&request).or_else(LockError::status);
                let (client, node) = (request.lock.owner.client, request.node.id());
                let clients = &self.server.clients;
                clients.forget_if_unlocked(client, node, || self.holds_nothing(&request));
                unlocked?
            }
            Err(error) => error.status()?,
        };
        Ok(bytes(&LockResult {
            cookie: args.cookie,
            status,
        }))
    }

    /// Returns the node and lock that the arguments describe, if the caller has access to the file.
    fn lock_request(
        &self,
        lock: &crate::nlm::Lock<'_>,
        exclusive: bool,
    ) -> Result<LockRequest, LockError> {
        let request = self.requested_lock(lock, exclusive)?;
        self.check_access(&request.node)?;
        Ok(request)
    }

    /// Returns the node and lock that the arguments describe. Access is not checked: a caller that
    /// has lost it, or for which no descriptor is left, can still release what it holds.
    fn requested_lock(
        &self,
        lock: &crate::nlm::Lock<'_>,
        exclusive: bool,
    ) -> Result<LockRequest, LockError> {
        if lock.caller.len() > MAX_NAME || lock.owner.len() > MAX_OBJECT {
            return Err(LockError::Status(Status::Failed));
        }
        let handle = FileHandle::read(lock.file).ok_or(LockError::Status(Status::StaleFh))?;
        let cx = self.cx();
        let node = self.server.node(&cx, &handle)?;
        let end = match lock.len {
            0 => u64::MAX,
            len => lock
                .offset
                .checked_add(len - 1)
                .ok_or(LockError::Status(Status::Fbig))?,
        };
        let name = (self.call.addr(), lock.caller.into());
        let now = (self.server.options.clock)();
        let client = self.server.clients.number(name, self.call.account(), now);
        let client = client.ok_or(LockError::Status(Status::DeniedNoLocks))?;
        let process = lock.process.to_be_bytes();
        Ok(LockRequest {
            node,
            lock: Lock {
                family: LockFamily::Posix,
                start: lock.offset,
                end,
                kind: match exclusive {
                    true => LockKind::Exclusive,
                    false => LockKind::Shared,
                },
                owner: Owner {
                    client,
                    id: [lock.owner, &process].concat().into(),
                    pid: lock.process as u32,
                },
            },
        })
    }

    /// Checks access: a caller must be able to read or write the file, or own it.
    fn check_access(&self, node: &Arc<dyn Node>) -> Result<(), LockError> {
        let cx = self.cx();
        let may = node.access(&cx, Access::READ | Access::WRITE)?;
        if !may.is_empty() {
            return Ok(());
        }
        match self.server.file(&cx, node, OpenFlags::READ) {
            Err(Errno::EACCES) => Err(LockError::Status(Status::Failed)),
            done => Ok(done.map(drop)?),
        }
    }

    /// Returns whether the client of the request holds no lock on the node. The table knows it
    /// without the host, which may have no descriptor left to ask with.
    fn holds_nothing(&self, request: &LockRequest) -> bool {
        let locks = &self.server.export.locks;
        let client = request.lock.owner.client;
        locks.held_by(request.node.id(), client).is_empty()
    }

    /// Releases the locks of a client that has restarted.
    fn release_client(&self, name: &[u8]) {
        static RESTARTED: LogLimit<Option<PeerKey>> = LogLimit::new();
        let Some((client, nodes)) = self.server.clients.remove(self.call.addr(), name) else {
            return;
        };
        if let Some(suppressed) = RESTARTED.permit(self.call.account().client()) {
            let client = name.escape_ascii();
            tracing::info!(%client, suppressed, "a client restarted: its locks are released");
        }
        self.server.waiting.cancel_all_of(client);
        // As root: the notification may come from another user at the client's address, who may
        // have less access.
        let call = Call::detached();
        for node in nodes {
            let locks = &self.server.export.locks;
            let cx = Cx::new(&Caller::ROOT, &call);
            locks.release(&cx, &*node, |owner| owner.client == client);
        }
    }
}

/// Returns the owner's bytes without the process; empty for an owner of another protocol that is
/// too short.
fn owner_of(held: &Lock) -> &[u8] {
    let id = &held.owner.id;
    &id[..id.len().saturating_sub(4).min(MAX_OBJECT)]
}

/// Returns whether a request waits, and is served again later.
fn is_parked(served: &Result<Status, CallError>) -> bool {
    matches!(served, Err(CallError::Retry(ServeOutcome::Parked)))
}

/// The reason for which a lock is not granted.
enum LockError {
    Status(Status),
    Later(CallError),
}

impl From<Errno> for LockError {
    fn from(errno: Errno) -> LockError {
        if let Some(stop) = CallError::retry(errno) {
            return LockError::Later(stop);
        }
        LockError::Status(match errno {
            Errno::EAGAIN | Errno::EACCES => Status::Denied,
            Errno::ESTALE | Errno::ENOENT => Status::StaleFh,
            Errno::EROFS => Status::Rofs,
            Errno::EFBIG | Errno::EOVERFLOW => Status::Fbig,
            Errno::EDEADLK => Status::Deadlock,
            Errno::ENOLCK | Errno::ENOMEM => Status::DeniedNoLocks,
            _ => Status::Failed,
        })
    }
}

impl LockError {
    fn status(self) -> Result<Status, CallError> {
        match self {
            LockError::Status(status) => Ok(status),
            LockError::Later(stop) => Err(stop),
        }
    }
}
