//! Calls in flight, by their ids, and replies to them (RFC 5531).

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use vfs::{Caller, Errno};
use wire::{Malformed, Xdr, XdrReader};

use super::v4::Backchannels;
use super::{Ask, Credentials, Lands, Procedure};
use crate::rpc::{self, CALL, LAST, MARK, OpaqueAuth, REPLY, Record};

/// A connection's calls. Each has a number here, small and used again, besides its id, which a call that is
/// sent again over another connection keeps.
pub struct Calls {
    credentials: Credentials,
    most: usize,
    backchannels: Option<Arc<Backchannels>>,
    numbers: HashMap<u32, usize>,
    flights: Vec<Flight>,
    free: Vec<usize>,
}

#[derive(Clone, Copy, Default)]
struct Flight {
    awaited: bool,
    held: bool,
    /// How its reply has to begin for its payload to be received apart.
    lands: Option<Lands>,
}

/// A reply whose payload may be received apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Apart {
    /// The call's number.
    pub number: usize,
    /// How many bytes stand before the payload.
    pub head: usize,
    /// How many it has. Nothing but padding follows.
    pub len: usize,
}

/// What a message from the server means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// A call is answered, or refused.
    Answer {
        /// The call's number.
        number: usize,
        /// Whether there are results.
        result: Result<(), Errno>,
    },
    /// A call that nobody waits for is answered.
    Nothing,
    /// The server calls: see [`Calls::answer`].
    Call,
}

impl Calls {
    /// The most calls in flight.
    pub const MOST_IN_FLIGHT: usize = 1 << 16;

    /// A new connection, on which replies have up to `most` bytes.
    pub fn new(credentials: Credentials, most: usize) -> Calls {
        Calls {
            credentials,
            most,
            backchannels: None,
            numbers: HashMap::new(),
            flights: Vec::new(),
            free: Vec::new(),
        }
    }

    /// From now on the server may call as well.
    pub fn call_back(&mut self, backchannels: Arc<Backchannels>) {
        self.backchannels = Some(backchannels);
    }

    /// Writes a call of id `xid` but for its payload, and says its number. `ENOBUFS` if there are
    /// [`Calls::MOST_IN_FLIGHT`] already, or one of this id.
    pub fn call<A: Ask>(
        &mut self,
        xid: u32,
        caller: &Caller,
        ask: &A,
        to: &mut Vec<u8>,
    ) -> Result<usize, Errno> {
        if self.numbers.contains_key(&xid) {
            return Err(Errno::ENOBUFS);
        }
        let number = match self.free.pop() {
            Some(number) => number,
            None if self.flights.len() >= Calls::MOST_IN_FLIGHT => return Err(Errno::ENOBUFS),
            None => {
                self.flights.push(Flight::default());
                self.flights.len() - 1
            }
        };
        self.flights[number] = Flight {
            awaited: true,
            held: true,
            lands: ask.lands(),
        };
        self.numbers.insert(xid, number);
        self.put(xid, caller, ask, to);
        Ok(number)
    }

    fn put<A: Ask>(&self, xid: u32, caller: &Caller, ask: &A, to: &mut Vec<u8>) {
        const RPC_VERSION: u32 = 2;
        let at = to.len();
        to.extend([0; MARK]);
        let Procedure {
            program,
            version,
            number,
        } = A::PROCEDURE;
        for word in [xid, CALL, RPC_VERSION, program, version, number] {
            word.put(to);
        }
        self.credentials.put(caller, to);
        ask.put(to);
        let payload = ask.payload().len();
        let len = to.len() - at - MARK + payload + wire::padding(payload);
        to[at..at + MARK].copy_from_slice(&(len as u32 | LAST).to_be_bytes());
    }

    /// The length of the message that `head` begins with, or nothing as long as too little has come to
    /// tell.
    pub fn frame(&self, head: &[u8]) -> Result<Option<usize>, Malformed> {
        rpc::frame(head, self.most)
    }

