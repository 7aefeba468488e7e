//! Calls with RPCSEC_GSS credentials: those that create contexts, and those that use them.

use parking_lot::MutexGuard;
use vfs::Patience;
use vfs::peer::Refusal;
use wire::{Buffered, Malformed, Outgoing, ServeOutcome, Xdr as _, XdrReader, padding};

use super::super::connection::count_refusal;
use super::super::request::Request;
use super::super::{CallError, Connection};
use super::table::GssContext;
use super::window::Window;
use super::{Accepted, Authenticated, Context, Gss};
use crate::rpc::{
    self, AuthStat, CallRejection, GssCredential, GssProcedure, InitResult, OpaqueAuth, Record,
    Service, flavor,
};

/// The procedure of control calls, which create or destroy a context.
const NULL: u32 = 0;

impl Connection {
    /// Serves a call with an RPCSEC_GSS credential.
    pub(in crate::server) fn serve_gss(
        &self,
        gss: &Gss,
        request: &Request<'_>,
        out: &mut dyn Outgoing,
    ) -> Result<ServeOutcome, CallError> {
        let credential = GssCredential::of(&request.head.credential).map_err(refused)?;
        if credential.needs_full_patience() && request.patience < Patience::Full {
            return Err(CallError::Retry(ServeOutcome::WouldBlock));
        }
        if credential.procedure != GssProcedure::Data && request.head.procedure != NULL {
            return Err(refused(AuthStat::BadCred));
        }
        if credential.makes_context() {
            return self.create_context(gss, request, &credential, out);
        }
        let context = gss
            .find(credential.handle)
            .ok_or(refused(AuthStat::CredProblem))?;
        let call = (context.number, credential.sequence);
        let was_admitted = self.admitted().remove(&call);
        // A context that has expired is not found, which is no refusal: the client makes another.
        verify(&context, request).inspect_err(|_| refuse(request))?;
        if !was_admitted && !context.admit(credential.sequence) {
            tracing::debug!(?call, "sequence number repeated or below the window");
            return Err(CallError::Unanswered);
        }
        let sequence = credential.sequence.to_be_bytes();
        let mic = context.context().get_mic(&sequence);
        let mic = mic.ok_or(refused(AuthStat::CtxProblem))?;
        let verifier = OpaqueAuth {
            flavor: flavor::GSS,
            body: &mic,
        };
        if credential.procedure == GssProcedure::Destroy {
            gss.table.remove(context.number);
            rpc::begin_verified(request.xid, self.marked, verifier, out);
            return Ok(ServeOutcome::Done);
        }
        let used = ContextUse {
            gss,
            context: &context,
            service: credential.service,
            sequence: credential.sequence,
            verifier: &mic,
        };
        match self.serve_with_context(&used, request, out) {
            Ok(()) => {}
            Err(CallError::Rejected(why)) => {
                tracing::debug!(connection = self.id, ?why, "refused");
                count_refusal(request.call, why);
                out.truncate(0);
                let to = &mut Buffered::new(out);
                rpc::refuse(request.xid, self.marked, why, verifier, to);
            }
            Err(stop) => {
                if matches!(stop, CallError::Retry(_)) {
                    self.admitted().insert(call);
                }
                return Err(stop);
            }
        }
        Ok(ServeOutcome::Done)
    }

