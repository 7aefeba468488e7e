//! The callback channel: calls to clients over the connections that their sessions are bound to
//! (RFC 8881 sections 18.33 and 20, RFC 7862 section 16).
//!
//! The state chooses the calls and their connections. This module encodes and sends them, and
//! decodes the replies.

use vfs::{Call, Caller, Cx};
use wire::{Xdr as _, XdrReader};

use super::state::{CallAs, CallHow, Calling, NodeKey, What};
use crate::rpc::{self, CALL, OpaqueAuth, flavor};
use crate::server::{Server, Tree};
use crate::v4::callback::{
    COMPOUND, CallbackHead, CallbackOp, CallbackSequence, CalledBack, DELEGATIONS, NotifyLock,
    Offload, Offloaded, Recall, RecallAny, VERSION,
};
use crate::v4::types::{CallbackSecurity, Owner, Stable, WriteResponse};
use crate::v4::{ClientId, Status};

impl Server {
    /// Recalls the delegations of `key` because of a conflicting request.
    pub(in crate::server) fn recall(&self, key: NodeKey) {
        for client in self.state.recall(key) {
            self.call_back(client);
        }
    }

    /// Sends `client` the pending callbacks that can be sent now.
    pub(in crate::server) fn call_back(&self, client: ClientId) {
        for calling in self.state.callbacks(client) {
            let xid = calling.xid;
            tracing::debug!(client, xid, what = ?calling.what, "callback sent");
            if !self.say(&calling) {
                self.state.not_called(xid);
            }
        }
    }

    fn say(&self, calling: &Calling<Tree>) -> bool {
        let Some(voice) = self.voice(calling.connection) else {
            return false;
        };
        let call = Call::detached();
        let cx = Cx::new(&Caller::ROOT, &call);
        let found = calling.node.as_ref();
        match found
            .map(|found| self.handle_in(&cx, &found.node, found.at_name))
            .transpose()
        {
            Ok(handle) => {
                let handle = handle.map(|handle| handle.bytes());
                voice.say(&message(calling, &handle.unwrap_or_default()))
            }
            Err(_) => false,
        }
    }

    /// Handles the reply in `from` of a client to call `xid` over `connection`.
    pub(in crate::server) fn called_back(
        &self,
        connection: u64,
        xid: u32,
        from: &mut XdrReader<'_>,
    ) {
        let became = CalledBack::read(from).unwrap_or(CalledBack::Refused);
        if let Some(client) = self.state.called_back(connection, xid, became) {
            self.call_back(client);
        }
    }

    /// Revokes the delegations that were not returned in time, and repeats calls.
    pub(in crate::server) fn tend_callbacks(&self) {
        for client in self.state.tend_callbacks() {
            self.call_back(client);
        }
    }
}

/// Returns how to call a client: with the first of its security flavors that is supported, or
/// `None` if there is none.
pub(super) fn call_how(
    program: u32,
    minor: u32,
    security: &[CallbackSecurity<'_>],
) -> Option<CallHow> {
    let known = security.iter().find_map(|way| match way {
        CallbackSecurity::None => Some(CallAs::Nobody),
        CallbackSecurity::Sys(sys) => {
            let mut body = Vec::new();
            sys.put(&mut body);
            Some(CallAs::Sys(body.into()))
        }
        CallbackSecurity::Gss(_) => None,
    });
    let call_as = match known {
        None if security.is_empty() => CallAs::Nobody,
        known => known?,
    };
    Some(CallHow {
        program,
        minor,
        call_as,
    })
}

/// Encodes a call. `handle` is the handle of the file that it concerns, empty if none.
fn message(calling: &Calling<Tree>, handle: &[u8]) -> Vec<u8> {
    let mut message = vec![0; rpc::MARK];
    calling.xid.put(&mut message);
    CALL.put(&mut message);
    let credential = match &calling.how.call_as {
        CallAs::Nobody => OpaqueAuth::NONE,
        CallAs::Sys(body) => OpaqueAuth {
            flavor: flavor::SYS,
            body,
        },
    };
    rpc::Call::of(calling.how.program, VERSION, COMPOUND, credential).put(&mut message);
    let head = CallbackHead {
        tag: b"",
        minor: calling.how.minor,
        ident: 0,
        count: 2,
    };
    head.put(&mut message);
    let sequence = CallbackOp::Sequence(CallbackSequence {
        session: calling.session,
        sequence: calling.sequence,
        slot: calling.slot,
        highest_slot: calling.highest_slot,
        cache_this: false,
        referring: 0,
    });
    sequence.put(&mut message);
    let what = match &calling.what {
        What::Recall(state) => CallbackOp::Recall(Recall {
            state: *state,
            truncate: false,
            handle,
        }),
        What::RecallAny(keep) => CallbackOp::RecallAny(RecallAny {
            keep: *keep,
            kinds: DELEGATIONS,
        }),
        What::MayLock(owner) => CallbackOp::NotifyLock(NotifyLock {
            handle,
            // CB_NOTIFY_LOCK goes only over sessions, whose clients know their own ID.
            owner: Owner {
                client: 0,
                name: owner,
            },
        }),
        What::Copied(state, ended) => CallbackOp::Offload(Offload {
            handle,
            state: *state,
            how: match ended.status {
                Status::Ok => Offloaded::Done(WriteResponse {
                    callback: Vec::new(),
                    count: ended.count,
                    committed: Stable::Unstable,
                    verifier: ended.verifier,
                }),
                failed => Offloaded::Failed(failed, ended.count),
            },
        }),
    };
    what.put(&mut message);
    let mark = (message.len() - rpc::MARK) as u32 | rpc::LAST;
    message[..rpc::MARK].copy_from_slice(&mark.to_be_bytes());
    message
}
