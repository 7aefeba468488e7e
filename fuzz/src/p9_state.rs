//! The state of a 9P session that another process continues.
//!
//! Handles of a tree in memory contain a number that differs in each run. A seed has
//! `GENERATION` in its place.

use std::sync::Arc;

use memory::Memory;
use p9::numbers::lock_kind;
use p9::server::{Connection, ExportList, NumericUsers, Options, Server};
use p9::{Data, Dialect, Fid, Names, Tag, Tmessage as T, Uid};
use vfs::{Call, Caller, Cx, Export, FileSystem, Patience};
use vfs_testkit::{Lasting, Message, clock, session};
use wire::{SavedState, Session};

use crate::ROOM;

/// Stands for the generation of a tree.
const GENERATION: [u8; 8] = *b"\x80barge\x80\x80";

/// The fids that are used after a load.
const FIDS: u32 = 16;

/// A tree with a directory and a file, and its generation.
fn tree() -> (Arc<Memory>, [u8; 8]) {
    let tree = Memory::new(clock());
    let call = Call::detached();
    let cx = Cx::new(&Caller::ROOT, &call);
    let root = tree.root(&cx).expect("a root");
    let handle = root.handle(&cx).expect("a handle");
    let generation = handle.bytes()[8..].try_into().expect("8 bytes");
    let connection = server(&tree).0.session();
    begin(&connection);
    let (name, mode, gid) = (&b"dir"[..], 0o755, 0);
    let dfid = Fid(0);
    send(
        &connection,
        &T::Mkdir {
            dfid,
            name,
            mode,
            gid,
        },
    );
    walk(&connection, 1, &[b"dir"]);
    let (fid, name, flags) = (Fid(1), &b"file"[..], 2);
    send(
        &connection,
        &T::Lcreate {
            fid,
            name,
            flags,
            mode,
            gid,
        },
    );
    (tree, generation)
}

/// Returns a server of `tree` with a lock table of its own.
fn server(tree: &Arc<Memory>) -> (Server, Arc<Export>) {
    let export = Arc::new(Export::new("", Arc::new(Lasting(tree.clone()))));
    let options = Options {
        max_fids: 64,
        max_fid_memory: 1 << 20,
        ..Options::default()
    };
    let exports = Arc::new(ExportList(vec![export.clone()]));
    (
        Server::new(exports, Arc::new(NumericUsers), options),
        export,
    )
}

fn send(connection: &Connection, request: &T<'_>) {
    let mut message = Vec::new();
    request.encode(Dialect::Linux, Tag(1), &mut message);
    let (call, message) = (Call::detached(), Message::new(&message));
    session::serve(connection, &call, Patience::Full, &message, ROOM).expect("a header");
}

fn begin(connection: &Connection) {
    let (msize, version) = (8192, Dialect::Linux.version().as_bytes());
    send(connection, &T::Version { msize, version });
    send(
        connection,
        &T::Attach {
            fid: Fid(0),
            afid: Fid::NONE,
            uname: b"",
            aname: b"",
            n_uname: Uid(0),
        },
    );
}

fn walk(connection: &Connection, newfid: u32, names: &[&[u8]]) {
    let (fid, newfid, names) = (Fid(0), Fid(newfid), Names::new(names));
    send(connection, &T::Walk { fid, newfid, names });
}

fn lock(fid: u32) -> T<'static> {
    T::Lock {
        fid: Fid(fid),
        kind: lock_kind::WRLCK,
        flags: 0,
        start: 3,
        length: 9,
        proc_id: 7,
        client_id: b"guest",
    }
}

/// Returns `bytes` with each `from` replaced by `to`.
fn replaced(bytes: &[u8], from: [u8; 8], to: [u8; 8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let mut at = 0;
    while let Some(found) = bytes.get_mut(at..at + from.len()) {
        if *found == from {
            found.copy_from_slice(&to);
        }
        at += 1;
    }
    bytes
}

/// Returns the state of a session with fids of each kind.
pub fn saved() -> Vec<u8> {
    let (tree, generation) = tree();
    let connection = server(&tree).0.session();
    begin(&connection);
    for fid in 1..6 {
        walk(&connection, fid, &[b"dir", b"file"]);
    }
    walk(&connection, 6, &[b"dir"]);
    send(
        &connection,
        &T::Lopen {
            fid: Fid(1),
            flags: 2,
        },
    );
    send(
        &connection,
        &T::Lopen {
            fid: Fid(2),
            flags: 0o2002,
        },
    );
    send(
        &connection,
        &T::Lopen {
            fid: Fid(6),
            flags: 0,
        },
    );
    send(&connection, &lock(1));
    let (name, size, flags) = (&b"user.a"[..], 4, 0);
    for fid in [3, 4].map(Fid) {
        send(
            &connection,
            &T::Xattrcreate {
                fid,
                name,
                size,
                flags,
            },
        );
    }
    for (fid, bytes) in [(3, &b"full"[..]), (4, b"ha")] {
        let (fid, data) = (Fid(fid), Data(bytes));
        send(
            &connection,
            &T::Write {
                fid,
                offset: 0,
                data,
            },
        );
    }
    send(&connection, &T::Clunk { fid: Fid(3) });
    let (fid, newfid) = (Fid(5), Fid(3));
    send(&connection, &T::Xattrwalk { fid, newfid, name });
    let state = connection.save_state(&Call::detached()).expect("saved");
    replaced(&state.bytes, generation, GENERATION)
}

fn of_bytes(bytes: Vec<u8>) -> SavedState {
    SavedState {
        bytes,
        files: Vec::new(),
    }
}

/// Continues with the state `data`: it is refused without a trace, or the session answers requests,
/// and the next process continues with the same state. Returns false if it is refused.
pub fn load(data: &[u8]) -> bool {
    let (tree, generation) = tree();
    let data = replaced(data, GENERATION, generation);
    let (one, export) = server(&tree);
    let call = Call::detached();
    let Ok(connection) = one.resume(&call, &of_bytes(data)) else {
        assert!(export.locks.is_empty(), "a refused state leaves nothing");
        return false;
    };
    for fid in 0..FIDS {
        let (offset, count, mask) = (0, 4096, 0x7ff);
        let to = Fid(fid);
        send(&connection, &T::Getattr { fid: to, mask });
        send(
            &connection,
            &T::Read {
                fid: to,
                offset,
                count,
            },
        );
        send(
            &connection,
            &T::Readdir {
                fid: to,
                offset,
                count,
            },
        );
        send(
            &connection,
            &T::Write {
                fid: to,
                offset,
                data: Data(b"x"),
            },
        );
        send(&connection, &lock(fid));
    }
    let state = connection.save_state(&call).expect("saved");
    drop(connection);
    assert!(export.locks.is_empty(), "locks end with their session");
    let connection = server(&tree).0.resume(&call, &state);
    let again = connection.expect("continued").save_state(&call);
    assert_eq!(again.map(|again| again.bytes), Some(state.bytes));
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seed_is_a_session_that_continues() {
        assert!(load(&saved()));
    }
}
