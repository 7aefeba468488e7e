//! A tree served by a device in the same process, and the shared suite over it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use engine::{Engine, Tuning};
use fuse::server::{Options, Server};
use layers::Fault;
use layers::fault::{FaultKind, Trigger};
use memory::Memory;
use parking_lot::Mutex;
use remote::virtiofs::{self, RemoteFuse, WaitMode};
use rustix::event::{EventfdFlags, eventfd};
use vfs::{AttrMask, Cx, Errno, Export, FileSystem, Mode, Name, Op, OpenFlags};
use vfs_testkit::context::{ok, pattern};
use vfs_testkit::{Profile, SetOnDrop, TestSubject, clock, wait_until};
use virtqueue::{Device, DeviceConfig, JoinRing, RunEnd, ServeRing};
use wire::payload::{SlicePayload, SliceSink};

use crate::landing::with_cx;

/// A device and its engine, stopped when dropped.
pub(crate) struct Shared {
    engine: Arc<Engine>,
    stop: Arc<OwnedFd>,
    device: Mutex<Option<JoinHandle<io::Result<RunEnd>>>>,
}

impl Shared {
    /// Serves `fs`; the socket is for a driver.
    pub(crate) fn of(fs: Arc<dyn FileSystem>, options: Options) -> (Shared, UnixStream) {
        let server = Server::new(Arc::new(Export::new("", fs)), options);
        Shared::answering(Arc::new(server.session()))
    }

    /// Serves `session`.
    pub(crate) fn answering(session: Arc<dyn wire::Session>) -> (Shared, UnixStream) {
        let engine = Engine::new(Tuning::default()).expect("an engine");
        let queues = engine.queues(session);
        let drive = move |_, ring| -> io::Result<JoinRing> {
            let queue = queues.start(ring, None)?;
            Ok(Box::new(|| queue.cancel_and_join()))
        };
        let config = DeviceConfig {
            queues: 3,
            features: 0,
            config_space: Vec::new(),
            repeats_requests: false,
        };
        let (ours, theirs) = UnixStream::pair().expect("a socket pair");
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).expect("an event"));
        let stopped = stop.clone();
        let mut device = Device::new(theirs, "test", config, Arc::new(drive)).expect("a device");
        let device = std::thread::spawn(move || device.run(stopped.as_fd()));
        let shared = Shared {
            engine,
            stop,
            device: Mutex::new(Some(device)),
        };
        (shared, ours)
    }
}

impl Shared {
    /// Stops the device after it has answered all requests.
    pub(crate) fn end(&self) {
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        self.await_end();
    }

    /// Waits until the device has stopped.
    pub(crate) fn await_end(&self) {
        let device = self.device.lock().take();
        if let Some(ended) = device.map(JoinHandle::join)
            && !std::thread::panicking()
        {
            ended.expect("no panic").expect("an end");
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.end();
        self.engine.stop();
    }
}

pub(crate) fn mounted(
    fs: Arc<dyn FileSystem>,
    queues: usize,
    waiting: WaitMode,
) -> (Shared, Arc<RemoteFuse>) {
    let options = Options {
        posix_acl: true,
        tmpfile: true,
        ..Options::default()
    };
    let (shared, socket) = Shared::of(fs, options);
    let options = virtiofs::Options {
        queues,
        depth: 16,
        waiting,
        ..virtiofs::Options::default()
    };
    let mount = RemoteFuse::mount(socket, options).expect("mounted");
    (shared, mount)
}

/// The limits of FUSE.
fn profile() -> Profile {
    Profile {
        groups: false,
        ..Profile::posix()
    }
}

pub(crate) fn subject(waiting: WaitMode) -> TestSubject {
    let (shared, mount) = mounted(Memory::new(clock()), 2, waiting);
    let mut subject = TestSubject::new(mount, profile());
    subject.keep_alive = Box::new(shared);
    subject
}

mod by_events {
    fn subject() -> vfs_testkit::TestSubject {
        super::subject(super::WaitMode::Adaptive(std::time::Duration::ZERO))
    }

    vfs_testkit::conformance!(subject);
}

mod by_polling {
    fn subject() -> vfs_testkit::TestSubject {
        super::subject(super::WaitMode::Polling(std::time::Duration::from_micros(
            200,
        )))
    }

    vfs_testkit::conformance!(subject);
}

mod by_interrupts {
    fn subject() -> vfs_testkit::TestSubject {
        super::subject(super::WaitMode::Interrupts)
    }

