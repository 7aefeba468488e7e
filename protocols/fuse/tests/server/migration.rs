//! The state of a mount, saved by one session and loaded by another.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;

use fuse::Request as R;
use fuse::layout::{LkIn, ReleaseIn};
use fuse::message::Text;
use fuse::numbers::{ROOT_ID, lock_kind};
use fuse::server::{Migration, MigrationMode, MigrationOnError, Options, Server};
use hostdir::HostDir;
use vfs::{Call, Errno, Export};
use wire::SavedState;

use crate::net::{Net, lookup, server};

const RDWR: u32 = 2;

fn save(net: &Net) -> io::Result<Vec<u8>> {
    let mut state = Vec::new();
    net.session.save(&Call::detached(), &mut state)?;
    Ok(state)
}

fn load(server: &Server, state: &[u8]) -> io::Result<Net> {
    let net = Net::silent(server);
    net.session.load(&Call::detached(), &mut &*state)?;
    Ok(net)
}

fn options(migration: Migration) -> Options {
    Options {
        migration,
        ..Options::default()
    }
}

/// Returns a server of the host's directory `dir`.
fn serving(dir: &Path, migration: Migration) -> Server {
    let host = hostdir::Options {
        public_handle_key: true,
        ..hostdir::Options::default()
    };
    serving_with(dir, migration, host)
}

fn serving_with(dir: &Path, migration: Migration, host: hostdir::Options) -> Server {
    let tree = HostDir::open(dir, host).expect("a directory");
    Server::new(Arc::new(Export::new("", tree)), options(migration))
}

fn lock(fh: u64, owner: u64, kind: u32) -> R<'static> {
    R::Setlk {
        args: LkIn {
            fh,
            owner,
            start: 5,
            end: 9,
            kind,
            pid: 3,
            lk_flags: 0,
        },
    }
}

#[test]
fn a_mount_continues_with_its_nodes_files_and_locks() {
    for mode in [MigrationMode::FindPaths, MigrationMode::FileHandles] {
        let migration = Migration {
            mode,
            ..Migration::default()
        };
        let server = server(options(migration));
        let net = Net::on(&server);
        let dir = net.mkdir(ROOT_ID, "dir");
        let below = net.mkdir(dir.nodeid, "below");
        let (file, open) = net.create(below.nodeid, "file");
        net.write(open.fh, 0, b"contents").expect("written");
        let appended = net.open(file.nodeid, RDWR | 0o2000);
        let listing = net.opendir(below.nodeid);
        let first = net
            .list(below.nodeid, listing.fh, 0, 64, false)
            .expect("an entry");
        net.ok(ROOT_ID, &lock(open.fh, 7, lock_kind::WRLCK));
        // The client has forgotten the directory between.
        net.forget(dir.nodeid, 1);

        let state = save(&net).expect("saved");
        let moved = load(&server, &state).expect("loaded");
        assert_eq!(net.session.stats(), moved.session.stats());
        assert_eq!(moved.getattr(file.nodeid), net.getattr(file.nodeid));
        assert_eq!(moved.read(open.fh, 0, 99), Ok(b"contents".to_vec()));
        moved.append(appended.fh, 0, b"!").expect("appended");
        assert_eq!(moved.read(open.fh, 0, 99), Ok(b"contents!".to_vec()));
        let again = moved.lookup(below.nodeid, "file");
        assert_eq!(
            (again.nodeid, again.generation),
            (file.nodeid, file.generation)
        );
        let known = moved.err(dir.nodeid, &lookup("below"));
        assert_eq!(known, Errno::ESTALE, "forgotten");
        let next = first.last().expect("an entry").off;
        let rest = moved.list(below.nodeid, listing.fh, next, 4096, false);
        assert!(
            rest.expect("listed")
                .iter()
                .any(|entry| entry.name == "file")
        );
        // Neither a new node nor a new file has a number in use.
        let (new, opened) = moved.create(below.nodeid, "new");
        assert!(new.nodeid != file.nodeid && new.generation > below.generation);
        assert!(opened.fh > listing.fh);

        // The lock is the moved client's, and ends with its file.
        let other = Net::on(&server);
        other.lookup(ROOT_ID, "dir");
        other.lookup(dir.nodeid, "below");
        other.lookup(below.nodeid, "file");
        let its = other.open(file.nodeid, RDWR).fh;
        assert_eq!(
            other.err(ROOT_ID, &lock(its, 7, lock_kind::WRLCK)),
            Errno::EAGAIN
        );
        moved.ok(ROOT_ID, &lock(open.fh, 7, lock_kind::RDLCK));
        moved.release(open.fh);
        other.ok(ROOT_ID, &lock(its, 7, lock_kind::WRLCK));
    }
}

