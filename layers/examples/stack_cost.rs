//! Measures the cost of layers: reads a cached page of 4 KiB through no layers and through five
//! empty ones, and the same without the system call, which leaves only the cost of the layers.
//!
//! `cargo run --release -p barge-layers --example stack_cost`

use std::fs::File;
use std::hint::black_box;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Instant;

use layers::{Layer, Noop, Opened, forward, stack};
use memory::Memory;
use vfs::{
    Call, Caller, Capabilities, Cx, Errno, FileSystem, Fill, Mode, Name, OpenFlags, Patience,
    Result, Sink, Time,
};

const PAGE: usize = 4096;
const READS: u32 = 400_000;
const ROUNDS: usize = 9;

/// Reads from a host file, as hostdir does; forwards all other operations.
struct Host(File);

impl Layer for Host {
    fn capabilities(&self, inner: Capabilities) -> Capabilities {
        inner
    }

    fn read(
        &self,
        _inner: Opened<'_>,
        cx: &Cx<'_>,
        offset: u64,
        len: usize,
        sink: &mut dyn Sink,
    ) -> Result<usize> {
        sink.file(self.0.as_fd(), offset, len, cx.patience)
    }

    forward! { id above }

    forward! { all but read }
}

/// A buffer into which pages are read repeatedly, or not at all.
struct Buffer {
    page: [u8; PAGE],
    reads: bool,
}

impl Sink for Buffer {
    fn room(&self) -> usize {
        PAGE
    }

    fn bytes(&mut self, data: &[u8]) {
        self.page[..data.len()].copy_from_slice(data);
    }

    fn zeros(&mut self, len: usize) {
        self.page[..len].fill(0);
    }

    fn file(
        &mut self,
        fd: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        _patience: Patience,
    ) -> Result<usize> {
        if !self.reads {
            return Ok(len);
        }
        rustix::io::pread(fd, &mut self.page[..len], offset)
            .map_err(|errno| Errno::from_raw(errno.raw_os_error()))
    }

    fn lend(&mut self, _: usize, _: Fill<'_>) -> Option<Result<usize>> {
        None
    }
}

fn main() {
    let mut host = tempfile::tempfile().expect("a temporary file");
    host.write_all(&[7; PAGE]).expect("room for a page");
    let clock: memory::Clock = Arc::new(Time::default);
    let bare = stack(Memory::new(clock), Host(host));
    let mut five = bare.clone();
    for _ in 0..5 {
        five = stack(five, Noop);
    }
    let (bare, five) = (open(&bare), open(&five));
    println!(
        "ns per read of 4 KiB: median (fastest to slowest of {ROUNDS} rounds after a warm-up)"
    );
    for (what, reads) in [("cached pread", true), ("no system call", false)] {
        let (mut bare_ns, mut five_ns) = (Vec::new(), Vec::new());
        measure(&*bare, reads);
        for _ in 0..ROUNDS {
            bare_ns.push(measure(&*bare, reads));
            five_ns.push(measure(&*five, reads));
        }
        println!("{what}, no layer: {}", spread(&mut bare_ns));
        println!("{what}, 5 empty layers: {}", spread(&mut five_ns));
    }
}

fn open(fs: &Arc<dyn FileSystem>) -> Arc<dyn vfs::File> {
    let call = Call::detached();
    let cx = Cx::new(&Caller::ROOT, &call);
    let root = fs.root(&cx).expect("a root");
    let flags = OpenFlags::READ | OpenFlags::WRITE;
    let name = Name::new(b"file").expect("a name");
    let (_, file) = root
        .create(&cx, name, flags, Mode::without_umask(0o600))
        .expect("room");
    file
}

/// Returns nanoseconds per read.
fn measure(file: &dyn vfs::File, reads: bool) -> f64 {
    let call = Call::detached();
    let cx = Cx {
        patience: Patience::None,
        ..Cx::new(&Caller::ROOT, &call)
    };
    let page = [0; PAGE];
    let mut buffer = Buffer { page, reads };
    let start = Instant::now();
    for _ in 0..READS {
        let read = black_box(file).read(&cx, 0, PAGE, &mut buffer);
        assert_eq!(black_box(read), Ok(PAGE));
    }
    start.elapsed().as_nanos() as f64 / f64::from(READS)
}

fn spread(ns: &mut [f64]) -> String {
    ns.sort_by(f64::total_cmp);
    let (first, last) = (ns[0], ns[ns.len() - 1]);
    format!("{:.1} ({first:.1} to {last:.1})", ns[ns.len() / 2])
}