    vfs_testkit::conformance!(subject);
}

#[test]
fn a_driver_that_sleeps_in_read_is_woken_when_the_device_ends() {
    let (shared, mount) = mounted(Memory::new(clock()), 1, WaitMode::Interrupts);
    let root = with_cx(|cx| ok(mount.root(cx)));
    assert!(with_cx(|cx| root.statfs(cx)).is_ok());
    shared.end();
    assert!(with_cx(|cx| root.statfs(cx)).is_err());
}

/// The device is suspended and another one continues, while a client writes and reads files.
#[test]
fn a_mount_continues_on_other_devices() {
    const TIMES: usize = 30;
    const THREADS: usize = 4;
    let server = Server::new(
        Arc::new(Export::new("", Memory::new(clock()))),
        Options::default(),
    );
    let engine = Engine::new(Tuning::default()).expect("an engine");
    let queues = engine.queues(Arc::new(server.session()));
    let drive: Arc<ServeRing> = Arc::new(move |_, ring| -> io::Result<JoinRing> {
        let queue = queues.start(ring, None)?;
        Ok(Box::new(|| queue.cancel_and_join()))
    });
    let config = || DeviceConfig {
        queues: 3,
        features: 0,
        config_space: Vec::new(),
        repeats_requests: false,
    };
    let (socket, theirs) = UnixStream::pair().expect("a socket pair");
    let event = || eventfd(0, EventfdFlags::CLOEXEC).expect("an event");
    let (stop, last) = (event(), AtomicBool::new(false));
    let files = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let first = Device::new(theirs, "test", config(), drive.clone()).expect("a device");
        let devices = scope.spawn(|| {
            let mut device = first;
            while device.run(stop.as_fd()).expect("no error") == RunEnd::Stopped {
                rustix::io::read(&stop, &mut [0; 8]).expect("read");
                let suspended = device.suspend().expect("suspended");
                drop(device);
                device = Device::resume(suspended, "test", config(), drive.clone(), None, None)
                    .expect("resumed");
            }
        });
        let options = virtiofs::Options {
            queues: 2,
            depth: 16,
            waiting: WaitMode::Interrupts,
            ..virtiofs::Options::default()
        };
        let mount = RemoteFuse::mount(socket, options).expect("mounted");
        let clients: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (mount, last, files) = (mount.clone(), &last, &files);
                scope.spawn(move || {
                    for round in 0.. {
                        let name = format!("{thread}-{round}");
                        check_file(&*mount, &name, (thread + round) as u64);
                        files.fetch_add(1, Ordering::SeqCst);
                        if last.load(Ordering::SeqCst) {
                            return;
                        }
                    }
                })
            })
            .collect();
        let last = SetOnDrop(&last);
        for _ in 0..TIMES {
            let before = files.load(Ordering::SeqCst);
            wait_until("each thread has read on", || {
                files.load(Ordering::SeqCst) >= before + THREADS
            });
            rustix::io::write(&stop, &1u64.to_ne_bytes()).expect("an event");
        }
        drop(last);
        for client in clients {
            client.join().expect("no panic");
        }
        // The end of the connection.
        drop(mount);
        devices.join().expect("no panic");
    });
    engine.stop();
}

/// Creates a file, writes it, and reads it back.
fn check_file(fs: &dyn FileSystem, file: &str, seed: u64) {
    let data = pattern(40_000, seed);
    let mode = Mode::without_umask(0o600);
    let flags = OpenFlags::READ | OpenFlags::WRITE;
    let file = with_cx(|cx| {
        let name = ok(Name::new(file.as_bytes()));
        ok(ok(fs.root(cx)).create(cx, name, flags, mode)).1
    });
    let written = with_cx(|cx| file.write(cx, 0, &mut SlicePayload::new(&data)));
    assert_eq!(written, Ok(data.len()));
    let mut read = vec![0; data.len()];
    let len = with_cx(|cx| file.read(cx, 0, read.len(), &mut SliceSink::new(&mut read)));
    assert_eq!(len, Ok(data.len()));
    assert_eq!(read, data);
}

#[test]
fn who_wants_small_requests_one_at_a_time_has_them() {
    const PAGE: usize = 4096;
    let fault = Arc::new(Fault::new(1, Arc::new(|| Duration::ZERO)));
    let fs = layers::stack(Memory::new(clock()), fault.clone());
    let (_shared, socket) = Shared::of(fs, Options::default());
    let options = virtiofs::Options {
        max_write: Some(PAGE),
        in_flight: Some(PAGE),
        ..virtiofs::Options::default()
    };
    let mount = RemoteFuse::mount(socket, options).expect("mounted");
    let file = with_cx(|cx| {
        let (name, mode) = (ok(Name::new(b"file")), Mode::without_umask(0o600));
        let flags = OpenFlags::READ | OpenFlags::WRITE;
        ok(ok(mount.root(cx)).create(cx, name, flags, mode)).1
    });
    let data = pattern(4 * PAGE, 1);
    fault.add(Op::Write, Trigger::Nth(2), FaultKind::Fail(Errno::EIO));
    let write = |cx: &Cx<'_>| file.write(cx, 0, &mut SlicePayload::new(&data));
    assert_eq!(with_cx(write), Ok(PAGE));
    // The rest was not sent.
    assert_eq!(
        with_cx(|cx| ok(file.attr(cx, AttrMask::SIZE)).size),
        PAGE as u64
    );
    fault.clear();
    assert_eq!(with_cx(write), Ok(data.len()));
    let mut memory = vec![0; data.len()];
    fault.add(Op::Read, Trigger::Nth(3), FaultKind::Fail(Errno::EIO));
    let read = |cx: &Cx<'_>| file.read(cx, 0, 4 * PAGE, &mut SliceSink::new(&mut memory));
    assert_eq!(with_cx(read), Ok(2 * PAGE));
    assert_eq!(memory[..2 * PAGE], data[..2 * PAGE]);
}