#[test]
fn a_mount_that_stays_has_its_locks_again() {
    let server = server(Options::default());
    let net = Net::on(&server);
    let (file, open) = net.create(ROOT_ID, "file");
    net.ok(ROOT_ID, &lock(open.fh, 7, lock_kind::WRLCK));
    let state = save(&net).expect("saved");
    assert_eq!(save(&net).expect("saved again"), state, "with the lock");
    net.session.resume(&Call::detached());
    let other = Net::on(&server);
    other.lookup(ROOT_ID, "file");
    let its = other.open(file.nodeid, RDWR).fh;
    assert_eq!(
        other.err(ROOT_ID, &lock(its, 7, lock_kind::WRLCK)),
        Errno::EAGAIN
    );
    net.release(open.fh);
    other.ok(ROOT_ID, &lock(its, 7, lock_kind::WRLCK));
}

#[test]
fn a_mount_before_init_continues_before_init() {
    let server = server(Options::default());
    let moved = load(&server, &save(&Net::silent(&server)).expect("saved")).expect("loaded");
    assert_eq!(moved.err(ROOT_ID, &lookup("file")), Errno::EIO);
    moved.init();
}

/// The inode numbers of a copy differ, and some are those of other files.
#[test]
fn a_copy_keeps_the_numbers_that_the_client_knows() {
    let (one, other) = (
        tempfile::tempdir().expect("one"),
        tempfile::tempdir().expect("two"),
    );
    let names = ["a", "b", "c", "d", "e", "f"];
    for name in names {
        fs::write(one.path().join(name), name).expect("written");
    }
    for name in names.iter().rev() {
        fs::write(other.path().join(name), name).expect("written");
    }
    let net = Net::on(&serving(one.path(), Migration::default()));
    let known = names.map(|name| net.lookup(ROOT_ID, name));
    let root = net.getattr(ROOT_ID).ino;
    let server = serving(other.path(), Migration::default());
    let moved = load(&server, &save(&net).expect("saved")).expect("loaded");
    assert_eq!(moved.getattr(ROOT_ID).ino, root);
    for (name, before) in names.iter().zip(&known) {
        assert_eq!(moved.getattr(before.nodeid).ino, before.attr.ino);
        let fh = moved.open(before.nodeid, 0).fh;
        assert_eq!(moved.read(fh, 0, 9), Ok(name.as_bytes().to_vec()));
        assert_eq!(moved.lookup(ROOT_ID, name).nodeid, before.nodeid);
    }
    let new: Vec<_> = (0..20)
        .map(|number| moved.create(ROOT_ID, &format!("new{number}")).0)
        .collect();
    let mut all: Vec<_> = known.iter().chain(&new).map(|entry| entry.nodeid).collect();
    all.push(root);
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), names.len() + 20 + 1, "numbers are unique");
    let fh = moved.opendir(ROOT_ID).fh;
    for listed in moved.list(ROOT_ID, fh, 0, 1 << 16, false).expect("listed") {
        if let Some(at) = names.iter().position(|name| *name == listed.name) {
            assert_eq!(listed.ino, known[at].attr.ino);
        }
    }
    // A second migration has the same numbers, and another INIT none of them.
    let again = load(&server, &save(&moved).expect("saved")).expect("loaded");
    assert_eq!(again.getattr(known[0].nodeid).ino, known[0].attr.ino);
    again.init();
    assert_eq!(
        again.getattr(ROOT_ID).ino,
        Net::on(&server).getattr(ROOT_ID).ino
    );
}

fn unlink(net: &Net, name: &str) {
    let name = Text(name.as_bytes());
    net.ok(ROOT_ID, &R::Unlink { name });
}

