//! Calls in flight by XID, and replies to them (RFC 5531).

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use vfs::{Caller, Errno};
use wire::{Malformed, Xdr, XdrReader};

use super::v4::Backchannels;
use super::{CallArguments, Credentials, Procedure, SeparatePayload};
use crate::rpc::{self, CALL, LAST, MARK, OpaqueAuth, REPLY, Record};

/// The calls in flight on a connection. Each has a small number that is reused, besides its XID,
/// which stays the same when the call is retransmitted over another connection.
pub struct Calls {
    credentials: Credentials,
    max_reply: usize,
    backchannels: Option<Arc<Backchannels>>,
    numbers: HashMap<u32, usize>,
    calls: Vec<CallState>,
    free: Vec<usize>,
}

#[derive(Clone, Copy, Default)]
struct CallState {
    awaited: bool,
    in_use: bool,
    /// The form of replies whose payload may be received separately.
    separate_payload: Option<SeparatePayload>,
}

/// A reply whose payload may be received separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SplitReply {
    /// The call's number.
    pub number: usize,
    /// The number of bytes before the payload.
    pub head: usize,
    /// The length of the payload in bytes. Only padding follows it.
    pub len: usize,
}

/// The meaning of a message from the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// The reply to a call.
    Answer {
        /// The call's number.
        number: usize,
        /// Whether it has results; the error if it was rejected.
        result: Result<(), Errno>,
    },
    /// A reply to a call that is not in flight.
    Unexpected,
    /// A callback: see [`Calls::answer_callback`].
    Callback,
}

impl Calls {
    /// The maximum number of calls in flight.
    pub const MAX_IN_FLIGHT: usize = 1 << 16;

    /// Creates the state of a new connection, on which replies have up to `most` bytes.
    pub fn new(credentials: Credentials, most: usize) -> Calls {
        Calls {
            credentials,
            max_reply: most,
            backchannels: None,
            numbers: HashMap::new(),
            calls: Vec::new(),
            free: Vec::new(),
        }
    }

    /// Accepts callbacks from the server from now on.
    pub fn set_backchannels(&mut self, backchannels: Arc<Backchannels>) {
        self.backchannels = Some(backchannels);
    }

    /// Writes a call with XID `xid` up to its payload, and returns its number. Returns `ENOBUFS` if
    /// [`Calls::MAX_IN_FLIGHT`] calls are in flight, or one with this XID.
    pub fn call(
        &mut self,
        xid: u32,
        caller: &Caller,
        arguments: &dyn CallArguments,
        to: &mut Vec<u8>,
    ) -> Result<usize, Errno> {
        if self.numbers.contains_key(&xid) {
            return Err(Errno::ENOBUFS);
        }
        let number = match self.free.pop() {
            Some(number) => number,
            None if self.calls.len() >= Calls::MAX_IN_FLIGHT => return Err(Errno::ENOBUFS),
            None => {
                self.calls.push(CallState::default());
                self.calls.len() - 1
            }
        };
        self.calls[number] = CallState {
            awaited: true,
            in_use: true,
            separate_payload: arguments.separate_payload(),
        };
        self.numbers.insert(xid, number);
        self.put(xid, caller, arguments, to);
        Ok(number)
    }

    fn put(&self, xid: u32, caller: &Caller, arguments: &dyn CallArguments, to: &mut Vec<u8>) {
        const RPC_VERSION: u32 = 2;
        let at = to.len();
        to.extend([0; MARK]);
        let Procedure {
            program,
            version,
            number,
        } = arguments.procedure();
        for word in [xid, CALL, RPC_VERSION, program, version, number] {
            word.put(to);
        }
        self.credentials.put(caller, to);
        arguments.put(to);
        let payload = arguments.payload().len();
        let len = to.len() - at - MARK + payload + wire::padding(payload);
        to[at..at + MARK].copy_from_slice(&(len as u32 | LAST).to_be_bytes());
    }

    /// Returns the length of the message that `head` begins; `None` while `head` is too short to
    /// tell.
    pub fn frame(&self, head: &[u8]) -> Result<Option<usize>, Malformed> {
        rpc::frame(head, self.max_reply)
    }

    /// Returns the call whose reply `head` begins, if the reply ends in a payload that may be
    /// received separately. Returns `None` if it is another message, if it is not a valid answer to
    /// the call, or if `head` does not reach to the payload.
    pub fn split_reply(&self, head: &[u8]) -> Option<SplitReply> {
        let (mark, rest) = head.split_first_chunk::<MARK>()?;
        let whole = (u32::from_be_bytes(*mark) & !LAST) as usize;
        // A payload in several fragments would contain record marks.
        if mark[0] & 0x80 == 0 || whole > self.max_reply {
            return None;
        }
        let mut from = XdrReader::new(rest);
        let xid = from.u32().ok()?;
        if from.u32().ok()? != REPLY {
            return None;
        }
        let number = *self.numbers.get(&xid)?;
        let lands = self.calls[number].separate_payload?;
        accepted(&mut from).ok()?.ok()?;
        let len = lands.payload_len(&mut from).ok()?;
        let before = from.position();
        let fits = before + len + wire::padding(len) == whole;
        fits.then_some(SplitReply {
            number,
            head: MARK + before,
            len,
        })
    }

