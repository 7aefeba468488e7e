//! A file system that returns scripted answers.
//!
//! Each operation ([`Op`]) has a queue of answers; a call takes the first one, or returns a default
//! if there is none: success, a file with number 2, no data. An answer can be an error, a request
//! for more patience, parking until a [`Latch`] opens, or blocking the thread until then. Calls are
//! recorded.
//!
//! Deliberately absent: storage of written data and created nodes.
//!
//! Lock order: the script's mutex or a gate's, one at a time; no calls are made while one is held.

use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::task::Waker;

use parking_lot::{Condvar, Mutex, MutexGuard};
use vfs::lock::{ForeignLock, HostLock, LockKind, LockRange};
use vfs::{
    Access, AllocateMode, Attr, AttrMask, BreakCallback, Call, Caller, Capabilities, CopyMode, Cx,
    Device, DirEntry, DirSink, Entry, Errno, Extent, File, FileSystem, Handle, Kind, Lease,
    LeaseKind, Mode, Name, NewNode, Node, NodeId, Op, OpenFlags, Patience, Payload, ReaddirMode,
    RenameFlags, Result, SetAttr, Sink, StatFs, Time, Whence, XattrFlags,
};

/// An answer to a call.
#[derive(Clone, Debug)]
pub enum Answer {
    /// The default of the operation.
    Done,
    /// This errno.
    Fail(Errno),
    /// `WOULD_BLOCK` for calls with less patience; others take the next answer.
    NeedsPatience(Patience),
    /// `PARKED` until the gate opens, which wakes the call; then it takes the next answer.
    Park(Latch),
    /// Blocks the thread until the gate opens or the call is cancelled (`EINTR`), then takes the
    /// next answer. A call with less than full patience gets `WOULD_BLOCK`.
    Block(Latch),
    /// For attr and setattr: these attributes.
    Attr(Attr),
    /// For operations that return a node: this one.
    Node(NodeId, Kind),
    /// For read, readlink and extended attributes: these bytes.
    Bytes(Vec<u8>),
    /// For write, seek and copy: this number.
    Count(u64),
    /// For readdir: these entries.
    Entries(Vec<(Vec<u8>, NodeId, Kind)>),
    /// For extents: these.
    Extents(Vec<Extent>),
    /// For host_lock_holder: this one.
    ForeignLock(ForeignLock),
}

/// A recorded call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedCall {
    /// The operation.
    pub op: Op,
    /// The node, or that of the file; 0 for the file system.
    pub node: NodeId,
    /// Its arguments, as text.
    pub arguments: String,
    /// The patience of the call.
    pub patience: Patience,
    /// The caller.
    pub caller: Caller,
}

/// A gate that calls wait for. Closed until it is opened, for good.
#[derive(Clone, Debug, Default)]
pub struct Latch(Arc<Mutex<LatchState>>);

#[derive(Debug, Default)]
struct LatchState {
    open: bool,
    wakers: Vec<Waker>,
}

impl Latch {
    /// Creates a closed gate.
    pub fn new() -> Latch {
        Latch::default()
    }

    /// Opens it, and wakes all waiters.
    pub fn open(&self) {
        let wakers = {
            let mut state = self.state();
            state.open = true;
            std::mem::take(&mut state.wakers)
        };
        for waker in wakers {
            waker.wake();
        }
    }

    /// Returns whether it is open; if not, registers `waker` for the opening.
    fn is_open_or_wakes(&self, waker: &Waker) -> bool {
        let mut state = self.state();
        if !state.open {
            state.wakers.push(waker.clone());
        }
        state.open
    }

    fn wait(&self, call: &Call) -> Result<()> {
        let waker = vfs::cx::thread_waker();
        call.wake_on_cancel(&waker);
        loop {
            call.check()?;
            if self.is_open_or_wakes(&waker) {
                return Ok(());
            }
            std::thread::park();
        }
    }

    fn state(&self) -> MutexGuard<'_, LatchState> {
        self.0.lock()
    }
}

