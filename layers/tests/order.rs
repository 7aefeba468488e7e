//! The order in which layers see each operation: recorded for a stack of three, and checked.

use std::sync::Arc;
use std::time::Duration;

use layers::limit::{Limits, Rates, Timer};
use layers::{Layer, Limiter, stack};
use parking_lot::Mutex;
use vfs::lock::{HostLock, LockFamily, LockKind};
use vfs::{
    Access, Account, AllocateMode, AttrMask, Call, Caller, Capabilities, CopyMode, Cx, DirEntry,
    Errno, File, FileSystem, Handle, Kind, Mode, Name, NewNode, Node, NodeId, Op, OpenFlags,
    Patience, PeerKey, ReaddirMode, RenameFlags, Result, SetAttr, Whence, XattrFlags,
};
use vfs_testkit::{Answer, ReplyBuffer, Script, TestPayload};

type Log = Arc<Mutex<Vec<String>>>;

/// Records the start and the end of each operation.
struct Recorder {
    name: &'static str,
    log: Log,
}

impl Recorder {
    fn note(&self, mark: char, op: Op) {
        let mut log = self.log.lock();
        log.push(format!("{mark}{} {op}", self.name));
    }

    fn record<T>(
        &self,
        op: Op,
        _node: NodeId,
        _cx: &Cx<'_>,
        run: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        self.note('>', op);
        let result = run();
        self.note('<', op);
        result
    }
}

impl Layer for Recorder {
    fn capabilities(&self, inner: Capabilities) -> Capabilities {
        self.note('=', Op::Capabilities);
        inner
    }

    layers::forward! { id above }

    layers::forward! { with record: all }
}

/// The objects to call operations on.
struct Top {
    fs: Arc<dyn FileSystem>,
    dir: Arc<dyn Node>,
    node: Arc<dyn Node>,
    file: Arc<dyn File>,
}

