//! A session that ends in the middle of a request, and its successor.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use hostdir::HostDir;
use sys::shared_memory::{self, SharedMemory};
use vfs::{Call, Errno, Export, FileSystem, Patience};
use vfs_testkit::{Message, session};
use wire::ServeOutcome;

use super::super::{Options, Server, Session};
use super::journal::{ENTRIES, WIDTH};
use super::*;
use crate::numbers::ROOT_ID;

/// A directory, and the memory of the records of its mount.
struct Host {
    dir: tempfile::TempDir,
    fs: Arc<dyn FileSystem>,
    memory: OwnedFd,
    resender: Resender,
}

/// The state of a request when its process ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    /// It has a reply, which was not sent.
    Answered,
    /// It was carried out, and has no reply.
    CarriedOut,
    /// It was begun and not carried out.
    Begun,
}

impl Host {
    fn new() -> Host {
        let dir = tempfile::tempdir().expect("a directory");
        let fs = HostDir::open(dir.path(), hostdir::Options::default()).expect("opened");
        let memory = shared_memory::create("test", Records::WORDS).expect("memory");
        let resender = Resender::Client;
        Host {
            dir,
            fs,
            memory,
            resender,
        }
    }

    /// Creates a host whose transport sends requests again.
    fn of_transport() -> Host {
        Host {
            resender: Resender::Transport,
            ..Host::new()
        }
    }

    fn memory(&self) -> SharedMemory {
        SharedMemory::map(self.memory.as_fd(), Records::WORDS).expect("mapped")
    }

    /// Returns a session of a process of its own, which has no locks of others.
    fn session(&self) -> Session {
        self.session_with(Options::default())
    }

    fn session_with(&self, options: Options) -> Session {
        let records = Records::new(Box::new(self.memory()), [7; 32]).expect("records");
        let export = Arc::new(Export::new("", self.fs.clone()));
        let server = Server::new(export, options);
        server.session().with_records(records, self.resender)
    }

    /// Returns the session of a new mount.
    fn first(&self) -> Session {
        let session = self.session();
        init(&session);
        session
    }

    /// Returns the session that continues the mount.
    fn next(&self) -> (Session, TakenOver) {
        let session = self.session();
        let taken = session.take_over(&[]).expect("no error");
        (session, taken.expect("it is permitted"))
    }

    /// Returns all names with the contents of files and the targets of links.
    fn tree(&self) -> Vec<(String, String)> {
        let entries = fs::read_dir(self.dir.path()).expect("opened");
        let mut tree: Vec<_> = entries
            .map(|entry| {
                let entry = entry.expect("listed");
                let text = match entry.file_type().expect("a type") {
                    kind if kind.is_dir() => "/".to_owned(),
                    kind if kind.is_symlink() => fs::read_link(entry.path())
                        .expect("read")
                        .display()
                        .to_string(),
                    _ => fs::read_to_string(entry.path()).expect("read"),
                };
                (entry.file_name().into_string().expect("text"), text)
            })
            .collect();
        tree.sort();
        tree
    }

    /// Gives the only request in the journal the state of one that was begun.
    fn set_begun(&self) {
        let memory = self.memory();
        let entries = (0..ENTRIES).map(|at| &memory[JOURNAL_AT + at * WIDTH..]);
        let entry = entries
            .into_iter()
            .find(|entry| entry[0].load(Ordering::Relaxed) != 0);
        entry.expect("a request")[1].store(1 << 32, Ordering::Relaxed);
    }
}

fn init(session: &Session) {
    let mut init = [0; 64];
    (init[0], init[4]) = (7, 45);
    init[12..20].fill(0xff);
    assert_eq!(ask(session, 26, 2, 0, &init).0, 0);
}

