//! What layers cost: reads a cached 4 KiB page of a file through none and through five empty ones.
//!
//! `cargo run --release -p barge-layers --example stack_cost`

use std::fs::File;
use std::hint::black_box;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Instant;

use layers::{Layer, Opened, forward, stack};
use memory::Memory;
use vfs::{
    Call, Caller, Capabilities, Cx, Errno, FileSystem, Mode, Name, OpenFlags, Patience, Result,
    Sink, Time,
};

const PAGE: usize = 4096;
const READS: u32 = 400_000;
const ROUNDS: usize = 9;

/// Reads come from a host file, as hostdir's do; everything else from below.
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

    forward! {
        root resolve sync
        handle attr setattr access statfs open readlink lookup parent create make tmpfile link
        unlink rename xattr xattrs set_xattr remove_xattr host_lock host_lock_holder
        file_attr file_setattr write readdir fsync flush allocate seek extents copy
    }
}

/// Passes everything on.
struct Empty;

impl Layer for Empty {
    fn capabilities(&self, inner: Capabilities) -> Capabilities {
        inner
    }

    forward! {
        root resolve sync
        handle attr setattr access statfs open readlink lookup parent create make tmpfile link
        unlink rename xattr xattrs set_xattr remove_xattr host_lock host_lock_holder
        file_attr file_setattr read write readdir fsync flush allocate seek extents copy
    }
}

/// A buffer that pages are read into, over and over.
struct Buffer([u8; PAGE]);

impl Sink for Buffer {
    fn room(&self) -> usize {
        PAGE
    }

    fn bytes(&mut self, data: &[u8]) {
        self.0[..data.len()].copy_from_slice(data);
    }

    fn zeros(&mut self, len: usize) {
        self.0[..len].fill(0);
    }

    fn file(
        &mut self,
        fd: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        _patience: Patience,
    ) -> Result<usize> {
        rustix::io::pread(fd, &mut self.0[..len], offset)
            .map_err(|errno| Errno::from_raw(errno.raw_os_error()))
    }
}

fn main() {
    let mut host = tempfile::tempfile().expect("a temporary file");
    host.write_all(&[7; PAGE]).expect("room for a page");
    let clock: memory::Clock = Arc::new(Time::default);
    let bare = stack(Memory::new(clock), Host(host));
    let mut five = bare.clone();
    for _ in 0..5 {
        five = stack(five, Empty);
    }
    let (bare, five) = (open(&bare), open(&five));
    let (mut bare_ns, mut five_ns) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let times = (measure(&*bare), measure(&*five));
        // The first round warms up.
        if round > 0 {
            bare_ns.push(times.0);
            five_ns.push(times.1);
        }
    }
    println!(
        "4 KiB cached pread, ns per read: median (fastest to slowest of {} rounds)",
        ROUNDS - 1
    );
    println!("  no layer       {}", spread(&mut bare_ns));
    println!("  5 empty layers {}", spread(&mut five_ns));
    let more = five_ns[five_ns.len() / 2] - bare_ns[bare_ns.len() / 2];
    println!("  a layer        {:.1}", more / 5.0);
}

fn open(fs: &Arc<dyn FileSystem>) -> Arc<dyn vfs::File> {
    let call = Call::detached();
    let cx = Cx::new(&Caller::ROOT, &call);
    let root = fs.root(&cx).expect("a root");
    let flags = OpenFlags::READ | OpenFlags::WRITE;
    let name = Name::new(b"file").expect("a name");
    let (_, file) = root
        .create(&cx, name, flags, Mode::exactly(0o600))
        .expect("room");
    file
}

/// Nanoseconds per read.
fn measure(file: &dyn vfs::File) -> f64 {
    let call = Call::detached();
    let cx = Cx {
        patience: Patience::None,
        ..Cx::new(&Caller::ROOT, &call)
    };
    let mut buffer = Buffer([0; PAGE]);
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
