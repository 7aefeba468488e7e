//! COPY, OFFLOAD_STATUS and OFFLOAD_CANCEL (RFC 7862 sections 4, 15.2, 15.8 and 15.9).
//!
//! A copy runs synchronously for up to a second. The rest continues asynchronously, step by step,
//! on the executor of long work that the embedder supplies ([`super::super::Options::run`]), and
//! CB_OFFLOAD reports its completion. If the client has no callback channel or asked for a
//! synchronous copy, the reply says how much was copied, and the client sends another COPY for the
//! rest.
//!
//! Each step is a request of its own for limits of the share. A step that has to wait ends the
//! synchronous part, and parks an asynchronous copy without a thread. A wait that no wake-up ends,
//! such as that for a lease, sleeps on the worker.
//!
//! Lock order: none. A parked copy is scheduled without its lock.

use std::sync::{Arc, Weak};
use std::task::{Wake, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use vfs::{AttrMask, Caller, CopyMode, Cx, Errno, File, Node, OpenFlags};

use super::compound::{Compound, OpError, OpResult};
use super::open_file::ExportTree;
use super::state::{ClientRef, NodeKey, Offload, OffloadArgs, Share, Special, special};
use crate::server::{RequestContext, Server};
use crate::v4::op::{Clone, Copy};
use crate::v4::reply::{Copied, OffloadState};
use crate::v4::types::{Stable, WriteResponse};
use crate::v4::{StateId, Status, Verifier};

/// The time after which a copy is answered, with its progress or as an asynchronous one: too short
/// for a client to take the reply for lost.
const COPY_TIME: Duration = Duration::from_secs(1);

/// The bytes copied between two checks of the clock or of the permission to continue: a slow disk
/// takes a second for them.
const COPY_STEP: u64 = 16 << 20;

/// A copy in progress.
struct CopyProgress {
    from: Arc<dyn File>,
    to: Arc<dyn File>,
    from_offset: u64,
    to_offset: u64,
    length: u64,
    /// The number of bytes copied.
    count: u64,
}

impl CopyProgress {
    /// Copies the next step. Returns whether there is more to copy.
    fn step(&mut self, cx: &Cx<'_>) -> Result<bool, Errno> {
        let step = (self.length - self.count).min(COPY_STEP);
        let at = self.from_offset + self.count;
        let to_at = self.to_offset.saturating_add(self.count);
        let more = self
            .from
            .copy(cx, at, &*self.to, to_at, step, CopyMode::Any)?;
        self.count += more;
        Ok(more > 0 && self.count < self.length)
    }
}

impl RequestContext<'_, Compound> {
    pub(super) fn copy(&mut self, args: Copy<'_>) -> OpResult {
        let server = self.server;
        let clock = &server.options.clock;
        let began = clock();
        if !args.servers.is_empty() {
            return Err(Status::Notsupp.into());
        }
        let [from, to] = self.two_files(&args.from, &args.to)?;
        let cx = self.cx();
        let size = from.attr(&cx, AttrMask::SIZE)?.size;
        let length = match args.count {
            0 => size.checked_sub(args.from_offset).ok_or(Status::Inval)?,
            count => match args.from_offset.checked_add(count) {
                Some(end) if end <= size => count,
                _ => return Err(Status::Inval.into()),
            },
        };
        cx.check_may_block()?;
        // Overlapping ranges, which the steps could not detect.
        let apart = args.from_offset.abs_diff(args.to_offset);
        if self.saved_node()?.id() == self.node()?.id() && apart < length {
            return Err(Status::Inval.into());
        }
        let mut progress = CopyProgress {
            from,
            to,
            from_offset: args.from_offset,
            to_offset: args.to_offset,
            length,
            count: 0,
        };
        // Taken first, so that the client rewrites data that a crash from here on loses.
        let verifier = server.write_verifier();
        let may_continue_async = !args.synchronous && self.may_continue_async();
        let mut more = length > 0;
        while more
            && (clock().saturating_sub(began) < COPY_TIME
                || progress.count == 0 && !may_continue_async)
        {
            let next = self.call.woken_by(Waker::noop().clone());
            let step = match progress.count {
                0 => cx,
                _ => Cx { call: &next, ..cx },
            };
            more = match progress.step(&step) {
                Ok(more) => more,
                Err(Errno::PARKED) if progress.count > 0 => break,
                Err(errno) if progress.count == 0 => return Err(errno.into()),
                // The client's next COPY, for the rest, gets the error.
                Err(_) => false,
            };
            self.forbid_restart();
        }
        let count = progress.count;
        let callback = match more && may_continue_async {
            true => self.continue_async(&args, progress, verifier)?,
            false => None,
        };
        if more && count == 0 && callback.is_none() {
            return Err(Status::Delay.into());
        }
        self.reply.value(&Copied {
            synchronous: callback.is_none(),
            written: WriteResponse {
                count: match callback {
                    Some(_) => 0,
                    None => count,
                },
                callback: callback.into_iter().collect(),
                committed: Stable::Unstable,
                verifier,
            },
            consecutive: true,
        });
        Ok(())
    }

    /// Returns the source and the target of a copy or clone.
    pub(super) fn two_files(
        &self,
        from: &StateId,
        to: &StateId,
    ) -> Result<[Arc<dyn File>; 2], OpError> {
        let (source, target) = (self.saved_node()?, self.node()?);
        self.check_regular(&source)?;
        self.check_regular(&target)?;
        Ok([
            self.file(from, &source, OpenFlags::READ)?,
            self.file(to, &target, OpenFlags::WRITE)?,
        ])
    }

    pub(super) fn clone_range(&mut self, args: Clone) -> OpResult {
        let [from, to] = self.two_files(&args.from, &args.to)?;
        let cx = self.cx();
        let size = from.attr(&cx, AttrMask::SIZE)?.size;
        let count = match args.count {
            0 => size.checked_sub(args.from_offset).ok_or(Status::Inval)?,
            count => count,
        };
        from.copy(
            &cx,
            args.from_offset,
            &*to,
            args.to_offset,
            count,
            CopyMode::Clone,
        )?;
        self.forbid_restart();
        Ok(())
    }

    fn may_continue_async(&self) -> bool {
        let server = self.server;
        let client = self.session_client();
        server.options.run.is_some() && client.is_ok_and(|client| server.state.may_offload(&client))
    }

    /// Continues a copy asynchronously. Returns its stateid, or `None` if there is no room for it.
    fn continue_async(
        &self,
        args: &Copy<'_>,
        progress: CopyProgress,
        verifier: Verifier,
    ) -> Result<Option<StateId>, Status> {
        let server = self.server;
        let client = self.session_client()?;
        let (source, target) = (self.saved_node()?, self.node()?);
        let copy_stateid = |stateid: &StateId, node: &Arc<dyn Node>, share| {
            let stateid = self.resolve_stateid(stateid)?;
            Ok::<_, Status>(CopyStateid {
                // Any state of the open: another open by the same owner increments the seqid.
                state: match special(&stateid) {
                    Some(_) => stateid,
                    None => StateId {
                        seqid: 0,
                        ..stateid
                    },
                },
                key: self.key(node),
                share,
            })
        };
        let stateids = [
            copy_stateid(&args.from, &source, Share::READ)?,
            copy_stateid(&args.to, &target, Share::WRITE)?,
        ];
        let parked = Arc::new(ParkedCopy::default());
        let waker = Waker::from(parked.clone());
        let call = self.call.woken_by(waker.clone());
        call.wake_on_cancel(&waker);
        let offload_args = OffloadArgs {
            key: self.key(&target),
            node: self.located(target),
            call,
            count: progress.count,
            verifier,
        };
        let Some((state, offload)) = server.state.offload(&client, offload_args) else {
            return Ok(None);
        };
        let copy = AsyncCopy {
            server: Arc::downgrade(server),
            client,
            caller: self.caller.clone(),
            stateids,
            progress,
            offload,
            parked,
            status: Status::Ok,
        };
        copy.schedule(server);
        Ok(Some(state))
    }

    pub(super) fn offload_status(&mut self, stateid: StateId) -> OpResult {
        let key = self.key(&self.node()?);
        let client = self.session_client()?;
        let stateid = self.resolve_stateid(&stateid)?;
        let state = &self.server.state;
        let (count, ended) = state.offload_status(&client, &stateid, key)?;
        self.reply.value(&OffloadState {
            count,
            complete: ended.into_iter().collect(),
        });
        Ok(())
    }

    pub(super) fn offload_cancel(&mut self, stateid: StateId) -> OpResult {
        let key = self.key(&self.node()?);
        let client = self.session_client()?;
        let stateid = self.resolve_stateid(&stateid)?;
        let state = &self.server.state;
        Ok(state.offload_cancel(&client, &stateid, key)?)
    }
}