/// A scripted file system.
pub struct Script {
    this: std::sync::Weak<Script>,
    state: Mutex<State>,
    call_recorded: Condvar,
}

#[derive(Default)]
struct State {
    next: HashMap<Op, VecDeque<Answer>>,
    always: HashMap<Op, Answer>,
    calls: Vec<RecordedCall>,
    written: Vec<(NodeId, Vec<u8>)>,
    capabilities: Capabilities,
}

impl Script {
    /// Creates a file system without answers.
    pub fn new() -> Arc<Script> {
        Arc::new_cyclic(|this| Script {
            this: this.clone(),
            state: Mutex::default(),
            call_recorded: Condvar::new(),
        })
    }

    /// Queues an answer for a call of `op`.
    pub fn next(&self, op: Op, answer: Answer) -> &Script {
        self.state().next.entry(op).or_default().push_back(answer);
        self
    }

    /// Sets the answer of calls of `op` while the queue is empty.
    pub fn always(&self, op: Op, answer: Answer) -> &Script {
        self.state().always.insert(op, answer);
        self
    }

    /// Removes the remaining answers for `op`.
    pub fn forget(&self, op: Op) -> &Script {
        let mut state = self.state();
        state.next.remove(&op);
        state.always.remove(&op);
        drop(state);
        self
    }

    /// Sets the capabilities.
    pub fn set_capabilities(&self, capabilities: Capabilities) -> &Script {
        self.state().capabilities = capabilities;
        self
    }

    /// Returns the calls so far.
    pub fn calls(&self) -> Vec<RecordedCall> {
        self.state().calls.clone()
    }

    /// Returns the calls since the last `take_calls`.
    pub fn take_calls(&self) -> Vec<RecordedCall> {
        std::mem::take(&mut self.state().calls)
    }

    /// Returns the data written so far, with its nodes.
    pub fn written(&self) -> Vec<(NodeId, Vec<u8>)> {
        self.state().written.clone()
    }

    /// Returns the operations called so far.
    pub fn ops(&self) -> Vec<Op> {
        self.state().calls.iter().map(|call| call.op).collect()
    }

    /// Waits until `op` has been called `times` times in all, including calls that were parked or
    /// blocked.
    pub fn wait_for(&self, op: Op, times: usize) {
        let enough =
            |state: &mut State| state.calls.iter().filter(|call| call.op == op).count() < times;
        self.call_recorded.wait_while(&mut self.state(), enough);
    }

    /// Returns the node with number `id`.
    pub fn node(&self, id: NodeId, kind: Kind) -> Arc<dyn Node> {
        Arc::new(ScriptNode {
            script: self.arc(),
            id,
            kind,
        })
    }

    /// Returns an open file of node `id`.
    pub fn file(&self, id: NodeId) -> Arc<dyn File> {
        Arc::new(ScriptFile {
            script: self.arc(),
            id,
        })
    }

