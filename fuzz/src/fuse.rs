//! Requests of a guest to the FUSE server half, over a tree in memory.
//!
//! A script is a sequence of requests, each with its opcode, node, length and arguments; INIT
//! precedes them.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use arbitrary::{Result, Unstructured};
use fuse::server::{Options, Records, Resender, Server};
use hostile::guest::fuse_request;
use memory::Memory;
use sys::shared_memory::{self, SharedMemory};
use vfs::{Call, Export, Patience};
use vfs_testkit::{Message, clock, session};
use wire::{ServeOutcome, Session};

use crate::ROOM;

/// Plays the script `data`: each request is answered once, under its own id, with an errno that
/// Linux accepts, or waits, or needs no reply.
pub fn script(data: &[u8]) {
    let mut input = Unstructured::new(data);
    // The end of the input is the end of the script.
    let _ = play(&mut input);
}

/// INIT, FUSE 7.45: major, minor, read-ahead, all flags.
const INIT: (u32, [u8; 64]) = {
    let mut args = [0; 64];
    (args[0], args[4]) = (7, 45);
    let mut at = 12;
    while at < 20 {
        args[at] = 0xff;
        at += 1;
    }
    (26, args)
};

fn play(input: &mut Unstructured<'_>) -> Result<()> {
    let export = Arc::new(Export::new("", Memory::new(clock())));
    let session = Server::new(export, Options::default()).session();
    answer(&session, 1, INIT.0, 1, &INIT.1);
    for unique in 2.. {
        if input.is_empty() {
            break;
        }
        let (opcode, node) = (input.arbitrary::<u8>()?, input.arbitrary::<u8>()?);
        let len = usize::from(input.arbitrary::<u8>()?).min(input.len());
        answer(
            &session,
            unique,
            opcode.into(),
            node.into(),
            input.bytes(len)?,
        );
    }
    Ok(())
}

/// Plays the script `data` with a mount that another process continues: requests to the first
/// process, changes of the records that it leaves, and requests to the second one, which the client
/// may have sent before. The second process continues or not, and answers each request once.
pub fn takeover(data: &[u8]) {
    let mut input = Unstructured::new(data);
    // The end of the input is the end of the script.
    let _ = play_takeover(&mut input);
}

fn play_takeover(input: &mut Unstructured<'_>) -> Result<()> {
    /// A number of records that were ever used: all of them are read.
    const MAX_USED: u64 = 1 << 10;
    let memory = shared_memory::create("fuzz", Records::WORDS).expect("memory");
    let map = || SharedMemory::map(memory.as_fd(), Records::WORDS).expect("mapped");
    let tree = Memory::new(clock());
    let resender = match input.arbitrary()? {
        true => Resender::Client,
        false => Resender::Transport,
    };
    let start = || {
        let export = Arc::new(Export::new("", tree.clone()));
        let records = Records::new(Box::new(map()), [7; 32])?;
        let server = Server::new(export, Options::default());
        Some(server.session().with_records(records, resender))
    };
    let first = start().expect("new records");
    answer(&first, 1, INIT.0, 1, &INIT.1);
    for number in 1..=u64::from(input.arbitrary::<u8>()? % 16) {
        let (opcode, node) = (input.arbitrary::<u8>()?, input.arbitrary::<u8>()?);
        let len = usize::from(input.arbitrary::<u8>()?).min(input.len());
        answer(
            &first,
            2 * number,
            opcode.into(),
            node.into(),
            input.bytes(len)?,
        );
    }
    let words = map();
    for _ in 0..input.arbitrary::<u8>()? % 32 {
        let region = usize::from(input.arbitrary::<u8>()?) % Records::REGIONS.len();
        let at = Records::REGIONS[region] + usize::from(input.arbitrary::<u8>()?);
        let mut value = input.arbitrary::<u64>()?;
        if region == 0 && at > 8 {
            value %= MAX_USED;
        }
        words[at].store(value, Ordering::Relaxed);
    }
    let Some(next) = start() else {
        return Ok(());
    };
    let _ = next.take_over(&[]);
    for number in 1.. {
        if input.is_empty() {
            break;
        }
        let is_repeated = input.arbitrary::<bool>()?;
        let (opcode, node) = (input.arbitrary::<u8>()?, input.arbitrary::<u8>()?);
        let len = usize::from(input.arbitrary::<u8>()?).min(input.len());
        let unique = match resender {
            Resender::Client => (2 * number) | u64::from(is_repeated) << 63,
            Resender::Transport => 2 * number,
        };
        let args = input.bytes(len)?;
        let (opcode, node) = (opcode.into(), node.into());
        answer_once(&next, (unique, is_repeated), opcode, node, args);
    }
    Ok(())
}

fn answer(session: &impl Session, unique: u64, opcode: u32, node: u64, args: &[u8]) {
    answer_once(session, (unique, false), opcode, node, args);
}

/// Sends a request, which the transport may repeat.
fn answer_once(
    session: &impl Session,
    (unique, is_repeated): (u64, bool),
    opcode: u32,
    node: u64,
    args: &[u8],
) {
    let message = fuse_request(opcode, unique, node, args);
    let len = session.frame(&message).expect("the length is right");
    assert!(len.is_none_or(|len| len <= message.len()));
    session.role(&message).expect("the header is whole");
    let queued = Message::with_separate_payload(&message, len.unwrap_or(message.len()));
    let queued = queued.repeated(is_repeated);
    let served = session::serve(session, &Call::detached(), Patience::Full, &queued, ROOM);
    let (answer, reply) = served.expect("the header is whole");
    match answer {
        ServeOutcome::Done if !reply.is_empty() => {
            assert!(reply.len() >= 16);
            let word = |at: usize| {
                u32::from_le_bytes([reply[at], reply[at + 1], reply[at + 2], reply[at + 3]])
            };
            assert_eq!(word(0) as usize, reply.len());
            assert_eq!(reply[8..16], unique.to_le_bytes());
            let error = word(4).cast_signed();
            assert!((-511..=0).contains(&error), "{error}");
            assert!(error == 0 || reply.len() == 16);
        }
        ServeOutcome::Done | ServeOutcome::Parked => assert!(reply.is_empty()),
        ServeOutcome::WouldBlock | ServeOutcome::StartTls => panic!("{answer:?} with all patience"),
    }
}
