//! LOCK, LOCKT, LOCKU (RFC 8881 sections 18.10 to 18.12), RELEASE_LOCKOWNER (RFC 7530 section
//! 16.37).

use std::sync::{Arc, Weak};
use std::task::{Wake, Waker};

use super::compound::{Compound, OpError, OpResult};
use super::open_file::ExportTree;
use super::state::{ClientRef, Locker, NodeKey, Waiter};
use crate::server::{RequestContext, Server};
use crate::v4::Status;
use crate::v4::op::{self, Lock, TestLock, Unlock};
use crate::v4::types::{Denied, LockKind, Owner};
use vfs::lock::{Lock as Range, LockFamily, LockKind as Strength, Owner as Locks, Wait};
use vfs::{Call, Cx, Errno, Node};

impl RequestContext<'_, Compound> {
    pub(super) fn lock(&mut self, args: Lock<'_>) -> OpResult {
        let node = self.regular()?;
        let (start, end) = range(args.offset, args.length)?;
        let (stateid, seqid) = match &args.locker {
            op::Locker::New(new) => (new.open, new.open_seqid),
            op::Locker::Old(old) => (old.state, old.seqid),
        };
        let stateid = self.resolve_stateid(&stateid)?;
        self.with_stateid_client(&stateid, seqid, |request, client| {
            let locker = match &args.locker {
                // v4.1 clients leave the owner's client out.
                op::Locker::New(new)
                    if request.compound.minor == 0 && new.owner.client != client.id() =>
                {
                    request.server.state.client(new.owner.client)?;
                    return Err(Status::BadStateid.into());
                }
                op::Locker::New(new) => Locker::New {
                    open: &stateid,
                    owner: new.owner.name,
                    seqid: new.lock_seqid,
                },
                op::Locker::Old(_) => Locker::Known { lock: &stateid },
            };
            let kind = lock_kind_of(args.kind);
            let waits = matches!(args.kind, LockKind::ReadWait | LockKind::WriteWait);
            let state = &request.server.state;
            let locking = state.lock(client, locker, request.key(&node), kind, args.reclaim)?;
            let lock = Range {
                family: LockFamily::Posix,
                start,
                end,
                kind,
                owner: locking.owner().clone(),
            };
            let waiter = Waiter {
                client: client.id(),
                key: request.key(&node),
                owner: lock.owner.id.clone(),
            };
            match waits {
                true => request.lock_fairly(client, &waiter, &node, &lock)?,
                false => request.try_lock(&node, &lock)?,
            }
            request.forbid_restart();
            if let Some(call) = state.end_wait(&waiter) {
                cancel_wait(request.server, waiter.key, &call);
            }
            let state = locking.granted(start, end)?;
            request.changed(state);
            Ok(())
        })
    }

    /// Acquires a lock in the lock table, or writes the conflicting lock and returns `DENIED`.
    fn try_lock(&mut self, node: &Arc<dyn Node>, lock: &Range) -> OpResult {
        let cx = self.cx();
        let server = self.server;
        loop {
            match server.export.locks.lock(&cx, &**node, lock.clone(), false) {
                Err(Errno::EAGAIN) => {}
                done => return Ok(done?),
            }
            let Some(holder) = server.export.locks.holder(&cx, &**node, lock)? else {
                // The conflicting lock has just been released, or is just being acquired.
                return Err(Status::Delay.into());
            };
            if !server.state.revoke_expired_holder(holder.owner.client) {
                return self.denied(&holder);
            }
        }
    }

    /// Acquires a lock as [`RequestContext::try_lock`] does, but for a waiting owner: after those
    /// that have waited longer, and from now on with a place in the queue.
    fn lock_fairly(
        &mut self,
        client: &ClientRef<ExportTree>,
        waiter: &Waiter,
        node: &Arc<dyn Node>,
        lock: &Range,
    ) -> OpResult {
        let server = self.server;
        let (state, locks) = (&server.state, &server.export.locks);
        let notifier = LockNotifier {
            server: Arc::downgrade(server),
            waiter: waiter.clone(),
        };
        let located = self.located(node.clone());
        let make = || self.call.retried_by_client(Waker::from(Arc::new(notifier)));
        let Some(queue_place) = state.wait_for_lock(client, waiter, (&located, lock), make) else {
            return self.try_lock(node, lock);
        };
        if let Some(before) = queue_place.before {
            cancel_wait(server, waiter.key, &before);
        }
        let cx = Cx {
            call: &queue_place.call,
            ..self.cx()
        };
        loop {
            match locks.lock(&cx, &**node, lock.clone(), Wait::Yes) {
                Err(Errno::PARKED) => {}
                // The same owner waits for another lock at the same time.
                Err(Errno::EINTR) => return Err(Status::Delay.into()),
                Err(errno) if !errno.is_signal() => {
                    // The lock table has removed the waiter, and would never wake it.
                    state.end_wait(waiter);
                    return Err(errno.into());
                }
                done => return Ok(done?),
            }
            if queue_place.call.take_wake_within().is_some() {
                state.record_unseen_release(waiter);
            }
            let holder = locks.holder(&cx, &**node, lock)?;
            let Some(holder) = holder.or_else(|| locks.next_waiter(node.id(), lock)) else {
                // The conflicting lock has just been released, or is just being acquired.
                return Err(Status::Delay.into());
            };
            if !state.revoke_expired_holder(holder.owner.client) {
                return self.denied(&holder);
            }
        }
    }

    fn denied(&mut self, holder: &Range) -> OpResult {
        let length = match holder.end {
            u64::MAX => u64::MAX,
            end => end - holder.start + 1,
        };
        self.reply.value(&Denied {
            offset: holder.start,
            length,
            kind: match holder.kind {
                Strength::Shared => LockKind::Read,
                Strength::Exclusive => LockKind::Write,
            },
            owner: Owner {
                client: self
                    .server
                    .state
                    .client_of_lock(holder.owner.client)
                    .unwrap_or_default(),
                name: &holder.owner.id,
            },
        });
        Err(OpError::WithBody(Status::Denied))
    }

    pub(super) fn test_lock(&mut self, args: TestLock<'_>) -> OpResult {
        let node = self.regular()?;
        let (start, end) = range(args.offset, args.length)?;
        let state = &self.server.state;
        if state.locks_in_grace() {
            return Err(Status::Grace.into());
        }
        let client: ClientRef<ExportTree> = match self.compound.minor {
            0 => {
                self.check_client(args.owner.client)?;
                state.client(args.owner.client)?
            }
            _ => self.session_client()?,
        };
        let owner: Locks = client.lock_owner(args.owner.name);
        let lock = Range {
            family: LockFamily::Posix,
            start,
            end,
            kind: lock_kind_of(args.kind),
            owner,
        };
        let cx = self.cx();
        loop {
            match self.server.export.locks.holder(&cx, &*node, &lock)? {
                None => return Ok(()),
                Some(holder) if state.revoke_expired_holder(holder.owner.client) => {}
                Some(holder) => return self.denied(&holder),
            }
        }
    }

    pub(super) fn unlock(&mut self, args: Unlock) -> OpResult {
        let node = self.regular()?;
        let (start, end) = range(args.offset, args.length)?;
        let stateid = self.resolve_stateid(&args.state)?;
        self.with_stateid_client(&stateid, args.seqid, |request, client| {
            let server = request.server;
            let unlocking = server.state.unlock(client, &stateid, request.key(&node))?;
            let cx = request.cx();
            let locks = &server.export.locks;
            locks.unlock(
                &cx,
                &*node,
                LockFamily::Posix,
                start,
                end,
                unlocking.owner(),
            )?;
            request.forbid_restart();
            let state = unlocking.done(start, end)?;
            request.changed(state);
            Ok(())
        })
    }

    pub(super) fn release_lock_owner(&mut self, owner: Owner<'_>) -> OpResult {
        let state = &self.server.state;
        self.check_client(owner.client)?;
        let client = state.client(owner.client)?;
        Ok(state.release_lock_owner(&client, owner.name)?)
    }
}

