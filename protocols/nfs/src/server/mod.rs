//! The server half: a [`wire::Session`] per connection, which answers calls over an exported tree.
//!
//! What clients share stands in the [`Server`]: nodes and files at hand, and the state of v4. A call that
//! answers [`Answer::WouldBlock`] has left no trace but in the caches.
//!
//! What it lacks on purpose: the order of replies and cancellation (the driver's: RPC cancels nothing),
//! the portmapper's own sockets, encryption (a transport's business, or a mechanism's).

mod acl;
mod cache;
mod data;
mod exclusive;
mod files;
mod gss;
mod handle;
mod mount;
mod nlm;
mod portmap;
mod replay;
mod security;
mod v3;
pub mod v4;
mod words;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use vfs::{Call, Caller, Capabilities, Cx, Errno, Export, Groups, Node, Patience};
use wire::{
    Answer, Buffered, Certified, Facts, Incoming, Malformed, Outgoing, Role, Vocabulary, Voice,
    Xdr, XdrReader,
};

use self::cache::Cache;
use self::files::Files;
pub use self::gss::{Accepted, Context, Flavor, Mechanism, Principal};
use self::gss::{Gss, Shown};
use self::handle::FileHandle;
pub use self::nlm::{CallBack, Monitored};
use self::replay::Replays;
use self::security::Secured;
pub use self::security::{CertifiedUser, Transports};
pub use self::v4::referral::Referral;
use self::v4::referral::Referrals;
use self::v4::state::{Config, Gone, InMemory, Limits, Stable, State};
use self::words::Noting;
use crate::rpc::{
    self, AuthStat, CALL, Credential, LAST, MARK, OpaqueAuth, REPLY, Record, Refusal, flavor,
    program,
};

/// How much a client may ask for, and as whom.
#[derive(Clone)]
pub struct Options {
    /// The most bytes that READ and WRITE carry.
    pub max_io: u32,
    /// How many nodes are kept at hand.
    pub max_nodes: usize,
    /// Of how many nodes files are kept open for v3, which opens none.
    pub max_files: usize,
    /// Whom to take a caller for that does not say who it is: user and group.
    pub anonymous: (u32, u32),
    /// What MOUNT lists.
    pub listed: Vec<Listed>,
    /// What is elsewhere, for v4.
    pub referrals: Vec<Referral>,
    /// By which connections NFS may be asked for. Whoever moves the bytes can secure them if that is offered.
    pub transports: Transports,
    /// As whom the owners of certificates call.
    pub users: Arc<[CertifiedUser]>,
    /// Where a portmapper says that everything is; nothing is no portmapper.
    pub ports: Option<Ports>,
    /// What makes contexts of RPCSEC_GSS, if it is offered.
    pub mechanism: Option<Arc<dyn Mechanism>>,
    /// How callers of NFS may say who they are: the better ways first, for clients take the first that they know.
    pub flavors: Arc<[Flavor]>,
    /// What tells this run of the server from others: unstable writes of an earlier one may be lost, and
    /// what v4's clients had then is theirs only if they reclaim it. Neither 0 nor [`u32::MAX`], of which
    /// stateids are special, nor 1, of which whoever makes stateids up makes them.
    pub boot: u32,
    /// What this server is called, wherever clients meet it: two of one name are one.
    pub name: String,
    /// Which of v4's clients may reclaim after a restart.
    pub stable: Arc<dyn Stable>,
    /// Whether READ_PLUS is there (v4.2), which tells of holes instead of sending them.
    pub read_plus: bool,
    /// Whether clients of v4.2 see and set the labels of SELinux, where the source keeps extended attributes.
    pub security_labels: bool,
    /// Which of NLM's clients are to be told of a restart.
    pub monitored: Arc<dyn Stable>,
    /// Makes calls to NLM's clients, or drops them: it must not wait.
    pub call_back: Arc<dyn Fn(CallBack) + Send + Sync>,
    /// Takes work off the thread that serves a call, to be run soon on another: steps of copies that go on behind their
    /// answers. It must not wait, nor run it itself. Without it none go on.
    pub run: Option<Arc<dyn Fn(Work) + Send + Sync>>,
    /// Whether clients of v4.1 may be given files to keep to themselves until others want them.
    pub delegations: bool,
    /// How long a client of v4 may be silent before it may lose what it has.
    pub lease: Duration,
    /// How much time has passed since some moment.
    pub clock: Arc<dyn Fn() -> Duration + Send + Sync>,
}

