//! The page cache compared with a model: clients that use the cache and one that bypasses it, with
//! faults in between.
//!
//! The model is the tree below the faults, and the states of its file since each open: with
//! close-to-open consistency a reader may see any of these, and must see the last one after a new
//! open. Lost writes must be reported by fsync or close.

mod common;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use common::{RW, tried};
use layers::fault::{Fault, FaultKind, Trigger};
use layers::pagecache::{Mode, Options, PageCache};
use layers::stack;
use memory::Memory;
use proptest::prelude::*;
use vfs::{Cx, Errno, File, FileSystem, Name, Op, OpenFlags, Result, SetAttr};
use vfs_testkit::{ReplyBuffer, TestPayload, clock};

/// Twice the memory of the cache.
const LONGEST: u64 = 2 << 20;

/// The number of clients that use the cache.
const CLIENTS: usize = 3;

#[derive(Clone, Debug)]
enum Step {
    Open(usize, OpenFlags),
    Write(usize, u64, u16, u8),
    /// Many adjacent pages.
    Stream(usize, u64, u8),
    Read(usize, u64, u32),
    Cut(usize, u64),
    Fsync(usize),
    Close(usize),
    /// A write that bypasses the cache, if no client has the file open for writing.
    Behind(u64, u16, u8),
    BehindCut(u64),
    Fail(bool, bool),
    Mend,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let client = || 0..CLIENTS;
    // Mostly close together, so that ranges overlap.
    let at = || prop_oneof![3 => 0..20_000u64, 1 => 0..LONGEST / 2];
    let flags = prop_oneof![
        4 => Just(RW),
        1 => Just(RW | OpenFlags::DIRECT),
        1 => Just(RW | OpenFlags::SYNC),
        1 => Just(RW | OpenFlags::APPEND),
        1 => Just(RW | OpenFlags::TRUNC),
    ];
    let step = prop_oneof![
        4 => (client(), flags).prop_map(|(who, flags)| Step::Open(who, flags)),
        6 => (client(), at(), 1..9000u16, any::<u8>()).prop_map(|(who, at, len, byte)| Step::Write(who, at, len, byte)),
        1 => (client(), at(), any::<u8>()).prop_map(|(who, at, byte)| Step::Stream(who, at, byte)),
        6 => (client(), at(), 1..200_000u32).prop_map(|(who, at, len)| Step::Read(who, at, len)),
        // Random reads, which trigger read-around.
        6 => (client(), at(), 1..9000u32).prop_map(|(who, at, len)| Step::Read(who, at, len)),
        1 => (client(), at()).prop_map(|(who, size)| Step::Cut(who, size)),
        1 => client().prop_map(Step::Fsync),
        3 => client().prop_map(Step::Close),
        2 => (at(), 1..9000u16, any::<u8>()).prop_map(|(at, len, byte)| Step::Behind(at, len, byte)),
        1 => at().prop_map(Step::BehindCut),
        1 => any::<(bool, bool)>().prop_map(|(space, read)| Step::Fail(space, read)),
        2 => Just(Step::Mend),
    ];
    prop::collection::vec(step, 1..60)
}

/// A file that a client has open, and its states since the open.
struct Opened {
    file: Arc<dyn File>,
    flags: OpenFlags,
    seen: Vec<Vec<u8>>,
    /// The sizes that the cache may assume: earlier ones, and those after writes through it.
    sizes: BTreeSet<usize>,
    /// Whether it was truncated below the cache: a read ends at data that is neither below nor
    /// cached.
    cut: bool,
}

struct Model {
    above: Arc<dyn FileSystem>,
    /// The file below the cache.
    behind: Arc<dyn File>,
    fault: Arc<Fault>,
    failing: bool,
    opened: [Option<Opened>; CLIENTS],
    /// The contents that a new open must see.
    now: Vec<u8>,
    /// Whether a write may have been lost without a report: the contents are unknown until then.
    lost: bool,
    /// Whether an error may still be reported.
    pending: bool,
    /// Whether it was written through the cache since it was last closed by all.
    written: bool,
}

fn all(file: &dyn File) -> Vec<u8> {
    let mut room = ReplyBuffer::new(2 * LONGEST as usize);
    tried(|cx| file.read(cx, 0, 2 * LONGEST as usize, &mut room)).expect("no faults there");
    room.into_data()
}

fn put(content: &mut Vec<u8>, at: usize, data: &[u8]) {
    content.resize(content.len().max(at + data.len()), 0);
    content[at..at + data.len()].copy_from_slice(data);
}

