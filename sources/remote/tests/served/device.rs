//! A tree served by a device in the same process, and the shared suite over it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use engine::{Engine, Tuning};
use fuse::server::{Options, Server};
use memory::Memory;
use remote::virtiofs::{self, RemoteFuse};
use rustix::event::{EventfdFlags, eventfd};
use vfs::{Export, FileSystem};
use vfs_testkit::{Profile, Subject, clock};
use virtqueue::{Config, Device, Stop};

/// A device and what drives it. Stops when dropped.
pub(crate) struct Shared {
    engine: Arc<Engine>,
    stop: Arc<OwnedFd>,
    device: Mutex<Option<JoinHandle<io::Result<()>>>>,
}

impl Shared {
    /// Serves `fs`; the socket is for a driver.
    pub(crate) fn of(fs: Arc<dyn FileSystem>, options: Options) -> (Shared, UnixStream) {
        let server = Server::new(Arc::new(Export::new("", fs)), options);
        Shared::answering(Arc::new(server.session()))
    }

    /// Whatever `session` answers.
    pub(crate) fn answering(session: Arc<dyn wire::Session>) -> (Shared, UnixStream) {
        let engine = Engine::new(Tuning::default()).expect("an engine");
        let queues = engine.queues(session);
        let drive = move |_, ring| -> io::Result<Stop> {
            let driven = queues.drive(ring, None)?;
            Ok(Box::new(|| driven.join()))
        };
        let config = Config {
            queues: 3,
            features: 0,
            space: Vec::new(),
        };
        let (ours, theirs) = UnixStream::pair().expect("a socket pair");
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).expect("an event"));
        let stopped = stop.clone();
        let device = Device::new(theirs, "test", config, Arc::new(drive)).expect("a device");
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
    /// Stops the device, which answers everything before.
    pub(crate) fn end(&self) {
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        self.await_end();
    }

    /// Waits until the device has stopped.
    pub(crate) fn await_end(&self) {
        let device = self.device.lock().expect("no panic holds it").take();
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
    poll: Duration,
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
        poll,
        silence: Default::default(),
    };
    let mount = RemoteFuse::mount(socket, options).expect("mounted");
    (shared, mount)
}

/// What FUSE cannot say.
fn profile() -> Profile {
    Profile {
        groups: false,
        ..Profile::posix()
    }
}

pub(crate) fn subject(poll: Duration) -> Subject {
    let (shared, mount) = mounted(Memory::new(clock()), 2, poll);
    let mut subject = Subject::new(mount, profile());
    subject.keep = Box::new(shared);
    subject
}

mod by_events {
    fn subject() -> vfs_testkit::Subject {
        super::subject(std::time::Duration::ZERO)
    }

    vfs_testkit::conformance!(subject);
}

mod by_polling {
    fn subject() -> vfs_testkit::Subject {
        super::subject(std::time::Duration::from_micros(200))
    }

    vfs_testkit::conformance!(subject);
}
