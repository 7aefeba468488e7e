//! A client's connection: parses calls, checks their credentials and encodes the replies.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Waker;

use parking_lot::Mutex;
use vfs::peer::Refusal;
use vfs::{Call, Caller, Groups, Patience, Peer};
use wire::{
    Buffered, ClientInfo, Incoming, Malformed, MessageSender, Outgoing, RequestTarget, Role,
    ServeOutcome, TlsPeer, Vocabulary, XdrReader,
};

use super::gss::Authenticated;
use super::reply::Reply;
use super::reply_bound;
use super::request::{Request, RequestContext};
use super::security::{self, TlsIdentity};
use super::{CallError, Server, Transports, call_names, mount, nlm, portmap, rquota, v3, v4};
use crate::rpc::{
    self, AuthStat, CALL, CallRejection, Credential, LAST, MARK, OpaqueAuth, REPLY, Record, flavor,
    program,
};

/// A client's connection. Dropping it ends it.
pub struct Connection {
    pub(super) server: Arc<Server>,
    /// Whether messages are records in a stream; if not, each is a datagram.
    pub(super) marked: bool,
    pub(super) id: u64,
    pub(super) calls: AtomicU64,
    /// The NFS version of the latest NFS call; 0 before the first.
    pub(super) version: AtomicU32,
    pub(super) tls_identity: OnceLock<TlsIdentity>,
    /// Calls in flight that RPCSEC_GSS has admitted and that will be served again, by context and
    /// sequence number.
    pub(super) admitted: Mutex<HashSet<(u32, u32)>>,
}

impl wire::Session for Connection {
    fn frame(&self, head: &[u8]) -> Result<Option<usize>, Malformed> {
        if !self.marked {
            return Ok(Some(head.len()));
        }
        rpc::frame(head, self.server.max_record())
    }

    /// Computes the bound from the procedure or operations: see `server/reply_bound.rs`.
    fn reply_bound(&self, message: &[u8], large: usize) -> usize {
        match self.server.max_record() {
            // No reply is that large.
            most if most < large => 0,
            most => reply_bound::of(message, self.marked, most),
        }
    }

    fn role(&self, _: &[u8]) -> Result<Role, Malformed> {
        // Not the XID: a client retransmits a call with the same XID.
        let id = self.calls.fetch_add(1, Ordering::Relaxed);
        Ok(Role::Request { id })
    }

    fn serve(
        &self,
        call: &Call,
        patience: Patience,
        message: &dyn Incoming,
        out: &mut dyn Outgoing,
    ) -> Result<ServeOutcome, Malformed> {
        self.server.check_may_act()?;
        let record = match self.marked {
            true => Record::new(message.bytes())?,
            false => Record::unmarked(message.bytes()),
        };
        let mut arguments = XdrReader::new(record.bytes());
        let xid = arguments.u32()?;
        match arguments.u32()? {
            CALL => {}
            REPLY => {
                self.server.called_back(self.id, xid, &mut arguments);
                return Ok(ServeOutcome::Done);
            }
            other => return Err(Malformed::new(format!("expected a call, got {other}"))),
        }
        let done = rpc::Call::read(&mut arguments)
            .map_err(CallError::Rejected)
            .and_then(|head| {
                let accepted = match self.marked {
                    true => self.server.options.transports,
                    // A datagram is never secured.
                    false => Transports {
                        none: self.server.options.transports.none,
                        ..Transports::PLAIN
                    },
                };
                if security::check_transport(&head, self.tls_identity.get(), accepted)? {
                    rpc::start_tls(xid, out);
                    return Ok(ServeOutcome::StartTls);
                }
                let request = Request {
                    xid,
                    call,
                    patience,
                    message,
                    record: &record,
                    head: &head,
                    identity: [record.bytes(), &[]],
                    arguments,
                };
                if let Some(gss) = &self.server.gss
                    && head.credential.flavor == flavor::GSS
                    && self.marked
                {
                    return self.serve_gss(gss, &request, out);
                }
                let caller = self.caller(call, &head)?;
                rpc::begin_reply(xid, self.marked, out);
                self.execute(&request, caller, None, out)?;
                Ok(ServeOutcome::Done)
            });
        // A grant that was made meanwhile may be too late.
        if let Err(why) = self.server.check_may_act() {
            out.truncate(0);
            return Err(why);
        }
        let answer = match done {
            Ok(answer) => answer,
            Err(CallError::Rejected(why)) => {
                tracing::debug!(connection = self.id, ?why, "refused");
                count_refusal(call, why);
                out.truncate(0);
                let to = &mut Buffered::new(out);
                rpc::refuse(xid, self.marked, why, OpaqueAuth::NONE, to);
                ServeOutcome::Done
            }
            Err(CallError::Retry(answer)) => {
                out.truncate(0);
                return Ok(answer);
            }
            Err(CallError::Unanswered) => {
                out.truncate(0);
                return Ok(ServeOutcome::Done);
            }
        };
        if self.amplifies(call, record.bytes(), out) {
            out.truncate(0);
            let (why, to) = (CallRejection::SystemError, &mut Buffered::new(out));
            rpc::refuse(xid, self.marked, why, OpaqueAuth::NONE, to);
        }
        self.mark(out);
        Ok(answer)
    }

