//! A v4.2 client that exposes raw replies, bypassing the client half.

use std::cell::Cell;

use nfs::client::{CallArguments, ClientCall, Failure, Procedure};
use remote::nfs::{Dial, Procedures};
use vfs::{Call, Caller, Cx};
use wire::{Xdr, XdrReader};

pub(super) type StateId = [u8; 16];

/// Special stateids (RFC 8881 section 8.2.3).
pub(super) const ANONYMOUS: StateId = [0; 16];
pub(super) const BYPASS: StateId = [0xff; 16];

/// Statuses (RFC 7862 section 11.1).
pub(super) const OK: u32 = 0;
pub(super) const NXIO: u32 = 6;
pub(super) const BAD_STATEID: u32 = 10025;
pub(super) const OPENMODE: u32 = 10038;
pub(super) const REP_TOO_BIG: u32 = 10066;
pub(super) const UNION_NOTSUPP: u32 = 10090;

/// Operation numbers.
const GETFH: u32 = 10;
const LOCK: u32 = 12;
const LOOKUP: u32 = 15;
const OPEN: u32 = 18;
const PUTFH: u32 = 22;
const PUTROOTFH: u32 = 24;
const READ: u32 = 25;
const EXCHANGE_ID: u32 = 42;
const CREATE_SESSION: u32 = 43;
const SEQUENCE: u32 = 53;
const RECLAIM_COMPLETE: u32 = 58;
const READ_PLUS: u32 = 68;
const SEEK: u32 = 69;

/// A session with one slot.
pub(super) struct Asker {
    link: Procedures,
    caller: Caller,
    client: u64,
    session: [u8; 16],
    turn: Cell<u32>,
}

/// A segment of a READ_PLUS reply.
#[derive(Debug, PartialEq)]
pub(super) enum Segment {
    Data(u64, Vec<u8>),
    Hole(u64, u64),
}

/// The result of READ_PLUS or SEEK, or the status it failed with.
pub(super) type Answer<T> = Result<T, u32>;

struct Operations<'a> {
    session: Option<([u8; 16], u32)>,
    count: u32,
    bytes: &'a [u8],
}

impl CallArguments for Operations<'_> {
    fn procedure(&self) -> Procedure {
        Procedure {
            program: 100_003,
            version: 4,
            number: 1,
        }
    }

    fn put(&self, to: &mut Vec<u8>) {
        let before = u32::from(self.session.is_some());
        words(to, &[0, 2, self.count + before]);
        if let Some((id, turn)) = &self.session {
            SEQUENCE.put(to);
            id.put(to);
            words(to, &[*turn, 0, 0, 0]);
        }
        to.extend_from_slice(self.bytes);
    }

    fn max_reply(&self) -> usize {
        (1 << 20) + 8192
    }
}

impl ClientCall for Operations<'_> {
    type Answer<'r> = Vec<u8>;

    fn answer(&self, results: &[u8]) -> Result<Vec<u8>, Failure> {
        let mut from = XdrReader::new(results);
        from.u32()?;
        from.opaque(0)?;
        from.u32()?;
        if self.session.is_some() {
            // Operation number, status, session ID, sequence ID, three slot fields, flags.
            from.fixed(8 + 16 + 20)?;
        }
        Ok(from.rest().to_vec())
    }
}

impl Asker {
    /// Creates a client of the server that `dial` connects to, with replies of at most `most`
    /// bytes.
    pub(super) fn new(dial: Dial, name: &[u8], most: u32) -> Asker {
        let mut asker = Asker {
            link: Procedures::open(dial).expect("connected"),
            caller: Caller::ROOT,
            client: 0,
            session: [0; 16],
            turn: Cell::new(0),
        };
        let mut exchange = op(EXCHANGE_ID);
        [7u8; 8].put(&mut exchange);
        name.put(&mut exchange);
        // No flags, no state protection, no implementation ID.
        words(&mut exchange, &[0, 0, 0]);
        let reply = asker.send(None, 1, &exchange);
        let mut from = done(&reply, &[EXCHANGE_ID]);
        asker.client = from.u64().expect("a client");
        let sequence = from.u32().expect("a sequence");
        let mut create = op(CREATE_SESSION);
        asker.client.put(&mut create);
        words(&mut create, &[sequence, 0]);
        for most in [most, 4096] {
            words(&mut create, &[0, most, most, 2048, 16, 1, 0]);
        }
        words(&mut create, &[0x4000_0000, 1, 0]);
        let reply = asker.send(None, 1, &create);
        let mut from = done(&reply, &[CREATE_SESSION]);
        asker.session = Xdr::get(&mut from).expect("a session");
        let complete = [op(RECLAIM_COMPLETE), vec![0; 4]].concat();
        asker.ask(1, &complete);
        asker
    }

    fn send(&self, session: Option<([u8; 16], u32)>, count: u32, bytes: &[u8]) -> Vec<u8> {
        let call = Call::detached();
        let ask = Operations {
            session,
            count,
            bytes,
        };
        let cx = Cx::new(&self.caller, &call);
        let answer = self.link.call(&cx, &ask, |answer| answer);
        answer.expect("an answer")
    }

    /// Sends a compound, and returns the results after SEQUENCE's.
    fn ask(&self, count: u32, bytes: &[u8]) -> Vec<u8> {
        self.turn.set(self.turn.get() + 1);
        self.send(Some((self.session, self.turn.get())), count, bytes)
    }

