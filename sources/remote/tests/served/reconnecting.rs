//! A server that crashes and restarts while clients use it.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use memory::Memory;
use p9::Dialect;
use parking_lot::Mutex;
use remote::ninep::{Options, ReconnectingLink, Remote9p, Retry};
use transports::{Link, StreamLink};
use vfs::lock::{HostLock, LockFamily};
use vfs::{
    AttrMask, Call, Caller, Cx, Errno, File, FileSystem, Kind, Mode, Name, NewNode, Node,
    OpenFlags, RenameFlags, XattrFlags,
};
use vfs_testkit::wait_until;
use wire::payload::{SlicePayload, VecSink};

use crate::net::Served;

/// A tree, and its current server.
pub(crate) struct Place {
    pub(crate) fs: Arc<Memory>,
    now: Mutex<Option<(Served, Vec<Arc<StreamLink>>)>>,
    /// Whether to lose the next reply and the connection.
    pub(crate) deaf: Arc<AtomicBool>,
}

/// A link that the test can cut.
struct Cuttable {
    link: Arc<StreamLink>,
    deaf: Arc<AtomicBool>,
}

impl Link for Cuttable {
    fn recv(&self, buf: &mut [u8], wait: bool) -> io::Result<usize> {
        let got = self.link.recv(buf, wait)?;
        if self.deaf.swap(false, Ordering::SeqCst) {
            self.link.hang_up();
            return Ok(0);
        }
        Ok(got)
    }
    fn send(&self, bytes: &[u8], wait: bool) -> io::Result<usize> {
        self.link.send(bytes, wait)
    }
    fn send_vectored(&self, pieces: &[io::IoSlice<'_>], wait: bool) -> io::Result<usize> {
        self.link.send_vectored(pieces, wait)
    }
    fn payloads(&self) -> transports::Payloads {
        self.link.payloads()
    }
    fn wait(
        &self,
        interest: transports::Interest,
        wake: std::os::fd::BorrowedFd<'_>,
        time: Option<Duration>,
    ) -> io::Result<transports::Ready> {
        self.link.wait(interest, wake, time)
    }
    fn end_input(&self) {
        self.link.end_input();
    }
    fn hang_up(&self) {
        self.link.hang_up();
    }
    fn peer(&self) -> &str {
        "a server"
    }
    fn origin(&self) -> vfs::Origin {
        self.link.origin()
    }
}

impl Place {
    pub(crate) fn new() -> Arc<Place> {
        let place = Arc::new(Place {
            fs: Memory::new(vfs_testkit::clock()),
            now: Mutex::new(None),
            deaf: Arc::default(),
        });
        place.begin();
        place
    }

    pub(crate) fn begin(&self) {
        let served = Served::of(self.fs.clone());
        *self.now.lock() = Some((served, Vec::new()));
    }

    /// Kills the server.
    pub(crate) fn end(&self) {
        let gone = self.now.lock().take();
        if let Some((served, links)) = gone {
            links.iter().for_each(|link| link.hang_up());
            // A killed program performs no further requests either.
            served.end();
        }
    }

    pub(crate) fn again(&self) {
        self.end();
        self.begin();
    }

    fn dial(&self) -> io::Result<Box<dyn Link>> {
        match &mut *self.now.lock() {
            Some((served, links)) => {
                let link = Arc::new(served.link());
                links.push(link.clone());
                let deaf = self.deaf.clone();
                Ok(Box::new(Cuttable { link, deaf }))
            }
            None => Err(io::ErrorKind::ConnectionRefused.into()),
        }
    }

    pub(crate) fn connect(self: &Arc<Place>, retry: Retry) -> Arc<Remote9p> {
        let place = self.clone();
        let dial = Box::new(move || place.dial());
        let link =
            ReconnectingLink::new(self.dial().expect("dialled"), dial, retry).expect("a link");
        Remote9p::connect(link, Options::default()).expect("attached")
    }
}

pub(crate) fn with<T>(what: impl FnOnce(&Cx<'_>) -> T) -> T {
    let call = Call::detached();
    what(&Cx::new(&Caller::ROOT, &call))
}

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).expect("a name")
}

pub(crate) fn root(fs: &dyn FileSystem) -> Arc<dyn Node> {
    with(|cx| fs.root(cx)).expect("a root")
}

pub(crate) fn create(dir: &dyn Node, text: &str, flags: OpenFlags) -> Arc<dyn File> {
    let made = with(|cx| dir.create(cx, name(text), flags, Mode::without_umask(0o644)));
    made.expect(text).1
}

