//! Sessions that another server object continues, as the next process does.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use hostdir::{HostDir, Identity};
use memory::Memory;
use p9::server::{ExportList, HandoverError, NumericUsers, Options, Server};
use p9::{Dialect, Extension, Fid, Rmessage, Stat, Tag, Tmessage as T};
use vfs::peer::{Origin, Owner};
use vfs::{Call, Caller, Errno, Export, FileSystem, Groups, LocalUsers, Peer};
use vfs_testkit::{Lasting, clock};
use wire::{SavedState, Session};

use crate::linux::locks::{RDLCK, UNLCK, WRLCK, lock, status};
use crate::linux::{
    O_APPEND, O_DIRECTORY, O_RDONLY, O_RDWR, O_WRONLY, STAT_BASIC, create, getattr, make_file,
    mkdir, open, readdir, setattr,
};
use crate::net::{FREE, Net, ROOT};

/// The lock of [`saved_session`].
const LOCKED: (u64, u64) = (5, 10);

/// Returns a server of `fs` with its lock table, as each process has one.
fn server_of(fs: Arc<dyn FileSystem>, options: Options) -> (Server, Arc<Export>) {
    let export = Arc::new(Export::new("", fs));
    let list = Arc::new(ExportList(vec![export.clone()]));
    (Server::new(list, Arc::new(NumericUsers), options), export)
}

fn of_memory(tree: &Arc<Memory>) -> (Server, Arc<Export>) {
    server_of(Arc::new(Lasting(tree.clone())), Options::default())
}

/// Returns a server with memory for a few sessions only: less than a leak in each of many refused
/// states would take.
fn small(tree: &Arc<Memory>) -> (Server, Arc<Export>) {
    let options = Options {
        max_fid_memory: 64 << 10,
        max_xattr_bytes: 64,
        ..Options::default()
    };
    server_of(Arc::new(Lasting(tree.clone())), options)
}

/// Returns a server of the host's directory `dir`.
fn of_host(dir: &Path, no_kernel_handles: bool) -> Server {
    let options = hostdir::Options {
        identity: Identity::Fixed,
        public_handle_key: true,
        no_kernel_handles,
        ..hostdir::Options::default()
    };
    let tree = HostDir::open(dir, options).expect("a directory");
    server_of(tree, Options::default()).0
}

fn save(net: &Net) -> Option<Vec<u8>> {
    let saved = net.session.save_state(&Call::detached())?;
    Some(saved.bytes)
}

fn save_with_files(net: &Net) -> SavedState {
    net.session.save_state(&Call::detached()).expect("saved")
}

fn resume(server: &Server, state: &[u8]) -> Result<Net, HandoverError> {
    resume_with_files(server, &without_files(state))
}

fn resume_with_files(server: &Server, state: &SavedState) -> Result<Net, HandoverError> {
    let session = server.resume(&Call::detached(), state)?;
    Ok(Net::of(session, Dialect::Linux, 1 << 16))
}

fn without_files(state: &[u8]) -> SavedState {
    SavedState {
        bytes: state.to_vec(),
        files: Vec::new(),
    }
}

/// Ends the session, and continues it at another server.
fn hand_over(net: Net, server: &Server) -> Net {
    let state = save_with_files(&net);
    let dialect = net.dialect;
    drop(net);
    let mut net = resume_with_files(server, &state).expect("continued");
    net.dialect = dialect;
    net
}

fn xattrcreate(fid: Fid, size: u64) -> T<'static> {
    T::Xattrcreate {
        fid,
        name: b"user.new",
        size,
        flags: 0,
    }
}

/// Returns the size of an attribute, read through `newfid`.
fn xattrwalk(net: &Net, fid: Fid, newfid: Fid, name: &[u8]) -> u64 {
    match net.ok(&T::Xattrwalk { fid, newfid, name }) {
        Rmessage::Xattrwalk { size } => size,
        other => panic!("{other:?}"),
    }
}

fn names(entries: &[crate::linux::DirEntry]) -> impl Iterator<Item = String> {
    entries.iter().map(|entry| entry.name.clone())
}

/// Fids of [`session`].
const READ: Fid = Fid(1);
const APPEND: Fid = Fid(2);
const WRITE: Fid = Fid(3);
const LISTED: Fid = Fid(4);
const VALUE: Fid = Fid(5);
const DRAFT: Fid = Fid(6);
const BELOW: Fid = Fid(7);