#[test]
fn a_removed_file_matters_only_while_it_is_open() {
    for mode in [MigrationMode::FindPaths, MigrationMode::FileHandles] {
        let dir = tempfile::tempdir().expect("a directory");
        let server = |on_error| {
            let migration = Migration {
                mode,
                on_error,
                ..Migration::default()
            };
            serving(dir.path(), migration)
        };
        let abort = server(MigrationOnError::Abort);
        let net = Net::on(&abort);
        let (file, open) = net.create(ROOT_ID, "file");
        unlink(&net, "file");
        let error = save(&net).expect_err("it is open").to_string();
        assert!(error.contains(&file.nodeid.to_string()), "{error}");
        net.release(open.fh);
        let moved = load(&abort, &save(&net).expect("saved")).expect("loaded");
        let stale = |net: &Net| net.err(file.nodeid, &R::Readlink {});
        assert_eq!(stale(&moved), Errno::ESTALE);
        moved.forget(file.nodeid, 1);

        let tolerant = server(MigrationOnError::GuestError);
        let net = Net::on(&tolerant);
        let (file, open) = net.create(ROOT_ID, "file");
        let (_, kept) = net.create(ROOT_ID, "kept");
        unlink(&net, "file");
        let moved = load(&tolerant, &save(&net).expect("saved")).expect("loaded");
        assert_eq!(moved.err(file.nodeid, &R::Readlink {}), Errno::ESTALE);
        assert_eq!(moved.read(open.fh, 0, 1), Err(Errno::EBADF));
        assert_eq!(moved.read(kept.fh, 0, 1), Ok(vec![]));
    }
}

#[test]
fn a_successor_continues_with_open_files_that_were_removed() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = || serving(dir.path(), Migration::default());
    let net = Net::on(&server());
    let (half, half_open) = net.create(ROOT_ID, "half");
    net.write(half_open.fh, 0, b"half").expect("written");
    net.ok(half.nodeid, &lock(half_open.fh, 7, lock_kind::WRLCK));
    let (log, _) = net.create(ROOT_ID, "log");
    let log_open = net.open(log.nodeid, RDWR | 0o2000);
    let (kept, kept_open) = net.create(ROOT_ID, "kept");
    // By the client, and by a program of the host.
    unlink(&net, "half");
    fs::write(dir.path().join("new"), b"another").expect("written");
    fs::rename(dir.path().join("new"), dir.path().join("log")).expect("renamed");
    let call = Call::detached();
    let state = net.session.save_for_successor(&call).expect("saved");
    assert_eq!(state.files.len(), 2, "one of each file");
    drop(net);

    let net = Net::silent(&server());
    let loaded = net.session.load_as_successor(&call, &state);
    loaded.expect("loaded");
    // This session has them open itself.
    let bytes = state.bytes.clone();
    drop(state);
    assert_eq!(net.read(half_open.fh, 0, 99), Ok(b"half".to_vec()));
    net.write(half_open.fh, 4, b"done").expect("written");
    assert_eq!(net.read(half_open.fh, 0, 99), Ok(b"halfdone".to_vec()));
    net.write(log_open.fh, 0, b"line").expect("written");
    assert_eq!(net.read(log_open.fh, 0, 99), Ok(b"line".to_vec()));
    assert_eq!(net.getattr(half.nodeid).nlink, 0);
    let other = lock(half_open.fh, 8, lock_kind::WRLCK);
    assert_eq!(net.err(half.nodeid, &other), Errno::EAGAIN, "it is locked");
    let replaced = fs::read(dir.path().join("log")).expect("read");
    assert_eq!(replaced, b"another");

    // A monitor's migration does not keep them.
    let error = save(&net).expect_err("they are open").to_string();
    assert!(error.contains(&half.nodeid.to_string()), "{error}");

    // Without the descriptors, only these files are lost.
    drop(net);
    let net = Net::silent(&server());
    let (state, files) = (bytes, Vec::new());
    let state = SavedState {
        bytes: state,
        files,
    };
    let loaded = net.session.load_as_successor(&call, &state);
    loaded.expect("loaded");
    assert_eq!(net.err(half.nodeid, &R::Readlink {}), Errno::ESTALE);
    assert_eq!(net.read(half_open.fh, 0, 1), Err(Errno::EBADF));
    assert_eq!(net.read(kept_open.fh, 0, 1), Ok(vec![]));
    assert_eq!(net.lookup(ROOT_ID, "kept").nodeid, kept.nodeid);
}

