//! The state of a guest that migrates, from any monitor.

use std::sync::Arc;

use fuse::layout::{GetattrIn, LkIn, OpenIn, ReadIn};
use fuse::numbers::lock_kind;
use fuse::server::{Migration, MigrationOnError, Options, Server, Session, SessionStats};
use hostile::guest::{INIT, fuse_request};
use memory::Memory;
use vfs::{Call, Caller, Cx, Export, FileSystem, Mode, Name, NewNode, OpenFlags, Patience};
use vfs_testkit::{Message, clock, session};

use crate::ROOM;

/// The numbers of nodes and open files in the seeds.
const NUMBERS: u64 = 16;

/// Returns a server of a directory with a file.
fn server() -> Server {
    let tree = Memory::new(clock());
    let call = Call::detached();
    let cx = Cx::new(&Caller::ROOT, &call);
    let mode = Mode::without_umask(0o755);
    let name = |name: &'static [u8]| Name::new(name).expect("a name");
    let root = tree.root(&cx).expect("a root");
    let dir = root.make(&cx, name(b"dir"), NewNode::Directory, mode);
    let flags = OpenFlags::READ | OpenFlags::WRITE;
    let dir = dir.expect("made").node;
    dir.create(&cx, name(b"file"), flags, mode).expect("made");
    let options = Options {
        migration: Migration {
            on_error: MigrationOnError::GuestError,
            ..Migration::default()
        },
        ..Options::default()
    };
    Server::new(Arc::new(Export::new("", tree)), options)
}

fn serve(session: &Session, opcode: u32, node: u64, args: &[u8]) {
    let message = fuse_request(opcode, 1, node, args);
    let queued = Message::with_separate_payload(&message, message.len());
    let call = Call::detached();
    session::serve(session, &call, Patience::Full, &queued, ROOM).expect("a header");
}

/// Returns the state of a guest that has a file open and locked.
pub fn saved() -> Vec<u8> {
    let session = server().session();
    serve(&session, 26, 0, &INIT);
    serve(&session, 1, 1, b"dir\0");
    let (dir, file) = (2, 3);
    serve(&session, 1, dir, b"file\0");
    serve(
        &session,
        14,
        file,
        &OpenIn {
            flags: 2,
            ..OpenIn::default()
        }
        .encode(),
    );
    serve(&session, 27, dir, &OpenIn::default().encode());
    let lock = LkIn {
        fh: 1,
        owner: 7,
        end: 9,
        kind: lock_kind::WRLCK,
        ..LkIn::default()
    };
    serve(&session, 32, file, &lock.encode());
    let mut state = Vec::new();
    session.save(&Call::detached(), &mut state).expect("saved");
    state
}

/// Loads the state `data`: it is refused, or the session answers requests, and its state is saved
/// and loaded again.
pub fn load(data: &[u8]) {
    let (server, call) = (server(), Call::detached());
    let session = server.session();
    if session.load(&call, &mut &*data).is_err() {
        let stats = session.stats();
        assert_eq!(
            stats,
            SessionStats::default(),
            "a refused state leaves nothing"
        );
        return;
    }
    for number in 1..=NUMBERS {
        serve(&session, 3, number, &GetattrIn::default().encode());
        serve(&session, 1, number, b"file\0");
        let args = ReadIn {
            fh: number,
            size: 4096,
            ..ReadIn::default()
        };
        serve(&session, 15, number, &args.encode());
    }
    let mut saved = Vec::new();
    session.save(&call, &mut saved).expect("saved");
    let again = server.session();
    again.load(&call, &mut &*saved).expect("loaded");
    assert_eq!(session.stats(), again.stats());
}