/// Returns a session with fids of every kind, and the position in its directory.
fn session(server: &Server) -> (Net, u64, Vec<String>) {
    let net = Net::on(server, Dialect::Linux);
    mkdir(&net, ROOT, "dir");
    net.walk(ROOT, Fid(100), "dir");
    mkdir(&net, Fid(100), "below");
    net.walk(ROOT, BELOW, "dir/below");
    for number in 0..20 {
        create(&net, BELOW, FREE, &format!("file-{number}"), O_WRONLY);
        net.write(FREE, 0, b"contents");
        net.clunk(FREE);
    }
    net.walk(ROOT, READ, "dir/below/file-0");
    open(&net, READ, O_RDONLY);
    net.walk(BELOW, APPEND, "file-1");
    open(&net, APPEND, O_WRONLY | O_APPEND);
    net.walk(BELOW, WRITE, "file-2");
    open(&net, WRITE, O_RDWR);
    net.walk(BELOW, LISTED, "");
    open(&net, LISTED, O_RDONLY | O_DIRECTORY);
    let first = readdir(&net, LISTED, 0, 200);
    let position = first.last().expect("an entry").offset;
    let first = names(&first).collect();
    // An attribute that is being read, and one of which half is written.
    net.walk(BELOW, DRAFT, "file-3");
    net.ok(&xattrcreate(DRAFT, 3));
    net.write(DRAFT, 0, b"abc");
    net.clunk(DRAFT);
    net.walk(BELOW, FREE, "file-3");
    assert_eq!(xattrwalk(&net, FREE, VALUE, b"user.new"), 3);
    net.clunk(FREE);
    net.walk(BELOW, DRAFT, "file-4");
    net.ok(&xattrcreate(DRAFT, 8));
    net.write(DRAFT, 0, b"half");
    assert_eq!(status(net.ok(&lock(WRITE, WRLCK, 0, LOCKED, 10))), 0);
    assert_eq!(status(net.ok(&lock(WRITE, RDLCK, 0, (100, 0), 11))), 0);
    (net, position, first)
}

/// Checks that another client of `server` cannot have the locks of [`session`].
fn assert_locked(server: &Server) {
    let other = Net::on(server, Dialect::Linux);
    other.walk(ROOT, Fid(1), "dir/below/file-2");
    open(&other, Fid(1), O_RDWR);
    assert_eq!(status(other.ok(&lock(Fid(1), RDLCK, 0, (14, 1), 1))), 1);
    assert_eq!(status(other.ok(&lock(Fid(1), WRLCK, 0, (200, 1), 1))), 1);
    assert_eq!(status(other.ok(&lock(Fid(1), RDLCK, 0, (200, 1), 1))), 0);
    assert_eq!(status(other.ok(&lock(Fid(1), WRLCK, 0, (15, 5), 1))), 0);
}