#[test]
fn a_successor_without_kernel_handles_finds_nodes_and_removed_files() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = || {
        let host = hostdir::Options {
            public_handle_key: true,
            no_kernel_handles: true,
            ..hostdir::Options::default()
        };
        serving_with(dir.path(), Migration::default(), host)
    };
    let net = Net::on(&server());
    let sub = net.mkdir(ROOT_ID, "sub");
    let (removed, removed_open) = net.create(ROOT_ID, "removed");
    let (kept, kept_open) = net.create(sub.nodeid, "kept");
    net.write(kept_open.fh, 0, b"kept").expect("written");
    net.write(removed_open.fh, 0, b"removed").expect("written");
    unlink(&net, "removed");
    let call = Call::detached();
    let state = net.session.save_for_successor(&call).expect("saved");
    drop(net);
    let net = Net::silent(&server());
    let loaded = net.session.load_as_successor(&call, &state);
    loaded.expect("loaded");
    assert_eq!(net.read(kept_open.fh, 0, 99), Ok(b"kept".to_vec()));
    assert_eq!(net.lookup(sub.nodeid, "kept").nodeid, kept.nodeid);
    assert_eq!(net.read(removed_open.fh, 0, 99), Ok(b"removed".to_vec()));
    assert_eq!(net.getattr(removed.nodeid).nlink, 0);
}

#[test]
fn a_file_that_became_another_one_is_noticed_by_its_handle() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("file");
    for verify_handles in [false, true] {
        let server = serving(
            dir.path(),
            Migration {
                verify_handles,
                ..Migration::default()
            },
        );
        fs::write(&path, "one").expect("written");
        let net = Net::on(&server);
        net.lookup(ROOT_ID, "file");
        let state = save(&net).expect("saved");
        load(&server, &state).expect("the same file");
        fs::rename(&path, dir.path().join("old")).expect("renamed");
        fs::write(&path, "other").expect("written");
        assert_eq!(load(&server, &state).is_err(), verify_handles);
        // A directory is no file, verified or not.
        fs::remove_file(&path).expect("removed");
        fs::create_dir(&path).expect("made");
        load(&server, &state).err().expect("another kind");
        fs::remove_dir(&path).expect("removed");
    }
}

#[test]
fn no_path_leads_out_of_the_tree() {
    let (dir, outside) = (
        tempfile::tempdir().expect("one"),
        tempfile::tempdir().expect("two"),
    );
    fs::create_dir(dir.path().join("sub")).expect("made");
    for at in [dir.path().join("sub/file"), outside.path().join("file")] {
        fs::write(at, "contents").expect("written");
    }
    let server = serving(dir.path(), Migration::default());
    let net = Net::on(&server);
    let sub = net.lookup(ROOT_ID, "sub");
    net.lookup(sub.nodeid, "file");
    net.forget(sub.nodeid, 1);
    let state = save(&net).expect("saved");
    fs::rename(dir.path().join("sub"), dir.path().join("moved")).expect("renamed");
    symlink(outside.path(), dir.path().join("sub")).expect("linked");
    load(&server, &state).err().expect("a link is not followed");
    // Names that are none.
    let at = state
        .windows(5)
        .position(|bytes| bytes == b"\x03sub\0")
        .expect("a name");
    for name in [&b".."[..], b".", b"", b"a/b", b"a\0b"] {
        let name = [&[name.len() as u8], name, b"\0"].concat();
        let forged = [&state[..at], &name, &state[at + 5..]].concat();
        load(&server, &forged).err().expect("no name");
    }
}

#[test]
fn an_open_file_whose_number_is_yet_to_come_is_refused() {
    let server = server(Options::default());
    let net = Net::on(&server);
    let (_, open) = net.create(ROOT_ID, "file");
    let mut state = save(&net).expect("saved");
    // After the head, the longest write, the next generation and the root's number.
    let next = 20 + 4 + 4 + 8;
    assert_eq!(state[next..next + 8], (open.fh + 1).to_le_bytes());
    load(&server, &state).expect("unchanged");
    state[next..next + 8].copy_from_slice(&open.fh.to_le_bytes());
    let error = load(&server, &state).err().expect("refused").to_string();
    assert!(error.contains("open file"), "{error}");
}