    fn arc(&self) -> Arc<Script> {
        self.this.upgrade().expect("a script lives in an Arc")
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Records a call and takes its answer; `None` for the default.
    fn answer(&self, op: Op, cx: &Cx<'_>, node: NodeId, what: String) -> Result<Option<Answer>> {
        self.state().calls.push(RecordedCall {
            op,
            node,
            arguments: what,
            patience: cx.patience,
            caller: cx.caller.clone(),
        });
        self.call_recorded.notify_all();
        loop {
            let hold = {
                let mut state = self.state();
                let queue = state.next.entry(op).or_default();
                match queue.front() {
                    Some(Answer::NeedsPatience(patience)) if cx.patience < *patience => {
                        return Err(Errno::WOULD_BLOCK);
                    }
                    Some(Answer::Park(gate)) => {
                        let waker = cx.call.waker().expect("a parked call can be parked");
                        if !gate.is_open_or_wakes(waker) {
                            cx.call.check()?;
                            return Err(Errno::PARKED);
                        }
                    }
                    Some(Answer::Block(_)) => cx.check_may_block()?,
                    _ => {}
                }
                match queue.pop_front() {
                    Some(Answer::Block(gate)) => gate,
                    Some(Answer::NeedsPatience(_) | Answer::Park(_)) => continue,
                    Some(answer) => return outcome(Some(answer)),
                    None => match state.always.get(&op) {
                        Some(Answer::NeedsPatience(patience)) if cx.patience < *patience => {
                            return Err(Errno::WOULD_BLOCK);
                        }
                        Some(Answer::NeedsPatience(_)) => return Ok(None),
                        Some(Answer::Park(_) | Answer::Block(_)) => {
                            panic!("script: {op} cannot always wait for one gate")
                        }
                        other => return outcome(other.cloned()),
                    },
                }
            };
            hold.wait(cx.call)?;
        }
    }

    fn attr(&self, op: Op, cx: &Cx<'_>, id: NodeId, kind: Kind, what: String) -> Result<Attr> {
        match self.answer(op, cx, id, what)? {
            None => Ok(default_attr(id, kind)),
            Some(Answer::Attr(attr)) => Ok(attr),
            Some(other) => unexpected_answer(op, &other),
        }
    }

    fn done(&self, op: Op, cx: &Cx<'_>, id: NodeId, what: String) -> Result<()> {
        match self.answer(op, cx, id, what)? {
            None => Ok(()),
            Some(other) => unexpected_answer(op, &other),
        }
    }

    fn bytes(&self, op: Op, cx: &Cx<'_>, id: NodeId, what: String) -> Result<Vec<u8>> {
        match self.answer(op, cx, id, what)? {
            None => Ok(Vec::new()),
            Some(Answer::Bytes(bytes)) => Ok(bytes),
            Some(other) => unexpected_answer(op, &other),
        }
    }

    fn count(&self, op: Op, cx: &Cx<'_>, id: NodeId, what: String, default: u64) -> Result<u64> {
        match self.answer(op, cx, id, what)? {
            None => Ok(default),
            Some(Answer::Count(count)) => Ok(count),
            Some(other) => unexpected_answer(op, &other),
        }
    }

    fn entry(
        &self,
        op: Op,
        cx: &Cx<'_>,
        id: NodeId,
        what: String,
        default: (NodeId, Kind),
    ) -> Result<Entry> {
        let (id, kind) = match self.answer(op, cx, id, what)? {
            None => default,
            Some(Answer::Node(id, kind)) => (id, kind),
            Some(other) => unexpected_answer(op, &other),
        };
        Ok(self.default_entry(id, kind))
    }

    fn default_entry(&self, id: NodeId, kind: Kind) -> Entry {
        Entry {
            node: self.node(id, kind),
            attr: default_attr(id, kind),
        }
    }
}

fn outcome(answer: Option<Answer>) -> Result<Option<Answer>> {
    match answer {
        Some(Answer::Fail(errno)) => Err(errno),
        Some(Answer::Done) => Ok(None),
        answer => Ok(answer),
    }
}

fn unexpected_answer(op: Op, answer: &Answer) -> ! {
    panic!("script: {op} cannot answer {answer:?}")
}

/// Returns default attributes of a node.
pub fn default_attr(id: NodeId, kind: Kind) -> Attr {
    let time = Time { sec: 1, nsec: 0 };
    Attr {
        id,
        generation: 1,
        kind,
        mode: 0o755,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: Device::default(),
        size: 0,
        blksize: 4096,
        blocks: 0,
        atime: time,
        mtime: time,
        ctime: time,
        btime: None,
        change: 1,
        device: 0,
    }
}

/// The default node of look-ups and creations.
const DEFAULT_NODE: (NodeId, Kind) = (2, Kind::File);

impl FileSystem for Script {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn root(&self, cx: &Cx<'_>) -> Result<Arc<dyn Node>> {
        let root = (1, Kind::Directory);
        Ok(self.entry(Op::Root, cx, 0, String::new(), root)?.node)
    }

