//! A mechanism without secrets, and a client for it.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use vfs::{Call, Caller, Export, FileSystem, Groups, Patience, Peer};
use vfs_testkit::{Message, ReplyBuffer, session};
use wire::{Incoming, Outgoing, ServeOutcome, Session as _, Xdr, XdrReader};

use crate::rpc::{
    self, CALL, GssProcedure, InitResult, LAST, MARK, OpaqueAuth, REPLY, Service, flavor,
};
use crate::server::gss::{Accepted, Context, Flavor, Mechanism, Principal};
use crate::server::{Connection, Options, Server};

/// The lifetime of a context, in seconds.
pub(super) const LIFETIME: u64 = 3600;

/// `GARBAGE_ARGS`, for arguments that cannot be decoded.
pub(super) const GARBAGE: u32 = 4;

struct Fake;

/// A context whose token is the client's name: `more` requires another token, and no token fails.
#[derive(Default)]
struct FakeContext;

/// The signer or encrypter.
#[derive(Clone, Copy)]
enum Side {
    Client = 1,
    Server = 2,
}

fn mic(side: Side, bytes: &[u8]) -> Vec<u8> {
    // FNV-1a.
    let fold = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    let sum = bytes.iter().fold(0xcbf2_9ce4_8422_2325 ^ side as u64, fold);
    sum.to_be_bytes().to_vec()
}

fn encrypt(side: Side, bytes: &[u8]) -> Vec<u8> {
    let mut sealed = mic(side, bytes);
    sealed.extend(bytes.iter().map(|byte| byte ^ 0x5a));
    sealed
}

fn decrypt(side: Side, sealed: &[u8]) -> Option<Vec<u8>> {
    let (sum, rest) = sealed.split_at_checked(8)?;
    let bytes: Vec<u8> = rest.iter().map(|byte| byte ^ 0x5a).collect();
    (mic(side, &bytes) == sum).then_some(bytes)
}

impl Mechanism for Fake {
    fn begin(&self) -> Box<dyn Context> {
        Box::new(FakeContext)
    }

    fn message(&self, bytes: &[u8], to: &mut dyn FnMut(&dyn Incoming)) {
        to(&Message::new(bytes));
    }

    fn compose(
        &self,
        write: &mut dyn FnMut(&mut dyn Outgoing) -> bool,
        then: &mut dyn FnMut(&[u8]),
    ) {
        let mut room = ReplyBuffer::new(2 << 20);
        if write(&mut room) {
            then(room.data());
        }
    }
}

impl Context for FakeContext {
    fn accept(&mut self, token: &[u8]) -> Accepted {
        let name = match token {
            b"" => return Accepted::Failed(13 << 16, 7),
            b"more" => return Accepted::Continue(b"again".into()),
            name => String::from_utf8_lossy(name).into_owned(),
        };
        let uid = match name.as_str() {
            "alice" => Some(1000),
            "bob" => Some(1001),
            "root" => Some(0),
            _ => None,
        };
        let caller = uid.map(|uid| Caller {
            uid,
            gid: uid,
            groups: Groups::Known(Arc::default()),
        });
        let lifetime = Duration::from_secs(LIFETIME);
        let principal = Principal {
            name,
            caller,
            lifetime,
        };
        Accepted::Complete(Vec::new(), principal)
    }

    fn verify_mic(&mut self, bytes: &[u8], sum: &[u8]) -> bool {
        mic(Side::Client, bytes) == sum
    }

    fn get_mic(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        Some(mic(Side::Server, bytes))
    }

    fn wrap(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        Some(encrypt(Side::Server, bytes))
    }

    fn unwrap(&mut self, sealed: &[u8]) -> Option<Vec<u8>> {
        decrypt(Side::Client, sealed)
    }
}

/// A server with a manual clock.
pub(super) struct World {
    pub(super) server: Arc<Server>,
    clock: Arc<AtomicU64>,
}