#[test]
fn a_session_continues_with_its_fids_files_and_locks() {
    for by_name in [false, true] {
        let dir = tempfile::tempdir().expect("a directory");
        let one = of_host(dir.path(), by_name);
        let (net, position, mut listed) = session(&one);
        // As Linux has them: one for each cached name, clones, and a name above another.
        for number in 0..300 {
            net.walk(BELOW, Fid(1000 + number), &format!("file-{}", number % 20));
        }
        net.walk(Fid(1000), Fid(2000), "");
        net.walk(BELOW, Fid(2001), "..");
        net.attach(Fid(2002), 0);
        assert_locked(&one);
        let all = (1000..1300).chain(2000..2003).chain([0, 1, 2, 3, 4, 7]);
        let stats = |net: &Net| -> Vec<_> {
            let stat = |fid| getattr(net, Fid(fid), STAT_BASIC);
            all.clone().map(stat).collect()
        };
        let before = stats(&net);

        let state = save(&net).expect("saved");
        drop((net, one));
        let two = of_host(dir.path(), by_name);
        let net = resume(&two, &state).expect("continued");
        assert_eq!(stats(&net), before);
        assert_locked(&two);
        assert_eq!(net.read(READ, 0, 99), b"contents");
        net.write(APPEND, 0, b"+more");
        net.write(WRITE, 0, b"C");
        let path = dir.path().join("dir/below");
        assert_eq!(
            fs::read(path.join("file-1")).expect("read"),
            b"contents+more"
        );
        assert_eq!(net.read(WRITE, 0, 99), b"Contents");
        let rest = readdir(&net, LISTED, position, 8192);
        listed.extend(names(&rest));
        let distinct: BTreeSet<_> = listed.iter().collect();
        assert_eq!((listed.len(), distinct.len()), (22, 22), "{listed:?}");
        assert_eq!(net.read(VALUE, 1, 99), b"bc");
        net.write(DRAFT, 4, b"done");
        net.clunk(DRAFT);
        net.walk(BELOW, FREE, "file-4");
        assert_eq!(xattrwalk(&net, FREE, DRAFT, b"user.new"), 8);
        assert_eq!(net.read(DRAFT, 0, 99), b"halfdone");
        net.clunk(FREE);
        // Names are known as before, and new fids may be walked.
        net.ok(&T::Remove { fid: Fid(1019) });
        net.assert_gone("dir/below/file-19");
        let path = |fid| getattr(&net, fid, STAT_BASIC).qid.path;
        let above = net.walk(BELOW, Fid(2003), "../..");
        assert_eq!(
            [above[0].path, above[1].path],
            [path(Fid(2001)), path(ROOT)]
        );

        // The locks are this client's, and end with its fid.
        assert_eq!(status(net.ok(&lock(WRITE, RDLCK, 0, (5, 1), 11))), 1);
        assert_eq!(status(net.ok(&lock(WRITE, UNLCK, 0, LOCKED, 10))), 0);
        let other = Net::on(&two, Dialect::Linux);
        other.walk(ROOT, Fid(1), "dir/below/file-2");
        open(&other, Fid(1), O_RDWR);
        assert_eq!(status(other.ok(&lock(Fid(1), WRLCK, 0, LOCKED, 1))), 0);
        assert_eq!(status(other.ok(&lock(Fid(1), WRLCK, 0, (100, 0), 1))), 1);
        net.clunk(WRITE);
        assert_eq!(status(other.ok(&lock(Fid(1), WRLCK, 0, (100, 0), 1))), 0);
        drop(other);

        // Once more, with what has changed.
        let net = hand_over(net, &of_host(dir.path(), by_name));
        assert_eq!(net.read(READ, 0, 99), b"contents");
        assert_eq!(net.read(DRAFT, 0, 99), b"halfdone");
        assert_eq!(net.err(&T::Clunk { fid: WRITE }), Errno::EBADF);
    }
}

/// Returns the state of [`session`] over `tree`, whose session has ended.
fn saved_session(tree: &Arc<Memory>) -> Vec<u8> {
    let (server, export) = of_memory(tree);
    let (net, ..) = session(&server);
    let state = save(&net).expect("saved");
    drop(net);
    assert!(export.locks.is_empty());
    state
}

/// Checks that `state` is refused, and that its locks and its memory are released. Returns the
/// reason.
#[track_caller]
fn refusal(server: &(Server, Arc<Export>), state: &[u8]) -> String {
    let (server, export) = server;
    let refused = resume(server, state).map(drop).expect_err("refused");
    assert!(export.locks.is_empty(), "{refused}");
    refused.to_string()
}

#[test]
fn a_truncated_or_longer_state_is_refused() {
    let tree = Memory::new(clock());
    let state = saved_session(&tree);
    let server = small(&tree);
    for len in 0..state.len() {
        refusal(&server, &state[..len]);
    }
    let longer = [&state[..], b"\0"].concat();
    assert_eq!(
        refusal(&server, &longer),
        "state: expected the end, got 1 more bytes"
    );
    resume(&server.0, &state).expect("continued after all refusals");
}

#[test]
fn a_damaged_state_is_refused_or_is_another_session() {
    let tree = Memory::new(clock());
    let state = saved_session(&tree);
    let (server, export) = small(&tree);
    let mut refused = 0;
    for at in 0..state.len() {
        for damage in [1, 2, 4, 0x80, 0xff] {
            let mut damaged = state.clone();
            damaged[at] ^= damage;
            match resume(&server, &damaged) {
                Ok(net) if net.session.client_info().version == "9P2000.L" => {
                    for fid in 0..8 {
                        net.rpc(&T::Getattr {
                            fid: Fid(fid),
                            mask: STAT_BASIC,
                        });
                        net.rpc(&T::Read {
                            fid: Fid(fid),
                            offset: 0,
                            count: 100,
                        });
                    }
                }
                Ok(_) => {}
                Err(_) => refused += 1,
            }
            assert!(export.locks.is_empty(), "byte {at} changed by {damage}");
        }
    }
    assert!(refused > state.len(), "{refused} of {} bytes", state.len());
    resume(&server, &state).expect("continued after all refusals");
}