    fn resolve(&self, cx: &Cx<'_>, handle: &Handle) -> Result<Arc<dyn Node>> {
        let id = handle.bytes().try_into().map(u64::from_le_bytes);
        let default = (id.unwrap_or(DEFAULT_NODE.0), DEFAULT_NODE.1);
        let what = format!("{handle:?}");
        Ok(self.entry(Op::Resolve, cx, 0, what, default)?.node)
    }

    fn sync(&self, cx: &Cx<'_>) -> Result<()> {
        self.done(Op::Sync, cx, 0, String::new())
    }

    fn capabilities(&self) -> Capabilities {
        self.state().capabilities
    }
}

struct ScriptNode {
    script: Arc<Script>,
    id: NodeId,
    kind: Kind,
}

impl Node for ScriptNode {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn id(&self) -> NodeId {
        self.id
    }

    fn kind(&self) -> Kind {
        self.kind
    }

    fn handle(&self, cx: &Cx<'_>) -> Result<Handle> {
        self.script.done(Op::Handle, cx, self.id, String::new())?;
        Handle::new(&self.id.to_le_bytes())
    }

    fn attr(&self, cx: &Cx<'_>, want: AttrMask) -> Result<Attr> {
        let what = format!("{want:?}");
        self.script.attr(Op::Attr, cx, self.id, self.kind, what)
    }

    fn setattr(&self, cx: &Cx<'_>, set: &SetAttr) -> Result<Attr> {
        let what = format!("{set:?}");
        self.script.attr(Op::Setattr, cx, self.id, self.kind, what)
    }

    fn access(&self, cx: &Cx<'_>, want: Access) -> Result<Access> {
        let what = format!("{want:?}");
        self.script.done(Op::Access, cx, self.id, what)?;
        Ok(want)
    }

    fn statfs(&self, cx: &Cx<'_>) -> Result<StatFs> {
        self.script.done(Op::Statfs, cx, self.id, String::new())?;
        Ok(StatFs::default())
    }

    fn open(&self, cx: &Cx<'_>, flags: OpenFlags) -> Result<Arc<dyn File>> {
        let what = format!("{flags:?}");
        self.script.done(Op::Open, cx, self.id, what)?;
        Ok(self.script.file(self.id))
    }

    fn readlink(&self, cx: &Cx<'_>) -> Result<Vec<u8>> {
        self.script.bytes(Op::Readlink, cx, self.id, String::new())
    }