    /// Which call is answered by the message that `head` begins with, if that ends in a payload that may be received apart; nothing
    /// of any other message, of one that the call would not take for its answer, or if not all has come that stands before the
    /// payload.
    pub fn apart(&self, head: &[u8]) -> Option<Apart> {
        let (mark, rest) = head.split_first_chunk::<MARK>()?;
        let whole = (u32::from_be_bytes(*mark) & !LAST) as usize;
        // A payload in several fragments would have marks in between.
        if mark[0] & 0x80 == 0 || whole > self.most {
            return None;
        }
        let mut from = XdrReader::new(rest);
        let xid = from.u32().ok()?;
        if from.u32().ok()? != REPLY {
            return None;
        }
        let number = *self.numbers.get(&xid)?;
        let lands = self.flights[number].lands?;
        accepted(&mut from).ok()?.ok()?;
        let len = lands.payload(&mut from).ok()?;
        let before = from.position();
        let fits = before + len + wire::padding(len) == whole;
        fits.then_some(Apart {
            number,
            head: MARK + before,
            len,
        })
    }

    /// Takes a reply that begins with `head`, and whose payload has been received apart: [`Calls::apart`] has told of it.
    pub fn landed(&mut self, head: &[u8]) {
        let xid = head[MARK..]
            .first_chunk()
            .map(|xid| u32::from_be_bytes(*xid));
        if let Some(number) = xid.and_then(|xid| self.numbers.remove(&xid)) {
            self.flights[number].awaited = false;
            self.free(number);
        }
    }

    /// Takes a whole message from the server.
    pub fn receive(&mut self, message: &[u8]) -> Result<Received, Malformed> {
        let record = Record::new(message)?;
        let mut from = XdrReader::new(record.bytes());
        let xid = from.u32()?;
        match from.u32()? {
            REPLY => {}
            CALL => return Ok(Received::Call),
            other => return Err(Malformed::new(format!("expected a reply, got {other}"))),
        }
        // What has been sent again may be answered twice.
        let Some(number) = self.numbers.remove(&xid) else {
            return Ok(Received::Nothing);
        };
        let result = accepted(&mut from)?;
        self.flights[number].awaited = false;
        self.free(number);
        Ok(Received::Answer { number, result })
    }

    /// Writes the reply to a message that [`Calls::receive`] took for a call: none on a connection that none were
    /// agreed on for.
    pub fn answer(&self, message: &[u8], to: &mut Vec<u8>) -> Result<(), Malformed> {
        let record = Record::new(message)?;
        let mut from = XdrReader::new(record.bytes());
        let (xid, _call) = (from.u32()?, from.u32()?);
        if let Some(backchannels) = &self.backchannels {
            backchannels.answer(xid, &mut from, to);
        }
        Ok(())
    }

    /// The caller has no more use for a call's number.
    pub fn release(&mut self, number: usize) {
        self.flights[number].held = false;
        self.free(number);
    }

    fn free(&mut self, number: usize) {
        let flight = self.flights[number];
        if !flight.awaited && !flight.held {
            self.free.push(number);
        }
    }
}

/// Reads the head of a reply, up to the results.
fn accepted(from: &mut XdrReader<'_>) -> Result<Result<(), Errno>, Malformed> {
    const EPROTONOSUPPORT: Errno = Errno::from_raw(93);
    match from.u32()? {
        0 => {}
        1 => {
            return Ok(Err(match from.u32()? {
                0 => EPROTONOSUPPORT,
                _ => Errno::EACCES,
            }));
        }
        other => return Err(Malformed::new(format!("reply_stat has no {other}"))),
    }
    OpaqueAuth::get(from)?;
    Ok(match from.u32()? {
        0 => Ok(()),
        // Program, version or procedure unavailable.
        1..=3 => Err(EPROTONOSUPPORT),
        // GARBAGE_ARGS, SYSTEM_ERR
        4 | 5 => Err(Errno::EIO),
        other => return Err(Malformed::new(format!("accept_stat has no {other}"))),
    })
}

/// A reply's results.
pub struct Body<'r> {
    record: Cow<'r, [u8]>,
    at: usize,
}