/// The stateid with which a copy accesses a file.
struct CopyStateid {
    state: StateId,
    key: NodeKey,
    share: Share,
}

impl CopyStateid {
    /// Checks that the stateid is still valid: neither closed nor revoked, and no conflicting deny
    /// bits.
    fn check(&self, server: &Server, client: &ClientRef<ExportTree>) -> Result<(), Status> {
        match special(&self.state) {
            Some(Special::Bypass) if self.share == Share::READ => Ok(()),
            Some(_) => server.state.anonymous(self.key, self.share),
            None => {
                let (key, share) = (self.key, self.share);
                let file = server.state.io(Some(client), &self.state, key, share);
                file.map(drop)
            }
        }
    }
}

/// An asynchronous copy. Dropping it reports its completion.
struct AsyncCopy {
    server: Weak<Server>,
    client: ClientRef<ExportTree>,
    caller: Caller,
    /// The source and the target.
    stateids: [CopyStateid; 2],
    progress: CopyProgress,
    offload: Arc<Offload>,
    /// Its place while it waits.
    parked: Arc<ParkedCopy>,
    /// The error that ended the copy.
    status: Status,
}

/// The state of an asynchronous copy after a step.
enum AfterStep {
    More,
    /// The step is to be repeated once its call is woken.
    Parked,
    Complete,
}