    fn lookup(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<Entry> {
        let what = format!("{name:?}");
        self.script
            .entry(Op::Lookup, cx, self.id, what, DEFAULT_NODE)
    }

    fn parent(&self, cx: &Cx<'_>) -> Result<Entry> {
        let root = (1, Kind::Directory);
        self.script
            .entry(Op::Parent, cx, self.id, String::new(), root)
    }

    fn create(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        flags: OpenFlags,
        mode: Mode,
    ) -> Result<(Entry, Arc<dyn File>)> {
        let what = format!("{name:?} {flags:?} {mode:?}");
        let entry = self
            .script
            .entry(Op::Create, cx, self.id, what, DEFAULT_NODE)?;
        let file = self.script.file(entry.attr.id);
        Ok((entry, file))
    }

    fn make(&self, cx: &Cx<'_>, name: Name<'_>, made: NewNode<'_>, mode: Mode) -> Result<Entry> {
        let what = format!("{name:?} {made:?} {mode:?}");
        self.script.entry(Op::Make, cx, self.id, what, DEFAULT_NODE)
    }

    fn tmpfile(&self, cx: &Cx<'_>, flags: OpenFlags, mode: Mode) -> Result<(Entry, Arc<dyn File>)> {
        let what = format!("{flags:?} {mode:?}");
        let entry = self
            .script
            .entry(Op::Tmpfile, cx, self.id, what, DEFAULT_NODE)?;
        let file = self.script.file(entry.attr.id);
        Ok((entry, file))
    }

    fn link(&self, cx: &Cx<'_>, name: Name<'_>, target: &dyn Node) -> Result<Entry> {
        self.script.own(target)?;
        let what = format!("{name:?} {}", target.id());
        let linked = (target.id(), target.kind());
        self.script.entry(Op::Link, cx, self.id, what, linked)
    }

    fn unlink(&self, cx: &Cx<'_>, name: Name<'_>, dir: bool) -> Result<()> {
        let what = format!("{name:?} {dir}");
        self.script.done(Op::Unlink, cx, self.id, what)
    }

    fn rename(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        to: &dyn Node,
        to_name: Name<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        self.script.own(to)?;
        let what = format!("{name:?} {} {to_name:?} {flags:?}", to.id());
        self.script.done(Op::Rename, cx, self.id, what)
    }

    fn xattr(&self, cx: &Cx<'_>, name: &[u8]) -> Result<Vec<u8>> {
        let what = name.escape_ascii().to_string();
        self.script.bytes(Op::Xattr, cx, self.id, what)
    }

    fn xattrs(&self, cx: &Cx<'_>) -> Result<Vec<u8>> {
        self.script.bytes(Op::Xattrs, cx, self.id, String::new())
    }

    fn set_xattr(&self, cx: &Cx<'_>, name: &[u8], value: &[u8], flags: XattrFlags) -> Result<()> {
        let what = format!("{} {} {flags:?}", name.escape_ascii(), value.escape_ascii());
        self.script.done(Op::SetXattr, cx, self.id, what)
    }

    fn remove_xattr(&self, cx: &Cx<'_>, name: &[u8]) -> Result<()> {
        let what = name.escape_ascii().to_string();
        self.script.done(Op::RemoveXattr, cx, self.id, what)
    }

    fn host_lock(&self, cx: &Cx<'_>, range: LockRange, state: HostLock) -> Result<()> {
        let what = format!("{} {state:?}", format_range(range));
        self.script.done(Op::HostLock, cx, self.id, what)
    }

    fn host_lock_holder(
        &self,
        cx: &Cx<'_>,
        range: LockRange,
        kind: LockKind,
    ) -> Result<Option<ForeignLock>> {
        let what = format!("{} {kind:?}", format_range(range));
        match self.script.answer(Op::HostLockHolder, cx, self.id, what)? {
            None => Ok(None),
            Some(Answer::ForeignLock(outsider)) => Ok(Some(outsider)),
            Some(other) => unexpected_answer(Op::HostLockHolder, &other),
        }
    }
}

fn format_range(
    LockRange {
        family: space,
        start,
        end,
    }: LockRange,
) -> String {
    format!("{space:?} {start}..={end}")
}

impl Script {
    /// Returns `EXDEV` for a node of another file system.
    fn own(&self, node: &dyn Node) -> Result<()> {
        match node.as_any().downcast_ref::<ScriptNode>() {
            Some(node) if std::ptr::eq(&*node.script, self) => Ok(()),
            _ => Err(Errno::EXDEV),
        }
    }
}

struct ScriptFile {
    script: Arc<Script>,
    id: NodeId,
}

impl File for ScriptFile {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn attr(&self, cx: &Cx<'_>, want: AttrMask) -> Result<Attr> {
        let what = format!("{want:?}");
        self.script
            .attr(Op::FileAttr, cx, self.id, Kind::File, what)
    }

    fn setattr(&self, cx: &Cx<'_>, set: &SetAttr) -> Result<Attr> {
        let what = format!("{set:?}");
        self.script
            .attr(Op::FileSetattr, cx, self.id, Kind::File, what)
    }

    fn read(&self, cx: &Cx<'_>, offset: u64, len: usize, sink: &mut dyn Sink) -> Result<usize> {
        let what = format!("{offset} {len}");
        let mut bytes = self.script.bytes(Op::Read, cx, self.id, what)?;
        bytes.truncate(len);
        sink.bytes(&bytes);
        Ok(bytes.len())
    }

