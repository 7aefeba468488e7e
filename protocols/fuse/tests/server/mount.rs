//! INIT, DESTROY, and the flags granted.

use std::sync::Arc;

use fuse::Request as R;
use fuse::layout::{InitOut, InterruptIn};
use fuse::numbers::{InitFlags, ROOT_ID};
use fuse::server::{Cache, Options};
use vfs::Errno;
use wire::{ClientThreads, Role, Session as _};

use crate::net::{Net, OFFERED, create, init, lookup, open_with, server};

fn answer(bytes: &[u8]) -> InitOut {
    InitOut::decode(bytes).expect("an answer")
}

fn granted(options: Options) -> InitFlags {
    let out = Net::silent(&server(options)).init();
    InitFlags::from_bits_retain(u64::from(out.flags) | u64::from(out.flags2) << 32)
}

#[test]
fn nothing_is_answered_before_init() {
    let net = Net::silent(&server(Options::default()));
    assert_eq!(net.err(ROOT_ID, &lookup("a")), Errno::EIO);
    net.forget(ROOT_ID, 1);
    let out = net.init();
    assert_eq!((out.major, out.minor), (7, 45));
    assert_eq!((out.max_write, out.max_pages), (1 << 20, 256));
    assert_eq!((out.max_readahead, out.time_gran), (1 << 17, 1));
    assert_eq!(net.err(ROOT_ID, &lookup("a")), Errno::ENOENT);
}

#[test]
fn versions_are_agreed_on() {
    let server = server(Options::default());
    let net = Net::silent(&server);
    let out = answer(&net.ok(ROOT_ID, &init(8, 0, OFFERED)));
    assert_eq!((out.major, out.minor, out.flags), (7, 45, 0));
    assert_eq!(net.err(ROOT_ID, &lookup("a")), Errno::EIO);
    assert_eq!(net.err(ROOT_ID, &init(6, 45, OFFERED)), Errno::EPROTO);
    assert_eq!(net.err(ROOT_ID, &init(7, 26, OFFERED)), Errno::EPROTO);
    let few = InitFlags::ASYNC_READ | InitFlags::POSIX_ACL;
    let out = answer(&net.ok(ROOT_ID, &init(7, 27, few)));
    assert_eq!((out.minor, out.flags, out.max_pages), (27, 1, 0));
    let out = answer(&Net::silent(&server).ok(ROOT_ID, &init(7, 99, few)));
    assert_eq!(out.minor, 45);
}

#[test]
fn options_grant_and_deny() {
    let plain = granted(Options::default());
    for flag in [
        InitFlags::POSIX_LOCKS,
        InitFlags::FLOCK_LOCKS,
        InitFlags::READDIRPLUS_AUTO,
        InitFlags::SUBMOUNTS,
        InitFlags::CREATE_SUPP_GROUP,
        InitFlags::DIRECT_IO_ALLOW_MMAP,
        InitFlags::CACHE_SYMLINKS,
        InitFlags::EXPORT_SUPPORT,
        InitFlags::HANDLE_KILLPRIV_V2,
    ] {
        assert!(plain.contains(flag), "{flag:?}");
    }
    let asked_for = InitFlags::WRITEBACK_CACHE;
    assert!(!plain.intersects(asked_for | InitFlags::POSIX_ACL));
    // Without extended attributes the client reads no capabilities; but it removes no set-id bits
    // when it writes past its cache.
    for (cache, xattr, killpriv_v2, expected) in [
        (Cache::Auto, true, false, false),
        (Cache::Auto, false, true, false),
        (Cache::Never, false, true, true),
        (Cache::Metadata, false, true, true),
        (Cache::Never, false, false, false),
    ] {
        let granted = granted(Options {
            cache,
            xattr,
            killpriv_v2,
            ..Options::default()
        });
        let v2 = granted.contains(InitFlags::HANDLE_KILLPRIV_V2);
        assert_eq!(v2, expected, "{cache:?}, {xattr}, {killpriv_v2}");
    }
    let others = granted(Options {
        writeback: true,
        readdirplus: false,
        announce_submounts: false,
        allow_mmap: false,
        posix_locks: false,
        flock: false,
        cache: Cache::Never,
        ..Options::default()
    });
    assert!(others.contains(asked_for));
    let denied = InitFlags::DO_READDIRPLUS
        | InitFlags::SUBMOUNTS
        | InitFlags::CACHE_SYMLINKS
        | InitFlags::DIRECT_IO_ALLOW_MMAP
        | InitFlags::POSIX_LOCKS
        | InitFlags::FLOCK_LOCKS;
    assert!(!others.intersects(denied));
}

/// The source permits it for the owner's files only.
#[test]
fn noatime_is_passed_on_or_forgotten() {
    const NOATIME: u32 = 0o1000000;
    for (noatime, opened) in [(true, Err(Errno::EPERM)), (false, Ok(()))] {
        let mut net = Net::on(&server(Options {
            noatime,
            ..Options::default()
        }));
        let (entry, _) = net.create(ROOT_ID, "a");
        net.uid = 1000;
        let answer = net.rpc(entry.nodeid, &open_with(NOATIME));
        assert_eq!(answer.map(drop), opened);
    }
}

