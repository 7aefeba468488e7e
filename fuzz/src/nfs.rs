//! Calls of a client to the NFS server half, over a tree in memory.
//!
//! A script is a sequence of calls. Those of v4 are compounds of which only the operations are from
//! the script: since v4.1 they use an existing session, and all begin at the root.

use std::sync::Arc;
use std::time::Duration;

use arbitrary::{Result, Unstructured};
use memory::Memory;
use nfs::server::{Options, Server};
use vfs::{Call, Export, Patience};
use vfs_testkit::{Message, clock, session};
use wire::{MessageSender, ServeOutcome, Session, Xdr, XdrReader};

use crate::ROOM;

/// Plays the script `data`: each call gets one reply, with its own xid and a correct length; a
/// compound's contains the status of its last operation.
pub fn script(data: &[u8]) {
    let mut input = Unstructured::new(data);
    // The end of the input is the end of the script.
    let _ = play(&mut input);
}

const NFS: u32 = 100_003;
/// MOUNT, NLM, NSM and the portmapper.
const OTHERS: [(u32, u32); 4] = [(100_005, 3), (100_021, 4), (100_024, 1), (100_000, 2)];

const PUTROOTFH: u32 = 24;
const EXCHANGE_ID: u32 = 42;
const CREATE_SESSION: u32 = 43;
const SEQUENCE: u32 = 53;

fn play(input: &mut Unstructured<'_>) -> Result<()> {
    let export = Arc::new(Export::new("", Memory::new(clock())));
    let options = Options::new(7, Arc::new(|| Duration::ZERO));
    let server = Server::new(export, options);
    let mut client = Client {
        session: server.session(),
        calls: 0,
        sequence: 0,
        id: [0; 16],
    };
    client.session.set_message_sender(Arc::new(Unheard));
    client.greet();
    while !input.is_empty() {
        match input.arbitrary::<u8>()? {
            0..=63 => {
                let procedure = u32::from(input.arbitrary::<u8>()? % 23);
                let arguments = piece(input)?;
                client.call((NFS, 3), procedure, arguments);
            }
            number @ 64..=95 => {
                let program = OTHERS[usize::from(number) % OTHERS.len()];
                let procedure = u32::from(input.arbitrary::<u8>()? % 24);
                let arguments = piece(input)?;
                client.call(program, procedure, arguments);
            }
            // A reply to a callback of the server, if there is one with this id.
            96..=103 => {
                let id = u32::from(input.arbitrary::<u8>()? % 4);
                let reply = piece(input)?;
                client.reply(id, reply);
            }
            number => {
                let minor = u32::from(number % 3);
                let mut operations = Vec::new();
                let count = u32::from(input.arbitrary::<u8>()? % 16);
                for _ in 0..count {
                    u32::from(input.arbitrary::<u8>()? % 77).put(&mut operations);
                    operations.extend_from_slice(piece(input)?);
                }
                client.compound(minor, count, &operations);
            }
        }
    }
    Ok(())
}

/// Takes some bytes of the input, usually whole words.
fn piece<'a>(input: &mut Unstructured<'a>) -> Result<&'a [u8]> {
    let len = usize::from(input.arbitrary::<u8>()?).min(input.len());
    input.bytes(len)
}

/// Discards the server's callbacks.
struct Unheard;

impl MessageSender for Unheard {
    fn send(&self, _message: &[u8]) -> bool {
        true
    }
}

struct Client {
    session: nfs::server::Connection,
    calls: u32,
    sequence: u32,
    id: [u8; 16],
}

impl Client {
    /// Creates a v4.1 session.
    fn greet(&mut self) {
        let mut exchange = Vec::new();
        EXCHANGE_ID.put(&mut exchange);
        [1u8; 8].put(&mut exchange);
        (&b"fuzz"[..]).put(&mut exchange);
        [0u32; 3].iter().for_each(|word| word.put(&mut exchange));
        let reply = self.one(&exchange);
        let mut reply = XdrReader::new(&reply);
        let client = reply.u64().expect("a client id");
        let sequence = reply.u32().expect("a sequence id");
        let mut create = Vec::new();
        CREATE_SESSION.put(&mut create);
        client.put(&mut create);
        sequence.put(&mut create);
        // The session has a backchannel.
        2u32.put(&mut create);
        for _ in 0..2 {
            [0, 1 << 20, 1 << 20, 8192, 32, 8, 0]
                .iter()
                .for_each(|word: &u32| word.put(&mut create));
        }
        [0x4000_0000u32, 0]
            .iter()
            .for_each(|word| word.put(&mut create));
        let reply = self.one(&create);
        self.id.copy_from_slice(&reply[..16]);
    }