/// Sends a request. Returns the error of the reply and its arguments. If the transport sends it
/// again, it has its old number.
fn ask(session: &Session, opcode: u32, unique: u64, node: u64, args: &[u8]) -> (i32, Vec<u8>) {
    let (unique, is_repeated) = match session.resender {
        Resender::Client => (unique, false),
        Resender::Transport => (unique & !UNIQUE_RESEND, unique & UNIQUE_RESEND != 0),
    };
    let message = message(opcode, unique, node, args);
    let together = match opcode {
        // As in a virtqueue.
        16 => crate::message::WRITE_HEAD,
        _ => message.len(),
    };
    let queued = Message::with_separate_payload(&message, together);
    let queued = queued.repeated(is_repeated);
    let served = session::serve(session, &Call::detached(), Patience::Full, &queued, 1 << 16);
    let (outcome, reply) = served.expect("well-formed");
    assert_eq!(outcome, ServeOutcome::Done);
    assert_eq!(reply[8..16], unique.to_le_bytes());
    let error = i32::from_le_bytes(*reply[4..].first_chunk().expect("a header"));
    (-error, reply[16..].to_vec())
}

fn message(opcode: u32, unique: u64, node: u64, args: &[u8]) -> Vec<u8> {
    let len = (HEADER + args.len()) as u32;
    let mut message = Vec::new();
    message.extend(len.to_le_bytes());
    message.extend(opcode.to_le_bytes());
    message.extend(unique.to_le_bytes());
    message.extend(node.to_le_bytes());
    let user = rustix_uid();
    message.extend(user.to_le_bytes());
    message.extend([0; 12]);
    message.extend(args);
    message
}

/// Returns the user of this process, as which requests are made.
fn rustix_uid() -> u32 {
    std::os::unix::fs::MetadataExt::uid(&fs::metadata("/proc/self").expect("a process"))
}

fn words(numbers: &[u32], text: &[u8]) -> Vec<u8> {
    let mut bytes: Vec<u8> = numbers.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.extend(text);
    bytes
}

/// Sends a request whose process ends in the state `end`, and again to the successor. Both have to
/// succeed, and the tree has to be as after one request.
fn check(what: &str, end: End, opcode: u32, args: &dyn Fn(&Session) -> Vec<u8>) {
    for resender in [Resender::Client, Resender::Transport] {
        check_with(resender, what, end, opcode, args);
    }
}

fn check_with(
    resender: Resender,
    what: &str,
    end: End,
    opcode: u32,
    args: &dyn Fn(&Session) -> Vec<u8>,
) {
    let prepare = || {
        let host = Host {
            resender,
            ..Host::new()
        };
        let (dir, write) = (host.dir.path(), |name: &str, text: &str| {
            fs::write(host.dir.path().join(name), text).expect("written");
        });
        write("a", "first");
        write("b", "second");
        fs::create_dir(dir.join("d")).expect("made");
        let session = host.first();
        let args = args(&session);
        (host, session, args)
    };
    let (host, session, args_once) = prepare();
    let expected = ask(&session, opcode, 100, ROOT_ID, &args_once);
    assert_eq!(expected.0, 0, "{what}");
    let tree = host.tree();

    let (host, session, args) = prepare();
    match end {
        End::Answered => drop(ask(&session, opcode, 100, ROOT_ID, &args)),
        End::CarriedOut => {
            ask(&session, opcode, 100, ROOT_ID, &args);
            host.set_begun();
        }
        End::Begun => {
            let message = message(opcode, 100, ROOT_ID, &args);
            let header = Header::decode(&message).expect("whole");
            let records = session.records.as_ref().expect("records");
            assert!(
                records
                    .begin(&header, &message, false)
                    .expect("room")
                    .is_some()
            );
        }
    }
    // Killed: it closes and releases nothing.
    std::mem::forget(session);
    let (next, _) = host.next();
    let resent = 100 | UNIQUE_RESEND;
    let (error, reply) = ask(&next, opcode, resent, ROOT_ID, &args);
    assert_eq!(error, 0, "{what}, {end:?}");
    assert_eq!(reply.len(), expected.1.len(), "{what}, {end:?}");
    assert_eq!(host.tree(), tree, "{what}, {end:?}");
    // A third process finds the same.
    std::mem::forget(next);
    let (next, _) = host.next();
    let again = ask(&next, opcode, resent, ROOT_ID, &args);
    assert_eq!(again, (0, reply), "{what}, {end:?}");
    assert_eq!(host.tree(), tree, "{what}, {end:?}");
}

/// Returns the id of the node `name` in the root.
fn look_up(session: &Session, name: &[u8]) -> u64 {
    let (error, entry) = ask(session, 1, 90, ROOT_ID, &[name, b"\0"].concat());
    assert_eq!(error, 0);
    u64::from_le_bytes(*entry.first_chunk().expect("an id"))
}