#[test]
fn a_state_of_another_version_or_tree_is_refused() {
    let tree = Memory::new(clock());
    let state = saved_session(&tree);
    let server = of_memory(&tree);
    let mut newer = state.clone();
    newer[8] = 2;
    assert_eq!(refusal(&server, &newer), "state: expected version 1, got 2");
    let other = of_memory(&Memory::new(clock()));
    assert_eq!(
        refusal(&other, &state),
        "/ is another tree, or has other handles"
    );
    let named = Export::new("named", Arc::new(Lasting(tree)));
    let named = Arc::new(named);
    let list = Arc::new(ExportList(vec![named.clone()]));
    let named = (
        Server::new(list, Arc::new(NumericUsers), Options::default()),
        named,
    );
    assert_eq!(refusal(&named, &state), "no tree /");
}

#[test]
fn a_session_larger_than_the_limits_is_refused() {
    let tree = Memory::new(clock());
    let state = saved_session(&tree);
    for (options, reason) in [
        (
            Options {
                max_fids: 8,
                ..Options::default()
            },
            "state: expected at most 8 fids, got 9",
        ),
        (
            Options {
                max_msize: 8192,
                ..Options::default()
            },
            "messages of up to 65536 bytes, where this server allows 8192",
        ),
        (
            Options {
                max_xattr_bytes: 10,
                ..Options::default()
            },
            "fid 6: the table of fids: ENOBUFS",
        ),
        (
            Options {
                max_fid_memory: 3000,
                ..Options::default()
            },
            "the table of fids: EMFILE",
        ),
    ] {
        let server = server_of(Arc::new(Lasting(tree.clone())), options);
        let refused = refusal(&server, &state);
        assert!(refused.ends_with(reason), "{refused}");
    }
}

#[test]
fn a_session_of_a_tree_that_ends_with_the_process_ends_too() {
    let net = Net::attached(Dialect::Linux);
    assert_eq!(save(&net), None);
    // Before an attach there is no tree.
    let tree = Memory::new(clock());
    let net = Net::silent(&of_memory(&tree).0);
    let state = save(&net).expect("saved");
    drop(net);
    let mut net = resume(&of_memory(&tree).0, &state).expect("continued");
    net.dialect = Dialect::Plan9;
    assert_eq!(net.err(&T::Clunk { fid: ROOT }), Errno::EPROTO);
    let (msize, version) = (8192, &b"9P2000.L"[..]);
    net.send(Tag::NONE, &T::Version { msize, version });
    net.dialect = Dialect::Linux;
    net.attach(ROOT, 0);
}

#[test]
fn a_lock_that_another_client_has_taken_ends_the_session() {
    let dir = tempfile::tempdir().expect("a directory");
    let state = {
        let (net, ..) = session(&of_host(dir.path(), false));
        save(&net).expect("saved")
    };
    let server = of_host(dir.path(), false);
    let other = Net::on(&server, Dialect::Linux);
    other.walk(ROOT, Fid(1), "dir/below/file-2");
    open(&other, Fid(1), O_RDWR);
    // As a program of the host.
    let elsewhere = Net::on(&of_host(dir.path(), false), Dialect::Linux);
    elsewhere.walk(ROOT, Fid(1), "dir/below/file-2");
    open(&elsewhere, Fid(1), O_RDWR);
    for net in [&other, &elsewhere] {
        assert_eq!(status(net.ok(&lock(Fid(1), WRLCK, 0, (120, 1), 1))), 0);
        let refused = resume(&server, &state).map(drop).expect_err("locked");
        let reason = "fid 3: a lock cannot be acquired again: EAGAIN";
        assert_eq!(refused.to_string(), reason);
        // The other lock of the state is released again.
        assert_eq!(status(net.ok(&lock(Fid(1), WRLCK, 0, LOCKED, 1))), 0);
        assert_eq!(status(net.ok(&lock(Fid(1), UNLCK, 0, (0, 0), 1))), 0);
    }
    resume(&server, &state).expect("continued");
}

