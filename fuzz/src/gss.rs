//! Calls to the NFS server half with RPCSEC_GSS, over a tree in memory and with a mechanism whose
//! tokens contain the keys.
//!
//! A script is a byte for the accepted flavors, followed by steps, each with a byte for its kind.
//! Calls are mostly valid, then changed, repeated, or sent with parts of others. A model of each
//! context says which of them the server may carry out: it counts the operations of the tree.

use std::collections::HashSet;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use arbitrary::{Result, Unstructured};
use layers::fault::{FaultKind, Trigger};
use layers::{CallLog, Fault, stack};
use memory::Memory;
use nfs::server::{Accepted, Connection, Context, Flavor, Mechanism, Options, Principal, Server};
use vfs::{Call, Caller, Export, FileSystem, Groups};
use vfs_testkit::{Message, ReplyBuffer, clock, session};
use wire::{Incoming, Malformed, Outgoing, ServeOutcome, Session, Xdr, XdrReader};

use crate::ROOM;

/// Plays the script `data`: calls without the signature of a context's client, or with a sequence
/// number that was used, reach no procedure; neither do those with a body that is not signed or
/// encrypted as they say. All others are answered, with the signature of the server.
pub fn script(data: &[u8]) {
    let mut input = Unstructured::new(data);
    // The end of the input is the end of the script.
    let _ = play(&mut input);
}

const NFS: u32 = 100_003;
const MOUNT: u32 = 100_005;
const OTHERS: [(u32, u32); 5] = [
    (MOUNT, 3),
    (100_021, 4),
    (100_024, 1),
    (100_000, 2),
    (100_227, 3),
];

/// The flavors of credentials.
const AUTH_SYS: u32 = 1;
const RPCSEC_GSS: u32 = 6;

/// The purposes of calls.
const DATA: u32 = 0;
const INIT: u32 = 1;
const CONTINUE_INIT: u32 = 2;
const DESTROY: u32 = 3;

/// The services of calls.
const NONE: u32 = 1;
const INTEGRITY: u32 = 2;
const PRIVACY: u32 = 3;

/// The highest sequence number.
const MAX_SEQUENCE: u32 = 0x8000_0000;

/// The size of the window of sequence numbers.
const WINDOW: u32 = 2048;

/// `GARBAGE_ARGS` and `AUTH_TOOWEAK`.
const GARBAGE: u32 = 4;
const TOO_WEAK: u32 = 5;

/// The size of a signature in bytes.
const MIC: usize = 32;

/// The lifetime of a context in seconds.
const LIFETIME: u64 = 100;

/// The maximum number of contexts: the server evicts none of them.
const MAX_CONTEXTS: usize = 48;

/// The key of a context, which differs between runs so that no input can contain it.
type Key = [u8; 32];

#[derive(Clone, Copy)]
enum Signer {
    Client,
    Server,
}

fn mic(key: &Key, signer: Signer, bytes: &[u8]) -> [u8; MIC] {
    let mut hasher = blake3::Hasher::new_keyed(key);
    hasher.update(&[signer as u8]).update(bytes);
    *hasher.finalize().as_bytes()
}

fn flip(bytes: &[u8]) -> impl Iterator<Item = u8> {
    bytes.iter().map(|byte| byte ^ 0x5a)
}

fn encrypt(key: &Key, signer: Signer, bytes: &[u8]) -> Vec<u8> {
    let sum = mic(key, signer, bytes);
    sum.into_iter().chain(flip(bytes)).collect()
}

fn decrypt(key: &Key, signer: Signer, sealed: &[u8]) -> Option<Vec<u8>> {
    let (sum, rest) = sealed.split_first_chunk::<MIC>()?;
    let bytes: Vec<u8> = flip(rest).collect();
    (mic(key, signer, &bytes) == *sum).then_some(bytes)
}

/// A mechanism without secrets from the client.
struct Fake {
    key: Key,
    contexts: AtomicU64,
    /// Whether no context is valid at present.
    broken: Arc<AtomicBool>,
}

impl Fake {
    fn new() -> Fake {
        let random = RandomState::new().build_hasher().finish();
        Fake {
            key: *blake3::hash(&random.to_ne_bytes()).as_bytes(),
            contexts: AtomicU64::new(0),
            broken: Arc::default(),
        }
    }
}

