//! Replies of a server to the NFS client half.
//!
//! A script is a sequence of calls and replies: complete messages of any kind, results of any
//! bytes, and almost valid segments for READ_PLUS.

use arbitrary::{Result, Unstructured};
use nfs::client::v4::{self, Compound, Operations, Piece, StateId};
use nfs::client::{
    Body, CallArguments, Calls, ClientCall, Credentials, DirPage, Failure, Received, SplitReply,
    Tree, v3,
};
use vfs::{Caller, Name};
use wire::Xdr;

use crate::client::check_attr;

/// Plays the script `data`: an accepted reply belongs to its call, and has no more data than
/// requested.
pub fn script(data: &[u8]) {
    let mut input = Unstructured::new(data);
    // The end of the input is the end of the script.
    let _ = play(&mut input);
}

const HANDLE: &[u8] = b"handle";
const COUNT: u32 = 1000;
const OFFSET: u64 = 5000;

fn play(input: &mut Unstructured<'_>) -> Result<()> {
    let mut calls = Calls::new(Credentials::new("fuzz"), 1 << 16);
    let (mut flights, tree) = (Flights::default(), Tree::default());
    while !input.is_empty() {
        let handle = HANDLE;
        match input.arbitrary::<u8>()? % 21 {
            0..=3 => segments(input)?,
            4 => messages(&mut calls, &mut flights, input)?,
            5 => three(input, &v3::GetAttr { handle, tree }, |attr| {
                check_attr(&attr)
            })?,
            6 => {
                let (dir, name) = (handle, &b"name"[..]);
                three(input, &v3::Lookup { dir, name, tree }, check_made)?;
            }
            7 => three(input, &v3::ReadLink { handle }, drop)?,
            8 => {
                let (offset, count) = (OFFSET, COUNT);
                let read = v3::Read {
                    handle,
                    offset,
                    count,
                };
                three(input, &read, |read| {
                    assert!(read.data.len() <= COUNT as usize)
                })?;
            }
            9 => {
                let list = v3::ReadDir::<true> {
                    handle,
                    cookie: 0,
                    verifier: [0; 8],
                    count: COUNT,
                    tree,
                };
                three(input, &list, check_page)?;
            }
            10 => three(input, &v3::FsStat { handle }, drop)?,
            11 => three(input, &v3::FsInfo { handle }, drop)?,
            12 => three(input, &v3::Mount { path: b"/" }, drop)?,
            13 => four(input, &v4::GetAttr { handle, tree }, 9, |attr| {
                check_attr(&attr)
            })?,
            14 => {
                let look_up = v4::Lookup {
                    dir: handle,
                    name: Some(b"name"),
                    tree,
                };
                four(input, &look_up, 15, check_made)?;
            }
            15 => {
                let list = v4::ReadDir {
                    handle,
                    cookie: 0,
                    verifier: [0; 8],
                    count: COUNT,
                    plus: true,
                    tree,
                };
                four(input, &list, 26, check_page)?;
            }
            16 => four(input, &v4::GetCapabilities { handle }, 9, drop)?,
            17 => {
                let (cookie, count) = (0, COUNT);
                let list = v4::ListXattrs {
                    handle,
                    cookie,
                    count,
                };
                four(input, &list, 75, |(names, ..)| drop(names))?;
            }
            18 => four(input, &read(false), 25, |read| {
                check_pieces(&read);
            })?,
            19 => four(input, &read(true), 68, |read| {
                check_pieces(&read);
            })?,
            _ => callbacks(input)?,
        }
    }
    Ok(())
}

fn check_made(made: nfs::client::NodeInfo) {
    if let Some(attr) = &made.attr {
        check_attr(attr);
    }
}

fn check_page(page: DirPage<'_>) {
    for entry in page.entries {
        assert!(matches!(entry.name, b"." | b"..") || Name::new(entry.name).is_ok());
        assert_ne!(entry.id, 0);
        if let Some(attr) = &entry.attr {
            check_attr(attr);
        }
    }
}

fn read(plus: bool) -> v4::Read<'static> {
    v4::Read {
        handle: HANDLE,
        state: StateId::ANONYMOUS,
        offset: OFFSET,
        count: COUNT,
        plus,
    }
}

/// Returns the bytes that were read, after checking that they are no more than requested.
fn check_pieces(read: &v4::ReadPieces<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for piece in read.first.iter().chain(&read.rest) {
        match piece {
            Piece::Data(data) => bytes.extend_from_slice(data),
            Piece::Hole(len) => {
                assert!(*len <= COUNT as usize);
                bytes.resize(bytes.len() + len, 0);
            }
        }
    }
    assert!(bytes.len() <= COUNT as usize);
    bytes
}

fn bytes(input: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let len = usize::from(input.arbitrary::<u16>()?).min(input.len());
    Ok(input.bytes(len)?.to_vec())
}

