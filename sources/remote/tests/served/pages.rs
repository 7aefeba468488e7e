//! Long reads of cached files, whose page-cache pages are sent without copying, while the files
//! change.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use hostdir::{HostDir, Identity, Options as Shown};
use p9::numbers::Lopen;
use p9::{Dialect, Fid, Names, Tmessage as T, Uid};
use remote::ninep::Connection;
use tempfile::TempDir;
use vfs::{Call, Caller, Cx, FileSystem, Name, OpenFlags};
use vfs_testkit::context::{ok, pattern};
use wire::payload::SliceSink;

use crate::net::Served;

const SIZE: usize = 600_000;

/// A host directory with one file of [`pattern`]'s bytes.
pub(crate) fn directory(size: usize) -> (TempDir, Arc<dyn FileSystem>) {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("file"), pattern(size, 7)).expect("written");
    let options = Shown {
        identity: Identity::Fixed,
        ..Shown::default()
    };
    let fs = HostDir::open(dir.path(), options).expect("exported");
    (dir, fs)
}

/// Reads with several threads while the file below `dir` is truncated and rewritten: readers get
/// the old content or, in parts being rewritten, zeros, and the message stream stays intact.
pub(crate) fn read_while_it_changes(dir: &Path, fs: &dyn FileSystem) {
    let content = pattern(SIZE, 7);
    let host = OpenOptions::new().write(true).open(dir.join("file"));
    let host = host.expect("the host's own");
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for cut in (0..SIZE as u64).step_by(4099).cycle() {
                if over.load(Ordering::SeqCst) {
                    break;
                }
                host.set_len(cut).expect("cut");
                host.write_all_at(&content, 0).expect("written");
            }
        });
        let readers = (0..3u64).map(|reader| {
            let content = &content;
            scope.spawn(move || {
                let call = Call::detached();
                let cx = &Cx::new(&Caller::ROOT, &call);
                let found = ok(ok(fs.root(cx)).lookup(cx, ok(Name::new(b"file"))));
                let file = ok(found.node.open(cx, OpenFlags::READ));
                let mut memory = vec![0; SIZE];
                for round in 0..60 {
                    let at = (reader * 7919 + round * 10_007) as usize % (SIZE / 2);
                    let len = SIZE / 2 - (round as usize * 997);
                    let memory = &mut memory[..len];
                    let mut sink = SliceSink::new(memory);
                    let got = ok(file.read(cx, at as u64, len, &mut sink));
                    let expected = &content[at..at + got];
                    let good = |(got, expected): (&u8, &u8)| got == expected || *got == 0;
                    assert!(
                        memory.iter().zip(expected).all(good),
                        "{got} bytes from {at}"
                    );
                }
            })
        });
        let readers: Vec<_> = readers.collect();
        let ended: Vec<_> = readers.into_iter().map(|reader| reader.join()).collect();
        over.store(true, Ordering::SeqCst);
        assert!(ended.iter().all(Result::is_ok));
    });
}

#[test]
fn a_file_that_is_cut_while_it_is_sent_loses_nobody() {
    let (dir, fs) = directory(SIZE);
    let served = Served::of(fs);
    for msize in [100_000, (1 << 20) + 24] {
        let tree = served.speaking(Dialect::Linux, msize);
        read_while_it_changes(dir.path(), &*tree);
        assert_eq!(tree.connection().failure(), None);
    }
}

/// A server's thread that waits for a client to receive ends with the connection, and stops with
/// the server.
#[test]
fn who_does_not_receive_pages_keeps_nobody_else_waiting() {
    let (_dir, fs) = directory(4 << 20);
    let served = Served::of(fs);
    let ask = |pipe: &Connection| {
        let (root, file) = (Fid(1), Fid(2));
        drop(ok(pipe.call(&T::Attach {
            fid: root,
            afid: Fid::NONE,
            uname: b"",
            aname: b"",
            n_uname: Uid(0),
        })));
        let names = Names::new(&[b"file"]);
        drop(ok(pipe.call(&T::Walk {
            fid: root,
            newfid: file,
            names,
        })));
        let flags = Lopen::empty().bits();
        drop(ok(pipe.call(&T::Lopen { fid: file, flags })));
        file
    };
    let stuck: Vec<_> = (0..3)
        .map(|_| {
            let pipe = Connection::open(served.link(), Dialect::Linux, (4 << 20) + 24);
            let pipe = pipe.expect("a session");
            let (fid, count) = (ask(&pipe), 4 << 20);
            for _ in 0..70 {
                // As there are many, the requests are sent, although no thread waits for the
                // replies.
                drop(pipe.submit(&T::Read {
                    fid,
                    offset: 0,
                    count,
                }));
                pipe.clunk(Fid(99), true);
            }
            pipe
        })
        .collect();
    let good = Connection::open(served.link(), Dialect::Linux, (1 << 20) + 24).expect("a session");
    let (fid, count) = (ask(&good), 1 << 20);
    let reply = ok(good.call(&T::Read {
        fid,
        offset: 5,
        count,
    }));
    assert!(reply.data() == &pattern(4 << 20, 7)[5..][..1 << 20]);
    drop(stuck);
    served.end();
}