    fn answer_failure(&self, message: &dyn Incoming, out: &mut dyn Outgoing) -> bool {
        let record = match self.marked {
            true => Record::new(message.bytes()),
            false => Ok(Record::unmarked(message.bytes())),
        };
        let Ok(xid) = record.and_then(|record| XdrReader::new(record.bytes()).u32()) else {
            return false;
        };
        let mut to = Buffered::new(out);
        rpc::refuse(
            xid,
            self.marked,
            CallRejection::SystemError,
            OpaqueAuth::NONE,
            &mut to,
        );
        drop(to);
        self.mark(out);
        true
    }

    fn tls_started(&self, peer: TlsPeer) {
        tracing::debug!(connection = self.id, ?peer, "secured");
        // Set once: a second request for TLS is refused.
        let _ = self
            .tls_identity
            .set(TlsIdentity::of(&peer, &self.server.options.users));
    }

    fn set_message_sender(&self, writer: Arc<dyn MessageSender>) {
        self.server.backchannel_writers().insert(self.id, writer);
    }

    fn vocabulary(&self) -> &'static Vocabulary {
        &call_names::VOCABULARY
    }

    fn target(&self, call: &Call, message: &[u8]) -> RequestTarget {
        self.call_target(call.export_number(), message)
    }

    fn client_info(&self) -> ClientInfo {
        let version = match self.version.load(Ordering::Relaxed) {
            0 => String::new(),
            version => format!("NFS v{version}"),
        };
        ClientInfo {
            version,
            user: String::new(),
        }
    }
}

/// Counts the client of `call` as refused, if its credentials are too weak.
pub(super) fn count_refusal(call: &Call, why: CallRejection) {
    if matches!(why, CallRejection::Auth(AuthStat::TooWeak))
        && let Some(peer) = call.peer()
    {
        peer.refuse(Refusal::WeakAuth);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.server.backchannel_writers().remove(&self.id);
        for client in self.server.state.disconnected(self.id) {
            self.server.call_back(client);
        }
    }
}

impl Connection {
    /// Writes the length of the reply in `out` into its record mark, if messages have record marks.
    fn mark(&self, out: &mut dyn Outgoing) {
        if self.marked {
            let mark = (out.len() - MARK) as u32 | LAST;
            out.patch(0, &mark.to_be_bytes());
        }
    }

    /// Returns whether `out` is a longer datagram than `message` to another host, whose address may
    /// be forged: that host would receive more than the forger sends. Clients use TCP instead.
    fn amplifies(&self, call: &Call, message: &[u8], out: &dyn Outgoing) -> bool {
        !self.marked && out.len() > message.len() && call.peer().is_some_and(Peer::is_remote)
    }

    pub(super) fn of(server: &Arc<Server>, marked: bool) -> Connection {
        Connection {
            server: server.clone(),
            marked,
            id: server.connections.fetch_add(1, Ordering::Relaxed),
            calls: AtomicU64::new(0),
            version: AtomicU32::new(0),
            tls_identity: OnceLock::new(),
            admitted: Mutex::default(),
        }
    }