/// The place of an asynchronous copy that waits, which is its call's waker.
#[derive(Default)]
struct ParkedCopy(Mutex<ParkedState>);

#[derive(Default)]
struct ParkedState {
    copy: Option<AsyncCopy>,
    /// Whether it was woken while it was not parked.
    woken: bool,
}

impl ParkedCopy {
    /// Parks `copy`, or returns it if it was woken meanwhile.
    fn park(&self, copy: AsyncCopy) -> Option<AsyncCopy> {
        let mut state = self.0.lock();
        match std::mem::take(&mut state.woken) {
            true => Some(copy),
            false => {
                state.copy = Some(copy);
                None
            }
        }
    }
}

impl Wake for ParkedCopy {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut state = self.0.lock();
        let copy = state.copy.take();
        state.woken = copy.is_none();
        drop(state);
        if let Some(copy) = copy
            && let Some(server) = copy.server.upgrade()
        {
            copy.schedule(&server);
        }
    }
}

impl AsyncCopy {
    /// Schedules the next step.
    fn schedule(self, server: &Server) {
        if let Some(run) = &server.options.run {
            run(Box::new(move || self.run_step()));
        }
    }

    fn run_step(mut self) {
        let Some(server) = self.server.upgrade() else {
            return;
        };
        match self.step(&server) {
            Ok(AfterStep::More) => self.schedule(&server),
            Ok(AfterStep::Parked) => {
                if let Some(time) = self.offload.call().take_wake_within() {
                    std::thread::sleep(time);
                    return self.schedule(&server);
                }
                let parked = self.parked.clone();
                if let Some(woken) = parked.park(self) {
                    woken.schedule(&server);
                }
            }
            Ok(AfterStep::Complete) => {}
            Err(status) => self.status = status,
        }
    }

    fn step(&mut self, server: &Server) -> Result<AfterStep, Status> {
        let call = self.offload.call();
        call.check()?;
        // The client requests the rest from the server that is active then.
        server.check_may_act().map_err(|_| Status::Delay)?;
        for stateid in &self.stateids {
            stateid.check(server, &self.client)?;
        }
        let cx = Cx::new(&self.caller, call);
        let more = self.progress.step(&cx);
        self.offload.set_progress(self.progress.count);
        match more {
            Ok(more) => {
                call.forget_admission();
                Ok(if more {
                    AfterStep::More
                } else {
                    AfterStep::Complete
                })
            }
            Err(Errno::PARKED) => Ok(AfterStep::Parked),
            Err(Errno::WOULD_BLOCK) => Err(Status::Delay),
            Err(errno) => Err(errno.into()),
        }
    }
}

impl Drop for AsyncCopy {
    fn drop(&mut self) {
        // The call lasts until the client has acknowledged the end.
        self.offload.call().abandon_admission();
        if let Some(server) = self.server.upgrade()
            && let Some(client) = server.state.offload_ended(&self.offload, self.status)
        {
            server.call_back(client);
        }
    }
}