/// Every state is loaded or refused, and the session works afterwards.
#[test]
fn a_damaged_state_does_no_harm() {
    let server = server(options(Migration {
        on_error: MigrationOnError::GuestError,
        ..Migration::default()
    }));
    let net = Net::on(&server);
    let dir = net.mkdir(ROOT_ID, "dir");
    let (_, open) = net.create(dir.nodeid, "file");
    net.ok(ROOT_ID, &lock(open.fh, 1, lock_kind::WRLCK));
    let state = save(&net).expect("saved");
    for len in 0..state.len() {
        let net = Net::silent(&server);
        let loaded = net.session.load(&Call::detached(), &mut &state[..len]);
        loaded.expect_err("truncated");
        assert_eq!(net.session.stats(), Default::default());
        net.init();
    }
    for at in 0..state.len() {
        for byte in [0, 1, 0x7f, 0xff] {
            let mut damaged = state.clone();
            damaged[at] ^= byte;
            let Ok(net) = load(&server, &damaged) else {
                continue;
            };
            for nodeid in [ROOT_ID, dir.nodeid] {
                let _ = net.rpc(nodeid, &lookup("file"));
            }
            let args = ReleaseIn {
                fh: open.fh,
                ..ReleaseIn::default()
            };
            let _ = net.rpc(ROOT_ID, &R::Release { args });
            save(&net).expect("saved again");
        }
    }
}

#[test]
fn a_server_with_fewer_features_refuses_the_mount() {
    let all = server(Options::default());
    let state = save(&Net::on(&all)).expect("saved");
    let fewer = server(Options {
        readdirplus: false,
        ..Options::default()
    });
    let error = load(&fewer, &state).err().expect("refused").to_string();
    assert!(error.contains("READDIRPLUS"), "{error}");
    let smaller = server(Options {
        max_write: 1 << 16,
        ..Options::default()
    });
    let error = load(&smaller, &state).err().expect("refused").to_string();
    assert!(error.contains("1048576"), "{error}");
}

#[test]
fn a_tree_in_memory_does_not_migrate() {
    assert!(!Net::new().session.can_migrate());
    let dir = tempfile::tempdir().expect("a directory");
    let server = serving(dir.path(), Migration::default());
    assert!(server.session().can_migrate());
}

/// The guest sends its locks to the server for as long as its mount lasts.
#[test]
fn a_mount_that_has_agreed_on_locks_keeps_them_at_a_server_without() {
    let dir = tempfile::tempdir().expect("a directory");
    let before = serving(dir.path(), Migration::default());
    let net = Net::on(&before);
    let (file, open) = net.create(ROOT_ID, "file");
    net.ok(ROOT_ID, &lock(open.fh, 7, lock_kind::WRLCK));
    let state = save(&net).expect("saved");
    let tree = HostDir::open(dir.path(), hostdir::Options::default()).expect("a directory");
    let without = Options {
        posix_locks: false,
        flock: false,
        ..Options::default()
    };
    let without = Server::new(Arc::new(Export::new("", tree)), without);
    let moved = load(&without, &state).expect("loaded");
    let other = Net::on(&without);
    other.lookup(ROOT_ID, "file");
    let its = other.open(file.nodeid, RDWR).fh;
    let held = other.err(ROOT_ID, &lock(its, 8, lock_kind::WRLCK));
    assert_eq!(held, Errno::EAGAIN);
    moved.ok(ROOT_ID, &lock(open.fh, 7, lock_kind::UNLCK));
    other.ok(ROOT_ID, &lock(its, 8, lock_kind::WRLCK));
}

/// An open file description lock ends with its handle, and the destination knows which.
#[test]
fn a_lock_that_moved_ends_with_its_handle() {
    let server = server(Options::default());
    let net = Net::on(&server);
    let (file, open) = net.create(ROOT_ID, "file");
    let second = net.open(file.nodeid, RDWR).fh;
    let third = net.open(file.nodeid, RDWR).fh;
    // The other one has no lock any more, and its handle stays.
    net.ok(ROOT_ID, &lock(open.fh, 6, lock_kind::WRLCK));
    net.ok(ROOT_ID, &lock(open.fh, 6, lock_kind::UNLCK));
    net.ok(ROOT_ID, &lock(second, 7, lock_kind::WRLCK));
    let moved = load(&server, &save(&net).expect("saved")).expect("loaded");
    let held = moved.err(ROOT_ID, &lock(third, 8, lock_kind::WRLCK));
    assert_eq!(held, Errno::EAGAIN);
    moved.release(second);
    moved.ok(ROOT_ID, &lock(third, 8, lock_kind::WRLCK));
}