/// Decodes results of v3, half of them successful.
fn three<A: ClientCall>(
    input: &mut Unstructured<'_>,
    ask: &A,
    check: impl FnOnce(A::Answer<'_>),
) -> Result<()> {
    ask.put(&mut Vec::new());
    let mut results = bytes(input)?;
    if input.arbitrary()? {
        results.splice(..0, [0; 4]);
    }
    if let Ok(answer) = ask.answer(&results) {
        check(answer);
    }
    Ok(())
}

/// Decodes results of a compound that ends with operation `number`, half of them with a valid
/// start.
fn four<S: Operations>(
    input: &mut Unstructured<'_>,
    operations: &S,
    number: u32,
    check: impl FnOnce(S::Answer<'_>),
) -> Result<()> {
    let rest = bytes(input)?;
    let results = match input.arbitrary()? {
        true => answered(number, &rest),
        false => rest,
    };
    if let Some(Ok(answer)) = answer(operations, &results) {
        check(answer);
    }
    Ok(())
}

/// Builds a compound's results: PUTFH and operation `number` succeeded, with the results `rest`.
fn answered(number: u32, rest: &[u8]) -> Vec<u8> {
    const PUTFH: u32 = 22;
    let mut results = Vec::new();
    for word in [0, 0, 2, PUTFH, 0, number, 0u32] {
        word.put(&mut results);
    }
    results.extend_from_slice(rest);
    results
}

fn answer<'r, S: Operations>(
    operations: &S,
    results: &'r [u8],
) -> Option<std::result::Result<S::Answer<'r>, Failure>> {
    let compound = Compound {
        minor: 2,
        sequence: None,
        operations,
    };
    compound.put(&mut Vec::new());
    Some(compound.answer(results).ok()?.result)
}

/// Decodes segments of READ_PLUS, which are returned as sent or refused.
fn segments(input: &mut Unstructured<'_>) -> Result<()> {
    let end = OFFSET + u64::from(COUNT);
    let count = input.int_in_range(0..=6)?;
    let mut rest = Vec::new();
    input.arbitrary::<bool>()?.put(&mut rest);
    u32::from(count as u8).put(&mut rest);
    // `None` if they are not contiguous.
    let mut want = Some(Vec::new());
    let mut at = OFFSET;
    for _ in 0..count {
        let offset = match input.arbitrary::<u8>()? {
            0..=215 => at,
            216..=230 => at
                .wrapping_add(input.int_in_range(0..=20)?)
                .wrapping_sub(10),
            _ => input.arbitrary()?,
        };
        let hole: bool = input.arbitrary()?;
        u32::from(hole).put(&mut rest);
        offset.put(&mut rest);
        let first = at == OFFSET && want.as_ref().is_some_and(Vec::is_empty);
        let next = if hole {
            let len = match input.arbitrary::<u8>()? {
                0..=200 => input.int_in_range(0..=400)?,
                _ => input.arbitrary()?,
            };
            len.put(&mut rest);
            let next = offset.saturating_add(len).clamp(at, end.max(at));
            if let Some(want) = &mut want {
                want.resize(want.len() + (next - at) as usize, 0);
            }
            next
        } else {
            let len = input.int_in_range(0..=400)?;
            let data = vec![input.arbitrary::<u8>()?; len];
            (&data[..]).put(&mut rest);
            if let Some(want) = &mut want {
                want.extend_from_slice(&data);
            }
            at + len as u64
        };
        if offset != at && !(hole && first && offset < at) {
            want = None;
        }
        at = next;
    }
    let results = answered(68, &rest);
    if let Some(Ok(got)) = answer(&read(true), &results) {
        assert_eq!(Some(check_pieces(&got)), want, "told otherwise");
    }
    Ok(())
}

/// A client with a single delegation.
struct Held;

impl v4::CallbackHandler for Held {
    fn recall(&self, state: &StateId) -> bool {
        *state == StateId::CURRENT
    }

    fn recall_any(&self, _: u32) {}

    fn recall_slots(&self, session: &v4::SessionId, _: u32) {
        assert_eq!(*session, [0; 16]);
    }
}