impl Options {
    /// The usual ones.
    pub fn new(boot: u32, clock: Arc<dyn Fn() -> Duration + Send + Sync>) -> Options {
        Options {
            // What Linux asks for at most.
            max_io: 1 << 20,
            max_nodes: 1 << 16,
            max_files: 1 << 10,
            anonymous: (65534, 65534),
            listed: vec![Listed {
                path: "/".into(),
                clients: Vec::new(),
            }],
            referrals: Vec::new(),
            transports: Transports::PLAIN,
            users: Arc::default(),
            ports: None,
            mechanism: None,
            flavors: [Flavor::Sys].into(),
            boot,
            name: format!("barge-{boot:08x}"),
            stable: Arc::new(InMemory::default()),
            read_plus: true,
            security_labels: false,
            monitored: Arc::new(InMemory::default()),
            call_back: Arc::new(drop),
            run: None,
            delegations: true,
            lease: Duration::from_secs(90),
            clock,
        }
    }
}

/// Some work, of a second or so. Dropping it is ending it.
pub type Work = Box<dyn FnOnce() + Send>;

/// What may be mounted, as clients are told; who is let in is the source's to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Where.
    pub path: String,
    /// Whom it is for, as exports(5) writes them; nobody named is everybody.
    pub clients: Vec<String>,
}

/// Ports where all programs are served alike; 0 where none is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Ports {
    pub tcp: u16,
    pub udp: u16,
}

/// Serves an exported tree over NFS.
pub struct Server {
    export: Arc<Export>,
    capabilities: Capabilities,
    options: Options,
    nodes: Cache<FileHandle, Arc<dyn Node>>,
    files: Files,
    replays: Replays,
    gss: Option<Gss>,
    referrals: Referrals,
    /// What MOUNT lists now.
    listed: RwLock<Vec<Listed>>,
    clients: nlm::Clients,
    waiting: nlm::Waiting,
    recovery: nlm::Recovery,
    /// How often unstable writes may have been lost.
    losses: AtomicU32,
    connections: AtomicU64,
    state: State<v4::Files, Tree>,
    /// By which clients are called, by their connections.
    voices: Mutex<HashMap<u64, Arc<dyn Voice>>>,
}

/// What states of v4 know nodes by.
type Tree = Arc<dyn Node>;

impl Server {
    /// Serves `export`.
    pub fn new(export: Arc<Export>, options: Options) -> Arc<Server> {
        let locked = export.clone();
        let state = State::new(Config {
            boot: options.boot,
            lease: options.lease,
            clock: options.clock.clone(),
            limits: Limits::default(),
            stable: options.stable.clone(),
            release: Arc::new(move |gone| release(&locked, gone)),
        });
        let recovery = nlm::Recovery::new(options.monitored.clone());
        if recovery.is_needed() {
            state.hold_locks(nlm::Recovery::TELLING);
        }
        Arc::new(Server {
            state,
            capabilities: export.fs.capabilities(),
            nodes: Cache::new(options.max_nodes),
            files: Files::new(options.max_files),
            replays: Replays::default(),
            gss: options
                .mechanism
                .as_ref()
                .map(|mechanism| Gss::new(mechanism.clone(), options.boot, options.clock.clone())),
            referrals: Referrals::new(&export, &options.referrals),
            listed: RwLock::new(options.listed.clone()),
            clients: nlm::Clients::default(),
            waiting: nlm::Waiting::default(),
            recovery,
            losses: AtomicU32::new(0),
            connections: AtomicU64::new(0),
            voices: Mutex::default(),
            export,
            options,
        })
    }

    /// A new connection.
    pub fn session(self: &Arc<Self>) -> Connection {
        self.connection(true)
    }

    /// Whatever comes as datagrams: MOUNT, NLM, NSM and the portmapper, for NFS itself is too large for them.
    pub fn datagrams(self: &Arc<Self>) -> Connection {
        self.connection(false)
    }