impl Mechanism for Fake {
    fn begin(&self) -> Box<dyn Context> {
        let number = self.contexts.fetch_add(1, Ordering::Relaxed);
        Box::new(FakeContext {
            key: mic(&self.key, Signer::Server, &number.to_ne_bytes()),
            broken: self.broken.clone(),
        })
    }

    fn message(&self, bytes: &[u8], to: &mut dyn FnMut(&dyn Incoming)) {
        to(&Message::new(bytes));
    }

    fn compose(
        &self,
        write: &mut dyn FnMut(&mut dyn Outgoing) -> bool,
        then: &mut dyn FnMut(&[u8]),
    ) {
        let mut room = ReplyBuffer::new(ROOM);
        if write(&mut room) {
            then(room.data());
        }
    }
}

/// A context. The client's token is its name, and the server's the key.
struct FakeContext {
    key: Key,
    broken: Arc<AtomicBool>,
}

impl FakeContext {
    fn valid<T>(&self, value: T) -> Option<T> {
        (!self.broken.load(Ordering::Relaxed)).then_some(value)
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
            "root" => Some(0),
            "alice" => Some(1000),
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
        Accepted::Complete(self.key.into(), principal)
    }

    fn verify_mic(&mut self, bytes: &[u8], sum: &[u8]) -> bool {
        mic(&self.key, Signer::Client, bytes) == sum
    }

    fn get_mic(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        self.valid(mic(&self.key, Signer::Server, bytes).into())
    }

    fn wrap(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        self.valid(encrypt(&self.key, Signer::Server, bytes))
    }

    fn unwrap(&mut self, sealed: &[u8]) -> Option<Vec<u8>> {
        decrypt(&self.key, Signer::Client, sealed)
    }
}

/// A context as its client knows it, and as the server should.
struct Established {
    handle: Vec<u8>,
    key: Key,
    expires: u64,
    destroyed: bool,
    /// The latest sequence number of the client.
    sequence: u32,
    /// The highest number that the server has admitted, and all of them.
    highest: u32,
    admitted: HashSet<u32>,
}

impl Established {
    /// Records `number`; returns whether the server should do so.
    fn admit(&mut self, number: u32) -> bool {
        let below = self.highest.saturating_sub(number);
        if below >= WINDOW || !self.admitted.insert(number) {
            return false;
        }
        self.highest = self.highest.max(number);
        true
    }
}

/// A call with a context.
#[derive(Clone)]
struct Sent {
    message: Vec<u8>,
    context: usize,
    sequence: u32,
    service: u32,
    destroys: bool,
    /// The context with whose key the body is protected, and the sequence number in it.
    body_of: (usize, u32),
    /// Whether the header is valid and signed.
    header: bool,
    /// Whether the body is protected as the header says.
    body: bool,
}

/// The server, and the clients' state.
struct World {
    server: Arc<Server>,
    session: Connection,
    /// The time in seconds.
    clock: Arc<AtomicU64>,
    /// The number of operations of the tree.
    operations: Arc<AtomicU64>,
    broken: Arc<AtomicBool>,
    contexts: Vec<Established>,
    /// The handle of a context that waits for another token.
    pending: Vec<u8>,
    root: Vec<u8>,
    calls: u32,
}

/// The reply to a call.
enum Reply {
    Denied(u32),
    /// The verifier, the status and the results.
    Accepted(Vec<u8>, u32, Vec<u8>),
}

impl World {
    fn new(start: u8) -> World {
        let mechanism = Fake::new();
        let broken = mechanism.broken.clone();
        let clock_of_server = Arc::new(AtomicU64::new(0));
        let time = clock_of_server.clone();
        let flavors: &[Flavor] = match start % 4 {
            0 => &[Flavor::Krb5p, Flavor::Krb5i],
            1 => &[Flavor::Krb5],
            _ => &[Flavor::Krb5p, Flavor::Krb5i, Flavor::Krb5, Flavor::Sys],
        };
        let options = Options {
            mechanism: Some(Arc::new(mechanism)),
            flavors: flavors.into(),
            ports: Some(nfs::server::Ports::default()),
            ..Options::new(
                7,
                Arc::new(move || Duration::from_secs(time.load(Ordering::Relaxed))),
            )
        };
        let operations = Arc::new(AtomicU64::new(0));
        let server = Server::new(Arc::new(Export::new("", tree(&operations))), options);
        let mut world = World {
            session: server.session(),
            server,
            clock: clock_of_server,
            operations,
            broken,
            contexts: Vec::new(),
            pending: Vec::new(),
            root: Vec::new(),
            calls: 0,
        };
        let mut path = Vec::new();
        (&b"/"[..]).put(&mut path);
        let mount = world.plain((MOUNT, 3, 1), &path);
        let Some(Reply::Accepted(_, 0, results)) = world.serve(&mount).0 else {
            panic!("MOUNT requires no flavor");
        };
        let mut results = XdrReader::new(&results);
        assert_eq!(results.u32(), Ok(0));
        world.root = results.opaque(64).expect("a handle").to_vec();
        world
    }

