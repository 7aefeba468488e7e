//! Requests of a guest to the FUSE server half, over a tree in memory.
//!
//! A script is a sequence of requests, each with its opcode, node, length and arguments; INIT
//! precedes them.

use std::sync::Arc;

use arbitrary::{Result, Unstructured};
use fuse::server::{Options, Server};
use hostile::guest::fuse_request;
use memory::Memory;
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

fn answer(session: &impl Session, unique: u64, opcode: u32, node: u64, args: &[u8]) {
    let message = fuse_request(opcode, unique, node, args);
    let len = session.frame(&message).expect("the length is right");
    assert!(len.is_none_or(|len| len <= message.len()));
    session.role(&message).expect("the header is whole");
    let queued = Message::with_separate_payload(&message, len.unwrap_or(message.len()));
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
