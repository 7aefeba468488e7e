//! A client's connection: parses calls, checks their credentials and encodes the replies.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use vfs::{Call, Caller, Groups, Patience};
use wire::{
    Answer, Buffered, Certified, Facts, Incoming, Malformed, Outgoing, Role, Vocabulary, Voice,
    XdrReader,
};

use super::bound;
use super::gss::Shown;
use super::security::{self, Secured};
use super::{Server, Stop, Transports, Turn, words};
use crate::rpc::{
    self, AuthStat, CALL, Credential, LAST, MARK, OpaqueAuth, REPLY, Record, Refusal, flavor,
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
    pub(super) secured: OnceLock<Secured>,
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

    /// Computes the bound from the procedure or operations: see `server/bound.rs`.
    fn reply_bound(&self, message: &[u8], large: usize) -> usize {
        match self.server.max_record() {
            // No reply is that large.
            most if most < large => 0,
            most => bound::of(message, self.marked, most),
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
    ) -> Result<Answer, Malformed> {
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
                return Ok(Answer::Done);
            }
            other => return Err(Malformed::new(format!("expected a call, got {other}"))),
        }
        let done = rpc::Call::read(&mut arguments)
            .map_err(Stop::Refused)
            .and_then(|head| {
                let good = match self.marked {
                    true => self.server.options.transports,
                    // A datagram is never secured.
                    false => Transports {
                        none: self.server.options.transports.none,
                        ..Transports::PLAIN
                    },
                };
                if security::look_at(&head, self.secured.get(), good)? {
                    rpc::start_tls(xid, out);
                    return Ok(Answer::Secure);
                }
                let asked = Asked {
                    xid,
                    call,
                    patience,
                    message,
                    record: &record,
                    head: &head,
                    same: [record.bytes(), &[]],
                    arguments,
                };
                if let Some(gss) = &self.server.gss
                    && head.credential.flavor == flavor::GSS
                    && self.marked
                {
                    return self.serve_gss(gss, &asked, out);
                }
                let caller = self.caller(call, &head)?;
                rpc::begin_reply(xid, self.marked, out);
                self.carry_out(&asked, caller, None, out)?;
                Ok(Answer::Done)
            });
        let answer = match done {
            Ok(answer) => answer,
            Err(Stop::Refused(why)) => {
                tracing::debug!(connection = self.id, ?why, "refused");
                out.truncate(0);
                let to = &mut Buffered::new(out);
                rpc::refuse(xid, self.marked, why, OpaqueAuth::NONE, to);
                Answer::Done
            }
            Err(Stop::Later(answer)) => {
                out.truncate(0);
                return Ok(answer);
            }
            Err(Stop::Unanswered) => {
                out.truncate(0);
                return Ok(Answer::Done);
            }
        };
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
            Refusal::SystemError,
            OpaqueAuth::NONE,
            &mut to,
        );
        drop(to);
        self.mark(out);
        true
    }

    fn secured(&self, peer: Certified) {
        tracing::debug!(connection = self.id, ?peer, "secured");
        // Set once: a second request for TLS is refused.
        let _ = self
            .secured
            .set(Secured::by(&peer, &self.server.options.users));
    }

    fn can_speak(&self, voice: Arc<dyn Voice>) {
        self.server.voices().insert(self.id, voice);
    }

    fn vocabulary(&self) -> &'static Vocabulary {
        &words::VOCABULARY
    }

    fn facts(&self) -> Facts {
        let version = match self.version.load(Ordering::Relaxed) {
            0 => String::new(),
            version => format!("NFS v{version}"),
        };
        Facts {
            version,
            user: String::new(),
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.server.voices().remove(&self.id);
        for client in self.server.state.disconnected(self.id) {
            self.server.call_back(client);
        }
    }
}

/// A call whose header has been parsed.
#[derive(Clone, Copy)]
pub(super) struct Asked<'a> {
    pub(super) xid: u32,
    pub(super) call: &'a Call,
    pub(super) patience: Patience,
    pub(super) message: &'a dyn Incoming,
    pub(super) record: &'a Record<'a>,
    pub(super) head: &'a rpc::Call<'a>,
    /// The bytes that are the same in a retransmission.
    pub(super) same: [&'a [u8]; 2],
    pub(super) arguments: XdrReader<'a>,
}

impl Connection {
    /// Writes the length of the reply in `out` into its record mark, if messages have record marks.
    fn mark(&self, out: &mut dyn Outgoing) {
        if self.marked {
            let mark = (out.len() - MARK) as u32 | LAST;
            out.patch(0, &mark.to_be_bytes());
        }
    }

    pub(super) fn of(server: &Arc<Server>, marked: bool) -> Connection {
        Connection {
            server: server.clone(),
            marked,
            id: server.connections.fetch_add(1, Ordering::Relaxed),
            calls: AtomicU64::new(0),
            version: AtomicU32::new(0),
            secured: OnceLock::new(),
            admitted: Mutex::default(),
        }
    }

    /// Executes the call `asked` as `caller`, and appends the results to `out`.
    pub(super) fn carry_out(
        &self,
        asked: &Asked<'_>,
        caller: Caller,
        shown: Option<&Shown<'_>>,
        out: &mut dyn Outgoing,
    ) -> Result<(), Stop> {
        let rpc::Call {
            program,
            version,
            procedure,
            ..
        } = *asked.head;
        if [program::NFS, program::NFS_ACL].contains(&program) && !self.marked {
            return Err(Refusal::ProgramUnavailable.into());
        }
        if security::minds_flavors(program, version, procedure)
            && !security::allows(&self.server.options.flavors, shown)
        {
            return Err(Refusal::Auth(AuthStat::TooWeak).into());
        }
        asked.call.note(words::word(program, version, procedure));
        if program == program::NFS && self.version.load(Ordering::Relaxed) != version {
            self.version.store(version, Ordering::Relaxed);
        }
        let mut turn = Turn {
            server: &self.server,
            connection: self.id,
            xid: asked.xid,
            call: asked.call,
            begins_with_status: version == 3 && program != program::MOUNT,
            patience: asked.patience,
            caller,
            flavor: asked.head.credential.flavor,
            shown,
            message: asked.message,
            record: asked.record,
            same: asked.same,
            arguments: asked.arguments,
            out,
        };
        turn.run(program, version, procedure)
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
    fn caller(&self, call: &Call, head: &rpc::Call<'_>) -> Result<Caller, Stop> {
        let credential = Credential::of(&head.credential)
            .map_err(|why: AuthStat| Stop::Refused(Refusal::Auth(why)))?;
        if let Some(certified) = self.secured.get().and_then(|by| by.caller.as_ref()) {
            return Ok(certified.clone());
        }
        Ok(match credential {
            Credential::Sys(sys) => call.acts_as(sys.caller),
            Credential::None => self.anonymous(),
        })
    }
}