/// Opens `name` with these flags of open(2), and returns the handle.
fn open(session: &Session, name: &[u8], flags: u32) -> u64 {
    let node = look_up(session, name);
    let (error, opened) = ask(session, 14, 92, node, &words(&[flags, 0], b""));
    assert_eq!(error, 0);
    session.sent(&message(14, 92, node, &words(&[flags, 0], b"")));
    u64::from_le_bytes(*opened.first_chunk().expect("a handle"))
}

/// Returns the arguments of a lock of this kind.
fn lock(fh: u64, kind: u32, start: u64, end: u64) -> Vec<u8> {
    lock_of(7, fh, kind, start, end)
}

fn lock_of(owner: u64, fh: u64, kind: u32, start: u64, end: u64) -> Vec<u8> {
    let mut args = [fh, owner, start, end].map(u64::to_le_bytes).concat();
    args.extend(words(&[kind, 1, 0, 0], b""));
    args
}

/// Returns the first 9 bytes of an open file.
fn read(session: &Session, node: u64, fh: u64) -> Vec<u8> {
    let offset = [fh, 0].map(u64::to_le_bytes).concat();
    let args = [&offset[..], &words(&[9, 0, 0, 0, 0, 0], b"")].concat();
    let (error, data) = ask(session, 15, 204, node, &args);
    assert_eq!(error, 0);
    data
}

#[test]
fn a_request_is_carried_out_once() {
    let fixed = |args: Vec<u8>| move |_: &Session| args.clone();
    let link = |session: &Session| {
        let target = look_up(session, b"a");
        [&target.to_le_bytes()[..], b"n\0"].concat()
    };
    let rename = |name: &str, newname: &str, flags: u32| {
        let names = format!("{name}\0{newname}\0");
        fixed(words(&[ROOT_ID as u32, 0, flags, 0], names.as_bytes()))
    };
    let append = |session: &Session| {
        let fh = open(session, b"a", 0o2001);
        let mut args = fh.to_le_bytes().to_vec();
        args.extend(words(&[5, 0, 3, 0, 0, 0, 0o2001, 0], b"end"));
        args
    };
    for end in [End::Answered, End::CarriedOut, End::Begun] {
        let mode = 0o644u32;
        check("mkdir", end, 9, &fixed(words(&[mode, 0], b"n\0")));
        check(
            "mknod",
            end,
            8,
            &fixed(words(&[0o100_644, 0, 0, 0], b"n\0")),
        );
        check("symlink", end, 6, &fixed(b"n\0target\0".to_vec()));
        check("link", end, 13, &link);
        // Exclusive, for reading and writing, with a mode that permits neither.
        check("create", end, 35, &fixed(words(&[0o302, 0, 0, 0], b"n\0")));
        check("unlink", end, 10, &fixed(b"a\0".to_vec()));
        check("rmdir", end, 11, &fixed(b"d\0".to_vec()));
        check("rename", end, 45, &rename("a", "n", 0));
        check("rename over", end, 45, &rename("a", "b", 0));
        check("rename noreplace", end, 45, &rename("a", "n", 1));
        if end != End::Begun {
            // An observation precedes it.
            check("exchange", end, 45, &rename("a", "b", 2));
            check("append", end, 16, &append);
        }
    }
}

#[test]
fn an_object_of_others_is_not_taken_for_ones_own() {
    let host = Host::new();
    fs::create_dir(host.dir.path().join("n")).expect("made");
    std::thread::sleep(GRANULARITY * 3);
    let session = host.first();
    let args = words(&[0o755, 0], b"n\0");
    let message = message(9, 100, ROOT_ID, &args);
    let header = Header::decode(&message).expect("whole");
    let records = session.records.as_ref().expect("records");
    assert!(
        records
            .begin(&header, &message, false)
            .expect("room")
            .is_some()
    );
    std::mem::forget(session);
    let (next, _) = host.next();
    let (error, _) = ask(&next, 9, 100 | UNIQUE_RESEND, ROOT_ID, &args);
    assert_eq!(error, i32::from(Errno::EEXIST.raw()));
}

