//! NLM v4 and NSM: v3's locks, in the table that all protocols share.
//!
//! A client is who it says to be (`caller_name`), at the address that it comes from, by whatever
//! connection: locks outlive connections, and go when the client says from there that it has
//! restarted (SM_NOTIFY, FREE_ALL) or unlocks them.
//!
//! A LOCK that has to wait is not answered with `BLOCKED` at once, for then the server would have to call the client
//! when it is granted, where nothing may lead: through a NAT, out of a container. Its reply is held back instead, for
//! two minutes, and then is `BLOCKED`: Linux asks again half a minute later. So what waits a short time is granted when it
//! can be, and signals reach the client's process when the reply does.
//!
//! After a restart of its own the server has its clients told, by whoever drives it (`recovery`).
//!
//! The procedures that are answered by a call in the other direction (`*_MSG`, macOS's) have that made by the same.
//!
//! What it lacks on purpose: GRANTED, as said above; share reservations, which nobody but DOS asks v3 for.

mod clients;
mod recovery;
mod waiting;

use std::net::IpAddr;
use std::sync::Arc;

use vfs::lock::{Lock, LockKind, Owner, Space, Wait};
use vfs::{Access, Call, Caller, Cx, Errno, LogLimit, Node, OpenFlags, PeerKey};
use wire::Xdr;

pub(super) use self::clients::Clients;
pub use self::recovery::Monitored;
pub(super) use self::recovery::Recovery;
pub(super) use self::waiting::Waiting;
use super::handle::FileHandle;
use super::{Stop, Turn};
use crate::nlm::{
    CancelArgs, FreeArgs, Holder, LockArgs, LockResult, MAX_NAME, MAX_OBJECT, Procedure, ShareArgs,
    ShareResult, Status, TestArgs, TestResult, Tested, UnlockArgs,
};
use crate::nsm;
use crate::rpc::Refusal;

/// A call of NLM v4 to a client: the answer to one that it made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallBack {
    /// Where the client is. Its portmapper knows the rest.
    pub addr: IpAddr,
    /// Which procedure.
    pub procedure: Procedure,
    /// Its arguments, as they travel.
    pub arguments: Vec<u8>,
}

/// Answers a call of NLM.
pub(super) fn serve(turn: &mut Turn<'_>, procedure: u32) -> Result<(), Stop> {
    use Procedure as P;
    let procedure = P::from_number(procedure).ok_or(Refusal::ProcedureUnavailable)?;
    let addr = turn.call.addr();
    if addr.is_none() && (P::TestMsg as u32..=P::UnlockMsg as u32).contains(&(procedure as u32)) {
        // Whoever has no address is not called.
        return Err(Refusal::ProcedureUnavailable.into());
    }
    let (answer, call) = match procedure {
        P::Null => return Ok(()),
        P::Test => (turn.test()?, None),
        P::TestMsg => (turn.test()?, Some(P::TestRes)),
        P::Lock => (turn.lock(true)?, None),
        P::LockMsg => (turn.lock(true)?, Some(P::LockRes)),
        P::NmLock => (turn.lock(false)?, None),
        P::Cancel => (turn.cancel()?, None),
        P::CancelMsg => (turn.cancel()?, Some(P::CancelRes)),
        P::Unlock => (turn.unlock()?, None),
        P::UnlockMsg => (turn.unlock()?, Some(P::UnlockRes)),
        P::Granted | P::TestRes | P::LockRes | P::CancelRes | P::UnlockRes => {
            return Err(Refusal::ProcedureUnavailable.into());
        }
        P::Share | P::Unshare => {
            return turn.answer(|_, args: ShareArgs<'_>| {
                Ok(ShareResult {
                    cookie: args.cookie,
                    status: Status::Failed,
                    sequence: 0,
                })
            });
        }
        P::FreeAll => {
            return turn.answer(|turn, args: FreeArgs<'_>| {
                turn.restarted(args.caller);
                Ok(())
            });
        }
    };
    match call.zip(addr) {
        None => turn.out.bytes(&answer),
        Some((procedure, addr)) => (turn.server.options.call_back)(CallBack {
            addr,
            procedure,
            arguments: answer,
        }),
    }
    Ok(())
}