/// Plays callbacks of the server to one session, some in sequence: each gets one reply, without
/// more results than operations.
fn callbacks(input: &mut Unstructured<'_>) -> Result<()> {
    const XID: u32 = 77;
    const PROGRAM: u32 = 0x4000_0000;
    const SEQUENCE: u32 = 11;
    let backchannels = std::sync::Arc::new(v4::Backchannels::new(Box::new(Held)));
    backchannels.add([0; 16]);
    let mut calls = Calls::new(Credentials::new("fuzz"), 1 << 16);
    calls.set_backchannels(backchannels);
    for turn in 1..=input.int_in_range(1..=4u32)? {
        let mut message = vec![0; 4];
        for word in [XID, 0] {
            word.put(&mut message);
        }
        if input.arbitrary()? {
            for word in [2, PROGRAM, 1, 1, 0, 0, 0, 0, 0, 1, 0, 3] {
                u32::put(&word, &mut message);
            }
            if input.arbitrary()? {
                SEQUENCE.put(&mut message);
                [0u8; 16].put(&mut message);
                for word in [turn, 0, 0, 0, 0] {
                    word.put(&mut message);
                }
            }
        }
        message.extend(bytes(input)?);
        let mark = (message.len() - 4) as u32 | 1 << 31;
        message[..4].copy_from_slice(&mark.to_be_bytes());
        assert_eq!(calls.receive(&message), Ok(Received::Callback));
        let mut reply = Vec::new();
        calls.answer_callback(&message, &mut reply).expect("a call");
        let mark = (reply.len() - 4) as u32 | 1 << 31;
        let mut head = Vec::new();
        for word in [mark, XID, 1] {
            word.put(&mut head);
        }
        assert!(reply.starts_with(&head));
        assert!(reply.len() <= message.len() + 256);
    }
    Ok(())
}

/// Returns the pieces that were read, and whether the file ends after them.
fn pieces(done: v4::CompoundResult<v4::ReadPieces<'_>>) -> (Vec<Piece<'_>>, bool) {
    let read = done.result.expect("it succeeded");
    (read.pieces().collect(), read.eof)
}

/// Unanswered calls.
#[derive(Default)]
struct Flights {
    xid: u32,
    numbers: Vec<usize>,
}

/// Receives complete messages on a connection with a few calls in flight, some of them abandoned.
fn messages(calls: &mut Calls, flights: &mut Flights, input: &mut Unstructured<'_>) -> Result<()> {
    let ask = v3::Mount { path: b"/" };
    let read = read(input.arbitrary()?);
    let compound = Compound {
        minor: 0,
        sequence: None,
        operations: &read,
    };
    for _ in 0..input.int_in_range(0..=3)? {
        flights.xid += 1;
        let number = match input.arbitrary()? {
            true => calls.call(flights.xid, &Caller::ROOT, &ask, &mut Vec::new()),
            false => calls.call(flights.xid, &Caller::ROOT, &compound, &mut Vec::new()),
        };
        let number = number.expect("room");
        assert!(!flights.numbers.contains(&number), "in use");
        flights.numbers.push(number);
        if input.arbitrary()? {
            calls.release(number);
        }
    }
    for _ in 0..input.int_in_range(0..=4)? {
        let mut message = vec![0; 4];
        if input.arbitrary()? {
            // A reply to one of them, with any results.
            let id = flights.xid.saturating_sub(input.int_in_range(0..=3)?);
            for word in [id, 1, 0, 0, 0, 0] {
                word.put(&mut message);
            }
        }
        if input.arbitrary()? {
            // An almost valid reply to a read.
            let (offset, len) = (OFFSET as u32, u32::from(input.arbitrary::<u8>()?));
            let words: &[u32] = match read.plus {
                true => &[0, 0, 2, 22, 0, 68, 0, 1, 1, 0, 0, offset, len],
                false => &[0, 0, 2, 22, 0, 25, 0, 1, len],
            };
            let wrong = input.int_in_range(0..=2 * words.len())?;
            for (at, word) in words.iter().enumerate() {
                (word ^ u32::from(at == wrong)).put(&mut message);
            }
            message.resize(message.len() + len.next_multiple_of(4) as usize, 7);
        }
        message.extend(bytes(input)?);
        let mark = (message.len() - 4) as u32 | 1 << 31;
        message[..4].copy_from_slice(&mark.to_be_bytes());
        if calls.frame(&message) != Ok(Some(message.len())) {
            continue;
        }
        let apart = calls.split_reply(&message);
        let received = calls.receive(&message);
        if let Some(SplitReply { number, head, len }) = apart {
            // A payload received in place must be accepted exactly as in a complete message.
            let result = Ok(());
            assert_eq!(received, Ok(Received::Answer { number, result }));
            let (head, payload) = message.split_at(head);
            let before = Body::before_payload(head).expect("a head");
            let landed = compound.answer_with_payload(before.bytes(), &payload[..len]);
            let body = Body::of(&message).expect("results");
            let whole = compound.answer(body.bytes());
            assert_eq!(landed.map(pieces), whole.map(pieces));
        }
        if let Ok(Received::Answer { number, result }) = received {
            let asked = flights.numbers.iter().position(|&asked| asked == number);
            flights.numbers.swap_remove(asked.expect("somebody asked"));
            match (Body::of(&message), result) {
                (Ok(body), Ok(())) => drop(ask.answer(body.bytes())),
                (Err(_), Err(_)) => {}
                _ => panic!("an answer with results has some"),
            }
        }
    }
    Ok(())
}