    /// Returns the results of a v4.1 compound's only operation.
    fn one(&mut self, operation: &[u8]) -> Vec<u8> {
        let mut arguments = Vec::new();
        [0u32, 1, 1]
            .iter()
            .for_each(|word| word.put(&mut arguments));
        arguments.extend_from_slice(operation);
        let reply = self.call((NFS, 4), 1, &arguments).expect("a reply");
        // Record mark, header, the compound's own three words, the operation's two.
        reply[28 + 12 + 8..].to_vec()
    }

    /// Sends a compound with these `count` operations at its end.
    fn compound(&mut self, minor: u32, count: u32, operations: &[u8]) {
        let mut arguments = Vec::new();
        let before = if minor > 0 { 2 } else { 1 };
        [0, minor, count + before]
            .iter()
            .for_each(|word| word.put(&mut arguments));
        if minor > 0 {
            self.sequence += 1;
            SEQUENCE.put(&mut arguments);
            self.id.put(&mut arguments);
            [self.sequence, 0, 0, self.sequence % 2]
                .iter()
                .for_each(|word| word.put(&mut arguments));
        }
        PUTROOTFH.put(&mut arguments);
        arguments.extend_from_slice(operations);
        let Some(reply) = self.call((NFS, 4), 1, &arguments) else {
            return;
        };
        let mut reply = XdrReader::new(&reply[4 + 20..]);
        if reply.u32() != Ok(0) {
            return;
        }
        let status = reply.u32().expect("a status");
        assert_eq!(reply.opaque(0), Ok(&[][..]));
        let answered = reply.u32().expect("a count");
        assert!(answered <= count + before);
        assert!(status != 0 || answered == count + before);
    }

    /// Sends a reply to the server's call `id`; the server sends nothing back.
    fn reply(&mut self, id: u32, body: &[u8]) {
        let mut reply = ((body.len() + 8) as u32 | 1 << 31).to_be_bytes().to_vec();
        [id, 1].iter().for_each(|word| word.put(&mut reply));
        reply.extend_from_slice(body);
        let message = Message::with_separate_payload(&reply, reply.len());
        let call = Call::detached();
        let served = session::serve(&self.session, &call, Patience::Full, &message, ROOM);
        assert_eq!(served, Ok((ServeOutcome::Done, Vec::new())));
    }

    /// Sends a call and returns the reply; `None` if the connection would be closed.
    fn call(
        &mut self,
        (program, version): (u32, u32),
        procedure: u32,
        arguments: &[u8],
    ) -> Option<Vec<u8>> {
        self.calls += 1;
        let mut call = vec![0; 4];
        [self.calls, 0, 2, program, version, procedure]
            .iter()
            .for_each(|word| word.put(&mut call));
        // AUTH_SYS of user 0, with an empty machine name; no verifier.
        1u32.put(&mut call);
        (&[0u8; 20][..]).put(&mut call);
        [0u32; 2].iter().for_each(|word| word.put(&mut call));
        call.extend_from_slice(arguments);
        let mark = (call.len() - 4) as u32 | 1 << 31;
        call[..4].copy_from_slice(&mark.to_be_bytes());
        let len = self.session.frame(&call).expect("the mark is right");
        assert_eq!(len, Some(call.len()));
        self.session.role(&call).expect("the head is whole");
        let message = Message::with_separate_payload(&call, call.len());
        let (answer, reply) = session::serve(
            &self.session,
            &Call::detached(),
            Patience::Full,
            &message,
            ROOM,
        )
        .ok()?;
        match answer {
            ServeOutcome::Done => {}
            ServeOutcome::StartTls => panic!("no TLS is offered"),
            ServeOutcome::Parked => return None,
            ServeOutcome::WouldBlock => panic!("with all patience"),
        }
        if reply.is_empty() {
            return None;
        }
        let mut words = XdrReader::new(&reply);
        assert_eq!(words.u32(), Ok((reply.len() - 4) as u32 | 1 << 31));
        assert_eq!(words.u32(), Ok(self.calls));
        assert_eq!(words.u32(), Ok(1));
        Some(reply)
    }
}