/// Results as they travel.
type Answer = Result<Vec<u8>, Stop>;

fn bytes<'a>(results: &impl Xdr<'a>) -> Vec<u8> {
    let mut bytes = Vec::new();
    results.put(&mut bytes);
    bytes
}

/// Answers a call of NSM.
pub(super) fn serve_nsm(turn: &mut Turn<'_>, procedure: u32) -> Result<(), Stop> {
    let procedure = nsm::Procedure::from_number(procedure).ok_or(Refusal::ProcedureUnavailable)?;
    match procedure {
        nsm::Procedure::Null => Ok(()),
        nsm::Procedure::Notify => turn.answer(|turn, changed: nsm::Changed<'_>| {
            turn.restarted(changed.name);
            Ok(())
        }),
    }
}

/// A lock that is asked for or given back.
struct Asked {
    node: Arc<dyn Node>,
    lock: Lock,
}

impl Turn<'_> {
    fn test(&mut self) -> Answer {
        let args: TestArgs<'_> = self.take()?;
        let may = self.may_lock(args.lock.caller, false);
        let asked = may.map_err(Fault::Status);
        let asked = asked.and_then(|()| self.asked(&args.lock, args.exclusive));
        let holder = asked.and_then(|asked| {
            let locks = &self.server.export.locks;
            Ok(locks.holder(&self.cx(), &*asked.node, &asked.lock)?)
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
            Err(fault) => Tested::Other(fault.status()?),
        };
        Ok(bytes(&TestResult {
            cookie: args.cookie,
            tested,
        }))
    }

    /// The client of a LOCK that is `monitored` is told when this server restarts.
    fn lock(&mut self, monitored: bool) -> Answer {
        let args: LockArgs<'_> = self.take()?;
        let may = self.may_lock(args.lock.caller, args.reclaim);
        let asked = may.map_err(Fault::Status);
        let asked = asked.and_then(|()| self.asked(&args.lock, args.exclusive));
        let status = match asked {
            Ok(asked) => {
                if monitored {
                    self.monitor(args.lock.caller)?;
                }
                let client = asked.lock.owner.client;
                let status = match self.server.clients.hold(client, &asked.node) {
                    false => Status::DeniedNoLocks,
                    true if args.block => self.wait_for(&asked)?,
                    true => self.try_lock(&asked, Wait::No).or_else(Fault::status)?,
                };
                self.settle(&asked, status);
                status
            }
            Err(fault) => fault.status()?,
        };
        Ok(bytes(&LockResult {
            cookie: args.cookie,
            status,
        }))
    }

    /// Locks, or answers that it would have to wait; with [`Wait::Yes`], does.
    fn try_lock(&self, asked: &Asked, wait: Wait) -> Result<Status, Fault> {
        let locks = &self.server.export.locks;
        locks.lock(&self.cx(), &*asked.node, asked.lock.clone(), wait)?;
        Ok(Status::Granted)
    }

    /// Takes the owner's locks off the range.
    fn give_back(&self, asked: &Asked) -> Result<Status, Fault> {
        let (locks, lock) = (&self.server.export.locks, &asked.lock);
        let (start, end) = (lock.start, lock.end);
        locks.unlock(
            &self.cx(),
            &*asked.node,
            lock.space,
            start,
            end,
            &lock.owner,
        )?;
        Ok(Status::Granted)
    }

    fn cancel(&mut self) -> Answer {
        let args: CancelArgs<'_> = self.take()?;
        let status = match self.asked(&args.lock, args.exclusive) {
            Ok(asked) => {
                // One that was granted meanwhile is unlocked by the client, which knows of it or asks for that.
                self.server.waiting.cancel(&asked.lock.owner);
                Status::Granted
            }
            Err(fault) => fault.status()?,
        };
        Ok(bytes(&LockResult {
            cookie: args.cookie,
            status,
        }))
    }

    fn unlock(&mut self) -> Answer {
        let args: UnlockArgs<'_> = self.take()?;
        let status = match self.asked(&args.lock, false) {
            Ok(asked) => {
                // What a process that was killed has waited for, it wants no more.
                self.server.waiting.cancel(&asked.lock.owner);
                let status = self.give_back(&asked).or_else(Fault::status)?;
                self.settle(&asked, status);
                status
            }
            Err(fault) => fault.status()?,
        };
        Ok(bytes(&LockResult {
            cookie: args.cookie,
            status,
        }))
    }

    /// The lock that a client means.
    fn asked(&self, lock: &crate::nlm::Lock<'_>, exclusive: bool) -> Result<Asked, Fault> {
        if lock.caller.len() > MAX_NAME || lock.owner.len() > MAX_OBJECT {
            return Err(Fault::Status(Status::Failed));
        }
        let handle = FileHandle::read(lock.file).ok_or(Fault::Status(Status::StaleFh))?;
        let cx = self.cx();
        let node = self.server.node(&cx, &handle)?;
        self.check_access(&node)?;
        let end = match lock.len {
            0 => u64::MAX,
            len => lock
                .offset
                .checked_add(len - 1)
                .ok_or(Fault::Status(Status::Fbig))?,
        };
        let name = (self.call.addr(), lock.caller.into());
        let now = (self.server.options.clock)();
        let client = self.server.clients.number(name, self.call.account(), now);
        let client = client.ok_or(Fault::Status(Status::DeniedNoLocks))?;
        let process = lock.process.to_be_bytes();
        Ok(Asked {
            node,
            lock: Lock {
                space: Space::Posix,
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

    /// Who may neither read nor write a file, nor owns it, may not lock it.
    fn check_access(&self, node: &Arc<dyn Node>) -> Result<(), Fault> {
        let cx = self.cx();
        let may = node.access(&cx, Access::READ | Access::WRITE)?;
        if !may.is_empty() {
            return Ok(());
        }
        match self.server.file(&cx, node, OpenFlags::READ) {
            Err(Errno::EACCES) => Err(Fault::Status(Status::Failed)),
            done => Ok(done.map(drop)?),
        }
    }

    /// Forgets the node, if nobody holds any lock of it that is known of.
    fn settle(&self, asked: &Asked, status: Status) {
        let (client, node) = (asked.lock.owner.client, &asked.node);
        self.server.clients.settle(client, node.id(), || {
            let whole = Lock {
                start: 0,
                end: u64::MAX,
                kind: LockKind::Exclusive,
                owner: Owner {
                    client: 0,
                    id: Arc::from([]),
                    pid: 0,
                },
                ..asked.lock.clone()
            };
            let held = self.server.export.locks.holder(&self.cx(), &**node, &whole);
            status != Status::Blocked && matches!(held, Ok(None))
        });
    }

    /// A client has restarted: what it held is free.
    fn restarted(&self, name: &[u8]) {
        static RESTARTED: LogLimit<Option<PeerKey>> = LogLimit::new();
        let Some((client, nodes)) = self.server.clients.remove(self.call.addr(), name) else {
            return;
        };
        if let Some(suppressed) = RESTARTED.permit(self.call.account().client()) {
            let client = name.escape_ascii();
            tracing::info!(%client, suppressed, "restarted: its locks are free");
        }
        self.server.waiting.cancel_all_of(client);
        // Whoever says so: it may be another address of the client's, which may do less.
        let call = Call::detached();
        for node in nodes {
            let locks = &self.server.export.locks;
            let cx = Cx::new(&Caller::ROOT, &call);
            locks.release(&cx, &*node, |owner| owner.client == client);
        }
    }
}

/// An owner's bytes, without its process; nothing of one of another protocol's that is too short for it.
fn owner_of(held: &Lock) -> &[u8] {
    let id = &held.owner.id;
    &id[..id.len().saturating_sub(4).min(MAX_OBJECT)]
}

/// Why a lock is not got.
enum Fault {
    Status(Status),
    Later(Stop),
}

impl From<Errno> for Fault {
    fn from(errno: Errno) -> Fault {
        if let Some(stop) = Stop::later(errno) {
            return Fault::Later(stop);
        }
        Fault::Status(match errno {
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

impl Fault {
    fn status(self) -> Result<Status, Stop> {
        match self {
            Fault::Status(status) => Ok(status),
            Fault::Later(stop) => Err(stop),
        }
    }
}
