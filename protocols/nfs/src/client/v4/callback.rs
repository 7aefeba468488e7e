//! The backchannel of a session: CB_COMPOUNDs from the server over the client's connection, each in
//! a slot (RFC 8881 sections 2.10.3.1, 2.10.6 and 20). They are answered when they are received;
//! the work that they cause is done afterwards.
//!
//! Deliberately absent: v4.0 callbacks, which need a connection from the server; layouts;
//! CB_GETATTR, which concerns write delegations; CB_NOTIFY_LOCK, because the client requests no
//! blocking locks.

use std::collections::VecDeque;

use parking_lot::{Mutex, MutexGuard};
use wire::{Malformed, Xdr, XdrReader};

use super::session::CALLBACK_PROGRAM;
use crate::rpc::{Call, CallRejection, LAST, MARK, OpaqueAuth, REPLY, refuse};
use crate::v4::callback::{COMPOUND, CallbackHead, CallbackSequence, Recall, VERSION};
use crate::v4::{SessionId, StateId, Status};

/// The handler of callbacks. It is called while a connection is read, so it must not block.
pub trait CallbackHandler: Send + Sync {
    /// Recalls a delegation. Returns whether the client holds it.
    fn recall(&self, state: &StateId) -> bool;

    /// Asks the client to keep at most this many delegations.
    fn recall_any(&self, keep: u32);

    /// Asks the client to use no slot of a session above `highest`.
    fn recall_slots(&self, session: &SessionId, highest: u32);
}

/// The backchannels of a client's sessions.
pub struct Backchannels {
    handler: Box<dyn CallbackHandler>,
    sessions: Mutex<VecDeque<Backchannel>>,
}

struct Backchannel {
    session: SessionId,
    slots: [Slot; MAX_SLOTS as usize],
}

#[derive(Clone, Default)]
struct Slot {
    /// The latest sequence id.
    sequence_id: u32,
    /// The reply to that call, for retries.
    reply: Vec<u8>,
}

/// The maximum number of callbacks in progress.
pub(super) const MAX_SLOTS: u32 = 8;

/// The maximum number of operations in a callback.
pub(super) const MAX_OPERATIONS: u32 = 8;

/// The maximum length of a tag.
const MAX_TAG: usize = 1024;

const ILLEGAL: u32 = 10044;

impl Backchannels {
    /// Creates backchannels without any session.
    pub fn new(handler: Box<dyn CallbackHandler>) -> Backchannels {
        Backchannels {
            handler,
            sessions: Mutex::default(),
        }
    }

    /// Adds a new session.
    pub fn add(&self, session: SessionId) {
        /// The previous session may still get callbacks for a moment.
        const MOST: usize = 2;
        let mut sessions = self.sessions();
        sessions.truncate(MOST - 1);
        sessions.push_front(Backchannel {
            session,
            slots: Default::default(),
        });
    }

    /// Writes the reply to the call `xid`, the rest of which is in `from`.
    pub(crate) fn answer(&self, xid: u32, from: &mut XdrReader<'_>, to: &mut Vec<u8>) {
        let at = to.len();
        match self.execute(from) {
            Ok(results) => {
                [0; MARK].put(to);
                // Accepted, a verifier of AUTH_NONE, success.
                for word in [xid, REPLY, 0, 0, 0, 0] {
                    word.put(to);
                }
                to.extend(results);
            }
            Err(why) => refuse(xid, true, why, OpaqueAuth::NONE, to),
        }
        let mark = (to.len() - at - MARK) as u32 | LAST;
        to[at..at + MARK].copy_from_slice(&mark.to_be_bytes());
    }

    fn execute(&self, from: &mut XdrReader<'_>) -> Result<Vec<u8>, CallRejection> {
        let call = Call::read(from)?;
        match (call.program, call.version, call.procedure) {
            (CALLBACK_PROGRAM, VERSION, 0) => Ok(Vec::new()),
            (CALLBACK_PROGRAM, VERSION, COMPOUND) => Ok(self.compound(from)?),
            (CALLBACK_PROGRAM, VERSION, _) => Err(CallRejection::ProcedureUnavailable),
            (CALLBACK_PROGRAM, ..) => Err(CallRejection::VersionMismatch(VERSION, VERSION)),
            _ => Err(CallRejection::ProgramUnavailable),
        }
    }