#[test]
fn data_that_others_have_appended_are_an_error() {
    let host = Host::new();
    fs::write(host.dir.path().join("a"), "first").expect("written");
    let session = host.first();
    let fh = open(&session, b"a", 0o2001);
    let mut args = fh.to_le_bytes().to_vec();
    args.extend(words(&[5, 0, 3, 0, 0, 0, 0o2001, 0], b"end"));
    ask(&session, 16, 100, ROOT_ID, &args);
    host.set_begun();
    fs::write(host.dir.path().join("a"), "first???").expect("written");
    std::mem::forget(session);
    let (next, taken) = host.next();
    assert_eq!((taken.files, taken.lost), (1, 0));
    let (error, _) = ask(&next, 16, 100 | UNIQUE_RESEND, ROOT_ID, &args);
    assert_eq!(error, i32::from(Errno::EIO.raw()));
}

#[test]
fn nodes_files_and_locks_are_taken_over() {
    let host = Host::new();
    fs::write(host.dir.path().join("a"), "first").expect("written");
    fs::write(host.dir.path().join("b"), "second").expect("written");
    let session = host.first();
    let (a, b) = (look_up(&session, b"a"), look_up(&session, b"b"));
    let (kept, closed) = (open(&session, b"a", 2), open(&session, b"b", 0));
    // Bytes 0 to 9 exclusively, then 3 to 4 are released.
    let lock = |kind, start, end| lock(kept, kind, start, end);
    for (kind, start, end) in [(1, 0, 9), (2, 3, 4)] {
        assert_eq!(ask(&session, 32, 200, a, &lock(kind, start, end)).0, 0);
    }
    let release = [&closed.to_le_bytes()[..], &[0; 16]].concat();
    assert_eq!(ask(&session, 18, 202, b, &release).0, 0);
    // Looked up three times altogether.
    look_up(&session, b"a");
    std::mem::forget(session);
    let (next, taken) = host.next();
    let expected = TakenOver {
        nodes: 3,
        files: 1,
        lost: 0,
        locks: 2,
    };
    assert_eq!(taken, expected);
    assert_eq!(read(&next, a, kept), b"first");
    assert_eq!(ask(&next, 3, 206, b, &[0; 16]).0, 0, "found by its handle");
    // A lock of another owner conflicts with what is held.
    let conflict = |start: u64| {
        let mut args = lock(1, start, start);
        args[8] = 8;
        let (error, held) = ask(&next, 31, 208, a, &args);
        assert_eq!(error, 0);
        held[16] != 2
    };
    assert!(conflict(0) && conflict(9) && !conflict(3) && !conflict(10));
    // A RELEASE whose reply was lost.
    assert_eq!(ask(&next, 18, 202 | UNIQUE_RESEND, b, &release).0, 0);
    let count = || next.stats().nodes;
    let forget = |lookups: u64| {
        let message = message(2, 210, a, &lookups.to_le_bytes());
        let queued = Message::with_separate_payload(&message, message.len());
        let call = Call::detached();
        session::serve(&next, &call, Patience::Full, &queued, 0).expect("well-formed");
    };
    forget(2);
    assert_eq!(count(), 3);
    forget(1);
    assert_eq!(count(), 2);
}

/// Those of open file descriptions, for which the client sends nothing else.
#[test]
fn locks_that_were_taken_over_end_with_their_handles() {
    let host = Host::new();
    fs::write(host.dir.path().join("a"), "").expect("written");
    let session = host.first();
    let a = look_up(&session, b"a");
    let [first, second, third] = [0; 3].map(|_| open(&session, b"a", 2));
    let set = |session: &Session, args: Vec<u8>| ask(session, 32, 200, a, &args).0;
    assert_eq!(set(&session, lock_of(1, first, 1, 0, 4)), 0);
    assert_eq!(set(&session, lock_of(2, second, 1, 10, 14)), 0);
    // One that has locks through two handles is a process.
    assert_eq!(set(&session, lock_of(3, second, 1, 20, 24)), 0);
    assert_eq!(set(&session, lock_of(3, first, 1, 22, 29)), 0);
    std::mem::forget(session);
    let (next, taken) = host.next();
    assert_eq!((taken.locks, taken.files), (4, 3));
    let refused = i32::from(Errno::EAGAIN.raw());
    let release = [&second.to_le_bytes()[..], &[0; 16]].concat();
    assert_eq!(set(&next, lock_of(9, third, 1, 10, 10)), refused);
    assert_eq!(ask(&next, 18, 202, a, &release).0, 0);
    assert_eq!(set(&next, lock_of(9, third, 1, 10, 10)), 0);
    for at in [0, 20, 29] {
        assert_eq!(set(&next, lock_of(9, third, 1, at, at)), refused, "{at}");
    }
}

