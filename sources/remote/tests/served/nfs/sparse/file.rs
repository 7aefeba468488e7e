//! A file of a known layout, and checks of replies against it.

use std::ops::Range;
use std::sync::Arc;

use vfs::{
    AllocateMode, Call, Caller, Cx, Errno, File, FileSystem, Mode, Name, Node, OpenFlags, SetAttr,
};
use wire::payload::SlicePayload;

use super::asker::{Asker, Segment, StateId};

/// Runs `act` as the superuser.
pub(super) fn with_cx<T>(act: impl FnOnce(&Cx<'_>) -> T) -> T {
    let call = Call::detached();
    act(&Cx::new(&Caller::ROOT, &call))
}

/// The layout of a file.
#[derive(Clone, Debug, Default)]
pub(super) struct Layout {
    pub(super) size: u64,
    pub(super) data: Vec<Range<u64>>,
    /// Ranges that are allocated but not written.
    pub(super) reserved: Vec<Range<u64>>,
}

impl Layout {
    /// Alternates data and holes of `chunk` bytes.
    pub(super) fn alternating(chunk: u64, size: u64, data_first: bool) -> Layout {
        let first = if data_first { 0 } else { chunk };
        let starts = (first..size).step_by(2 * chunk as usize);
        Layout {
            size,
            data: starts.map(|at| at..(at + chunk).min(size)).collect(),
            reserved: Vec::new(),
        }
    }

    /// The bytes from `offset` on, up to the end of the file.
    pub(super) fn bytes(&self, offset: u64, count: u64) -> Vec<u8> {
        let end = offset.saturating_add(count).min(self.size);
        let mut bytes = vec![0; end.saturating_sub(offset) as usize];
        for data in &self.data {
            let mut at = data.start.max(offset);
            while at < data.end.min(end) {
                let block = &block(at)[..(data.end.min(end) - at).min(BLOCK - at % BLOCK) as usize];
                bytes[(at - offset) as usize..][..block.len()].copy_from_slice(block);
                at += block.len() as u64;
            }
        }
        bytes
    }

    /// The offsets where a range begins or ends, and their neighbours.
    pub(super) fn edges(&self) -> Vec<u64> {
        let ranges = self.data.iter().chain(&self.reserved);
        let mut edges: Vec<u64> = ranges.flat_map(|range| [range.start, range.end]).collect();
        edges.extend([0, self.size]);
        let around = |at: u64| [at.saturating_sub(1), at, at + 1];
        let mut edges: Vec<u64> = edges.into_iter().flat_map(around).collect();
        edges.sort_unstable();
        edges.dedup();
        edges
    }
}

/// The size of a block, within which the bytes of data go up by one.
const BLOCK: u64 = 4096;

/// The bytes of data from an offset to the end of its block, and further ones: never zero, and
/// shifted in each block, so that they differ for adjacent offsets and blocks.
fn block(at: u64) -> &'static [u8] {
    const PERIOD: usize = 251;
    const BYTES: [u8; PERIOD + BLOCK as usize] = {
        let mut bytes = [0; PERIOD + BLOCK as usize];
        let mut at = 0;
        while at < bytes.len() {
            bytes[at] = 1 + (at % PERIOD) as u8;
            at += 1;
        }
        bytes
    };
    static PATTERN: [u8; PERIOD + BLOCK as usize] = BYTES;
    &PATTERN[((at + at / BLOCK) % PERIOD as u64) as usize..]
}

/// A file on the server.
pub(super) struct Made {
    pub(super) layout: Layout,
    pub(super) handle: Vec<u8>,
}

/// Creates an empty file, open for writing.
pub(super) fn create(tree: &Arc<dyn FileSystem>, name: &str) -> (Arc<dyn Node>, Arc<dyn File>) {
    let flags = OpenFlags::READ | OpenFlags::WRITE | OpenFlags::EXCL;
    let name = Name::new(name.as_bytes()).expect("a name");
    let made = with_cx(|cx| {
        tree.root(cx)?
            .create(cx, name, flags, Mode::without_umask(0o644))
    });
    let (entry, file) = made.expect("made");
    (entry.node, file)
}

