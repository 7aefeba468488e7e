//! The callback channel: calls to clients over the connections that their sessions are bound to
//! (RFC 8881 sections 18.33 and 20, RFC 7862 section 16).
//!
//! The state chooses the calls and their connections. This module encodes and sends them, and
//! decodes the replies.

use vfs::{Call, Caller, Cx};
use wire::{Xdr as _, XdrReader};

use super::state::{Callback, CallbackCredential, CallbackKind, CallbackParameters, NodeKey};
use crate::rpc::{self, CALL, OpaqueAuth, flavor};
use crate::server::Server;
use crate::server::filehandle::Located;
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
        for callback in self.state.callbacks(client) {
            let xid = callback.xid;
            tracing::debug!(client, xid, kind = ?callback.kind, "callback sent");
            if !self.send(&callback) {
                self.state.callback_not_sent(xid);
            }
        }
    }

    fn send(&self, callback: &Callback<Located>) -> bool {
        let Some(writer) = self.backchannel_writer(callback.connection) else {
            return false;
        };
        let call = Call::detached();
        let cx = Cx::new(&Caller::ROOT, &call);
        let found = callback.node.as_ref();
        match found
            .map(|found| self.handle_in(&cx, &found.node, found.at_name))
            .transpose()
        {
            Ok(handle) => {
                let handle = handle.map(|handle| handle.bytes());
                writer.send(&message(callback, &handle.unwrap_or_default()))
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
    pub(in crate::server) fn maintain_callbacks(&self) {
        for client in self.state.maintain_callbacks() {
            self.call_back(client);
        }
    }
}

/// Returns how to call a client: with the first of its security flavors that is supported, or
/// `None` if there is none.
pub(super) fn callback_parameters(
    program: u32,
    minor: u32,
    security: &[CallbackSecurity<'_>],
) -> Option<CallbackParameters> {
    let supported = security.iter().find_map(|security| match security {
        CallbackSecurity::None => Some(CallbackCredential::None),
        CallbackSecurity::Sys(sys) => {
            let mut body = Vec::new();
            sys.put(&mut body);
            Some(CallbackCredential::Sys(body.into()))
        }
        CallbackSecurity::Gss(_) => None,
    });
    let credential = match supported {
        None if security.is_empty() => CallbackCredential::None,
        supported => supported?,
    };
    Some(CallbackParameters {
        program,
        minor,
        credential,
    })
}

/// Encodes a call. `handle` is the handle of the file that it concerns, empty if none.
fn message(callback: &Callback<Located>, handle: &[u8]) -> Vec<u8> {
    let mut message = vec![0; rpc::MARK];
    callback.xid.put(&mut message);
    CALL.put(&mut message);
    let credential = match &callback.parameters.credential {
        CallbackCredential::None => OpaqueAuth::NONE,
        CallbackCredential::Sys(body) => OpaqueAuth {
            flavor: flavor::SYS,
            body,
        },
    };
    rpc::Call::of(callback.parameters.program, VERSION, COMPOUND, credential).put(&mut message);
    let head = CallbackHead {
        tag: b"",
        minor: callback.parameters.minor,
        ident: 0,
        count: 2,
    };
    head.put(&mut message);
    let sequence = CallbackOp::Sequence(CallbackSequence {
        session: callback.session,
        sequence: callback.sequence,
        slot: callback.slot,
        highest_slot: callback.highest_slot,
        cache_this: false,
        referring: 0,
    });
    sequence.put(&mut message);
    let operation = match &callback.kind {
        CallbackKind::Recall(state) => CallbackOp::Recall(Recall {
            state: *state,
            truncate: false,
            handle,
        }),
        CallbackKind::RecallAny(keep) => CallbackOp::RecallAny(RecallAny {
            keep: *keep,
            kinds: DELEGATIONS,
        }),
        CallbackKind::NotifyLock(owner) => CallbackOp::NotifyLock(NotifyLock {
            handle,
            // CB_NOTIFY_LOCK goes only over sessions, whose clients know their own ID.
            owner: Owner {
                client: 0,
                name: owner,
            },
        }),
        CallbackKind::Offload(state, ended) => CallbackOp::Offload(Offload {
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
    operation.put(&mut message);
    let mark = (message.len() - rpc::MARK) as u32 | rpc::LAST;
    message[..rpc::MARK].copy_from_slice(&mark.to_be_bytes());
    message
}
