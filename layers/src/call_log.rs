//! A log of calls, complete enough to replay them: the input of `barge bench replay`.
//!
//! Calls that find, read or write nodes are recorded with their arguments, other calls only with
//! their result. Contents are not recorded, nor attempts that are repeated with more patience.

mod line;

use std::sync::Arc;
use std::time::Duration;

use vfs::{
    Access, AttrMask, Cx, DirSink, Entry, Errno, File, FileSystem, Mode, Name, Node, NodeId, Op,
    OpenFlags, Payload, ReaddirMode, RelaySink, Result, Sink,
};

pub use self::line::{Line, Text};
use crate::{Clock, Layer, Opened, forward};

/// A recorded call.
#[derive(Clone, Debug)]
pub struct Event<'a> {
    /// The time when it began.
    pub start: Duration,
    /// The time that it took.
    pub duration: Duration,
    /// The operation.
    pub op: Op,
    /// The number of its node; 0 for the file system.
    pub node: NodeId,
    /// The caller's user and group.
    pub caller: (u32, u32),
    /// The recorded arguments.
    pub arguments: Arguments<'a>,
    /// The result.
    pub outcome: Result<Outcome>,
}

/// The recorded arguments of a call. A file's number identifies it while it is open; a later file
/// may get the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Arguments<'a> {
    /// No arguments, or none that are recorded.
    None,
    Name(&'a [u8]),
    Flags(OpenFlags),
    Create(&'a [u8], OpenFlags, u32),
    Unlink(&'a [u8], bool),
    Want(u32),
    Opened(u64),
    /// A file, an offset or cookie, and a length.
    Range(u64, u64, u64),
}

/// The recorded value of a successful call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The node that it found or created.
    pub found: Option<NodeId>,
    /// The file that it opened.
    pub opened: Option<u64>,
    /// The number of bytes or entries.
    pub done: Option<u64>,
    /// The cookie at which a listing continues.
    pub next: Option<u64>,
}

impl Outcome {
    fn found(node: &Arc<dyn Node>) -> Outcome {
        Outcome {
            found: Some(node.id()),
            ..Outcome::default()
        }
    }

    fn opened(file: &Arc<dyn File>) -> Outcome {
        Outcome {
            opened: Some(number(&**file)),
            ..Outcome::default()
        }
    }

    fn done(done: usize) -> Outcome {
        Outcome {
            done: Some(done as u64),
            ..Outcome::default()
        }
    }
}

/// Returns the address of `file` in memory, unique among the files that are open.
fn number(file: &dyn File) -> u64 {
    std::ptr::from_ref(file).cast::<()>() as u64
}

/// A callback for calls, run concurrently on many threads.
pub type CallSink = Box<dyn Fn(&Event<'_>) + Send + Sync>;

/// The layer.
pub struct CallLog {
    clock: Clock,
    sink: CallSink,
}

impl CallLog {
    /// Creates the layer, which calls `take` after every call, with times from `clock`.
    pub fn new(clock: Clock, take: CallSink) -> CallLog {
        CallLog { clock, sink: take }
    }

    fn log_call<T>(
        &self,
        (op, node, given): (Op, NodeId, Arguments<'_>),
        cx: &Cx<'_>,
        run: impl FnOnce() -> Result<T>,
        outcome: impl FnOnce(&T) -> Outcome,
    ) -> Result<T> {
        let at = (self.clock)();
        let result = run();
        if !matches!(&result, Err(errno) if errno.is_signal()) {
            (self.sink)(&Event {
                start: at,
                duration: (self.clock)().saturating_sub(at),
                op,
                node,
                caller: (cx.caller.uid, cx.caller.gid),
                arguments: given,
                outcome: result.as_ref().map(outcome).map_err(|errno: &Errno| *errno),
            });
        }
        result
    }

    fn log_without_arguments<T>(
        &self,
        op: Op,
        node: NodeId,
        cx: &Cx<'_>,
        run: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        self.log_call((op, node, Arguments::None), cx, run, |_| Outcome::default())
    }
}

impl Layer for CallLog {
    fn root(&self, inner: &dyn FileSystem, cx: &Cx<'_>) -> Result<Arc<dyn Node>> {
        let call = (Op::Root, 0, Arguments::None);
        self.log_call(call, cx, || inner.root(cx), Outcome::found)
    }

    fn lookup(&self, inner: &dyn Node, cx: &Cx<'_>, name: Name<'_>) -> Result<Entry> {
        let call = (Op::Lookup, inner.id(), Arguments::Name(name.bytes()));
        let outcome = |entry: &Entry| Outcome::found(&entry.node);
        self.log_call(call, cx, || inner.lookup(cx, name), outcome)
    }

    fn attr(&self, inner: &dyn Node, cx: &Cx<'_>, want: AttrMask) -> Result<vfs::Attr> {
        let call = (Op::Attr, inner.id(), Arguments::Want(want.bits()));
        self.log_call(call, cx, || inner.attr(cx, want), |_| Outcome::default())
    }

    fn access(&self, inner: &dyn Node, cx: &Cx<'_>, want: Access) -> Result<Access> {
        let call = (Op::Access, inner.id(), Arguments::Want(want.bits()));
        let outcome = |may: &Access| Outcome::done(may.bits() as usize);
        self.log_call(call, cx, || inner.access(cx, want), outcome)
    }

    fn readlink(&self, inner: &dyn Node, cx: &Cx<'_>) -> Result<Vec<u8>> {
        let call = (Op::Readlink, inner.id(), Arguments::None);
        let outcome = |target: &Vec<u8>| Outcome::done(target.len());
        self.log_call(call, cx, || inner.readlink(cx), outcome)
    }

    fn xattr(&self, inner: &dyn Node, cx: &Cx<'_>, name: &[u8]) -> Result<Vec<u8>> {
        let call = (Op::Xattr, inner.id(), Arguments::Name(name));
        let outcome = |value: &Vec<u8>| Outcome::done(value.len());
        self.log_call(call, cx, || inner.xattr(cx, name), outcome)
    }

    fn open(&self, inner: &dyn Node, cx: &Cx<'_>, flags: OpenFlags) -> Result<Arc<dyn File>> {
        let call = (Op::Open, inner.id(), Arguments::Flags(flags));
        self.log_call(call, cx, || inner.open(cx, flags), Outcome::opened)
    }

    fn create(
        &self,
        inner: &dyn Node,
        cx: &Cx<'_>,
        name: Name<'_>,
        flags: OpenFlags,
        mode: Mode,
    ) -> Result<(Entry, Arc<dyn File>)> {
        let given = Arguments::Create(name.bytes(), flags, mode.bits & !mode.umask);
        let outcome = |(entry, file): &(Entry, Arc<dyn File>)| Outcome {
            found: Some(entry.node.id()),
            ..Outcome::opened(file)
        };
        let create = || inner.create(cx, name, flags, mode);
        self.log_call((Op::Create, inner.id(), given), cx, create, outcome)
    }

    fn unlink(&self, inner: &dyn Node, cx: &Cx<'_>, name: Name<'_>, dir: bool) -> Result<()> {
        let call = (Op::Unlink, inner.id(), Arguments::Unlink(name.bytes(), dir));
        let unlink = || inner.unlink(cx, name, dir);
        self.log_call(call, cx, unlink, |()| Outcome::default())
    }

    fn file_attr(&self, inner: Opened<'_>, cx: &Cx<'_>, want: AttrMask) -> Result<vfs::Attr> {
        let given = Arguments::Range(number(inner.file), 0, want.bits().into());
        let call = (Op::FileAttr, inner.node.id(), given);
        self.log_call(call, cx, || inner.attr(cx, want), |_| Outcome::default())
    }

    fn read(
        &self,
        inner: Opened<'_>,
        cx: &Cx<'_>,
        offset: u64,
        len: usize,
        sink: &mut dyn Sink,
    ) -> Result<usize> {
        let given = Arguments::Range(number(inner.file), offset, len as u64);
        let read = || inner.read(cx, offset, len, sink);
        let call = (Op::Read, inner.node.id(), given);
        self.log_call(call, cx, read, |done| Outcome::done(*done))
    }

    fn write(
        &self,
        inner: Opened<'_>,
        cx: &Cx<'_>,
        offset: u64,
        data: &mut dyn Payload,
    ) -> Result<usize> {
        let given = Arguments::Range(number(inner.file), offset, data.len() as u64);
        let write = || inner.write(cx, offset, data);
        let call = (Op::Write, inner.node.id(), given);
        self.log_call(call, cx, write, |done| Outcome::done(*done))
    }

    fn readdir(
        &self,
        inner: Opened<'_>,
        cx: &Cx<'_>,
        cookie: u64,
        plus: ReaddirMode,
        sink: &mut dyn DirSink,
    ) -> Result<()> {
        let given = Arguments::Range(
            number(inner.file),
            cookie,
            u64::from(plus == ReaddirMode::Entries),
        );
        let call = (Op::Readdir, inner.node.id(), given);
        let list = || {
            let (mut entries, mut next) = (0, None);
            let mut counted = RelaySink::new(sink, |sink, entry| {
                let cookie = entry.cookie;
                let taken = sink.entry(entry);
                if taken {
                    (entries, next) = (entries + 1, Some(cookie));
                }
                taken
            });
            inner.readdir(cx, cookie, plus, &mut counted)?;
            Ok((entries, next))
        };
        let outcome = |&(entries, next): &(usize, Option<u64>)| Outcome {
            next,
            ..Outcome::done(entries)
        };
        self.log_call(call, cx, list, outcome).map(drop)
    }

    fn fsync(&self, inner: Opened<'_>, cx: &Cx<'_>, datasync: bool) -> Result<()> {
        let given = Arguments::Range(number(inner.file), 0, datasync.into());
        let call = (Op::Fsync, inner.node.id(), given);
        self.log_call(
            call,
            cx,
            || inner.fsync(cx, datasync),
            |()| Outcome::default(),
        )
    }

    fn flush(&self, inner: Opened<'_>, cx: &Cx<'_>) -> Result<()> {
        let call = (
            Op::Flush,
            inner.node.id(),
            Arguments::Opened(number(inner.file)),
        );
        self.log_call(call, cx, || inner.flush(cx), |()| Outcome::default())
    }

    forward! { capabilities id above }

    forward! { with log_without_arguments:
        resolve sync
        handle setattr statfs parent make tmpfile link rename xattrs set_xattr remove_xattr
        host_lock host_lock_holder
        file_setattr allocate seek extents copy lease
    }
}