    fn compound(&self, from: &mut XdrReader<'_>) -> Result<Vec<u8>, Malformed> {
        let head = CallbackHead::get(from)?;
        if head.tag.len() > MAX_TAG {
            return Err(Malformed::new(format!("a tag of {} bytes", head.tag.len())));
        }
        let mut done = Results::new(head.tag);
        if !matches!(head.minor, 1 | 2) {
            done.status = Status::MinorVersMismatch;
            return Ok(done.end());
        }
        if head.count == 0 {
            return Ok(done.end());
        }
        let first = from.u32()?;
        if first != number::SEQUENCE {
            done.push_status(reply_number(first), Status::OpNotInSession);
            return Ok(done.end());
        }
        let sequence = sequence(from)?;
        if head.count > MAX_OPERATIONS {
            done.push_status(number::SEQUENCE, Status::TooManyOps);
            return Ok(done.end());
        }
        let mut sessions = self.sessions();
        let slot = match slot_call(&mut sessions, &sequence) {
            Ok(SlotCall::New(slot)) => slot,
            Ok(SlotCall::Retry(reply)) => return Ok(reply),
            Err(status) => {
                done.push_status(number::SEQUENCE, status);
                return Ok(done.end());
            }
        };
        // Parsed completely first: a malformed call must not be executed in part, because its reply
        // reports no results.
        let operations = operations(head.count - 1, from)?;
        slot.sequence_id = sequence.sequence;
        done.push_status(number::SEQUENCE, Status::Ok);
        sequence.session.put(&mut done.body);
        for word in [
            sequence.sequence,
            sequence.slot,
            MAX_SLOTS - 1,
            MAX_SLOTS - 1,
        ] {
            word.put(&mut done.body);
        }
        for operation in operations {
            let (number, status) = self.operation(&sequence.session, operation);
            done.push_status(number, status);
            if status != Status::Ok {
                break;
            }
        }
        slot.reply = done.end();
        Ok(slot.reply.clone())
    }

    fn operation(&self, session: &SessionId, operation: Operation) -> (u32, Status) {
        match operation {
            Operation::Recall(state) => {
                let status = match self.handler.recall(&state) {
                    true => Status::Ok,
                    // The reply to the OPEN may not have arrived yet; the server then recalls
                    // again.
                    false => Status::BadStateid,
                };
                (number::RECALL, status)
            }
            Operation::RecallAny(keep) => {
                self.handler.recall_any(keep);
                (number::RECALL_ANY, Status::Ok)
            }
            Operation::RecallSlot(highest) => {
                self.handler.recall_slots(session, highest);
                (number::RECALL_SLOT, Status::Ok)
            }
            Operation::Other(number::SEQUENCE) => (number::SEQUENCE, Status::SequencePos),
            Operation::Other(other) => match reply_number(other) {
                ILLEGAL => (ILLEGAL, Status::OpIllegal),
                other => (other, Status::Notsupp),
            },
        }
    }

    fn sessions(&self) -> MutexGuard<'_, VecDeque<Backchannel>> {
        self.sessions.lock()
    }
}

mod number {
    pub(super) const FIRST: u32 = 3;
    pub(super) const RECALL: u32 = 4;
    pub(super) const RECALL_ANY: u32 = 8;
    pub(super) const RECALL_SLOT: u32 = 10;
    pub(super) const SEQUENCE: u32 = 11;
    pub(super) const LAST: u32 = 15;
}

/// Returns the operation number to reply with.
fn reply_number(number: u32) -> u32 {
    match number {
        number::FIRST..=number::LAST => number,
        _ => ILLEGAL,
    }
}

/// An operation after CB_SEQUENCE.
enum Operation {
    Recall(StateId),
    RecallAny(u32),
    RecallSlot(u32),
    /// An operation that is not supported, which ends the compound.
    Other(u32),
}

/// Parses the operations in `from` up to the first unsupported one.
fn operations(count: u32, from: &mut XdrReader<'_>) -> Result<Vec<Operation>, Malformed> {
    let mut operations = Vec::new();
    for _ in 0..count {
        let operation = match from.u32()? {
            number::RECALL => Operation::Recall(Recall::get(from)?.state),
            number::RECALL_ANY => {
                let keep = from.u32()?;
                // The types to recall: the client has only one.
                Vec::<u32>::get(from)?;
                Operation::RecallAny(keep)
            }
            number::RECALL_SLOT => Operation::RecallSlot(from.u32()?),
            other => Operation::Other(other),
        };
        let last = matches!(operation, Operation::Other(_));
        operations.push(operation);
        if last {
            break;
        }
    }
    Ok(operations)
}

/// Parses the arguments of CB_SEQUENCE, skipping the referring calls.
fn sequence(from: &mut XdrReader<'_>) -> Result<CallbackSequence, Malformed> {
    const REFERRING_CALL: usize = 8;
    let sequence = CallbackSequence::get(from)?;
    for _ in 0..sequence.referring {
        SessionId::get(from)?;
        let calls = from.u32()? as usize;
        from.fixed(calls.saturating_mul(REFERRING_CALL))?;
    }
    Ok(sequence)
}

/// The kind of a call in a slot.
enum SlotCall<'a> {
    New(&'a mut Slot),
    /// A retry, with the cached reply.
    Retry(Vec<u8>),
}