    fn now(&self) -> u64 {
        self.clock.load(Ordering::Relaxed)
    }

    /// Begins a call with this credential.
    fn head(&mut self, procedure: (u32, u32, u32), flavor: u32, credential: &[u8]) -> Vec<u8> {
        self.calls += 1;
        let mut head = Vec::new();
        let (program, version, number) = procedure;
        [self.calls, 0, 2, program, version, number, flavor]
            .iter()
            .for_each(|word: &u32| word.put(&mut head));
        credential.put(&mut head);
        head
    }

    /// Returns a call with AUTH_SYS.
    fn plain(&mut self, procedure: (u32, u32, u32), arguments: &[u8]) -> Vec<u8> {
        let mut call = self.head(procedure, AUTH_SYS, &[0; 20]);
        [0u32; 2].iter().for_each(|word| word.put(&mut call));
        call.extend_from_slice(arguments);
        call
    }

    /// Serves a message in a record of its own; returns the reply and whether a procedure, or the
    /// tree, was reached. A message that ends the connection has no reply.
    fn serve(&mut self, message: &[u8]) -> (Option<Reply>, bool) {
        self.serve_record(&fragment(true, message))
    }

    fn serve_record(&mut self, record: &[u8]) -> (Option<Reply>, bool) {
        let before = self.operations.load(Ordering::Relaxed);
        let call = Call::detached();
        let served = self.answer(record, &call);
        let operations = self.operations.load(Ordering::Relaxed);
        let reached = call.take_outcome().is_some() || operations > before;
        let Ok((outcome, reply)) = served else {
            self.session = self.server.session();
            return (None, reached);
        };
        match outcome {
            ServeOutcome::Done => {}
            ServeOutcome::Parked => return (None, reached),
            ServeOutcome::StartTls | ServeOutcome::WouldBlock => panic!("{outcome:?}"),
        }
        if reply.is_empty() {
            return (None, reached);
        }
        let reply = parse(&reply).expect("a reply");
        (Some(reply), reached)
    }

    fn answer(
        &self,
        record: &[u8],
        call: &Call,
    ) -> std::result::Result<(ServeOutcome, Vec<u8>), Malformed> {
        let len = self.session.frame(record)?;
        let Some(message) = len.and_then(|len| record.get(..len)) else {
            return Err(Malformed::new("the record is cut"));
        };
        self.session.role(message)?;
        self.session.reply_bound(message, 64 << 10);
        let message = Message::with_separate_payload(message, message.len());
        session::serve_patiently(&self.session, call, &message, ROOM)
    }

    /// Sends a call with a context, and checks that the server does what it should.
    fn deliver(&mut self, sent: &Sent, record: &[u8]) {
        let now = self.now();
        let context = &mut self.contexts[sent.context];
        let key = context.key;
        let known = sent.header
            && !context.destroyed
            && context.expires > now
            && sent.sequence <= MAX_SEQUENCE;
        let is_new = known && context.admit(sent.sequence);
        let valid = is_new && !self.broken.load(Ordering::Relaxed);
        if valid && sent.destroys {
            context.destroyed = true;
        }
        let (reply, reached) = self.serve_record(record);
        let may = valid && sent.body && !sent.destroys;
        assert!(may || !reached, "a call that is not valid is carried out");
        if !known {
            return;
        }
        if !is_new {
            assert!(reply.is_none(), "a repeated call is answered");
            return;
        }
        if !valid {
            return;
        }
        match reply {
            // The body may not be a call that the procedure accepts.
            None => assert!(sent.body, "garbage is answered"),
            Some(Reply::Denied(why)) => assert_eq!(why, TOO_WEAK),
            Some(Reply::Accepted(verifier, status, results)) => {
                let signed = mic(&key, Signer::Server, &sent.sequence.to_be_bytes());
                assert_eq!(verifier, signed, "the verifier is of this call");
                assert!(sent.body || sent.destroys || status == GARBAGE);
                if status == 0 && !sent.destroys {
                    let sequence = sent.sequence.to_be_bytes();
                    let results = open(&results, sent.service, &key);
                    assert!(sent.service == NONE || results.starts_with(&sequence));
                }
            }
        }
    }

