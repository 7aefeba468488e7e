//! COPY, and what asks after and ends one that goes on behind its answer (RFC 7862 sections 4, 15.2, 15.8 and 15.9).
//!
//! A copy is carried out while the client waits, for a second. What is not done then goes on by whoever takes long work off
//! this room ([`super::super::Options::run`]), step by step; the client is told of its end by CB_OFFLOAD. A client that
//! cannot be told, or wants to wait, is answered with what there is, and asks again for the rest.

use std::sync::{Arc, Weak};
use std::time::Duration;

use vfs::{Caller, CopyHow, Cx, Errno, File, Node, Want};

use super::state::{ClientRef, NodeKey, Offload, Offloading, Share, Special, special};
use super::{Compound, Done, Files};
use crate::server::{Server, Stop, Tree};
use crate::v4::op::Copy;
use crate::v4::reply::{Copied, OffloadState};
use crate::v4::types::{Stable, WriteResponse};
use crate::v4::{StateId, Status, Verifier};

/// How long a copy goes on before it is answered, with what there is of it or as one that goes on: no client waits so long
/// that it takes the answer for lost.
const COPY_TIME: Duration = Duration::from_secs(1);

/// How much is copied between two looks at the clock, or at whether it may go on: a second's work of a slow disk.
const COPY_STEP: u64 = 16 << 20;

/// A copy under way.
struct Copying {
    from: Arc<dyn File>,
    to: Arc<dyn File>,
    from_offset: u64,
    to_offset: u64,
    length: u64,
    /// How many bytes are copied.
    count: u64,
}

impl Copying {
    /// Copies some more. Whether there is more behind that.
    fn step(&mut self, cx: &Cx<'_>) -> Result<bool, Errno> {
        let step = (self.length - self.count).min(COPY_STEP);
        let at = self.from_offset + self.count;
        let to_at = self.to_offset.saturating_add(self.count);
        let more = self
            .from
            .copy(cx, at, &*self.to, to_at, step, CopyHow::Any)?;
        self.count += more;
        Ok(more > 0 && self.count < self.length)
    }
}