#[test]
fn a_removed_file_is_stale() {
    for by_name in [false, true] {
        let dir = tempfile::tempdir().expect("a directory");
        let one = of_host(dir.path(), by_name);
        let net = Net::on(&one, Dialect::Linux);
        for name in ["before", "between", "replaced", "stays"] {
            make_file(&net, name, b"contents");
        }
        mkdir(&net, ROOT, "dir");
        net.walk(ROOT, Fid(5), "dir");
        make_in(&net, Fid(5), "inside");
        for (fid, path) in [
            (1, "before"),
            (2, "between"),
            (3, "replaced"),
            (4, "stays"),
            (6, "dir/inside"),
        ] {
            net.walk(ROOT, Fid(fid), path);
        }
        let remove = |name: &str| fs::remove_file(dir.path().join(name)).expect("removed");
        remove("before");
        let state = save(&net).expect("saved");
        drop((net, one));
        remove("between");
        fs::write(dir.path().join("new"), b"another").expect("written");
        fs::rename(dir.path().join("new"), dir.path().join("replaced")).expect("renamed");
        fs::remove_dir_all(dir.path().join("dir")).expect("removed");
        let two = of_host(dir.path(), by_name);
        let net = resume(&two, &state).expect("continued");
        for fid in [1, 2, 3, 5, 6].map(Fid) {
            let mask = STAT_BASIC;
            assert_eq!(net.err(&T::Getattr { fid, mask }), Errno::ESTALE, "{fid:?}");
            let flags = O_RDONLY;
            assert_eq!(net.err(&T::Lopen { fid, flags }), Errno::ESTALE, "{fid:?}");
            assert_eq!(
                net.err(&T::Walk {
                    fid,
                    newfid: Fid(9),
                    names: p9::Names::new(&[b".."])
                }),
                match fid.0 {
                    5 => Errno::ESTALE,
                    _ => Errno::ENOTDIR,
                }
            );
        }
        assert_eq!(net.err(&T::Remove { fid: Fid(3) }), Errno::ENOENT);
        // The next process continues with it as well.
        let net = hand_over(net, &of_host(dir.path(), by_name));
        for fid in [1, 2, 5, 6] {
            net.clunk(Fid(fid));
        }
        open(&net, Fid(4), O_RDWR);
    }
}

/// Fids of [`session_with_removed_files`].
const HALF: Fid = Fid(1);
const LOG: Fid = Fid(2);
const STAYS: Fid = Fid(3);
const CLONE: Fid = Fid(4);
const GONE: Fid = Fid(5);

/// Returns a session with open files that were removed: one that is half written and has a lock,
/// one that is open to append, and a directory.
fn session_with_removed_files(server: &Server, dir: &Path) -> Net {
    let net = Net::on(server, Dialect::Linux);
    create(&net, ROOT, HALF, "half", O_RDWR);
    net.write(HALF, 0, b"half");
    assert_eq!(status(net.ok(&lock(HALF, WRLCK, 0, LOCKED, 10))), 0);
    net.walk(ROOT, CLONE, "half");
    create(&net, ROOT, LOG, "log", O_RDWR | O_APPEND);
    net.write(LOG, 0, b"one");
    make_file(&net, "stays", b"contents");
    net.walk(ROOT, STAYS, "stays");
    open(&net, STAYS, O_RDONLY);
    mkdir(&net, ROOT, "gone");
    net.walk(ROOT, GONE, "gone");
    open(&net, GONE, O_RDONLY | O_DIRECTORY);
    // By the client, and by a program of the host.
    net.walk(ROOT, FREE, "half");
    net.ok(&T::Remove { fid: FREE });
    fs::write(dir.join("new"), b"another").expect("written");
    fs::rename(dir.join("new"), dir.join("log")).expect("renamed");
    fs::remove_dir(dir.join("gone")).expect("removed");
    net
}