impl<'r> Body<'r> {
    /// Those in a message that [`Calls::receive`] took for an answer.
    pub fn of(message: &'r [u8]) -> Result<Body<'r>, Malformed> {
        Body::in_record(Record::new(message)?.into_bytes())
    }

    /// Those before the payload, of a message that begins with `head`, and whose payload has been received apart.
    pub fn before(head: &'r [u8]) -> Result<Body<'r>, Malformed> {
        let record = head.get(MARK..).unwrap_or_default();
        Body::in_record(Cow::Borrowed(record))
    }

    fn in_record(record: Cow<'r, [u8]>) -> Result<Body<'r>, Malformed> {
        let mut from = XdrReader::new(&record);
        from.u32()?;
        from.u32()?;
        if accepted(&mut from)?.is_err() {
            return Err(Malformed::new("expected results"));
        }
        let at = from.position();
        Ok(Body { record, at })
    }

    /// Their bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.record[self.at..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::Failure;

    struct Null;

    impl Ask for Null {
        type Answer<'r> = &'r [u8];

        const PROCEDURE: Procedure = Procedure {
            program: 100_003,
            version: 3,
            number: 0,
        };

        fn put(&self, to: &mut Vec<u8>) {
            7u32.put(to);
        }

        fn payload(&self) -> &[u8] {
            b"abcde"
        }

        fn answer<'r>(&self, results: &'r [u8]) -> Result<&'r [u8], Failure> {
            Ok(results)
        }
    }

    fn calls() -> Calls {
        Calls::new(Credentials::new("m"), 1000)
    }

    const REPLY_TO_5: &[u8] =
        b"\x80\0\0\x1c\0\0\0\x05\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0abcd";

    #[test]
    fn a_call_is_what_rfc_5531_says() {
        let mut bytes = Vec::new();
        let caller = Caller::new(1, 2);
        assert_eq!(calls().call(5, &caller, &Null, &mut bytes), Ok(0));
        let want: &[u8] =
            b"\x80\0\0\x4c\0\0\0\x05\0\0\0\0\0\0\0\x02\0\x01\x86\xa3\0\0\0\x03\0\0\0\0\
            \0\0\0\x01\0\0\0\x18\0\0\0\0\0\0\0\x01m\0\0\0\0\0\0\x01\0\0\0\x02\0\0\0\0\
            \0\0\0\0\0\0\0\0\0\0\0\x07";
        // The mark counts five bytes of payload and their padding.
        assert_eq!(bytes.len() + 8, 4 + 0x4c);
        assert_eq!(bytes, want);
    }

    #[test]
    fn a_reply_finds_its_call_and_shows_its_results() {
        let mut calls = calls();
        assert_eq!(calls.receive(REPLY_TO_5), Ok(Received::Nothing));
        for _ in 0..3 {
            let number = calls.call(5, &Caller::ROOT, &Null, &mut Vec::new());
            assert_eq!(number, Ok(0), "numbers are used again");
            let result = Ok(());
            assert_eq!(
                calls.receive(REPLY_TO_5),
                Ok(Received::Answer { number: 0, result })
            );
            assert_eq!(calls.receive(REPLY_TO_5), Ok(Received::Nothing));
            calls.release(0);
        }
        let body = Body::of(REPLY_TO_5).expect("results");
        assert_eq!(body.bytes(), b"abcd");
    }

    #[test]
    fn refusals_are_the_calls_own_and_what_is_cut_short_is_no_reply() {
        let head = |tail: &[u8]| {
            let len = 8 + tail.len() as u32;
            [
                &(len | LAST).to_be_bytes()[..],
                b"\0\0\0\x05\0\0\0\x01",
                tail,
            ]
            .concat()
        };
        let mut calls = calls();
        for (tail, errno) in [
            // RPC_MISMATCH, AUTH_ERROR, PROG_UNAVAIL, PROG_MISMATCH, GARBAGE_ARGS
            (&[1, 0, 2, 2][..], 93),
            (&[1, 1, 5], 13),
            (&[0, 0, 0, 1], 93),
            (&[0, 0, 0, 2, 3, 4], 93),
            (&[0, 0, 0, 4], 5),
        ] {
            let tail: Vec<u8> = tail.iter().flat_map(|n| u32::to_be_bytes(*n)).collect();
            let number = calls.call(5, &Caller::ROOT, &Null, &mut Vec::new());
            let number = number.expect("room");
            let result = Err(Errno::from_raw(errno));
            assert_eq!(
                calls.receive(&head(&tail)),
                Ok(Received::Answer { number, result })
            );
            calls.release(number);
        }
        for len in 4..24 {
            assert!(calls.call(5, &Caller::ROOT, &Null, &mut Vec::new()).is_ok());
            let mut cut = REPLY_TO_5[..4 + len].to_vec();
            cut[..4].copy_from_slice(&(len as u32 | LAST).to_be_bytes());
            let got = calls.receive(&cut);
            assert!(got.is_err(), "{len}: {got:?}");
            calls = self::calls();
        }
    }
}