fn slot_call<'a>(
    sessions: &'a mut VecDeque<Backchannel>,
    sequence: &CallbackSequence,
) -> Result<SlotCall<'a>, Status> {
    let session = sessions
        .iter_mut()
        .find(|it| it.session == sequence.session);
    let slots = &mut session.ok_or(Status::Badsession)?.slots;
    let slot = slots.get_mut(sequence.slot as usize);
    let slot = slot.ok_or(Status::Badslot)?;
    match sequence.sequence {
        next if next == slot.sequence_id.wrapping_add(1) => Ok(SlotCall::New(slot)),
        again if again == slot.sequence_id && !slot.reply.is_empty() => {
            Ok(SlotCall::Retry(slot.reply.clone()))
        }
        _ => Err(Status::SeqMisordered),
    }
}

/// An encoder of a compound's results.
struct Results {
    status: Status,
    tag: Vec<u8>,
    count: u32,
    body: Vec<u8>,
}

impl Results {
    fn new(tag: &[u8]) -> Results {
        Results {
            status: Status::Ok,
            tag: tag.to_vec(),
            count: 0,
            body: Vec::new(),
        }
    }

    fn push_status(&mut self, number: u32, status: Status) {
        self.status = status;
        self.count += 1;
        number.put(&mut self.body);
        status.put(&mut self.body);
    }