    /// Executes the call `request` as `caller`, and appends the results to `out`.
    pub(super) fn execute(
        &self,
        request: &Request<'_>,
        caller: Caller,
        authenticated: Option<&Authenticated<'_>>,
        out: &mut dyn Outgoing,
    ) -> Result<(), CallError> {
        let rpc::Call {
            program,
            version,
            procedure,
            ..
        } = *request.head;
        if [program::NFS, program::NFS_ACL].contains(&program) && !self.marked {
            return Err(CallRejection::ProgramUnavailable.into());
        }
        if security::requires_flavor(program, version, procedure)
            && !security::allows_flavor(
                &self.server.options.flavors,
                request.head.credential.flavor,
                authenticated,
            )
        {
            return Err(CallRejection::Auth(AuthStat::TooWeak).into());
        }
        request
            .call
            .note_operation(call_names::procedure(program, version, procedure));
        if program == program::NFS && self.version.load(Ordering::Relaxed) != version {
            self.version.store(version, Ordering::Relaxed);
        }
        // A v4 compound cannot be parked: an operation that would wait for another client returns
        // `DELAY` instead.
        let unparkable = match (program, version, request.call.waker()) {
            (program::NFS, 4, None) => Some(request.call.woken_by(Waker::noop().clone())),
            _ => None,
        };
        let mut context = RequestContext {
            server: &self.server,
            connection: self.id,
            xid: request.xid,
            call: request.call,
            source_call: unparkable.as_ref().unwrap_or(request.call),
            begins_with_status: version == 3 && program != program::MOUNT,
            patience: request.patience,
            caller: &caller,
            flavor: request.head.credential.flavor,
            authenticated,
            message: request.message,
            record: request.record,
            identity: request.identity,
            arguments: request.arguments,
            reply: Reply::new(out),
            compound: (),
        };
        serve(&mut context, program, version, procedure)
    }

    /// Returns the caller of calls without credentials.
    pub(super) fn anonymous(&self) -> Caller {
        let (uid, gid) = self.server.options.anonymous;
        Caller {
            uid,
            gid,
            groups: Groups::Known(Arc::default()),
        }
    }

    /// Returns the caller of `head`: the user that its certificate maps to, or else the user that
    /// it claims, if the peer may act as that user.
    fn caller(&self, call: &Call, head: &rpc::Call<'_>) -> Result<Caller, CallError> {
        let credential = Credential::of(&head.credential)
            .map_err(|why: AuthStat| CallError::Rejected(CallRejection::Auth(why)))?;
        if let Some(certified) = self.tls_identity.get().and_then(|by| by.caller.as_ref()) {
            return Ok(certified.clone());
        }
        Ok(match credential {
            Credential::Sys(sys) => call.acts_as(sys.caller),
            Credential::None => self.anonymous(),
        })
    }
}

/// Serves a procedure of any program.
fn serve(
    request: &mut RequestContext<'_>,
    program: u32,
    version: u32,
    procedure: u32,
) -> Result<(), CallError> {
    tracing::trace!(connection = request.connection, program, version, procedure);
    match (program, version) {
        (program::NFS, 3) => v3::serve(request, procedure),
        (program::NFS, 4) => v4::serve(request, procedure),
        (program::NFS_ACL, 3) => v3::acl::serve(request, procedure),
        (program::NFS, _) => Err(CallRejection::VersionMismatch(3, 4).into()),
        (program::MOUNT, 3) => mount::serve(request, procedure),
        (program::MOUNT, _) => Err(CallRejection::VersionMismatch(3, 3).into()),
        (program::NLM, 4) => nlm::serve(request, procedure),
        (program::NLM, _) => Err(CallRejection::VersionMismatch(4, 4).into()),
        (program::NSM, 1) => nlm::serve_nsm(request, procedure),
        (program::NSM, _) => Err(CallRejection::VersionMismatch(1, 1).into()),
        (program::RQUOTA, 1 | 2) => rquota::serve(request, version, procedure),
        (program::RQUOTA, _) => Err(CallRejection::VersionMismatch(1, 2).into()),
        (program::PORTMAP, 2..=4) if request.server.options.ports.is_some() => {
            portmap::serve(request, version, procedure)
        }
        _ => Err(CallRejection::ProgramUnavailable.into()),
    }
}