    /// Requests a context.
    fn init(&mut self, input: &mut Unstructured<'_>) -> Result<()> {
        const NAMES: [&[u8]; 6] = [b"alice", b"root", b"mallory", b"more", b"", b"\xff\0"];
        let (kind, name, change): (u8, u8, u8) = input.arbitrary()?;
        let token = NAMES[usize::from(name) % NAMES.len()];
        let (purpose, handle) = match kind % 8 {
            0..=4 => (INIT, Vec::new()),
            5..=6 => (CONTINUE_INIT, self.pending.clone()),
            _ => (input.arbitrary()?, piece(input)?.to_vec()),
        };
        let procedure = (NFS, 3 + u32::from(kind >> 7), u32::from(kind == 127));
        let credential = credential(purpose, 0, 1, &handle);
        let mut call = self.head(procedure, RPCSEC_GSS, &credential);
        [0u32; 2].iter().for_each(|word| word.put(&mut call));
        token.put(&mut call);
        if change >= 224 {
            let at = input.choose_index(call.len())?;
            call[at] = input.arbitrary()?;
        }
        let (reply, reached) = self.serve(&call);
        // A changed call may have another credential.
        assert!(!reached || change >= 224, "a context is no procedure");
        let Some(Reply::Accepted(verifier, 0, results)) = reply else {
            return Ok(());
        };
        let mut results = XdrReader::new(&results);
        let read = (|| {
            let handle = results.opaque(64)?.to_vec();
            let [major, _minor, window] = [results.u32()?, results.u32()?, results.u32()?];
            let token = results.opaque(64)?.to_vec();
            results.end()?;
            Ok::<_, Malformed>((handle, major, window, token))
        })();
        let Ok((handle, major, window, token)) = read else {
            assert!(change >= 224, "the results of another procedure");
            return Ok(());
        };
        match major {
            0 => {
                let key = Key::try_from(token).expect("a key");
                let signed = mic(&key, Signer::Server, &window.to_be_bytes());
                assert_eq!((window, verifier), (WINDOW, signed.to_vec()));
                self.contexts.push(Established {
                    handle,
                    key,
                    expires: self.now() + LIFETIME,
                    destroyed: false,
                    sequence: 0,
                    highest: 0,
                    admitted: HashSet::new(),
                });
            }
            1 => self.pending = handle,
            _ => assert!(handle.is_empty()),
        }
        Ok(())
    }