    fn end(self) -> Vec<u8> {
        let mut results = Vec::new();
        self.status.put(&mut results);
        self.tag.as_slice().put(&mut results);
        self.count.put(&mut results);
        results.extend(self.body);
        results
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    const SESSION: SessionId = *b"0123456789abcdef";
    const STATE: StateId = StateId {
        seqid: 1,
        other: *b"delegation!!",
    };

    /// A handler that holds one delegation, and records the callbacks.
    #[derive(Clone, Default)]
    struct Notes(Arc<Mutex<Vec<String>>>);

    impl Notes {
        fn take(&self) -> Vec<String> {
            std::mem::take(&mut self.0.lock())
        }

        fn note(&self, what: String) {
            self.0.lock().push(what);
        }
    }

    impl CallbackHandler for Notes {
        fn recall(&self, state: &StateId) -> bool {
            self.note("recall".into());
            *state == STATE
        }

        fn recall_any(&self, keep: u32) {
            self.note(format!("keep {keep}"));
        }

        fn recall_slots(&self, session: &SessionId, highest: u32) {
            assert_eq!(*session, SESSION);
            self.note(format!("slots to {highest}"));
        }
    }

    fn channel() -> (Backchannels, Notes) {
        let notes = Notes::default();
        let channels = Backchannels::new(Box::new(notes.clone()));
        channels.add(SESSION);
        (channels, notes)
    }

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_be_bytes()).collect()
    }

    /// Returns a call of the callback program, after XID and message type.
    fn call(operations: &[Vec<u8>]) -> Vec<u8> {
        let head = words(&[2, CALLBACK_PROGRAM, 1, 1, 0, 0, 0, 0]);
        let compound = words(&[0, 1, 0, operations.len() as u32]);
        [head, compound, operations.concat()].concat()
    }

    fn in_turn(session: &SessionId, sequence: u32, slot: u32) -> Vec<u8> {
        [
            &words(&[11])[..],
            session,
            &words(&[sequence, slot, 7, 0, 0]),
        ]
        .concat()
    }

    fn recall(state: &StateId) -> Vec<u8> {
        let mut bytes = words(&[4]);
        state.put(&mut bytes);
        bytes.extend(words(&[0, 4]));
        bytes.extend(b"file");
        bytes
    }

    /// Returns the reply after record mark, XID and message type.
    fn answer(channels: &Backchannels, call: &[u8]) -> Vec<u8> {
        let mut reply = Vec::new();
        channels.answer(5, &mut XdrReader::new(call), &mut reply);
        let mark = (reply.len() - 4) as u32 | LAST;
        assert!(reply.starts_with(&words(&[mark, 5, 1])));
        reply.split_off(12)
    }

    /// Returns the compound's status, and the number and status of each operation.
    fn ends(channels: &Backchannels, operations: &[Vec<u8>]) -> (u32, Vec<(u32, u32)>) {
        let reply = answer(channels, &call(operations));
        assert!(reply.starts_with(&words(&[0, 0, 0, 0])), "{reply:?}");
        let mut from = XdrReader::new(&reply[16..]);
        let (status, tag) = (from.u32().expect("status"), from.opaque(0));
        assert_eq!(tag, Ok(&b""[..]));
        let count = from.u32().expect("count");
        let ends = (0..count).map(|_| {
            let end = (from.u32().expect("number"), from.u32().expect("status"));
            if end == (11, 0) {
                from.fixed(32).expect("CB_SEQUENCE");
            }
            end
        });
        let ends = ends.collect();
        assert_eq!(from.rest(), b"");
        (status, ends)
    }

    #[test]
    fn a_recall_is_carried_out_once_and_answered_as_often_as_it_comes() {
        let (channels, notes) = channel();
        let calls = [in_turn(&SESSION, 1, 0), recall(&STATE)];
        for _ in 0..3 {
            assert_eq!(ends(&channels, &calls), (0, vec![(11, 0), (4, 0)]));
        }
        assert_eq!(notes.take(), ["recall"]);
        let other = StateId { seqid: 9, ..STATE };
        let calls = [in_turn(&SESSION, 2, 0), recall(&other), recall(&STATE)];
        let bad = Status::BadStateid as u32;
        assert_eq!(ends(&channels, &calls), (bad, vec![(11, 0), (4, bad)]));
        assert_eq!(notes.take(), ["recall"], "the second is not come to");
    }

    #[test]
    fn what_is_out_of_turn_is_refused() {
        let (channels, notes) = channel();
        let first = |sequence: Vec<u8>| ends(&channels, &[sequence, recall(&STATE)]).1;
        let status = |status: Status| vec![(11, status as u32)];
        for sequence in [0, 2, u32::MAX] {
            let got = first(in_turn(&SESSION, sequence, 0));
            assert_eq!(got, status(Status::SeqMisordered));
        }
        let got = first(in_turn(b"another session!", 1, 0));
        assert_eq!(got, status(Status::Badsession));
        assert_eq!(first(in_turn(&SESSION, 1, 8)), status(Status::Badslot));
        let without = ends(&channels, &[recall(&STATE)]);
        assert_eq!(without.1, [(4, Status::OpNotInSession as u32)]);
        assert_eq!(notes.take(), [""; 0]);
        assert_eq!(first(in_turn(&SESSION, 1, 7)), [(11, 0), (4, 0)]);
        let twice = [in_turn(&SESSION, 1, 0), in_turn(&SESSION, 2, 0)];
        let pos = Status::SequencePos as u32;
        assert_eq!(ends(&channels, &twice).1, [(11, 0), (11, pos)]);
    }

    #[test]
    fn less_is_kept_when_asked_for_and_what_is_not_had_not_supported() {
        let (channels, notes) = channel();
        let calls = [
            in_turn(&SESSION, 1, 0),
            words(&[8, 10, 1, 1]),
            words(&[10, 3]),
        ];
        assert_eq!(ends(&channels, &calls).1, [(11, 0), (8, 0), (10, 0)]);
        assert_eq!(notes.take(), ["keep 10", "slots to 3"]);
        let mut sequence = 1;
        for number in [3, 5, 6, 7, 9, 12, 13, 14, 15] {
            sequence += 1;
            let calls = [in_turn(&SESSION, sequence, 0), words(&[number, 1, 2])];
            let status = Status::Notsupp as u32;
            assert_eq!(ends(&channels, &calls).1, [(11, 0), (number, status)]);
        }
        let calls = [in_turn(&SESSION, sequence + 1, 0), words(&[99])];
        let status = Status::OpIllegal as u32;
        assert_eq!(ends(&channels, &calls).1, [(11, 0), (ILLEGAL, status)]);
    }

    #[test]
    fn what_is_no_callback_is_refused_as_rpc_says() {
        let (channels, notes) = channel();
        let head =
            |program, version, procedure| words(&[2, program, version, procedure, 0, 0, 0, 0]);
        for (head, end) in [
            (head(CALLBACK_PROGRAM, 1, 0), vec![0]),
            (head(CALLBACK_PROGRAM, 1, 2), vec![3]),
            (head(CALLBACK_PROGRAM, 4, 1), vec![2, 1, 1]),
            (head(100_003, 4, 1), vec![1]),
            (head(CALLBACK_PROGRAM, 1, 1), vec![4]),
        ] {
            let want = [words(&[0, 0, 0]), words(&end)].concat();
            assert_eq!(answer(&channels, &head), want);
        }
        let whole = call(&[in_turn(&SESSION, 1, 0), recall(&STATE)]);
        // A truncated call is not executed even in part.
        for len in 0..whole.len() {
            answer(&channels, &whole[..len]);
        }
        assert_eq!(notes.take(), [""; 0]);
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_are_too_much(rest: Vec<u8>, sequence: bool) {
            let (channels, _) = channel();
            let mut bytes = words(&[2, CALLBACK_PROGRAM, 1, 1, 0, 0, 0, 0, 0, 1, 0, 3]);
            if sequence {
                bytes.extend(in_turn(&SESSION, 1, 0));
            }
            bytes.extend(&rest);
            answer(&channels, &bytes);
            answer(&channels, &rest);
        }
    }
}