fn mkdir(dir: &dyn Node, text: &str) -> Arc<dyn Node> {
    let made = with(|cx| {
        dir.make(
            cx,
            name(text),
            NewNode::Directory,
            Mode::without_umask(0o755),
        )
    });
    made.expect(text).node
}

pub(crate) fn read(file: &dyn File) -> Result<Vec<u8>, Errno> {
    let mut sink = VecSink::new(1 << 20);
    with(|cx| file.read(cx, 0, 1 << 20, &mut sink))?;
    Ok(sink.into_bytes())
}

pub(crate) fn write(file: &dyn File, offset: u64, data: &[u8]) -> Result<usize, Errno> {
    with(|cx| file.write(cx, offset, &mut SlicePayload::new(data)))
}

pub(crate) const BOTH: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

#[test]
fn what_is_open_goes_on_where_it_was() {
    let place = Place::new();
    let fs = place.connect(Retry::Forever);
    let top = root(&*fs);
    let dir = mkdir(&*top, "d");
    let file = create(&*dir, "f", BOTH | OpenFlags::TRUNC | OpenFlags::EXCL);
    write(&*file, 0, b"hello").expect("written");
    place.again();
    assert_eq!(read(&*file).expect("read"), b"hello");
    // After a rename of its parent, the file is found under the new path.
    with(|cx| top.rename(cx, name("d"), &*top, name("e"), RenameFlags::empty())).expect("moved");
    place.again();
    write(&*file, 5, b", world").expect("written");
    place.again();
    assert_eq!(read(&*file).expect("read"), b"hello, world");
    assert!(with(|cx| dir.lookup(cx, name("f"))).is_ok());
}

#[test]
fn a_name_that_is_anothers_by_now_is_stale_and_nothing_else_is() {
    let place = Place::new();
    let fs = place.connect(Retry::Forever);
    let top = root(&*fs);
    let (one, two) = (create(&*top, "one", BOTH), create(&*top, "two", BOTH));
    write(&*two, 0, b"2").expect("written");
    place.end();
    let ours = root(&*place.fs);
    with(|cx| ours.unlink(cx, name("one"), false)).expect("removed");
    create(&*ours, "one", BOTH);
    place.begin();
    assert_eq!(write(&*one, 0, b"x"), Err(Errno::ESTALE));
    assert_eq!(
        with(|cx| one.attr(cx, AttrMask::STAT)).err(),
        Some(Errno::ESTALE)
    );
    assert_eq!(read(&*two).expect("read"), b"2");
    let there = with(|cx| top.lookup(cx, name("one"))).expect("another");
    assert_eq!(there.attr.size, 0);
    drop(one);
    assert_eq!(read(&*two).expect("read"), b"2");
}

#[test]
fn locks_are_taken_again() {
    let place = Place::new();
    let (fs, other) = (place.connect(Retry::Forever), place.connect(Retry::Forever));
    create(&*root(&*fs), "f", BOTH);
    let node = |fs: &dyn FileSystem| {
        let top = root(fs);
        with(|cx| top.lookup(cx, name("f"))).expect("there").node
    };
    let (ours, theirs) = (node(&*fs), node(&*other));
    let lock = |node: &dyn Node, start, end| {
        with(|cx| node.host_lock(cx, LockFamily::Posix.range(start, end), HostLock::Exclusive))
    };
    lock(&*ours, 0, 9).expect("locked");
    with(|cx| ours.host_lock(cx, LockFamily::Posix.range(3, 5), HostLock::Unlocked))
        .expect("unlocked");
    place.again();
    // The lock holder's session is recovered first.
    with(|cx| ours.attr(cx, AttrMask::STAT)).expect("there");
    assert_eq!(lock(&*theirs, 2, 2), Err(Errno::EAGAIN));
    assert_eq!(lock(&*theirs, 6, 9), Err(Errno::EAGAIN));
    lock(&*theirs, 3, 5).expect("nobody's");
}

#[test]
fn who_has_waited_long_enough_is_told() {
    let place = Place::new();
    let fs = place.connect(Retry::For(Duration::from_millis(50)));
    let top = root(&*fs);
    place.end();
    assert!(with(|cx| top.attr(cx, AttrMask::STAT)).is_err());
    let fs = {
        place.begin();
        place.connect(Retry::For(Duration::ZERO))
    };
    let top = root(&*fs);
    place.again();
    assert!(with(|cx| top.attr(cx, AttrMask::STAT)).is_err());
}