impl World {
    pub(super) fn new(tree: Arc<dyn FileSystem>, flavors: &[Flavor]) -> World {
        let clock = Arc::new(AtomicU64::new(0));
        let time = clock.clone();
        let now = move || Duration::from_secs(time.load(Ordering::SeqCst));
        let options = Options {
            mechanism: Some(Arc::new(Fake)),
            flavors: flavors.into(),
            ..Options::new(7, Arc::new(now))
        };
        let server = Server::new(Arc::new(Export::new("", tree)), options);
        World { server, clock }
    }

    /// Advances the clock by `seconds`, and runs periodic maintenance.
    pub(super) fn pass(&self, seconds: u64) {
        self.clock.fetch_add(seconds, Ordering::SeqCst);
        self.server.maintain();
    }
}

/// The results, or the `accept_stat` or `auth_stat` of an error.
pub(super) type Replied = Result<Vec<u8>, u32>;

/// Encodes a value.
pub(super) fn put<'a>(value: &impl Xdr<'a>) -> Vec<u8> {
    let mut bytes = Vec::new();
    value.put(&mut bytes);
    bytes
}

pub(super) fn with_mark(body: &[u8]) -> Vec<u8> {
    let mark = body.len() as u32 | LAST;
    [&mark.to_be_bytes(), body].concat()
}

/// Returns the bytes of a call up to its verifier.
fn head(xid: u32, what: (u32, u32, u32), flavor: u32, credential: &[u8]) -> Vec<u8> {
    let mut head = Vec::new();
    for number in [xid, CALL, 2, what.0, what.1, what.2] {
        number.put(&mut head);
    }
    let body = credential;
    OpaqueAuth { flavor, body }.put(&mut head);
    head
}

fn credential(procedure: u32, sequence: u32, service: u32, handle: &[u8]) -> Vec<u8> {
    let mut body = [1, procedure, sequence, service]
        .map(u32::to_be_bytes)
        .concat();
    handle.put(&mut body);
    body
}

/// Serves a message of `peer`.
pub(super) fn serve_peer(session: &Connection, message: &[u8], peer: Peer) {
    serve_call(
        session,
        &Call::detached().with_peer(Arc::new(peer)),
        message,
    );
}

fn serve(session: &Connection, message: &[u8]) -> Vec<u8> {
    serve_call(session, &Call::detached(), message)
}

fn serve_call(session: &Connection, call: &Call, message: &[u8]) -> Vec<u8> {
    const MOST: usize = 2 << 20;
    let served = session::serve_patiently(session, call, &Message::new(message), MOST);
    match served.expect("a call") {
        (ServeOutcome::Done, reply) => reply,
        other => panic!("{other:?}"),
    }
}

/// Decodes a reply whose verifier is for `sequence`, or AUTH_NONE.
fn open(reply: &[u8], sequence: Option<u32>) -> Replied {
    assert_eq!(
        reply[..MARK],
        ((reply.len() - MARK) as u32 | LAST).to_be_bytes()
    );
    let mut from = XdrReader::new(&reply[MARK..]);
    let mut number = || from.u32().expect("a reply's head");
    let (_xid, kind, denied) = (number(), number(), number());
    assert_eq!(kind, REPLY);
    if denied != 0 {
        assert_eq!(
            (denied, number()),
            (1, 1),
            "it is no matter of authentication"
        );
        return Err(number());
    }
    let verifier = OpaqueAuth::get(&mut from).expect("a verifier");
    let signed = sequence.map(|sequence| mic(Side::Server, &sequence.to_be_bytes()));
    assert_eq!(verifier.body, signed.unwrap_or_default());
    match from.u32().expect("a status") {
        0 => Ok(from.rest().to_vec()),
        status => Err(status),
    }
}

/// Sends a message without a peer address.
pub(super) fn reply_of(session: &Connection, message: &[u8], sequence: Option<u32>) -> Replied {
    open(&serve(session, message), sequence)
}