/// The waker of a waiting lock owner: notifies its client that the lock may be available.
struct LockNotifier {
    server: Weak<Server>,
    waiter: Waiter,
}

impl Wake for LockNotifier {
    fn wake(self: Arc<Self>) {
        if let Some(server) = self.server.upgrade()
            && server.state.woken(&self.waiter)
        {
            server.call_back(self.waiter.client);
        }
    }
}

impl Server {
    /// Removes the waiting owners whose clients have not retried in time.
    pub(in crate::server) fn maintain_lock_waiters(&self) {
        for (key, call) in self.state.take_expired_waits() {
            cancel_wait(self, key, &call);
        }
    }
}

/// Removes the waiter of `call` from the lock table's queue.
fn cancel_wait(server: &Server, key: NodeKey, call: &Call) {
    call.cancel();
    server.export.locks.cancel_wait(key.node, call);
}

fn lock_kind_of(kind: LockKind) -> Strength {
    match kind {
        LockKind::Read | LockKind::ReadWait => Strength::Shared,
        LockKind::Write | LockKind::WriteWait => Strength::Exclusive,
    }
}

/// Returns the first and the last byte of a range. A length of all ones means up to the end.
fn range(offset: u64, length: u64) -> Result<(u64, u64), Status> {
    match length {
        0 => Err(Status::Inval),
        u64::MAX => Ok((offset, u64::MAX)),
        _ => match offset.checked_add(length - 1) {
            Some(end) => Ok((offset, end)),
            None => Err(Status::Inval),
        },
    }
}