/// Checks that each use of `fid`, which is open, returns `ESTALE`, except that it can be clunked.
fn assert_stale(net: &Net, fid: Fid) {
    let (offset, count, mask) = (0, 10, STAT_BASIC);
    let data = p9::Data(b"data");
    for request in [
        T::Getattr { fid, mask },
        T::Fsync {
            fid,
            datasync: p9::Datasync(0),
        },
        setattr(fid, 1, 0o600, 0),
        lock(fid, WRLCK, 0, (0, 0), 10),
    ] {
        assert_eq!(net.err(&request), Errno::ESTALE, "{request:?}");
    }
    let is_directory = fid == GONE;
    for (request, of_directory) in [
        (T::Read { fid, offset, count }, false),
        (T::Write { fid, offset, data }, false),
        (T::Readdir { fid, offset, count }, true),
    ] {
        if of_directory == is_directory {
            assert_eq!(net.err(&request), Errno::ESTALE, "{request:?}");
        }
    }
    net.clunk(fid);
}

#[test]
fn an_open_file_that_was_removed_continues() {
    for by_name in [false, true] {
        let dir = tempfile::tempdir().expect("a directory");
        let one = of_host(dir.path(), by_name);
        let net = session_with_removed_files(&one, dir.path());
        let ino = |net: &Net, fid| getattr(net, fid, STAT_BASIC).qid.path;
        let before = [HALF, CLONE, LOG, STAYS].map(|fid| ino(&net, fid));
        let state = save_with_files(&net);
        assert_eq!(state.files.len(), 2, "one of each file");
        drop((net, one));
        let two = of_host(dir.path(), by_name);
        let net = resume_with_files(&two, &state).expect("continued");
        // This session has them open itself.
        drop(state);
        assert_eq!([HALF, CLONE, LOG, STAYS].map(|fid| ino(&net, fid)), before);
        assert_eq!(net.read(HALF, 0, 99), b"half");
        net.write(HALF, 4, b"done");
        net.write(LOG, 3, b"+two");
        assert_eq!(net.read(STAYS, 0, 99), b"contents");
        assert_eq!(fs::read(dir.path().join("log")).expect("read"), b"another");
        // The lock is this client's.
        assert_eq!(status(net.ok(&lock(HALF, WRLCK, 0, LOCKED, 11))), 1);
        assert_eq!(status(net.ok(&lock(HALF, UNLCK, 0, LOCKED, 10))), 0);
        assert_eq!(status(net.ok(&lock(HALF, WRLCK, 0, LOCKED, 11))), 0);
        // Once more, with what has changed.
        let net = hand_over(net, &of_host(dir.path(), by_name));
        assert_eq!(net.read(HALF, 0, 99), b"halfdone");
        assert_eq!(net.read(LOG, 0, 99), b"one+two");
        assert_stale(&net, GONE);
        for fid in [HALF, CLONE, LOG] {
            net.clunk(fid);
        }
        let state = save_with_files(&net);
        assert!(state.files.is_empty());
    }
}

#[test]
fn an_open_file_that_cannot_be_opened_again_is_stale() {
    for by_name in [false, true] {
        let dir = tempfile::tempdir().expect("a directory");
        let one = of_host(dir.path(), by_name);
        let net = session_with_removed_files(&one, dir.path());
        // Without the descriptors.
        let state = save(&net).expect("saved");
        drop((net, one));
        let net = resume(&of_host(dir.path(), by_name), &state).expect("continued");
        assert_eq!(net.read(STAYS, 0, 99), b"contents");
        // The next process continues with them as well.
        let net = hand_over(net, &of_host(dir.path(), by_name));
        for fid in [HALF, LOG, GONE] {
            assert_stale(&net, fid);
        }
        net.clunk(CLONE);
        assert_eq!(net.read(STAYS, 0, 99), b"contents");
        create(&net, ROOT, FREE, "new", O_WRONLY);
    }
}

fn make_in(net: &Net, dir: Fid, name: &str) {
    create(net, dir, FREE, name, O_WRONLY);
    net.clunk(FREE);
}