/// The locks of such records end with the last handle.
#[test]
fn records_of_version_0_1_are_taken_over() {
    let host = Host::new();
    fs::write(host.dir.path().join("a"), "").expect("written");
    let session = host.first();
    let a = look_up(&session, b"a");
    let [first, second] = [0; 2].map(|_| open(&session, b"a", 2));
    let set = |session: &Session, args: Vec<u8>| ask(session, 32, 200, a, &args).0;
    assert_eq!(set(&session, lock(first, 1, 0, 9)), 0);
    std::mem::forget(session);
    let memory = host.memory();
    memory[FORMAT_AT].store(FORMAT_1, Ordering::Relaxed);
    // The word after the node's number.
    let bits = &memory[LOCKS.first + 1];
    assert_eq!(bits.fetch_and(3, Ordering::Relaxed), first << 2 | 2);
    let (next, taken) = host.next();
    assert_eq!((taken.locks, taken.files), (1, 2));
    assert_eq!(memory[FORMAT_AT].load(Ordering::Relaxed), FORMAT);
    let release = |fh: u64| {
        let args = [&fh.to_le_bytes()[..], &[0; 16]].concat();
        assert_eq!(ask(&next, 18, 202, a, &args).0, 0);
    };
    release(first);
    let refused = i32::from(Errno::EAGAIN.raw());
    assert_eq!(set(&next, lock_of(9, second, 1, 0, 0)), refused);
}

#[test]
fn a_mount_that_has_agreed_on_locks_is_taken_over_without() {
    let host = Host::of_transport();
    fs::write(host.dir.path().join("a"), "").expect("written");
    let session = host.first();
    let (a, fh) = (look_up(&session, b"a"), open(&session, b"a", 2));
    assert_eq!(ask(&session, 32, 200, a, &lock(fh, 1, 0, 9)).0, 0);
    std::mem::forget(session);
    let without = host.session_with(Options {
        posix_locks: false,
        flock: false,
        ..Options::default()
    });
    let taken = without.take_over(&[]).expect("no error");
    assert_eq!(taken.expect("it is permitted").locks, 1);
    let refused = i32::from(Errno::EAGAIN.raw());
    assert_eq!(
        ask(&without, 32, 200, a, &lock_of(9, fh, 1, 0, 0)).0,
        refused
    );
    assert_eq!(ask(&without, 32, 200, a, &lock(fh, 2, 0, 9)).0, 0);
    assert_eq!(ask(&without, 32, 200, a, &lock_of(9, fh, 1, 0, 0)).0, 0);
}

#[test]
fn a_forget_that_is_sent_again_takes_no_look_up() {
    let host = Host::of_transport();
    fs::write(host.dir.path().join("a"), "").expect("written");
    let session = host.first();
    let a = look_up(&session, b"a");
    look_up(&session, b"a");
    let forget = |session: &Session, opcode, args: &[u8], is_repeated| {
        let message = message(opcode, 210, a, args);
        let queued = Message::with_separate_payload(&message, message.len());
        let (call, queued) = (Call::detached(), queued.repeated(is_repeated));
        session::serve(session, &call, Patience::Full, &queued, 0).expect("well-formed");
    };
    let batch = [
        &words(&[1, 0], b"")[..],
        &[a, 1].map(u64::to_le_bytes).concat(),
    ]
    .concat();
    forget(&session, 2, &1u64.to_le_bytes(), false);
    std::mem::forget(session);
    let (next, _) = host.next();
    forget(&next, 2, &1u64.to_le_bytes(), true);
    forget(&next, 42, &batch, true);
    assert_eq!(next.stats().nodes, 2, "the client uses it");
    forget(&next, 42, &batch, false);
    assert_eq!(next.stats().nodes, 1);
}