    fn connection(self: &Arc<Self>, marked: bool) -> Connection {
        Connection {
            server: self.clone(),
            marked,
            id: self.connections.fetch_add(1, Ordering::Relaxed),
            calls: AtomicU64::new(0),
            version: AtomicU32::new(0),
            secured: OnceLock::new(),
            admitted: Mutex::default(),
        }
    }

    /// Does what time asks for. To be called about once a second.
    pub fn tend(&self) {
        self.tend_files();
        self.tend_monitored();
        self.tend_places();
        self.tend_callbacks();
        if let Some(gss) = &self.gss {
            gss.tend();
        }
        self.state.reap();
    }

    /// Lists something else from now on, for what is exported has changed: nothing that was kept of it is at hand any more.
    pub fn relist(&self, listed: Vec<Listed>) {
        *self.listed.write().unwrap_or_else(PoisonError::into_inner) = listed;
        self.nodes.retain(|_, _| false);
        self.files.forget_all();
    }

    /// What `connection` is spoken to by.
    fn voice(&self, connection: u64) -> Option<Arc<dyn Voice>> {
        self.voices().get(&connection).cloned()
    }

    fn voices(&self) -> std::sync::MutexGuard<'_, HashMap<u64, Arc<dyn Voice>>> {
        self.voices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The largest record: a WRITE and what stands around it.
    fn max_record(&self) -> usize {
        self.options.max_io as usize + (64 << 10)
    }
}

/// Lets go of what clients of v4 no longer hold.
fn release(export: &Export, gone: Gone<v4::Files, Arc<dyn Node>>) {
    let call = Call::detached();
    let cx = Cx::new(&Caller::ROOT, &call);
    for lock in gone.locks {
        export
            .locks
            .release(&cx, &*lock.node, |owner| *owner == lock.owner);
    }
}

/// A client's connection. Dropping it is its end.
pub struct Connection {
    server: Arc<Server>,
    /// Whether messages are records in a stream; else each is alone.
    marked: bool,
    id: u64,
    calls: AtomicU64,
    /// The last one of NFS's that was spoken; 0 if none was.
    version: AtomicU32,
    secured: OnceLock<Secured>,
    /// Calls in flight that are to be served again, by their contexts' and their own numbers.
    admitted: Mutex<HashSet<(u32, u32)>>,
}

impl wire::Session for Connection {
    fn frame(&self, head: &[u8]) -> Result<Option<usize>, Malformed> {
        if !self.marked {
            return Ok(Some(head.len()));
        }
        rpc::frame(head, self.server.max_record())
    }

    fn role(&self, _: &[u8]) -> Result<Role, Malformed> {
        // Not the call's own id: a client that has waited long sends the same call again.
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
                    false => Transports::PLAIN,
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
                let caller = self.caller(&head)?;
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
        if self.marked {
            let mark = (out.len() - MARK) as u32 | LAST;
            out.patch(0, &mark.to_be_bytes());
        }
        Ok(answer)
    }