    fn write(&self, cx: &Cx<'_>, offset: u64, data: &mut dyn Payload) -> Result<usize> {
        let what = format!("{offset} {}", data.len());
        let answer = self.script.answer(Op::Write, cx, self.id, what)?;
        let mut taken = Vec::new();
        data.bytes(&mut |piece| {
            taken.extend_from_slice(piece);
            Ok(())
        })?;
        let len = taken.len();
        self.script.state().written.push((self.id, taken));
        match answer {
            None => Ok(len),
            Some(Answer::Count(count)) => Ok(count as usize),
            Some(other) => unexpected_answer(Op::Write, &other),
        }
    }

    fn readdir(
        &self,
        cx: &Cx<'_>,
        cookie: u64,
        plus: ReaddirMode,
        sink: &mut dyn DirSink,
    ) -> Result<()> {
        let what = format!("{cookie} {plus:?}");
        let entries = match self.script.answer(Op::Readdir, cx, self.id, what)? {
            None => Vec::new(),
            Some(Answer::Entries(entries)) => entries,
            Some(other) => unexpected_answer(Op::Readdir, &other),
        };
        for ((name, id, kind), cookie) in entries.iter().zip(1..).skip(cookie as usize) {
            let entry = DirEntry {
                name,
                id: *id,
                kind: Some(*kind),
                cookie,
                entry: match plus {
                    ReaddirMode::Names => None,
                    ReaddirMode::Entries => Some(self.script.default_entry(*id, *kind)),
                },
            };
            if !sink.entry(entry) {
                break;
            }
        }
        Ok(())
    }

    fn fsync(&self, cx: &Cx<'_>, datasync: bool) -> Result<()> {
        self.script
            .done(Op::Fsync, cx, self.id, datasync.to_string())
    }

    fn flush(&self, cx: &Cx<'_>) -> Result<()> {
        self.script.done(Op::Flush, cx, self.id, String::new())
    }

    fn allocate(&self, cx: &Cx<'_>, how: AllocateMode, offset: u64, len: u64) -> Result<()> {
        let what = format!("{how:?} {offset} {len}");
        self.script.done(Op::Allocate, cx, self.id, what)
    }

    fn seek(&self, cx: &Cx<'_>, offset: u64, what: Whence) -> Result<u64> {
        let text = format!("{offset} {what:?}");
        self.script.count(Op::Seek, cx, self.id, text, offset)
    }

    fn extents(
        &self,
        cx: &Cx<'_>,
        offset: u64,
        len: u64,
        each: &mut dyn FnMut(Extent) -> bool,
    ) -> Result<()> {
        let what = format!("{offset} {len}");
        match self.script.answer(Op::Extents, cx, self.id, what)? {
            None => {}
            Some(Answer::Extents(extents)) => {
                let _ = extents.into_iter().all(each);
            }
            Some(other) => unexpected_answer(Op::Extents, &other),
        }
        Ok(())
    }

    fn copy(
        &self,
        cx: &Cx<'_>,
        offset: u64,
        to: &dyn File,
        to_offset: u64,
        len: u64,
        how: CopyMode,
    ) -> Result<u64> {
        let to = to.as_any().downcast_ref::<ScriptFile>();
        let to = to.filter(|to| Arc::ptr_eq(&to.script, &self.script));
        let to = to.ok_or(Errno::EXDEV)?;
        let what = format!("{offset} {} {to_offset} {len} {how:?}", to.id);
        self.script.count(Op::Copy, cx, self.id, what, len)
    }

    fn lease(&self, cx: &Cx<'_>, kind: LeaseKind, _: &BreakCallback) -> Result<Box<dyn Lease>> {
        self.script
            .done(Op::Lease, cx, self.id, format!("{kind:?}"))?;
        Ok(Box::new(Unbroken))
    }
}

/// A lease that is never broken.
struct Unbroken;

impl Lease for Unbroken {
    fn is_broken(&self) -> bool {
        false
    }
}