pub(super) fn directory(tree: &Arc<dyn FileSystem>, name: &str) {
    let name = Name::new(name.as_bytes()).expect("a name");
    let made = with_cx(|cx| {
        tree.root(cx)?.make(
            cx,
            name,
            vfs::NewNode::Directory,
            Mode::without_umask(0o755),
        )
    });
    made.expect("made");
}

pub(super) fn write(file: &dyn File, offset: u64, bytes: &[u8]) {
    let mut at = 0;
    while at < bytes.len() {
        let mut payload = SlicePayload::new(&bytes[at..]);
        let offset = offset + at as u64;
        at += with_cx(|cx| file.write(cx, offset, &mut payload)).expect("written");
    }
}

pub(super) fn cut(node: &dyn Node, size: u64) {
    let set = SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    with_cx(|cx| node.setattr(cx, &set)).expect("cut");
}

pub(super) fn punch(file: &dyn File, range: Range<u64>) -> Result<(), Errno> {
    let len = range.end - range.start;
    with_cx(|cx| file.allocate(cx, AllocateMode::Punch, range.start, len))
}

impl Made {
    /// Creates the file. Reserved ranges stay holes if the file system cannot allocate them.
    pub(super) fn new(
        tree: &Arc<dyn FileSystem>,
        handle: impl Fn(&str) -> Vec<u8>,
        name: &str,
        layout: Layout,
    ) -> Made {
        let (node, file) = create(tree, name);
        cut(&*node, layout.size);
        for range in &layout.reserved {
            let len = range.end - range.start;
            match with_cx(|cx| file.allocate(cx, AllocateMode::Extend, range.start, len)) {
                Ok(()) => {}
                Err(Errno::EOPNOTSUPP) => eprintln!("skipped: nothing can be reserved here"),
                Err(errno) => panic!("{errno}"),
            }
        }
        for range in &layout.data {
            let bytes = layout.bytes(range.start, range.end - range.start);
            write(&*file, range.start, &bytes);
        }
        Made {
            handle: handle(name),
            layout,
        }
    }

    /// Reads a range and checks the reply against the layout. Returns the number of bytes in the
    /// reply, and the number of those in holes.
    #[track_caller]
    pub(super) fn check(
        &self,
        asker: &Asker,
        state: &StateId,
        offset: u64,
        count: u32,
    ) -> (u64, u64) {
        let answer = asker.read_plus(&self.handle, state, offset, count);
        let (eof, segments) = answer.unwrap_or_else(|status| panic!("status {status}"));
        let what = format!("{count} bytes from {offset}");
        let end = offset.saturating_add(count.into()).min(self.layout.size);
        let (mut at, mut holes) = (offset, 0);
        for segment in &segments {
            let (start, len) = match segment {
                Segment::Data(start, bytes) => (*start, bytes.len() as u64),
                Segment::Hole(start, len) => (*start, *len),
            };
            assert_eq!(start, at, "{what}: segments follow each other");
            assert!(len > 0, "{what}: a segment has something");
            assert!(
                len <= end.saturating_sub(at),
                "{what}: nothing behind {end}"
            );
            let want = self.layout.bytes(start, len);
            match segment {
                Segment::Data(_, bytes) => assert!(*bytes == want, "{what}: data at {start}"),
                Segment::Hole(..) => {
                    holes += len;
                    assert!(want == vec![0; want.len()], "{what}: hole at {start}");
                }
            }
            at += len;
        }
        assert!(at > offset || offset >= end, "{what}: something is told");
        assert_eq!(eof, at >= self.layout.size, "{what}: whether it is the end");
        (at - offset, holes)
    }

    /// Reads from `offset` to the end, `count` bytes at a time, and returns the number of bytes in
    /// holes.
    #[track_caller]
    pub(super) fn check_all(
        &self,
        asker: &Asker,
        state: &StateId,
        mut offset: u64,
        count: u32,
    ) -> u64 {
        let mut holes = 0;
        while offset < self.layout.size {
            let (told, of_holes) = self.check(asker, state, offset, count);
            offset += told;
            holes += of_holes;
        }
        holes
    }
}