#[test]
fn users_and_the_modes_of_open_files_are_those_of_before() {
    let tree = Memory::new(clock());
    let (one, _) = of_memory(&tree);
    let net = Net::on(&one, Dialect::Linux);
    net.ok(&setattr(ROOT, 1, 0o777, 0));
    let user = Fid(10);
    net.attach(user, 1000);
    create(&net, user, Fid(1), "mine", O_RDWR);
    net.write(Fid(1), 0, b"contents");
    make_file(&net, "roots", b"secret");
    net.walk(user, Fid(2), "roots");
    open(&net, Fid(2), O_RDONLY);
    net.walk(ROOT, Fid(3), "roots");
    net.ok(&setattr(Fid(3), 1, 0, 0));
    net.walk(user, Fid(4), "roots");
    let info = net.session.client_info();
    let net = hand_over(net, &of_memory(&tree).0);
    assert_eq!(net.session.client_info(), info);
    assert_eq!(net.read(Fid(1), 0, 99), b"contents");
    // It was open before its mode changed, and is not for the next open.
    assert_eq!(net.read(Fid(2), 0, 99), b"secret");
    let flags = O_RDONLY;
    assert_eq!(net.err(&T::Lopen { fid: Fid(4), flags }), Errno::EACCES);
    create(&net, user, Fid(5), "new", O_RDWR);
    let stat = getattr(&net, Fid(5), STAT_BASIC);
    assert_eq!((stat.uid, stat.gid), (1000, 0));
    net.ok(&T::Lopen { fid: Fid(3), flags });
}

#[test]
fn a_peer_continues_only_as_users_that_it_may_act_as() {
    let tree = Memory::new(clock());
    let state_of = |uid| {
        let net = Net::new(&of_memory(&tree).0, Dialect::Linux, 8192);
        net.attach(ROOT, uid);
        save(&net).expect("saved")
    };
    let call_of = |uid: u32, trust: &LocalUsers| {
        let owner = Owner {
            uid,
            gid: Some(uid),
            groups: None,
        };
        let peer = Peer::new(Origin::Local { addr: None, owner }, trust, 1);
        peer.set_owner(Caller {
            groups: Groups::Known([7].into()),
            ..Caller::new(uid, uid)
        });
        Call::detached().with_peer(Arc::new(peer))
    };
    let (roots, users) = (state_of(0), state_of(1000));
    let server = of_memory(&tree).0;
    let resume = |state: &[u8], call: &Call| server.resume(call, &without_files(state)).map(|_| ());
    let (user, other) = (
        call_of(1000, &LocalUsers::Privileged),
        call_of(1001, &LocalUsers::Privileged),
    );
    assert_eq!(resume(&users, &user), Ok(()));
    for (state, call, uid) in [
        (&roots, &user, 0),
        (&roots, &other, 0),
        (&users, &other, 1000),
    ] {
        let refused = resume(state, call).expect_err("another user");
        let reason = format!("the peer may not act as uid {uid}, gid {uid}");
        assert_eq!(refused.to_string(), reason);
    }
    let trusted = call_of(1001, &LocalUsers::All);
    assert_eq!(
        (resume(&roots, &trusted), resume(&users, &trusted)),
        (Ok(()), Ok(()))
    );
}

#[test]
fn a_list_of_clients_applies_to_sessions_that_continue() {
    let tree = Memory::new(clock());
    let listed = |list: &str| {
        let list: layers::Admission = list.parse().expect("a list");
        let fs = layers::stack(Arc::new(Lasting(tree.clone())), list);
        server_of(fs, Options::default())
    };
    let direct = Net::on(&of_memory(&tree).0, Dialect::Linux);
    make_file(&direct, "file", b"contents");
    direct.walk(ROOT, Fid(1), "file");
    direct.ok(&setattr(Fid(1), 1, 0o644, 0));

    // Root of the client is nobody here.
    let list = "10.0.0.0/8(rw,root_squash,insecure)";
    let peer = Peer::remote([10, 0, 0, 1].into(), 5000);
    let mut net = Net::new(&listed(list).0, Dialect::Linux, 1 << 16);
    net.peer = Some(Arc::new(peer));
    net.attach(ROOT, 0);
    for fid in [1, 2].map(Fid) {
        net.walk(ROOT, fid, "file");
    }
    open(&net, Fid(1), O_RDONLY);
    direct.ok(&setattr(Fid(1), 1, 0o600, 0));
    let state = net.session.save_state(&net.call()).expect("saved");

    let other = listed("10.0.0.2(rw,insecure)").0;
    let refused = other.resume(&net.call(), &state).map(drop);
    let reason = refused.expect_err("another client").to_string();
    assert_eq!(reason, "the root of /: EACCES");
    let session = listed(list).0.resume(&net.call(), &state);
    net.session = session.expect("continued");
    assert_eq!(net.read(Fid(1), 0, 99), b"contents");
    let (fid, flags) = (Fid(2), O_RDONLY);
    assert_eq!(net.err(&T::Lopen { fid, flags }), Errno::EACCES);
}