/// Calls as root with AUTH_SYS.
pub(super) fn plain(session: &Connection, what: (u32, u32, u32), arguments: &[u8]) -> Replied {
    let mut call = head(1, what, flavor::SYS, &[0; 20]);
    OpaqueAuth::NONE.put(&mut call);
    call.extend_from_slice(arguments);
    reply_of(session, &with_mark(&call), None)
}

/// The result of a context creation request.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Made {
    pub(super) handle: Vec<u8>,
    pub(super) major: u32,
    pub(super) minor: u32,
    pub(super) token: Vec<u8>,
}

/// Returns a context creation request, sent to this procedure of NFS v3.
pub(super) fn init_message(
    how: GssProcedure,
    handle: &[u8],
    token: &[u8],
    procedure: u32,
) -> Vec<u8> {
    let credential = credential(how as u32, 0, 1, handle);
    let what = (rpc::program::NFS, 3, procedure);
    let mut call = head(2, what, flavor::GSS, &credential);
    OpaqueAuth::NONE.put(&mut call);
    token.put(&mut call);
    with_mark(&call)
}

pub(super) fn init(
    session: &Connection,
    how: GssProcedure,
    handle: &[u8],
    token: &[u8],
) -> Result<Made, u32> {
    let reply = serve(session, &init_message(how, handle, token, 0));
    // An established context's verifier signs the window.
    let denied = reply[MARK + 11] != 0;
    let is_signed = !denied && reply[MARK + 15] == flavor::GSS as u8;
    let results = open(&reply, is_signed.then_some(super::Window::SIZE))?;
    let mut from = XdrReader::new(&results);
    let result = InitResult::get(&mut from).expect("a result");
    from.end().expect("nothing behind it");
    assert_eq!(is_signed, result.major == 0);
    Ok(Made {
        handle: result.handle.to_vec(),
        major: result.major,
        minor: result.minor,
        token: result.token.to_vec(),
    })
}

/// A client with a context.
pub(super) struct Client {
    session: Connection,
    pub(super) handle: Vec<u8>,
    service: Service,
    sequence: Cell<u32>,
    xid: Cell<u32>,
}

impl Client {
    /// Creates a client with this name.
    pub(super) fn new(world: &World, name: &str, service: Service) -> Client {
        let session = world.server.session();
        let made = init(&session, GssProcedure::Init, &[], name.as_bytes()).expect("answered");
        assert_eq!((made.major, made.minor), (0, 0));
        Client {
            session,
            handle: made.handle,
            service,
            sequence: Cell::new(0),
            xid: Cell::new(10),
        }
    }

    /// Returns the client with another's context.
    pub(super) fn with_handle(&self, handle: &[u8]) -> Client {
        Client {
            session: self.session.server.session(),
            handle: handle.to_vec(),
            service: self.service,
            sequence: self.sequence.clone(),
            xid: self.xid.clone(),
        }
    }

    /// Skips this many sequence numbers.
    pub(super) fn skip(&self, numbers: u32) {
        self.sequence.set(self.sequence.get() + numbers);
    }

    /// Makes the next call reuse the latest XID.
    pub(super) fn same_id(&self) {
        self.xid.set(self.xid.get() - 1);
    }

    /// Returns the latest XID.
    pub(super) fn last_id(&self) -> u32 {
        self.xid.get()
    }

    /// Makes the next XID equal to `last`.
    pub(super) fn set_id(&self, last: u32) {
        self.xid.set(last - 1);
    }

    fn signed_head(&self, procedure: GssProcedure, what: (u32, u32, u32)) -> Vec<u8> {
        self.sequence.set(self.sequence.get() + 1);
        self.xid.set(self.xid.get() + 1);
        let sequence = self.sequence.get();
        let credential = credential(
            procedure as u32,
            sequence,
            self.service as u32,
            &self.handle,
        );
        let mut call = head(self.xid.get(), what, flavor::GSS, &credential);
        let verifier = OpaqueAuth {
            flavor: flavor::GSS,
            body: &mic(Side::Client, &call),
        };
        verifier.put(&mut call);
        call
    }

