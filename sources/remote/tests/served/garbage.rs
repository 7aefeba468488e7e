//! virtiofs servers with invalid replies: the caller gets an error, without a panic or an endless
//! wait.

use std::sync::Arc;
use std::time::Duration;

use fuse::Header;
use fuse::message::{HEADER, REPLY_HEADER};
use fuse::server::{Options, Server};
use memory::Memory;
use parking_lot::Mutex;
use proptest::collection::vec;
use proptest::prelude::*;
use remote::virtiofs::{self, RemoteFuse};
use vfs::{
    AttrMask, Call, Caller, Cx, DirEntry, DirSink, Export, FileSystem, Name, OpenFlags, Patience,
    ReaddirMode,
};
use vfs_testkit::clock;
use wire::{Incoming, Malformed, Outgoing, Role, ServeOutcome, Session};

use crate::device::Shared;

/// A way to spoil a reply.
#[derive(Clone, Debug)]
enum Spoiled {
    /// An unchanged reply.
    No,
    /// These bytes instead of the reply.
    Raw(Vec<u8>),
    /// A valid header with this errno, followed by these bytes.
    Body(i32, Vec<u8>),
    /// The reply without this many bytes.
    Short(usize),
    /// These bytes written over a part of the reply.
    Bent(usize, Vec<u8>),
}

fn spoiled() -> impl Strategy<Value = Spoiled> {
    let bytes = || vec(any::<u8>(), 0..200);
    let error = prop_oneof![Just(0), -600..600i32, any::<i32>()];
    prop_oneof![
        4 => Just(Spoiled::No),
        1 => bytes().prop_map(Spoiled::Raw),
        3 => (error, bytes()).prop_map(|(error, bytes)| Spoiled::Body(error, bytes)),
        1 => (1..200usize).prop_map(Spoiled::Short),
        3 => (0..200usize, vec(any::<u8>(), 1..9)).prop_map(|(at, bytes)| Spoiled::Bent(at, bytes)),
    ]
}

/// A good server whose replies are spoiled in turn.
struct Spoiler {
    session: fuse::server::Session,
    turns: Mutex<(usize, Vec<Spoiled>)>,
}

impl Spoiler {
    fn next(&self) -> Spoiled {
        let (at, all) = &mut *self.turns.lock();
        let next = all[*at % all.len()].clone();
        *at += 1;
        next
    }
}

impl Session for Spoiler {
    fn frame(&self, head: &[u8]) -> Result<Option<usize>, Malformed> {
        self.session.frame(head)
    }

    fn role(&self, message: &[u8]) -> Result<Role, Malformed> {
        self.session.role(message)
    }

    fn serve(
        &self,
        call: &Call,
        _: Patience,
        message: &dyn Incoming,
        out: &mut dyn Outgoing,
    ) -> Result<ServeOutcome, Malformed> {
        let room = out.room();
        let done = self.session.serve(call, Patience::Full, message, out)?;
        let header = Header::decode(&message.bytes()[..HEADER])?;
        if room < REPLY_HEADER {
            return Ok(done);
        }
        match self.next() {
            Spoiled::No => {}
            Spoiled::Raw(bytes) => {
                out.truncate(0);
                out.bytes(&bytes[..bytes.len().min(room)]);
            }
            Spoiled::Body(error, bytes) => {
                let bytes = &bytes[..bytes.len().min(room - REPLY_HEADER)];
                out.truncate(0);
                out.bytes(&((REPLY_HEADER + bytes.len()) as u32).to_le_bytes());
                out.bytes(&error.to_le_bytes());
                out.bytes(&header.unique.to_le_bytes());
                out.bytes(bytes);
            }
            Spoiled::Short(missing) => {
                let len = out.len().saturating_sub(missing);
                out.truncate(len);
                if len >= REPLY_HEADER {
                    out.patch(0, &(len as u32).to_le_bytes());
                }
            }
            Spoiled::Bent(at, bytes) => {
                let at = at.min(out.len());
                out.patch(at, &bytes[..bytes.len().min(out.len() - at)]);
            }
        }
        Ok(done)
    }
}

/// A sink for up to 1000 entries.
struct Few(usize);

impl DirSink for Few {
    fn entry(&mut self, _: DirEntry<'_>) -> bool {
        self.0 += 1;
        self.0 < 1000
    }
}

/// Calls many operations, ignoring errors.
fn use_it(fs: &RemoteFuse) -> vfs::Result<()> {
    let call = Call::detached();
    let cx = Cx::new(&Caller::ROOT, &call);
    let root = fs.root(&cx)?;
    let name = Name::new(b"a").expect("a name");
    let flags = OpenFlags::READ | OpenFlags::WRITE;
    let _ = root.statfs(&cx);
    let _ = root.xattrs(&cx);
    let _ = root.attr(&cx, AttrMask::STAT);
    if let Ok(dir) = root.open(&cx, OpenFlags::READ) {
        for plus in [ReaddirMode::Names, ReaddirMode::Entries] {
            let _ = dir.readdir(&cx, 0, plus, &mut Few(0));
        }
    }
    let (entry, file) = root.create(&cx, name, flags, vfs::Mode::without_umask(0o644))?;
    let mut sink = vfs_testkit::ReplyBuffer::new(1 << 16);
    let _ = file.read(&cx, 0, 1 << 16, &mut sink);
    let _ = file.fsync(&cx, false);
    let _ = entry.node.readlink(&cx);
    root.lookup(&cx, name).map(drop)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn spoiled_replies_harm_nobody(first in 0..3usize, mut turns in vec(spoiled(), 1..12)) {
        // Most servers can be mounted.
        turns.splice(0..0, vec![Spoiled::No; first]);
        let server = Server::new(Arc::new(Export::new("", Memory::new(clock()))), Options::default());
        let spoiler = Spoiler {
            session: server.session(),
            turns: Mutex::new((0, turns)),
        };
        let (_shared, socket) = Shared::answering(Arc::new(spoiler));
        let options = virtiofs::Options {
            queues: 1,
            depth: 4,
            waiting: virtiofs::WaitMode::Adaptive(Duration::ZERO),
            ..virtiofs::Options::default()
        };
        if let Ok(mount) = RemoteFuse::mount(socket, options) {
            for _ in 0..4 {
                let _ = use_it(&mount);
            }
        }
    }
}