#[test]
fn caching_is_virtiofsds() {
    for (cache, validity, file, directory) in [
        (Cache::Never, 0, 0x41, 0),
        (Cache::Metadata, 86400, 0x41, 0xa),
        (Cache::Auto, 1, 0, 0),
        (Cache::Always, 86400, 2, 0xa),
    ] {
        let net = Net::on(&server(Options {
            cache,
            ..Options::default()
        }));
        let (entry, open) = net.create(ROOT_ID, "a");
        assert_eq!(entry.entry_valid, validity, "{cache:?}");
        assert_eq!(entry.attr_valid, validity, "{cache:?}");
        assert_eq!(open.open_flags, file, "{cache:?}");
        assert_eq!(net.opendir(ROOT_ID).open_flags, directory, "{cache:?}");
    }
    let net = Net::on(&server(Options {
        timeout: Some(std::time::Duration::from_millis(1500)),
        ..Options::default()
    }));
    let (entry, _) = net.create(ROOT_ID, "a");
    assert_eq!(
        (entry.entry_valid, entry.entry_valid_nsec),
        (1, 500_000_000)
    );
}

#[test]
fn destroy_forgets_everything_and_a_new_mount_may_come() {
    let net = Net::new();
    let (entry, open) = net.create(ROOT_ID, "a");
    net.ok(ROOT_ID, &R::Destroy {});
    assert_eq!(net.err(ROOT_ID, &lookup("a")), Errno::EIO);
    net.init();
    assert_eq!(net.read(open.fh, 0, 1), Err(Errno::EBADF));
    assert_eq!(net.err(entry.nodeid, &lookup("b")), Errno::ESTALE);
    assert_eq!(net.lookup(ROOT_ID, "a").nodeid, entry.nodeid);
}

#[test]
fn a_machine_that_was_reset_begins_anew() {
    let net = Net::new();
    let (entry, open) = net.create(ROOT_ID, "a");
    net.init();
    assert_eq!(net.read(open.fh, 0, 1), Err(Errno::EBADF));
    assert_eq!(net.err(entry.nodeid, &lookup("b")), Errno::ESTALE);
    assert_eq!(net.lookup(ROOT_ID, "a").nodeid, entry.nodeid);
}

#[test]
fn requests_mean_what_they_do_to_the_order_of_things() {
    let net = Net::new();
    let role = |request: &R<'_>, unique| {
        let header = fuse::Header {
            unique,
            ..Default::default()
        };
        let mut message = Vec::new();
        request.encode(crate::net::FORM, header, &mut message);
        net.session.role(&message).expect("a role")
    };
    let interrupt = R::Interrupt {
        args: InterruptIn { unique: 4 },
    };
    assert_eq!(role(&interrupt, 5), Role::Cancel { id: 5, target: 4 });
    assert_eq!(role(&interrupt, 4), Role::Request { id: 4 });
    assert_eq!(role(&R::Destroy {}, 6), Role::Reset { id: 6 });
    assert_eq!(role(&init(7, 45, OFFERED), 2), Role::Reset { id: 2 });
    assert_eq!(role(&create("a", 0), 8), Role::Request { id: 8 });
    net.tell(0, &interrupt);
}

/// No thread will end.
struct Living;

impl ClientThreads for Living {
    fn are_ending(&self, threads: &[u32]) -> Vec<bool> {
        vec![false; threads.len()]
    }
}

#[test]
fn a_signal_for_a_program_of_this_host_cancels_nothing_by_itself() {
    let session = server(Options::default()).session();
    let session = session.with_client_threads(Arc::new(Living));
    let encode = |request: &R<'_>, unique| {
        let header = fuse::Header {
            unique,
            pid: 77,
            ..Default::default()
        };
        let mut message = Vec::new();
        request.encode(crate::net::FORM, header, &mut message);
        message
    };
    let interrupt = R::Interrupt {
        args: InterruptIn { unique: 4 },
    };
    let role = session.role(&encode(&interrupt, 5)).expect("a role");
    assert_eq!(role, Role::Interrupt { id: 5, target: 4 });
    assert!(session.client_threads().is_some());
    let made = encode(&create("a", 0), 4);
    assert_eq!(session.waiting_thread(&made), 77);
    // The locks and the memory of a file that is closed must be released.
    let flushed = R::Flush {
        args: Default::default(),
    };
    assert!(session.may_be_interrupted(&made));
    assert!(!session.may_be_interrupted(&encode(&flushed, 4)));
    let resent = fuse::numbers::UNIQUE_RESEND | 4;
    assert!(!session.may_be_interrupted(&encode(&create("a", 0), resent)));
}