    /// Returns an encoded call with the next sequence number.
    pub(super) fn message(&self, what: (u32, u32, u32), arguments: &[u8]) -> Vec<u8> {
        self.message_with(what, |sequence| {
            [&sequence.to_be_bytes(), arguments].concat()
        })
    }

    /// Returns a call whose body, before it is signed or encrypted, is `body` of its sequence
    /// number.
    pub(super) fn message_with(
        &self,
        what: (u32, u32, u32),
        body: impl FnOnce(u32) -> Vec<u8>,
    ) -> Vec<u8> {
        let mut call = self.signed_head(GssProcedure::Data, what);
        let body = body(self.sequence.get());
        match self.service {
            Service::None => call.extend_from_slice(&body[4..]),
            Service::Integrity => {
                body.as_slice().put(&mut call);
                mic(Side::Client, &body).as_slice().put(&mut call);
            }
            Service::Privacy => encrypt(Side::Client, &body).as_slice().put(&mut call),
        }
        with_mark(&call)
    }

    /// Sends a call; `None` if it is dropped.
    pub(super) fn send(&self, message: &[u8]) -> Option<Replied> {
        self.sent(&self.session, message)
    }

    /// Sends a call over another connection.
    pub(super) fn send_elsewhere(&self, world: &World, message: &[u8]) -> Option<Replied> {
        self.sent(&world.server.session(), message)
    }

    fn sent(&self, session: &Connection, message: &[u8]) -> Option<Replied> {
        let reply = serve(session, message);
        if reply.is_empty() {
            return None;
        }
        // The offset of the sequence number in a call.
        let at = MARK + 6 * 4 + 8 + 8;
        let sequence = u32::from_be_bytes(*message[at..].first_chunk().expect("a number"));
        let results = match open(&reply, Some(sequence)) {
            Ok(results) => results,
            Err(status) => return Some(Err(status)),
        };
        if self.service == Service::None {
            return Some(Ok(results));
        }
        let mut from = XdrReader::new(&results);
        let sealed = from.opaque(usize::MAX).expect("a body");
        let body = match self.service {
            Service::Privacy => decrypt(Side::Server, sealed).expect("encrypted"),
            _ => {
                let sum = from.opaque(usize::MAX).expect("a signature");
                assert_eq!(sum, mic(Side::Server, sealed));
                sealed.to_vec()
            }
        };
        from.end().expect("nothing behind it");
        let (number, results) = body.split_at(4);
        assert_eq!(number, sequence.to_be_bytes());
        Some(Ok(results.to_vec()))
    }

    /// Sends bytes that may not be a call.
    pub(super) fn send_raw(&self, message: &[u8]) {
        let call = Call::detached();
        let message = Message::new(message);
        // Any outcome is accepted.
        drop(session::serve_patiently(
            &self.session,
            &call,
            &message,
            2 << 20,
        ));
    }

    /// Returns whether a call needs more patience.
    pub(super) fn would_block(&self, message: &[u8], patience: Patience) -> bool {
        let call = Call::detached();
        let message = Message::new(message);
        let served = session::serve(&self.session, &call, patience, &message, 2 << 20);
        served.expect("a call").0 == ServeOutcome::WouldBlock
    }

    #[track_caller]
    pub(super) fn call(&self, what: (u32, u32, u32), arguments: &[u8]) -> Replied {
        let message = self.message(what, arguments);
        assert_eq!(self.session.frame(&message), Ok(Some(message.len())));
        self.send(&message).expect("an answer")
    }

    /// Destroys its context by a call of this procedure.
    pub(super) fn destroy(&self, procedure: u32) -> Replied {
        let what = (rpc::program::NFS, 3, procedure);
        let call = self.signed_head(GssProcedure::Destroy, what);
        reply_of(&self.session, &with_mark(&call), Some(self.sequence.get()))
    }
}