    /// Looks up the handle of `path`.
    pub(super) fn look_up(&self, path: &str) -> Vec<u8> {
        let mut ops = op(PUTROOTFH);
        let names: Vec<_> = path.split('/').filter(|name| !name.is_empty()).collect();
        for name in &names {
            LOOKUP.put(&mut ops);
            name.as_bytes().put(&mut ops);
        }
        GETFH.put(&mut ops);
        let reply = self.ask(names.len() as u32 + 2, &ops);
        let mut steps = vec![LOOKUP; names.len() + 2];
        steps[0] = PUTROOTFH;
        steps[names.len() + 1] = GETFH;
        let mut from = done(&reply, &steps);
        <&[u8]>::get(&mut from).expect("a handle").to_vec()
    }

    /// Opens a file for reading (1), writing (2) or both (3).
    pub(super) fn open(&self, handle: &[u8], access: u32) -> StateId {
        let mut ops = op(PUTFH);
        handle.put(&mut ops);
        // No delegation wanted, no deny, no creation, claim by handle.
        words(&mut ops, &[OPEN, 0, access | 0x400, 0]);
        self.client.put(&mut ops);
        (&b"opener"[..]).put(&mut ops);
        words(&mut ops, &[0, 4]);
        let reply = self.ask(2, &ops);
        Xdr::get(&mut done(&reply, &[PUTFH, OPEN])).expect("a stateid")
    }

    /// Takes a shared lock on the whole file.
    pub(super) fn lock(&self, handle: &[u8], open: &StateId) -> StateId {
        let mut ops = op(PUTFH);
        handle.put(&mut ops);
        words(&mut ops, &[LOCK, 1, 0]);
        0u64.put(&mut ops);
        u64::MAX.put(&mut ops);
        words(&mut ops, &[1, 0]);
        open.put(&mut ops);
        0u32.put(&mut ops);
        self.client.put(&mut ops);
        (&b"locker"[..]).put(&mut ops);
        let reply = self.ask(2, &ops);
        Xdr::get(&mut done(&reply, &[PUTFH, LOCK])).expect("a stateid")
    }

    /// Sends a READ, READ_PLUS or SEEK on a file.
    fn of_file(
        &self,
        (handle, number): (&[u8], u32),
        state: &StateId,
        offset: u64,
        last: u32,
    ) -> Answer<Vec<u8>> {
        let mut ops = op(PUTFH);
        handle.put(&mut ops);
        number.put(&mut ops);
        state.put(&mut ops);
        offset.put(&mut ops);
        last.put(&mut ops);
        let reply = self.ask(2, &ops);
        let mut from = XdrReader::new(&reply);
        for number in [PUTFH, number] {
            assert_eq!(from.u32(), Ok(number));
            match from.u32().expect("a status") {
                OK => {}
                status => return Err(status),
            }
        }
        Ok(from.rest().to_vec())
    }

    /// Returns the end-of-file flag and the segments.
    pub(super) fn read_plus(
        &self,
        handle: &[u8],
        state: &StateId,
        offset: u64,
        count: u32,
    ) -> Answer<(bool, Vec<Segment>)> {
        let reply = self.of_file((handle, READ_PLUS), state, offset, count)?;
        let mut from = XdrReader::new(&reply);
        let eof = bool::get(&mut from).expect("a word");
        let segments = from.u32().expect("a count");
        let mut segment = || match from.u32() {
            Ok(0) => {
                let offset = from.u64().expect("an offset");
                let bytes = <&[u8]>::get(&mut from).expect("bytes");
                Segment::Data(offset, bytes.to_vec())
            }
            Ok(1) => {
                let offset = from.u64().expect("an offset");
                Segment::Hole(offset, from.u64().expect("a length"))
            }
            other => panic!("{other:?} is no content"),
        };
        let segments = (0..segments).map(|_| segment()).collect();
        assert_eq!(from.end(), Ok(()));
        Ok((eof, segments))
    }

    /// Returns the end-of-file flag and the data.
    pub(super) fn read(
        &self,
        handle: &[u8],
        state: &StateId,
        offset: u64,
        count: u32,
    ) -> Answer<(bool, Vec<u8>)> {
        let reply = self.of_file((handle, READ), state, offset, count)?;
        let mut from = XdrReader::new(&reply);
        let eof = bool::get(&mut from).expect("a word");
        let bytes = <&[u8]>::get(&mut from).expect("bytes");
        Ok((eof, bytes.to_vec()))
    }

    /// Returns the end-of-file flag and the offset of data (0) or of a hole (1).
    pub(super) fn seek(
        &self,
        handle: &[u8],
        state: &StateId,
        offset: u64,
        what: u32,
    ) -> Answer<(bool, u64)> {
        let reply = self.of_file((handle, SEEK), state, offset, what)?;
        let mut from = XdrReader::new(&reply);
        let eof = bool::get(&mut from).expect("a word");
        Ok((eof, from.u64().expect("an offset")))
    }
}

fn op(number: u32) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

fn words(to: &mut Vec<u8>, words: &[u32]) {
    for word in words {
        word.put(to);
    }
}

/// Returns the result of the last of the operations `numbers`. All must have succeeded, and all
/// others must have empty results.
fn done<'r>(reply: &'r [u8], numbers: &[u32]) -> XdrReader<'r> {
    let mut from = XdrReader::new(reply);
    for number in numbers {
        assert_eq!(from.u32(), Ok(*number));
        assert_eq!(from.u32(), Ok(OK), "the status of operation {number}");
    }
    from
}
