//! A server in this process: the engine with a socket protocol or a virtiofs device.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Once};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use engine::{Engine, Service, Tuning};
use hostdir::HostDir;
use memory::Memory;
use nfs::server::Options as NfsOptions;
use p9::server::{ExportList, NumericUsers, Options};
use parking_lot::Mutex;
use tempfile::TempPath;
use transports::{Addr, Listener};
use vfs::{Export, FileSystem, Time};
use virtqueue::{Device, DeviceConfig, JoinRing};

use crate::client::Protocol;

/// A running server. Dropping it stops it, and panics if one of its threads has panicked.
pub struct Server {
    /// The engine, for its statistics.
    pub engine: Arc<Engine>,
    /// Its address.
    pub addr: Addr,
    file: Option<TempPath>,
}

/// The transport of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// A Unix socket.
    Unix,
    /// TCP over the loopback.
    Tcp,
}

impl Transport {
    /// Both transports.
    pub const ALL: [Transport; 2] = [Transport::Unix, Transport::Tcp];

    /// Listens at an unused address. Returns the file of the Unix socket, if it is one.
    fn listen(self) -> io::Result<(Listener, Option<TempPath>)> {
        match self {
            Transport::Unix => {
                let bind = |path: &Path| Listener::bind(&Addr::Unix(path.to_owned()));
                let socket = tempfile::Builder::new()
                    .prefix("barge-hostile-")
                    .make(bind)?;
                let (listener, file) = socket.into_parts();
                Ok((listener, Some(file)))
            }
            Transport::Tcp => {
                let (host, port) = ("127.0.0.1".into(), 0);
                Ok((Listener::bind(&Addr::Tcp { host, port })?, None))
            }
        }
    }
}

impl Server {
    /// Serves `fs` with default limits.
    pub fn new(via: Transport, fs: Arc<dyn FileSystem>) -> Server {
        Server::with(via, fs, Options::default(), tuning())
    }

    /// Serves an empty tree in memory.
    pub fn memory(via: Transport) -> Server {
        Server::new(via, tree())
    }

    /// Serves `fs` with these limits.
    pub fn with(
        via: Transport,
        fs: Arc<dyn FileSystem>,
        options: Options,
        tuning: Tuning,
    ) -> Server {
        Server::with_service(via, tuning, Arc::new(p9(fs, options)))
    }

    /// Serves `fs` over a socket protocol, on a socket that every user of this host may connect to.
    pub fn with_protocol(protocol: Protocol, fs: Arc<dyn FileSystem>, tuning: Tuning) -> Server {
        let (via, service): (_, Arc<dyn Service>) = match protocol {
            Protocol::P9 => (Transport::Tcp, Arc::new(p9(fs, Options::default()))),
            Protocol::P9Unix => (Transport::Unix, Arc::new(p9(fs, Options::default()))),
            Protocol::Nbd => (Transport::Tcp, Arc::new(nbd(fs))),
            _ => (Transport::Tcp, Arc::new(nfs(fs))),
        };
        let server = Server::with_service(via, tuning, service);
        server.allow_all_users();
        server
    }

    /// Lets every user of this host connect to the Unix socket, if it is one.
    fn allow_all_users(&self) {
        if let Some(file) = &self.file {
            let everybody = std::fs::Permissions::from_mode(0o666);
            std::fs::set_permissions(file, everybody).expect("the socket's mode");
        }
    }

    /// Serves `service`.
    pub fn with_service(via: Transport, tuning: Tuning, service: Arc<dyn Service>) -> Server {
        Server::start(via, tuning, |engine, listener| {
            engine.listen(listener, service)
        })
    }

    /// Serves `fs` as a virtiofs device to any number of front ends.
    pub fn virtiofs(fs: Arc<dyn FileSystem>) -> Server {
        Server::virtiofs_with(fs, tuning())
    }

    /// Serves the same with these limits, to front ends of every user of this host.
    pub fn virtiofs_with(fs: Arc<dyn FileSystem>, tuning: Tuning) -> Server {
        let options = fuse::server::Options::default();
        let server = fuse::server::Server::new(Arc::new(Export::new("", fs)), options);
        let server = Server::start(Transport::Unix, tuning, |engine, listener| {
            let drives = engine.clone();
            engine.spawn_listener("virtiofs", move |stop| {
                std::thread::scope(|scope| {
                    while let Ok(Some((socket, _))) = listener.accept_socket(stop) {
                        let mut device = device(socket.into(), &drives, server.session());
                        // The result is irrelevant to the server.
                        let run = move || drop(device.run(stop));
                        let name = std::thread::Builder::new().name("barge-device".into());
                        name.spawn_scoped(scope, run).expect("a thread");
                    }
                });
            })
        });
        server.allow_all_users();
        server
    }