    fn admitted(&self) -> MutexGuard<'_, std::collections::HashSet<(u32, u32)>> {
        self.admitted.lock()
    }

    /// Serves a context creation request (section 5.2).
    fn create_context(
        &self,
        gss: &Gss,
        request: &Request<'_>,
        credential: &GssCredential<'_>,
        out: &mut dyn Outgoing,
    ) -> Result<ServeOutcome, CallError> {
        let mut arguments = request.arguments;
        let token = arguments.opaque(usize::MAX)?;
        arguments.end()?;
        let (number, mut context) = match credential.procedure {
            GssProcedure::ContinueInit => {
                let number = gss.numbered(credential.handle);
                let pending =
                    number.and_then(|number| Some((number, gss.table.take_pending(number)?)));
                pending.ok_or(refused(AuthStat::CredProblem))?
            }
            _ => (gss.number(), gss.mechanism.begin()),
        };
        let now = (gss.clock)();
        let handle = gss.handle(number);
        let mut result = InitResult {
            handle: &handle,
            major: 0,
            minor: 0,
            window: Window::SIZE,
            token: &[],
        };
        let (token, mic) = match context.accept(token) {
            Accepted::Continue(token) => {
                const CONTINUE_NEEDED: u32 = 1;
                result.major = CONTINUE_NEEDED;
                gss.table.add_pending(number, context, now);
                (token, None)
            }
            Accepted::Complete(token, principal) => {
                let mic = context.get_mic(&Window::SIZE.to_be_bytes());
                let mic = mic.ok_or(refused(AuthStat::CtxProblem))?;
                tracing::debug!(?principal, "RPCSEC_GSS context established");
                let made = GssContext::new(number, context, principal, now);
                gss.table.add(made);
                (token, Some(mic))
            }
            Accepted::Failed(major, minor) => {
                refuse(request);
                (result.handle, result.major, result.minor) = (&[], major, minor);
                (Vec::new(), None)
            }
        };
        result.token = &token;
        let verifier = match &mic {
            None => OpaqueAuth::NONE,
            Some(mic) => OpaqueAuth {
                flavor: flavor::GSS,
                body: mic,
            },
        };
        rpc::begin_verified(request.xid, self.marked, verifier, out);
        result.put(&mut Buffered::new(out));
        Ok(ServeOutcome::Done)
    }

    /// Executes `request` with a context: unwraps the arguments, and wraps the results (section
    /// 5.3.3.4).
    fn serve_with_context(
        &self,
        used: &ContextUse<'_>,
        request: &Request<'_>,
        out: &mut dyn Outgoing,
    ) -> Result<(), CallError> {
        let authenticated = Authenticated {
            principal: &used.context.principal,
            service: used.service,
        };
        let head = [
            authenticated.principal.as_bytes(),
            &[0],
            &request.head.program.to_be_bytes(),
            &request.head.version.to_be_bytes(),
            &request.head.procedure.to_be_bytes(),
        ]
        .concat();
        let run = |request: &Request<'_>, out: &mut dyn Outgoing| {
            let caller = used.context.caller.clone();
            let request = Request {
                identity: [&head, request.arguments.rest()],
                ..*request
            };
            let caller = caller.unwrap_or_else(|| self.anonymous());
            self.execute(&request, caller, Some(&authenticated), out)
        };
        match used.service {
            Service::None => {
                rpc::begin_verified(request.xid, self.marked, used.verifier(), out);
                run(request, out)
            }
            Service::Integrity => {
                let request = Request {
                    arguments: used.unwrap_integrity(request)?,
                    ..*request
                };
                self.wrap_results(used, request.xid, out, &mut |draft| run(&request, draft))
            }
            Service::Privacy => {
                let bytes = used.unwrap_privacy(request)?;
                let record = Record::unmarked(&bytes);
                let arguments = used.numbered(&bytes)?;
                self.wrap_results(used, request.xid, out, &mut |draft| {
                    let mut done = Err(CallError::Unanswered);
                    used.gss.mechanism.message(&bytes, &mut |message| {
                        let request = Request {
                            message,
                            record: &record,
                            arguments,
                            ..*request
                        };
                        done = run(&request, draft);
                    });
                    done
                })
            }
        }
    }

    /// Composes the results with `write`, and puts them into the reply `out`, signed or encrypted.
    fn wrap_results(
        &self,
        used: &ContextUse<'_>,
        xid: u32,
        out: &mut dyn Outgoing,
        write: &mut dyn FnMut(&mut dyn Outgoing) -> Result<(), CallError>,
    ) -> Result<(), CallError> {
        let mut written = Ok(());
        let mut sealed = Ok(());
        used.gss.mechanism.compose(
            &mut |draft| {
                draft.bytes(&used.sequence.to_be_bytes());
                written = write(draft);
                written.is_ok()
            },
            &mut |plain| {
                rpc::begin_verified(xid, self.marked, used.verifier(), out);
                let mut context = used.context.context();
                sealed = wrap_results(&mut **context, used.service, plain, out);
            },
        );
        written?;
        sealed.map_err(refused)
    }
}