impl Model {
    fn new(mode: Mode, seed: u64) -> Model {
        let below: Arc<dyn FileSystem> = Memory::new(clock());
        let fault = Arc::new(Fault::new(seed, Arc::new(|| Duration::ZERO)));
        let cache = PageCache::new(Options {
            mode,
            memory: LONGEST as usize / 2,
            threads: 2,
            ..Options::default()
        });
        let above = stack(
            stack(below.clone(), fault.clone()),
            cache.expect("a thread"),
        );
        let mode = vfs::Mode::without_umask(0o644);
        let made = tried(|cx| below.root(cx)?.create(cx, Name::new(b"f")?, RW, mode));
        Model {
            above,
            behind: made.expect("made").1,
            fault,
            failing: false,
            opened: [const { None }; CLIENTS],
            now: Vec::new(),
            lost: false,
            pending: false,
            written: false,
        }
    }

    /// Records the new contents, for files that are open, too.
    fn changed(&mut self) {
        for opened in self.opened.iter_mut().flatten() {
            opened.seen.push(self.now.clone());
            opened.sizes.insert(self.now.len());
        }
    }

    /// Records a write through the cache up to `end`, which may not know the size set by other
    /// clients since the open.
    fn grown(&mut self, end: usize) {
        for opened in self.opened.iter_mut().flatten() {
            let sizes = opened.sizes.iter().map(|&size| size.max(end));
            let sizes: Vec<_> = sizes.collect();
            opened.sizes.extend(sizes);
        }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Open(who, flags) => {
                self.close(who);
                self.open(who, flags);
            }
            Step::Write(who, at, len, byte) => self.write(who, at, &vec![byte; len.into()]),
            Step::Stream(who, at, byte) => {
                for page in 0..64 {
                    self.write(who, at + page * 4096, &[byte ^ page as u8; 4096]);
                }
            }
            Step::Read(who, at, len) => self.read(who, at, len as usize),
            Step::Cut(who, size) => self.cut(who, size),
            Step::Fsync(who) => {
                if let Some(opened) = &self.opened[who] {
                    let done = tried(|cx| opened.file.fsync(cx, false));
                    self.told(done);
                }
            }
            Step::Close(who) => self.close(who),
            Step::Behind(at, len, byte) if !self.written => {
                let data = vec![byte; len.into()];
                tried(|cx| self.behind.write(cx, at, &mut TestPayload::new(&data)))
                    .expect("written");
                put(&mut self.now, at as usize, &data);
                self.changed();
            }
            Step::BehindCut(size) if !self.written => {
                let cut = SetAttr {
                    size: Some(size),
                    ..SetAttr::default()
                };
                tried(|cx| self.behind.setattr(cx, &cut)).expect("cut");
                self.now.resize(size as usize, 0);
                self.changed();
                for opened in self.opened.iter_mut().flatten() {
                    opened.cut = true;
                }
            }
            Step::Behind(..) | Step::BehindCut(_) => {}
            Step::Fail(space, read) => {
                let errno = if space { Errno::ENOSPC } else { Errno::EIO };
                let op = if read { Op::Read } else { Op::Write };
                self.fault
                    .add(op, Trigger::Chance(0.3), FaultKind::Fail(errno));
                // Earlier writes may be lost from now on.
                (self.failing, self.lost, self.pending) = (true, true, true);
            }
            Step::Mend => self.mend(),
        }
    }

    fn open(&mut self, who: usize, flags: OpenFlags) {
        let open = |cx: &Cx<'_>| {
            self.above
                .root(cx)?
                .lookup(cx, Name::new(b"f")?)?
                .node
                .open(cx, flags)
        };
        let file = tried(open).expect("opening does not fail");
        if flags.contains(OpenFlags::TRUNC) {
            self.now.clear();
            self.written = true;
            self.changed();
        }
        self.opened[who] = Some(Opened {
            file,
            flags,
            seen: vec![self.now.clone()],
            sizes: [self.now.len()].into(),
            cut: false,
        });
    }

    fn write(&mut self, who: usize, at: u64, data: &[u8]) {
        let Some(opened) = &self.opened[who] else {
            return;
        };
        let at = match opened.flags.contains(OpenFlags::APPEND) {
            true => self.now.len(),
            false => at as usize,
        };
        if at + data.len() > LONGEST as usize {
            return;
        }
        self.written = true;
        match tried(|cx| {
            opened
                .file
                .write(cx, at as u64, &mut TestPayload::new(data))
        }) {
            Ok(count) => {
                assert_eq!(count, data.len());
                // A delayed write may be lost, and with it the end at which others append.
                self.lost |= self.failing;
                self.pending |= self.failing;
                put(&mut self.now, at, data);
                self.grown(at + data.len());
                self.changed();
            }
            Err(errno) => {
                assert!(self.failing, "{errno} from nowhere");
                (self.lost, self.pending) = (true, true);
            }
        }
    }

    /// Checks that each byte read was in the file at some time since the open, unless a write was
    /// lost.
    fn read(&mut self, who: usize, at: u64, len: usize) {
        let Some(opened) = &self.opened[who] else {
            return;
        };
        let mut room = ReplyBuffer::new(len);
        match tried(|cx| opened.file.read(cx, at, len, &mut room)) {
            Err(errno) => assert!(self.failing, "{errno} from nowhere"),
            Ok(_) if self.lost => {}
            Ok(_) => {
                let got = room.into_data();
                let most = |size: &usize| size.saturating_sub(at as usize).min(len);
                let longest = opened.sizes.last().map_or(0, most);
                let fits = match opened.cut {
                    true => got.len() <= longest,
                    false => opened.sizes.iter().any(|size| most(size) == got.len()),
                };
                assert!(fits, "{} bytes at {at}", got.len());
                for (behind, byte) in got.iter().enumerate() {
                    let place = at as usize + behind;
                    let was = |seen: &Vec<u8>| seen.get(place).copied().unwrap_or(0) == *byte;
                    assert!(opened.seen.iter().any(was), "the byte at {place}");
                }
            }
        }
    }

    fn cut(&mut self, who: usize, size: u64) {
        let Some(opened) = &self.opened[who] else {
            return;
        };
        self.written = true;
        let cut = SetAttr {
            size: Some(size),
            ..SetAttr::default()
        };
        tried(|cx| opened.file.setattr(cx, &cut)).expect("cutting does not fail");
        self.now.resize(size as usize, 0);
        self.changed();
    }

    /// Checks the result of fsync or close: on success all writes are below; after an error the
    /// loss is final.
    fn told(&mut self, done: Result<()>) {
        let below = all(&*self.behind);
        match done {
            Ok(()) => {
                assert!(below == self.now, "something is lost, and nobody was told");
                self.lost = false;
            }
            Err(errno) => {
                assert!(self.pending, "{errno} from nowhere");
                self.now = below;
                self.lost = false;
                self.changed();
            }
        }
    }

    fn close(&mut self, who: usize) {
        if let Some(opened) = self.opened[who].take() {
            let done = tried(|cx| opened.file.flush(cx));
            self.told(done);
        }
        if self.opened.iter().all(Option::is_none) {
            self.written = false;
        }
    }

    /// Removes the faults and closes all files.
    fn mend(&mut self) {
        self.fault.clear();
        for who in 0..CLIENTS {
            self.close(who);
        }
        assert!(
            all(&*self.behind) == self.now,
            "something is lost, and nobody was told"
        );
        (self.failing, self.lost, self.pending) = (false, false, false);
    }
}

fn run(mode: Mode, seed: u64, steps: &[Step]) {
    let mut model = Model::new(mode, seed);
    for step in steps {
        model.step(step);
    }
    model.mend();
}

#[test]
fn who_writes_does_not_know_what_others_have_put_behind_it() {
    let steps = [
        Step::Open(2, RW),
        Step::Behind(10_999, 4219, 0),
        Step::Write(2, 0, 3395, 0),
        Step::Read(2, 0, 3396),
    ];
    run(Mode::ReadAhead, 0, &steps);
    run(Mode::Mmap, 0, &steps);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn write_behind_is_close_to_open_and_loses_nothing_untold(seed in any::<u64>(), steps in steps()) {
        run(Mode::Mmap, seed, &steps);
    }

    #[test]
    fn read_ahead_is_close_to_open(seed in any::<u64>(), steps in steps()) {
        run(Mode::ReadAhead, seed, &steps);
    }

    /// This mode assumes that there are no other writers.
    #[test]
    fn loose_is_what_is_below(seed in any::<u64>(), mut steps in steps()) {
        steps.retain(|step| !matches!(step, Step::Behind(..) | Step::BehindCut(_)));
        run(Mode::Loose, seed, &steps);
    }
}