    /// Returns a call with a context, mostly valid.
    fn call(&mut self, input: &mut Unstructured<'_>, earlier: &[Sent]) -> Result<Sent> {
        let context = usize::from(input.arbitrary::<u8>()?) % self.contexts.len();
        let destroys = input.arbitrary::<u8>()? >= 240;
        let service = match input.arbitrary::<u8>()? {
            common @ 0..=251 => u32::from(common % 3) + 1,
            other => u32::from(other - 252) * 5,
        };
        let (procedure, arguments) = match destroys {
            true => ((NFS, 3, 0), Vec::new()),
            false => self.procedure(input)?,
        };
        let sequence = self.sequence(context, input)?;
        if input.arbitrary::<u8>()? >= 224 {
            // The call seems to be sent again.
            self.calls = self.calls.saturating_sub(1);
        }
        let change = input.arbitrary::<u8>()?;
        let other = (context + 1) % self.contexts.len();
        // The context whose key the header is signed with, and the context and the sequence number
        // of the body.
        let (signer, mut body_of) = match change {
            0 => (other, (other, sequence)),
            1 => (context, (context, sequence.wrapping_sub(1))),
            2 => (context, (other, sequence)),
            _ => (context, (context, sequence)),
        };
        let mut header = signer == context && (NONE..=PRIVACY).contains(&service);
        let mut body = body_of == (context, sequence);
        let purpose = if destroys { DESTROY } else { DATA };
        let handle = self.contexts[context].handle.clone();
        let credential = credential(purpose, sequence, service, &handle);
        let mut message = self.head(procedure, RPCSEC_GSS, &credential);
        let signed = mic(&self.contexts[signer].key, Signer::Client, &message);
        RPCSEC_GSS.put(&mut message);
        (&signed[..]).put(&mut message);
        let start = message.len();
        let key = &self.contexts[body_of.0].key;
        let plain = [&body_of.1.to_be_bytes(), &arguments[..]].concat();
        match service {
            INTEGRITY => {
                plain.as_slice().put(&mut message);
                (&mic(key, Signer::Client, &plain)[..]).put(&mut message);
            }
            PRIVACY => encrypt(key, Signer::Client, &plain)
                .as_slice()
                .put(&mut message),
            _ => message.extend_from_slice(&arguments),
        }
        let genuine = message.clone();
        match change {
            // The body of an earlier call. The signature of a body names neither the call's
            // procedure nor its id, so one with the same number is valid.
            3 if !earlier.is_empty() => {
                let other = &earlier[input.choose_index(earlier.len())?];
                if other.body_of != (context, sequence) {
                    message.truncate(start);
                    message.extend_from_slice(other.message.get(start..).unwrap_or_default());
                    body_of = other.body_of;
                }
            }
            4..=15 => {
                let at = input.choose_index(message.len())?;
                message[at] = input.arbitrary()?;
            }
            16..=31 if message.len() > start => {
                let at = start + input.choose_index(message.len() - start)?;
                message[at] = input.arbitrary()?;
            }
            32..=35 => message.truncate(input.choose_index(message.len())?),
            36..=39 => message.extend_from_slice(piece(input)?),
            _ => {}
        }
        header &= message.get(..start) == Some(&genuine[..start]);
        // An unprotected body may be any other.
        body = service == NONE || body && message == genuine;
        Ok(Sent {
            message,
            context,
            sequence,
            service,
            destroys,
            body_of,
            header,
            body,
        })
    }

    /// Returns the next sequence number of a context, or another one.
    fn sequence(&mut self, context: usize, input: &mut Unstructured<'_>) -> Result<u32> {
        let kind: u8 = input.arbitrary()?;
        let skipped = match kind {
            208..=223 => u32::from(input.arbitrary::<u16>()?),
            _ => 0,
        };
        let next = &mut self.contexts[context].sequence;
        Ok(match kind {
            224..=239 => next.wrapping_sub(input.arbitrary::<u16>()?.into()),
            240..=243 => input.arbitrary()?,
            _ => {
                *next = next.saturating_add(1).saturating_add(skipped);
                *next
            }
        })
    }

    /// Returns a procedure with its arguments, in whole words.
    fn procedure(&self, input: &mut Unstructured<'_>) -> Result<((u32, u32, u32), Vec<u8>)> {
        let (kind, number): (u8, u8) = input.arbitrary()?;
        let mut arguments = Vec::new();
        let procedure = match kind % 8 {
            0..=3 => {
                self.root.as_slice().put(&mut arguments);
                (NFS, 3, u32::from(number % 23))
            }
            // PUTROOTFH, GETATTR of the type, and another operation.
            4..=5 => {
                [0, u32::from(number % 3), 3, 24, 9, 1, 2, u32::from(number)]
                    .iter()
                    .for_each(|word: &u32| word.put(&mut arguments));
                (NFS, 4, 1)
            }
            6 => (NFS, 3, 0),
            _ => {
                let (program, version) = OTHERS[usize::from(kind / 8) % OTHERS.len()];
                (program, version, u32::from(number % 24))
            }
        };
        arguments.extend_from_slice(piece(input)?);
        arguments.resize(arguments.len().next_multiple_of(4), 0);
        Ok((procedure, arguments))
    }
}