#[test]
fn who_cancels_need_not_wait_for_a_server() {
    let place = Place::new();
    let fs = place.connect(Retry::Forever);
    let top = root(&*fs);
    place.end();
    let call = Arc::new(Call::parkable(std::task::Waker::noop().clone()));
    let asks = {
        let (call, top) = (call.clone(), top.clone());
        thread::spawn(move || {
            top.attr(&Cx::new(&Caller::ROOT, &call), AttrMask::STAT)
                .err()
        })
    };
    wait_until("the call ends", || {
        call.cancel();
        call.waker().is_none() || asks.is_finished()
    });
    assert_eq!(asks.join().expect("no panic"), Some(Errno::EINTR));
    place.begin();
    assert!(with(|cx| top.attr(cx, AttrMask::STAT)).is_ok());
}

/// Random operations on several threads while the server is killed repeatedly: no caller gets an
/// error that a server without crashes would not return, and no data is lost.
#[test]
fn nothing_is_lost_or_done_twice_when_servers_are_killed_all_the_time() {
    let place = Place::new();
    let fs = place.connect(Retry::Forever);
    let steps = AtomicU32::new(0);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..4)
            .map(|seed| {
                let (top, steps) = (root(&*fs), &steps);
                scope.spawn(move || Model::new(&*top, seed).run(1000, steps))
            })
            .collect();
        let mut killed = 0;
        while workers.iter().any(|worker| !worker.is_finished()) {
            // Another thread has progressed, in the middle of the others' operations.
            if steps.load(Ordering::Relaxed) >= killed {
                place.again();
                killed = steps.load(Ordering::Relaxed) + 20;
            }
            thread::yield_now();
        }
    });
}

/// A directory and its expected content.
struct Model {
    dir: Arc<dyn Node>,
    random: u64,
    files: HashMap<String, (Arc<dyn File>, Vec<u8>)>,
    others: HashMap<String, Kind>,
    next: u32,
}

impl Model {
    fn new(top: &dyn Node, seed: u64) -> Model {
        Model {
            dir: mkdir(top, &format!("worker{seed}")),
            random: seed * 2 + 1,
            files: HashMap::new(),
            others: HashMap::new(),
            next: 0,
        }
    }

    fn random(&mut self, below: usize) -> usize {
        self.random = self
            .random
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.random >> 33) as usize % below
    }

    fn new_name(&mut self) -> String {
        self.next += 1;
        format!("n{}", self.next)
    }

    fn some_file(&mut self) -> Option<String> {
        let at = self.random(self.files.len().max(1));
        let mut names: Vec<_> = self.files.keys().cloned().collect();
        names.sort();
        names.get(at).cloned()
    }

    fn run(mut self, steps: u32, done: &AtomicU32) {
        for _ in 0..steps {
            self.step();
            done.fetch_add(1, Ordering::Relaxed);
        }
        for (text, (file, expected)) in &self.files {
            assert_eq!(read(&**file).expect(text), *expected, "{text}");
        }
        for (text, kind) in &self.others {
            let found = with(|cx| self.dir.lookup(cx, name(text))).expect(text);
            assert_eq!(found.attr.kind, *kind);
        }
    }

    fn step(&mut self) {
        let dir = self.dir.clone();
        match self.random(10) {
            0 => {
                let text = self.new_name();
                let flags = match self.random(2) {
                    0 => BOTH | OpenFlags::EXCL,
                    _ => BOTH | OpenFlags::APPEND,
                };
                let file = create(&*dir, &text, flags);
                self.files.insert(text, (file, Vec::new()));
            }
            1 => {
                let text = self.new_name();
                let what = [
                    NewNode::Directory,
                    NewNode::Symlink(b"somewhere"),
                    NewNode::Fifo,
                ][self.random(3)];
                let made = with(|cx| dir.make(cx, name(&text), what, Mode::without_umask(0o755)));
                self.others
                    .insert(text.clone(), made.expect(&text).attr.kind);
            }
            2 => {
                let (Some(from), to) = (self.some_file(), self.new_name()) else {
                    return;
                };
                with(|cx| dir.rename(cx, name(&from), &*dir, name(&to), RenameFlags::empty()))
                    .expect("moved");
                let file = self.files.remove(&from).expect("known");
                self.files.insert(to, file);
            }
            3 => {
                let Some(text) = self.some_file().filter(|_| self.files.len() > 20) else {
                    return;
                };
                with(|cx| dir.unlink(cx, name(&text), false)).expect("removed");
                self.files.remove(&text);
            }
            4 => {
                let Some(text) = self.some_file() else {
                    return;
                };
                let link = self.new_name();
                let target = with(|cx| dir.lookup(cx, name(&text))).expect("there").node;
                with(|cx| dir.link(cx, name(&link), &*target)).expect("linked");
                self.others.insert(link, Kind::File);
            }
            5 => {
                let Some(text) = self.some_file() else {
                    return;
                };
                let node = with(|cx| dir.lookup(cx, name(&text))).expect("there").node;
                let value = [self.random(256) as u8; 32];
                with(|cx| node.set_xattr(cx, b"user.x", &value, XattrFlags::empty())).expect("set");
                assert_eq!(with(|cx| node.xattr(cx, b"user.x")).expect("there"), value);
            }
            _ => {
                let Some(text) = self.some_file() else {
                    return;
                };
                let len = 1 + self.random(20_000);
                let fill = self.random(256) as u8;
                // The pattern varies: in uniform data, an append carried out twice could go
                // unnoticed.
                let data: Vec<u8> = (0..len)
                    .map(|at| fill.wrapping_add((at / 100) as u8))
                    .collect();
                let (file, expected) = self.files.get_mut(&text).expect("known");
                if expected.len() > 100_000 {
                    return;
                }
                let mut done = 0;
                while done < data.len() {
                    let at = expected.len() as u64;
                    let wrote = write(&**file, at, &data[done..]).expect("written");
                    expected.extend_from_slice(&data[done..done + wrote]);
                    done += wrote;
                }
                assert_eq!(read(&**file).expect("read"), *expected, "{text}");
            }
        }
    }
}