    fn secured(&self, peer: Certified) {
        tracing::debug!(connection = self.id, ?peer, "secured");
        // Once: no second request for it is granted.
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

/// A call whose head has been read.
#[derive(Clone, Copy)]
struct Asked<'a> {
    xid: u32,
    call: &'a Call,
    patience: Patience,
    message: &'a dyn Incoming,
    record: &'a Record<'a>,
    head: &'a rpc::Call<'a>,
    /// What it has in common with itself when it comes again.
    same: [&'a [u8]; 2],
    arguments: XdrReader<'a>,
}

impl Connection {
    /// Carries out what is `asked` on behalf of `caller`, and puts the results behind what is in `out`.
    fn carry_out(
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

    /// Whom a call is taken to come from that does not say.
    fn anonymous(&self) -> Caller {
        let (uid, gid) = self.server.options.anonymous;
        Caller {
            uid,
            gid,
            groups: Groups::Known(Arc::default()),
        }
    }

    fn caller(&self, head: &rpc::Call<'_>) -> Result<Caller, Stop> {
        let credential = Credential::of(&head.credential)
            .map_err(|why: AuthStat| Stop::Refused(Refusal::Auth(why)))?;
        if let Some(certified) = self.secured.get().and_then(|by| by.caller.as_ref()) {
            return Ok(certified.clone());
        }
        Ok(match credential {
            Credential::Sys(sys) => sys.caller,
            Credential::None => self.anonymous(),
        })
    }
}

/// Why a call has no results.
#[derive(Debug)]
pub(crate) enum Stop {
    /// RPC refuses it.
    Refused(Refusal),
    /// Not now.
    Later(Answer),
    /// Another is answered in its place.
    Unanswered,
}

impl From<Refusal> for Stop {
    fn from(why: Refusal) -> Stop {
        Stop::Refused(why)
    }
}

impl From<Malformed> for Stop {
    fn from(what: Malformed) -> Stop {
        Stop::Refused(what.into())
    }
}

impl Stop {
    /// What an errno is, if it is no status of the protocol's but says that it is too early.
    pub(crate) fn later(errno: Errno) -> Option<Stop> {
        match errno {
            Errno::WOULD_BLOCK => Some(Stop::Later(Answer::WouldBlock)),
            Errno::PARKED => Some(Stop::Later(Answer::Parked)),
            _ => None,
        }
    }
}

/// A call being answered.
pub(crate) struct Turn<'a> {
    pub(crate) server: &'a Arc<Server>,
    /// Which connection it came by.
    pub(crate) connection: u64,
    /// What its client calls it.
    pub(crate) xid: u32,
    pub(crate) call: &'a Call,
    /// Whether results begin with a status of v3's.
    begins_with_status: bool,
    pub(crate) patience: Patience,
    pub(crate) caller: Caller,
    /// How it says who it is.
    pub(crate) flavor: u32,
    /// Who it has shown to be, if it has.
    pub(crate) shown: Option<&'a Shown<'a>>,
    pub(crate) message: &'a dyn Incoming,
    pub(crate) record: &'a Record<'a>,
    /// What it has in common with itself when it comes again.
    pub(crate) same: [&'a [u8]; 2],
    /// What has not been read yet.
    pub(crate) arguments: XdrReader<'a>,
    /// The reply, whose head has been written.
    pub(crate) out: &'a mut dyn Outgoing,
}

impl<'a> Turn<'a> {
    fn run(&mut self, program: u32, version: u32, procedure: u32) -> Result<(), Stop> {
        tracing::trace!(connection = self.connection, program, version, procedure);
        match (program, version) {
            (program::NFS, 3) => v3::serve(self, procedure),
            (program::NFS, 4) => v4::serve(self, procedure),
            (program::NFS_ACL, 3) => v3::acl::serve(self, procedure),
            (program::NFS, _) => Err(Refusal::VersionMismatch(3, 4).into()),
            (program::MOUNT, 3) => mount::serve(self, procedure),
            (program::MOUNT, _) => Err(Refusal::VersionMismatch(3, 3).into()),
            (program::NLM, 4) => nlm::serve(self, procedure),
            (program::NLM, _) => Err(Refusal::VersionMismatch(4, 4).into()),
            (program::NSM, 1) => nlm::serve_nsm(self, procedure),
            (program::NSM, _) => Err(Refusal::VersionMismatch(1, 1).into()),
            (program::PORTMAP, 2..=4) if self.server.options.ports.is_some() => {
                portmap::serve(self, version, procedure)
            }
            _ => Err(Refusal::ProgramUnavailable.into()),
        }
    }

    /// The context of calls of the source.
    pub(crate) fn cx(&self) -> Cx<'_> {
        Cx {
            caller: &self.caller,
            patience: self.patience,
            call: self.call,
        }
    }

    /// The call's arguments, and nothing behind them.
    pub(super) fn take<A: Xdr<'a>>(&mut self) -> Result<A, Stop> {
        let arguments = A::get(&mut self.arguments)?;
        self.arguments.end()?;
        Ok(arguments)
    }

    pub(super) fn reply<'b>(&mut self, outcome: &impl Xdr<'b>) {
        let call = self.begins_with_status.then_some(self.call);
        let to = Buffered::new(self.out);
        outcome.put(&mut Noting { to, call });
    }

    pub(super) fn answer<'b, A: Xdr<'a>, R: Xdr<'b>>(
        &mut self,
        procedure: impl FnOnce(&Self, A) -> Result<R, Stop>,
    ) -> Result<(), Stop> {
        let arguments = self.take()?;
        let outcome = procedure(self, arguments)?;
        self.reply(&outcome);
        Ok(())
    }
}