fn play(input: &mut Unstructured<'_>) -> Result<()> {
    let mut world = World::new(input.arbitrary()?);
    let mut earlier: Vec<Sent> = Vec::new();
    while !input.is_empty() {
        match input.arbitrary::<u8>()? {
            0..=31 if world.contexts.len() < MAX_CONTEXTS => world.init(input)?,
            32..=35 => {
                let seconds = input.arbitrary::<u8>()?;
                world.clock.fetch_add(seconds.into(), Ordering::Relaxed);
                world.server.maintain();
            }
            36 => drop(world.broken.fetch_not(Ordering::Relaxed)),
            37..=39 => world.session = world.server.session(),
            40..=47 => {
                let (procedure, arguments) = world.procedure(input)?;
                let call = world.plain(procedure, &arguments);
                let _ = world.serve(&call);
            }
            48..=55 => {
                let record = piece(input)?;
                let _ = world.serve_record(record);
            }
            56..=79 if !earlier.is_empty() => {
                let at = input.choose_index(earlier.len())?;
                let record = record(&earlier[at].message, input)?;
                world.deliver(&earlier[at], &record);
            }
            _ if world.contexts.is_empty() => world.init(input)?,
            _ => {
                let sent = world.call(input, &earlier)?;
                let record = record(&sent.message, input)?;
                world.deliver(&sent, &record);
                earlier.push(sent);
            }
        }
    }
    Ok(())
}

/// Creates a tree that counts its operations, some of which need more patience than they have.
fn tree(operations: &Arc<AtomicU64>) -> Arc<dyn FileSystem> {
    let options = memory::Options {
        max_bytes: 1 << 20,
        max_nodes: 64,
        ..Default::default()
    };
    let tree = Memory::with_options(clock(), options);
    let faults = Fault::new(1, Arc::new(|| Duration::ZERO));
    faults.add(None, Trigger::Chance(0.25), FaultKind::Block);
    let counted = operations.clone();
    let log = CallLog::new(
        Arc::new(|| Duration::ZERO),
        Box::new(move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
        }),
    );
    stack(stack(tree, faults), log)
}

/// Takes some bytes of the input.
fn piece<'a>(input: &mut Unstructured<'a>) -> Result<&'a [u8]> {
    let len = usize::from(input.arbitrary::<u8>()?).min(input.len());
    input.bytes(len)
}

/// Encodes the body of a credential.
fn credential(purpose: u32, sequence: u32, service: u32, handle: &[u8]) -> Vec<u8> {
    let words = [1, purpose, sequence, service];
    let mut body = words.map(u32::to_be_bytes).concat();
    handle.put(&mut body);
    body
}

fn fragment(last: bool, bytes: &[u8]) -> Vec<u8> {
    let mark = bytes.len() as u32 | u32::from(last) << 31;
    [&mark.to_be_bytes(), bytes].concat()
}

/// Puts a message into a record, of some fragments.
fn record(message: &[u8], input: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let parts = input.arbitrary::<u8>()?.saturating_sub(239);
    let (mut record, mut rest) = (Vec::new(), message);
    for _ in 0..parts {
        let (part, more) = rest.split_at(input.int_in_range(0..=rest.len())?);
        record.extend(fragment(false, part));
        rest = more;
    }
    record.extend(fragment(true, rest));
    Ok(record)
}

/// Parses a reply, whose record must be a single fragment.
fn parse(reply: &[u8]) -> std::result::Result<Reply, Malformed> {
    let mut words = XdrReader::new(reply);
    assert_eq!(words.u32(), Ok((reply.len() - 4) as u32 | 1 << 31));
    let [_xid, kind, denied] = [words.u32()?, words.u32()?, words.u32()?];
    assert_eq!(kind, 1);
    if denied != 0 {
        let [reject, why] = [words.u32()?, words.u32()?];
        // The version of RPC, or the reason of a refused credential.
        return Ok(Reply::Denied(if reject == 0 { 0 } else { why }));
    }
    let _flavor = words.u32()?;
    let verifier = words.opaque(400)?.to_vec();
    let status = words.u32()?;
    Ok(Reply::Accepted(verifier, status, words.rest().to_vec()))
}

/// Returns the results, after their signature is checked or they are decrypted.
fn open(results: &[u8], service: u32, key: &Key) -> Vec<u8> {
    let mut body = XdrReader::new(results);
    let mut opaque = || body.opaque(usize::MAX).expect("opaque data");
    let opened = match service {
        NONE => return results.to_vec(),
        INTEGRITY => {
            let (results, signature) = (opaque(), opaque());
            assert_eq!(signature, mic(key, Signer::Server, results));
            results.to_vec()
        }
        _ => decrypt(key, Signer::Server, opaque()).expect("encrypted results"),
    };
    body.end().expect("no more results");
    opened
}