#[test]
fn a_session_that_was_migrated_is_taken_over() {
    let host = Host::of_transport();
    fs::write(host.dir.path().join("a"), "first").expect("written");
    let session = host.first();
    let (a, fh) = (look_up(&session, b"a"), open(&session, b"a", 2));
    assert_eq!(ask(&session, 32, 200, a, &lock(fh, 1, 0, 9)).0, 0);
    let call = Call::detached();
    let saved = session.save_for_successor(&call).expect("saved");
    drop(session);
    // The successor has records of its own.
    let host = Host {
        memory: shared_memory::create("test", Records::WORDS).expect("memory"),
        ..host
    };
    let upgraded = host.session();
    upgraded.load_as_successor(&call, &saved).expect("loaded");
    std::mem::forget(upgraded);
    let (next, taken) = host.next();
    let expected = TakenOver {
        nodes: 2,
        files: 1,
        lost: 0,
        locks: 1,
    };
    assert_eq!(taken, expected);
    assert_eq!(read(&next, a, fh), b"first");
    assert!(open(&next, b"a", 0) > fh, "numbers are not reused");
}

#[test]
fn a_session_that_was_taken_over_is_migrated() {
    let host = Host::of_transport();
    fs::write(host.dir.path().join("a"), "first").expect("written");
    fs::write(host.dir.path().join("b"), "").expect("written");
    fs::write(host.dir.path().join("c"), "").expect("written");
    let session = host.first();
    let (a, fh) = (look_up(&session, b"a"), open(&session, b"a", 2));
    let [b, c] = [&b"b"[..], b"c"].map(|name| look_up(&session, name));
    std::mem::forget(session);
    // No node but that of the open file has been used since.
    let (next, _) = host.next();
    fs::remove_file(host.dir.path().join("c")).expect("removed");
    let call = Call::detached();
    let saved = next.save_for_successor(&call).expect("saved");
    drop(next);
    let upgraded = Host::new();
    let upgraded = Host {
        fs: host.fs.clone(),
        ..upgraded
    };
    let upgraded = upgraded.session();
    upgraded.load_as_successor(&call, &saved).expect("loaded");
    assert_eq!(read(&upgraded, a, fh), b"first");
    let attributes = |node| ask(&upgraded, 3, 206, node, &[0; 16]).0;
    assert_eq!(attributes(b), 0);
    assert_eq!(attributes(c), i32::from(Errno::ESTALE.raw()));
}

#[test]
fn a_client_that_begins_anew_has_no_requests_of_before() {
    let host = Host::of_transport();
    let session = host.first();
    let mkdir = words(&[0o755, 0], b"n\0");
    assert_eq!(ask(&session, 9, 100, ROOT_ID, &mkdir).0, 0);
    session.records.as_ref().expect("records").set_incomplete();
    // Its machine was reset, and numbers begin again.
    init(&session);
    std::mem::forget(session);
    let (next, taken) = host.next();
    assert_eq!(taken.nodes, 1);
    let (error, _) = ask(&next, 9, 100 | UNIQUE_RESEND, ROOT_ID, &mkdir);
    assert_eq!(error, i32::from(Errno::EEXIST.raw()));
    // Or it has not mounted yet.
    assert_eq!(ask(&next, 38, 102, 0, b"").0, 0);
    std::mem::forget(next);
    let (next, taken) = host.next();
    assert_eq!(taken, TakenOver::default());
    init(&next);
    look_up(&next, b"n");
}

#[test]
fn records_that_are_incomplete_are_not_taken_over() {
    let host = Host::new();
    assert_eq!(host.session().take_over(&[]), Ok(None), "no INIT");
    let session = host.first();
    session.records.as_ref().expect("records").set_incomplete();
    std::mem::forget(session);
    assert_eq!(host.session().take_over(&[]), Ok(None));
    let memory = host.memory();
    memory[FORMAT_AT].store(1, Ordering::Relaxed);
    assert!(Records::new(Box::new(memory), [7; 32]).is_none());
}

#[test]
fn a_table_without_room_ends_the_records() {
    let host = Host::new();
    let session = host.first();
    let records = session.records.as_ref().expect("records");
    records.memory[FILES_USED_AT].store(FILES.capacity as u64, Ordering::Relaxed);
    fs::write(host.dir.path().join("a"), "").expect("written");
    open(&session, b"a", 0);
    assert!(records.is_incomplete());
    assert!(!session.hand_over(Duration::ZERO));
}