fn call(op: Op, top: &Top, cx: &Cx<'_>) -> Result<()> {
    let Top {
        fs,
        dir,
        node,
        file,
    } = top;
    let name = Name::new(b"name")?;
    let mode = Mode::without_umask(0o644);
    let rw = OpenFlags::READ | OpenFlags::WRITE;
    let set = SetAttr::default();
    match op {
        Op::Root => fs.root(cx).map(drop),
        Op::Resolve => fs.resolve(cx, &Handle::new(&[1; 8])?).map(drop),
        Op::Sync => fs.sync(cx),
        Op::Capabilities => {
            fs.capabilities();
            Ok(())
        }
        Op::Handle => node.handle(cx).map(drop),
        Op::Attr => node.attr(cx, AttrMask::STAT).map(drop),
        Op::Setattr => node.setattr(cx, &set).map(drop),
        Op::Access => node.access(cx, Access::READ).map(drop),
        Op::Statfs => node.statfs(cx).map(drop),
        Op::Open => node.open(cx, rw).map(drop),
        Op::Readlink => node.readlink(cx).map(drop),
        Op::Lookup => dir.lookup(cx, name).map(drop),
        Op::Parent => dir.parent(cx).map(drop),
        Op::Create => dir.create(cx, name, rw, mode).map(drop),
        Op::Make => dir.make(cx, name, NewNode::Directory, mode).map(drop),
        Op::Tmpfile => dir.tmpfile(cx, rw, mode).map(drop),
        Op::Link => dir.link(cx, name, &**node).map(drop),
        Op::Unlink => dir.unlink(cx, name, false),
        Op::Rename => dir.rename(cx, name, &**dir, name, RenameFlags::empty()),
        Op::Xattr => node.xattr(cx, b"user.a").map(drop),
        Op::Xattrs => node.xattrs(cx).map(drop),
        Op::SetXattr => node.set_xattr(cx, b"user.a", b"", XattrFlags::empty()),
        Op::RemoveXattr => node.remove_xattr(cx, b"user.a"),
        Op::HostLock => node.host_lock(cx, LockFamily::Posix.range(0, 1), HostLock::Shared),
        Op::HostLockHolder => node
            .host_lock_holder(cx, LockFamily::Posix.range(0, 1), LockKind::Shared)
            .map(drop),
        Op::FileAttr => file.attr(cx, AttrMask::STAT).map(drop),
        Op::FileSetattr => file.setattr(cx, &set).map(drop),
        Op::Read => file.read(cx, 0, 10, &mut ReplyBuffer::new(10)).map(drop),
        Op::Write => file.write(cx, 0, &mut TestPayload::new(b"data")).map(drop),
        Op::Readdir => file.readdir(cx, 0, ReaddirMode::Entries, &mut |_: DirEntry<'_>| true),
        Op::Fsync => file.fsync(cx, false),
        Op::Flush => file.flush(cx),
        Op::Allocate => file.allocate(cx, AllocateMode::Extend, 0, 1),
        Op::Seek => file.seek(cx, 0, Whence::Data).map(drop),
        Op::Extents => file.extents(cx, 0, 1, &mut |_| true),
        Op::Copy => file.copy(cx, 0, &**file, 5, 1, CopyMode::Any).map(drop),
        Op::Lease => {
            let broken: vfs::BreakCallback = std::sync::Arc::new(|| {});
            file.lease(cx, vfs::LeaseKind::Read, &broken).map(drop)
        }
    }
}

#[test]
fn a_request_over_its_limit_reaches_no_layer_below_and_only_free_operations_do() {
    let log = Log::default();
    let script = Script::new();
    script.next(Op::Lookup, Answer::Node(2, Kind::File));
    let recorder = Recorder {
        name: "a",
        log: log.clone(),
    };
    let limits = Limits {
        share: "ops=1,bytes=1".parse().expect("rates"),
        client: Rates::UNLIMITED,
    };
    let limiter = Limiter::new(limits, Arc::new(|| Duration::ZERO), Timer::new());
    let fs = stack(stack(script.clone(), recorder), limiter);
    let client = Account::of(PeerKey::User(1));
    let own = Call::detached();
    let cx = Cx::new(&Caller::ROOT, &own);
    let dir = fs.root(&cx).expect("a root");
    let name = Name::new(b"file").expect("a name");
    let node = dir.lookup(&cx, name).expect("a file").node;
    let file = node.open(&cx, OpenFlags::READ).expect("opens");
    let top = Top {
        fs,
        dir,
        node,
        file,
    };
    let call_as_client = |op| {
        let request = Call::detached().with_account(client.clone());
        let cx = Cx {
            patience: Patience::Brief,
            ..Cx::new(&Caller::ROOT, &request)
        };
        call(op, &top, &cx)
    };
    // The burst.
    assert_ne!(call_as_client(Op::Write), Err(Errno::WOULD_BLOCK));
    let free = [
        Op::Root,
        Op::Resolve,
        Op::Capabilities,
        Op::Handle,
        Op::HostLock,
        Op::HostLockHolder,
        Op::Lease,
    ];
    for &op in Op::ALL {
        log.lock().clear();
        let limited = call_as_client(op) == Err(Errno::WOULD_BLOCK) && log.lock().is_empty();
        assert_eq!(limited, !free.contains(&op), "{op}");
    }
}

#[test]
fn every_operation_goes_through_every_layer_in_order() {
    let log = Log::default();
    let script = Script::new();
    script.next(Op::Lookup, Answer::Node(2, Kind::File));
    let mut fs: Arc<dyn FileSystem> = script.clone();
    for name in ["c", "b", "a"] {
        let log = log.clone();
        fs = stack(fs, Recorder { name, log });
    }
    let detached = Call::detached();
    let cx = Cx::new(&Caller::ROOT, &detached);
    let dir = fs.root(&cx).expect("a root");
    let name = Name::new(b"file").expect("a name");
    let node = dir.lookup(&cx, name).expect("a file").node;
    let file = node.open(&cx, OpenFlags::READ).expect("opens");
    let top = Top {
        fs,
        dir,
        node,
        file,
    };
    let take = || std::mem::take(&mut *log.lock());
    take();
    script.take_calls();
    for op in Op::ALL {
        call(*op, &top, &cx).unwrap_or_else(|errno| panic!("{op}: {errno:?}"));
        let expected: &[&str] = match op {
            // Computed from the source upwards.
            Op::Capabilities => &["=c", "=b", "=a"],
            _ => &[">a", ">b", ">c", "<c", "<b", "<a"],
        };
        let expected: Vec<_> = expected.iter().map(|at| format!("{at} {op}")).collect();
        assert_eq!(take(), expected);
        let below: Vec<Op> = script.take_calls().iter().map(|call| call.op).collect();
        match op {
            Op::Capabilities => assert_eq!(below, []),
            _ => assert_eq!(below, [*op], "once, at the bottom"),
        }
    }
}