    fn start(
        via: Transport,
        tuning: Tuning,
        serve: impl FnOnce(&Arc<Engine>, Listener) -> io::Result<()>,
    ) -> Server {
        record_panics();
        let engine = Engine::new(tuning).expect("an engine");
        let (listener, file) = via.listen().expect("a free address");
        let addr = listener.addr().clone();
        serve(&engine, listener).expect("a thread");
        Server { engine, addr, file }
    }
}

/// Makes a device whose queues all belong to `session`.
fn device(
    socket: UnixStream,
    engine: &Arc<Engine>,
    session: impl wire::Session + 'static,
) -> Device {
    let config = DeviceConfig {
        queues: 3,
        features: 0,
        config_space: Vec::new(),
        repeats_requests: false,
    };
    let queues = engine.queues(Arc::new(session));
    let drive = move |_, ring| -> io::Result<JoinRing> {
        let queue = queues.start(ring, None)?;
        Ok(Box::new(|| queue.cancel_and_join()))
    };
    Device::new(socket, "hostile", config, Arc::new(drive)).expect("a device")
}

impl Drop for Server {
    fn drop(&mut self) {
        self.engine.stop();
        self.engine.wait();
        if !std::thread::panicking() {
            let panics = PANICS.lock();
            assert!(panics.is_empty(), "the server panicked: {panics:?}");
        }
    }
}

/// Returns the default limits with a shorter grace period.
pub fn tuning() -> Tuning {
    Tuning {
        grace: Duration::from_millis(20),
        ..Tuning::default()
    }
}

/// Returns an empty tree in memory.
pub fn tree() -> Arc<Memory> {
    Memory::new(Arc::new(|| {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let since = since.unwrap_or_default();
        Time {
            sec: since.as_secs() as i64,
            nsec: since.subsec_nanos(),
        }
    }))
}

/// Returns a directory of the host, accessed as this process, with that many file descriptors.
pub fn host_dir(path: &Path, descriptors: Option<usize>) -> Arc<HostDir> {
    let options = hostdir::Options {
        identity: hostdir::Identity::Fixed,
        descriptors,
        ..Default::default()
    };
    HostDir::open(path, options).expect("a directory")
}

/// Returns 9P over `fs` as an engine service.
pub fn p9(fs: Arc<dyn FileSystem>, options: Options) -> impl Service {
    struct P9(p9::server::Server);
    impl Service for P9 {
        fn session(&self) -> Box<dyn wire::Session> {
            Box::new(self.0.session())
        }
    }
    let exports = ExportList(vec![Arc::new(Export::new("", fs))]);
    P9(p9::server::Server::new(
        Arc::new(exports),
        Arc::new(NumericUsers),
        options,
    ))
}

/// Returns NFS over `fs` as an engine service.
pub fn nfs(fs: Arc<dyn FileSystem>) -> impl Service {
    let start = Instant::now();
    nfs_with(fs, NfsOptions::new(7, Arc::new(move || start.elapsed())))
}

/// Returns writable NBD exports of the files of `fs` as an engine service.
pub fn nbd(fs: Arc<dyn FileSystem>) -> impl Service {
    struct Nbd(block::nbd::Server);
    impl Service for Nbd {
        fn session(&self) -> Box<dyn wire::Session> {
            Box::new(self.0.session())
        }
    }
    let export = Arc::new(Export::new("", fs));
    Nbd(block::nbd::Server::new(export, false, Vec::new()))
}

/// Returns NFS over `fs` with these options as an engine service.
pub fn nfs_with(fs: Arc<dyn FileSystem>, options: NfsOptions) -> impl Service {
    struct Nfs(Arc<nfs::server::Server>);
    impl Service for Nfs {
        fn session(&self) -> Box<dyn wire::Session> {
            Box::new(self.0.session())
        }
    }
    Nfs(nfs::server::Server::new(
        Arc::new(Export::new("", fs)),
        options,
    ))
}

/// Panic messages of server threads: the engine names all of its threads after barge.
static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn record_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let thread = std::thread::current();
            if thread.name().is_some_and(|name| name.starts_with("barge-")) {
                let mut panics = PANICS.lock();
                panics.push(panic.to_string());
            }
            before(panic);
        }));
    });
}