impl Compound<'_, '_> {
    pub(super) fn copy(&mut self, op: Copy<'_>) -> Done {
        let server = self.turn.server;
        let clock = &server.options.clock;
        let began = clock();
        if !op.servers.is_empty() {
            return Err(Status::Notsupp.into());
        }
        let [from, to] = self.two_files(&op.from, &op.to)?;
        let cx = self.cx();
        let size = from.attr(&cx, Want::SIZE)?.size;
        let length = match op.count {
            0 => size.checked_sub(op.from_offset).ok_or(Status::Inval)?,
            count => match op.from_offset.checked_add(count) {
                Some(end) if end <= size => count,
                _ => return Err(Status::Inval.into()),
            },
        };
        cx.may_wait()?;
        // They would overlap, which no part of it shows.
        let apart = op.from_offset.abs_diff(op.to_offset);
        if self.saved_node()?.id() == self.node()?.id() && apart < length {
            return Err(Status::Inval.into());
        }
        let mut copying = Copying {
            from,
            to,
            from_offset: op.from_offset,
            to_offset: op.to_offset,
            length,
            count: 0,
        };
        // What is lost from here on is written again.
        let verifier = server.write_verifier();
        let may_go_on = !op.synchronous && self.may_go_on();
        let mut more = length > 0;
        while more
            && (clock().saturating_sub(began) < COPY_TIME || copying.count == 0 && !may_go_on)
        {
            more = match copying.step(&cx) {
                Ok(more) => more,
                Err(errno) if copying.count == 0 => return Err(errno.into()),
                // It comes again for the rest.
                Err(_) => false,
            };
            self.affected();
        }
        let count = copying.count;
        let callback = match more && may_go_on {
            true => self.goes_on(&op, copying, verifier)?,
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

    fn may_go_on(&self) -> bool {
        let server = self.turn.server;
        let client = self.session_client();
        server.options.run.is_some() && client.is_ok_and(|client| server.state.may_offload(&client))
    }

    /// Has a copy go on behind the answer. What names it then, if there is room.
    fn goes_on(
        &self,
        op: &Copy<'_>,
        copying: Copying,
        verifier: Verifier,
    ) -> Result<Option<StateId>, Status> {
        let server = self.turn.server;
        let client = self.session_client()?;
        let (source, target) = (self.saved_node()?, self.node()?);
        let held = |given: &StateId, node: &Arc<dyn Node>, share| {
            let given = self.current_of(given)?;
            Ok::<_, Status>(Held {
                // Whichever of its states: another open by the same owner makes a new one.
                state: match special(&given) {
                    Some(_) => given,
                    None => StateId { seqid: 0, ..given },
                },
                key: self.key(node),
                share,
            })
        };
        let held = [
            held(&op.from, &source, Share::READ)?,
            held(&op.to, &target, Share::WRITE)?,
        ];
        let offloading = Offloading {
            key: self.key(&target),
            node: self.located(target),
            call: self.turn.call.beside(),
            count: copying.count,
            verifier,
        };
        let Some((state, offload)) = server.state.offload(&client, offloading) else {
            return Ok(None);
        };
        let going = GoingOn {
            server: Arc::downgrade(server),
            client,
            caller: self.turn.caller.clone(),
            held,
            copying,
            offload,
            status: Status::Ok,
        };
        going.again(server);
        Ok(Some(state))
    }

    pub(super) fn offload_status(&mut self, given: StateId) -> Done {
        let key = self.key(&self.node()?);
        let client = self.session_client()?;
        let given = self.current_of(&given)?;
        let state = &self.turn.server.state;
        let (count, ended) = state.offload_status(&client, &given, key)?;
        self.reply.value(&OffloadState {
            count,
            complete: ended.into_iter().collect(),
        });
        Ok(())
    }

    pub(super) fn offload_cancel(&mut self, given: StateId) -> Done {
        let key = self.key(&self.node()?);
        let client = self.session_client()?;
        let given = self.current_of(&given)?;
        let state = &self.turn.server.state;
        Ok(state.offload_cancel(&client, &given, key)?)
    }
}

/// By what a file is read or written.
struct Held {
    state: StateId,
    key: NodeKey,
    share: Share,
}

impl Held {
    /// Whether that is still so: the open was not closed or revoked, and nobody denies it who may.
    fn is_held(&self, server: &Server, client: &ClientRef<Files, Tree>) -> Result<(), Status> {
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

/// A copy that goes on behind its answer. Dropping it is its end.
struct GoingOn {
    server: Weak<Server>,
    client: ClientRef<Files, Tree>,
    caller: Caller,
    /// Source and target.
    held: [Held; 2],
    copying: Copying,
    offload: Arc<Offload>,
    /// What was in the way.
    status: Status,
}

impl GoingOn {
    /// Has another step done.
    fn again(self, server: &Server) {
        if let Some(run) = &server.options.run {
            run(Box::new(move || self.go_on()));
        }
    }

    fn go_on(mut self) {
        let Some(server) = self.server.upgrade() else {
            return;
        };
        match self.step(&server) {
            Ok(true) => self.again(&server),
            Ok(false) => {}
            Err(status) => self.status = status,
        }
    }

    fn step(&mut self, server: &Server) -> Result<bool, Status> {
        self.offload.call().check()?;
        for held in &self.held {
            held.is_held(server, &self.client)?;
        }
        let cx = Cx::new(&self.caller, self.offload.call());
        let more = self.copying.step(&cx);
        self.offload.has_come_to(self.copying.count);
        more.map_err(|errno| match Stop::later(errno) {
            Some(_) => Status::Delay,
            None => errno.into(),
        })
    }
}

impl Drop for GoingOn {
    fn drop(&mut self) {
        if let Some(server) = self.server.upgrade()
            && let Some(client) = server.state.offload_ended(&self.offload, self.status)
        {
            server.call_back(client);
        }
    }
}