    /// Ends the call whose reply begins with `head`, and whose payload has been received separately
    /// according to [`Calls::split_reply`].
    pub fn complete_read(&mut self, head: &[u8]) {
        let xid = head[MARK..]
            .first_chunk()
            .map(|xid| u32::from_be_bytes(*xid));
        if let Some(number) = xid.and_then(|xid| self.numbers.remove(&xid)) {
            self.calls[number].awaited = false;
            self.free(number);
        }
    }

    /// Processes a complete message from the server.
    pub fn receive(&mut self, message: &[u8]) -> Result<Received, Malformed> {
        let record = Record::new(message)?;
        let mut from = XdrReader::new(record.bytes());
        let xid = from.u32()?;
        match from.u32()? {
            REPLY => {}
            CALL => return Ok(Received::Callback),
            other => return Err(Malformed::new(format!("expected a reply, got {other}"))),
        }
        // A retransmitted call may be answered twice.
        let Some(number) = self.numbers.remove(&xid) else {
            return Ok(Received::Unexpected);
        };
        let result = accepted(&mut from)?;
        self.calls[number].awaited = false;
        self.free(number);
        Ok(Received::Answer { number, result })
    }

    /// Writes the reply to a message that [`Calls::receive`] returned as [`Received::Callback`];
    /// writes no reply if the connection has no backchannel.
    pub fn answer_callback(&self, message: &[u8], to: &mut Vec<u8>) -> Result<(), Malformed> {
        let record = Record::new(message)?;
        let mut from = XdrReader::new(record.bytes());
        let (xid, _call) = (from.u32()?, from.u32()?);
        if let Some(backchannels) = &self.backchannels {
            backchannels.answer(xid, &mut from, to);
        }
        Ok(())
    }

    /// Releases a call's number, which the caller no longer uses.
    pub fn release(&mut self, number: usize) {
        self.calls[number].in_use = false;
        self.free(number);
    }

    fn free(&mut self, number: usize) {
        let call = self.calls[number];
        if !call.awaited && !call.in_use {
            self.free.push(number);
        }
    }
}

/// Parses the header of a reply, up to the results.
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
        other => return Err(Malformed::new(format!("unknown reply_stat {other}"))),
    }
    OpaqueAuth::get(from)?;
    Ok(match from.u32()? {
        0 => Ok(()),
        // PROG_UNAVAIL, PROG_MISMATCH, PROC_UNAVAIL
        1..=3 => Err(EPROTONOSUPPORT),
        // GARBAGE_ARGS, SYSTEM_ERR
        4 | 5 => Err(Errno::EIO),
        other => return Err(Malformed::new(format!("unknown accept_stat {other}"))),
    })
}

/// The results of a reply.
pub struct Body<'r> {
    record: Cow<'r, [u8]>,
    at: usize,
}

impl<'r> Body<'r> {
    /// Returns the results in a message that [`Calls::receive`] returned as an answer.
    pub fn of(message: &'r [u8]) -> Result<Body<'r>, Malformed> {
        Body::in_record(Record::new(message)?.into_bytes())
    }

    /// Returns the results before the payload, in a message that begins with `head` and whose
    /// payload has been received separately.
    pub fn before_payload(head: &'r [u8]) -> Result<Body<'r>, Malformed> {
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

    /// Returns the encoded results.
    pub fn bytes(&self) -> &[u8] {
        &self.record[self.at..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::{ClientCall, Failure};

    struct Null;

    impl CallArguments for Null {
        fn procedure(&self) -> Procedure {
            Procedure {
                program: 100_003,
                version: 3,
                number: 0,
            }
        }

        fn put(&self, to: &mut Vec<u8>) {
            7u32.put(to);
        }

        fn payload(&self) -> &[u8] {
            b"abcde"
        }
    }

    impl ClientCall for Null {
        type Answer<'r> = &'r [u8];

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
        // The length in the record mark includes five bytes of payload and their padding.
        assert_eq!(bytes.len() + 8, 4 + 0x4c);
        assert_eq!(bytes, want);
    }

    #[test]
    fn a_reply_finds_its_call_and_shows_its_results() {
        let mut calls = calls();
        assert_eq!(calls.receive(REPLY_TO_5), Ok(Received::Unexpected));
        for _ in 0..3 {
            let number = calls.call(5, &Caller::ROOT, &Null, &mut Vec::new());
            assert_eq!(number, Ok(0), "numbers are used again");
            let result = Ok(());
            assert_eq!(
                calls.receive(REPLY_TO_5),
                Ok(Received::Answer { number: 0, result })
            );
            assert_eq!(calls.receive(REPLY_TO_5), Ok(Received::Unexpected));
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