#[test]
fn the_ends_of_files_open_to_append_are_the_clients() {
    let tree = Memory::new(clock());
    let (one, _) = of_memory(&tree);
    let net = Net::on(&one, Dialect::Linux);
    create(&net, ROOT, Fid(1), "log", O_RDWR | O_APPEND);
    net.write(Fid(1), 0, b"aaaa");
    // A page that is written back, and another one after the handover.
    net.write(Fid(1), 0, b"aaaabb");
    let net = hand_over(net, &of_memory(&tree).0);
    net.write(Fid(1), 0, b"aaaabbcc");
    assert_eq!(net.read(Fid(1), 0, 99), b"aaaabbcc");
    net.clunk(Fid(1));
    // The file is open for that, although its mode no longer permits it.
    let user = Fid(10);
    net.attach(user, 1000);
    net.walk(ROOT, Fid(2), "log");
    net.ok(&setattr(Fid(2), 1, 0o666, 0));
    net.walk(user, Fid(3), "log");
    open(&net, Fid(3), O_RDWR | O_APPEND);
    net.write(Fid(3), 0, b"A");
    net.ok(&setattr(Fid(2), 1, 0o600, 0));
    let net = hand_over(net, &of_memory(&tree).0);
    net.write(Fid(3), 0, b"AAaabbccd");
    assert_eq!(net.read(Fid(3), 0, 99), b"AAaabbccd");
    net.clunk(Fid(3));
    net.clunk(Fid(2));
    // A client that opens a file for writing only never writes back.
    net.walk(ROOT, Fid(1), "log");
    open(&net, Fid(1), O_WRONLY);
    let net = hand_over(net, &of_memory(&tree).0);
    net.walk(ROOT, Fid(2), "log");
    open(&net, Fid(2), O_RDWR | O_APPEND);
    net.write(Fid(2), 0, b"dd");
    assert_eq!(net.read(Fid(2), 0, 99), b"AAaabbccddd");
}

#[test]
fn a_path_of_any_depth_continues() {
    let tree = Memory::new(clock());
    let net = Net::on(&of_memory(&tree).0, Dialect::Linux);
    net.walk(ROOT, Fid(1), "");
    for _ in 0..20_000 {
        mkdir(&net, Fid(1), "d");
        net.walk(Fid(1), Fid(1), "d");
    }
    let qid = getattr(&net, Fid(1), STAT_BASIC).qid;
    let net = hand_over(net, &of_memory(&tree).0);
    assert_eq!(getattr(&net, Fid(1), STAT_BASIC).qid, qid);
    net.ok(&T::Remove { fid: Fid(1) });
}

#[test]
fn older_dialects_continue_too_but_no_removal_on_clunk() {
    for dialect in [Dialect::Plan9, Dialect::Unix] {
        let tree = Memory::new(clock());
        let net = Net::on(&of_memory(&tree).0, dialect);
        for number in 0..20 {
            net.walk(ROOT, FREE, "");
            net.ok(&T::Create {
                fid: FREE,
                name: format!("file-{number}").as_bytes(),
                perm: 0o644,
                mode: 1,
                extension: Extension(b""),
            });
            net.clunk(FREE);
        }
        net.walk(ROOT, Fid(1), "");
        net.ok(&T::Open {
            fid: Fid(1),
            mode: 0,
        });
        let mut records = net.read(Fid(1), 0, 300).to_vec();
        let net = hand_over(net, &of_memory(&tree).0);
        loop {
            let more = net.read(Fid(1), records.len() as u64, 300);
            if more.is_empty() {
                break;
            }
            records.extend(more);
        }
        let mut from = wire::Reader::new(&records);
        let mut names = BTreeSet::new();
        while !from.rest().is_empty() {
            let stat = Stat::decode(&mut from, dialect).expect("whole records");
            assert!(names.insert(stat.name.to_vec()));
        }
        assert_eq!(names.len(), 20);
        net.walk(ROOT, Fid(2), "file-1");
        let mode = 0x40;
        net.ok(&T::Open { fid: Fid(2), mode });
        assert_eq!(save(&net), None);
        net.clunk(Fid(2));
        assert!(save(&net).is_some());
    }
}