#[test]
fn a_session_goes_on_after_an_outage_that_is_longer_than_calls_wait() {
    let place = Place::new();
    let fs = place.connect(Retry::For(Duration::from_millis(200)));
    let root = root(&*fs);
    let file = create(&*root, "file", BOTH);
    write(&*file, 0, b"before").expect("written");
    for _ in 0..2 {
        place.end();
        // The calls fail, and none of them hangs.
        for _ in 0..3 {
            assert_eq!(read(&*file), Err(Errno::ETIMEDOUT));
            let looked = with(|cx| root.lookup(cx, name("file")));
            assert_eq!(looked.err(), Some(Errno::ETIMEDOUT));
        }
        // One whose clunk no server gets.
        drop(with(|cx| root.lookup(cx, name("none"))));
        place.begin();
        assert_eq!(read(&*file), Ok(b"before".to_vec()));
        with(|cx| root.lookup(cx, name("file"))).expect("found");
    }
}

#[test]
fn what_is_no_message_is_for_who_speaks_to_see() {
    for (number, garbage) in [
        &[0; 40][..],
        &[255; 40],
        &[7, 0, 0, 0, 121, 0, 0, 3, 0, 0, 0, 0],
        &[6, 0, 0, 0, 121, 0, 0, 200, 0, 0, 0, 117, 9, 9, 1],
    ]
    .iter()
    .enumerate()
    {
        let (ours, theirs) = transports::pair().expect("a pair");
        let dial = Box::new(|| Err(io::ErrorKind::ConnectionRefused.into()));
        let retry = Retry::For(Duration::from_millis(1));
        let link = ReconnectingLink::new(Box::new(ours), dial, retry).expect("a link");
        for part in garbage.chunks(1 + number * 4) {
            theirs.send(part, true).expect("sent");
        }
        theirs.hang_up();
        let mut got = Vec::new();
        let mut buf = [0; 16];
        while let Ok(more) = link.recv(&mut buf, true) {
            got.extend_from_slice(&buf[..more]);
        }
        assert_eq!(got, *garbage);
    }
}

#[test]
fn older_dialects_end_with_their_connection() {
    let place = Place::new();
    let dial = {
        let place = place.clone();
        Box::new(move || place.dial())
    };
    let link = ReconnectingLink::new(place.dial().expect("dialled"), dial, Retry::Forever);
    let options = Options {
        version: Dialect::Unix,
        ..Options::default()
    };
    let fs = Remote9p::connect(link.expect("a link"), options).expect("attached");
    let top = root(&*fs);
    place.again();
    assert!(with(|cx| top.attr(cx, AttrMask::STAT)).is_err());
}