/// Puts `plain` into `out`, signed or encrypted.
fn wrap_results(
    context: &mut dyn Context,
    service: Service,
    plain: &[u8],
    out: &mut dyn Outgoing,
) -> Result<(), AuthStat> {
    let opaque = |bytes: &[u8], out: &mut dyn Outgoing| {
        out.bytes(&(bytes.len() as u32).to_be_bytes());
        out.bytes(bytes);
        out.bytes(&[0; 3][..padding(bytes.len())]);
    };
    match service {
        Service::Privacy => {
            let sealed = context.wrap(plain).ok_or(AuthStat::CtxProblem)?;
            opaque(&sealed, out);
        }
        _ => {
            let mic = context.get_mic(plain).ok_or(AuthStat::CtxProblem)?;
            opaque(plain, out);
            opaque(&mic, out);
        }
    }
    Ok(())
}

/// Checks that the context's client has signed the header of a call (section 5.3.1).
fn verify(context: &GssContext, request: &Request<'_>) -> Result<(), CallError> {
    let verifier = &request.head.verifier;
    if verifier.flavor != flavor::GSS {
        return Err(refused(AuthStat::BadVerf));
    }
    // All that precedes the verifier.
    let len = verifier.body.len();
    let signed = request.arguments.position() - 8 - len - padding(len);
    let signed = &request.record.bytes()[..signed];
    match context.context().verify_mic(signed, verifier.body) {
        true => Ok(()),
        false => Err(refused(AuthStat::CredProblem)),
    }
}

/// A context as used by a call.
struct ContextUse<'a> {
    gss: &'a Gss,
    context: &'a GssContext,
    service: Service,
    sequence: u32,
    /// The verifier of the reply.
    verifier: &'a [u8],
}

impl ContextUse<'_> {
    fn verifier(&self) -> OpaqueAuth<'_> {
        OpaqueAuth {
            flavor: flavor::GSS,
            body: self.verifier,
        }
    }

    /// Verifies signed arguments (`rpc_gss_integ_data`), and returns them in place in the record.
    fn unwrap_integrity<'a>(&self, request: &Request<'a>) -> Result<XdrReader<'a>, CallError> {
        let mut body = request.arguments;
        let signed = body.opaque(usize::MAX)?;
        let end = body.position() - padding(signed.len());
        let mic = body.opaque(usize::MAX)?;
        body.end()?;
        self.numbered(signed)?;
        if !self.context.context().verify_mic(signed, mic) {
            return Err(Malformed::new("the checksum of the arguments is invalid").into());
        }
        let mut arguments = XdrReader::new(&request.record.bytes()[..end]);
        arguments.fixed(end - signed.len() + 4)?;
        Ok(arguments)
    }

    /// Decrypts encrypted arguments (`rpc_gss_priv_data`), which follow the sequence number.
    fn unwrap_privacy(&self, request: &Request<'_>) -> Result<Vec<u8>, CallError> {
        let mut body = request.arguments;
        let sealed = body.opaque(usize::MAX)?;
        body.end()?;
        let opened = self.context.context().unwrap(sealed);
        Ok(opened.ok_or(Malformed::new("the arguments cannot be decrypted"))?)
    }

    /// Checks that the arguments begin with the call's sequence number, and returns the rest.
    fn numbered<'a>(&self, bytes: &'a [u8]) -> Result<XdrReader<'a>, Malformed> {
        let mut arguments = XdrReader::new(bytes);
        match arguments.u32()? == self.sequence {
            true => Ok(arguments),
            false => Err(Malformed::new(
                "the arguments have the sequence number of another call",
            )),
        }
    }
}

/// Counts the client as refused because of Kerberos.
fn refuse(request: &Request<'_>) {
    if let Some(peer) = request.call.peer() {
        peer.refuse(Refusal::Kerberos);
    }
}

fn refused(why: AuthStat) -> CallError {
    CallError::Rejected(CallRejection::Auth(why))
}
