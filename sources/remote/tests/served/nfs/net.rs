//! A tree in memory, served over socket pairs.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use engine::{Engine, Service as _, Tuning};
use memory::Memory;
use nfs::server::v4::state::{InMemory, Stable};
use nfs::server::{Options, Server, Transports};
use parking_lot::{Mutex, MutexGuard};
use remote::nfs::{Mount, Options as Asked, mount};
use tls::{Acceptor, TlsLink};
use transports::{Link, StreamLink};
use vfs::{Export, FileSystem};

struct Service(Arc<Server>, Option<Arc<Acceptor>>);

impl engine::Service for Service {
    fn session(&self) -> Box<dyn wire::Session> {
        Box::new(self.0.session())
    }

    fn link(&self, link: StreamLink) -> Box<dyn Link> {
        match &self.1 {
            None => Box::new(link),
            Some(acceptor) => Box::new(TlsLink::server(link, acceptor.clone())),
        }
    }
}

/// A tree and an engine that serves it, stopped when dropped.
pub(crate) struct Served {
    running: Mutex<Running>,
    fs: Arc<dyn FileSystem>,
    /// The state that survives a restart.
    stable: Mutex<Arc<dyn Stable>>,
    lease: Duration,
    acceptor: Option<Arc<Acceptor>>,
}

struct Running {
    engine: Arc<Engine>,
    service: Service,
    boot: u32,
    /// Ends the server's maintenance when dropped.
    _maintained: Sender<()>,
}

/// Maintains the server once a second, until the result is dropped.
fn maintain(server: Arc<Server>) -> Sender<()> {
    let (until, dropped) = channel();
    std::thread::spawn(move || {
        let second = Duration::from_secs(1);
        while dropped.recv_timeout(second) == Err(RecvTimeoutError::Timeout) {
            server.maintain();
        }
    });
    until
}

impl Running {
    fn start(
        fs: &Arc<dyn FileSystem>,
        stable: &Arc<dyn Stable>,
        lease: Duration,
        boot: u32,
        acceptor: Option<&Arc<Acceptor>>,
    ) -> Running {
        // A new export, in which no locks are held.
        let export = Arc::new(Export::new("", fs.clone()));
        let start = Instant::now();
        let options = Options {
            name: "served".into(),
            stable: stable.clone(),
            lease,
            transports: match acceptor {
                None => Transports::PLAIN,
                Some(_) => Transports {
                    none: false,
                    tls: true,
                    mtls: true,
                },
            },
            ..Options::new(boot, Arc::new(move || start.elapsed()))
        };
        let server = Server::new(export, options);
        Running {
            engine: Engine::new(Tuning::default()).expect("an engine"),
            _maintained: maintain(server.clone()),
            service: Service(server, acceptor.cloned()),
            boot,
        }
    }
}

impl Served {
    pub(crate) fn new() -> Arc<Served> {
        Served::with_lease(Duration::from_secs(90))
    }

    /// A server with this lease time.
    pub(crate) fn with_lease(lease: Duration) -> Arc<Served> {
        Served::start(Memory::new(vfs_testkit::clock()), lease, None)
    }

    /// A server of `fs`.
    pub(crate) fn over(fs: Arc<dyn FileSystem>) -> Arc<Served> {
        Served::over_with_lease(fs, Duration::from_secs(90))
    }

    /// A server of `fs` with this lease time.
    pub(crate) fn over_with_lease(fs: Arc<dyn FileSystem>, lease: Duration) -> Arc<Served> {
        Served::start(fs, lease, None)
    }

    /// A server that requires TLS.
    pub(crate) fn secure(acceptor: Arc<Acceptor>) -> Arc<Served> {
        let fs = Memory::new(vfs_testkit::clock());
        Served::start(fs, Duration::from_secs(90), Some(acceptor))
    }

    fn start(
        fs: Arc<dyn FileSystem>,
        lease: Duration,
        acceptor: Option<Arc<Acceptor>>,
    ) -> Arc<Served> {
        let stable: Arc<dyn Stable> = Arc::new(InMemory::default());
        Arc::new(Served {
            running: Mutex::new(Running::start(&fs, &stable, lease, 100, acceptor.as_ref())),
            fs,
            stable: Mutex::new(stable),
            lease,
            acceptor,
        })
    }

    fn running(&self) -> MutexGuard<'_, Running> {
        self.running.lock()
    }

    /// Closes all connections.
    pub(crate) fn hang_up(&self) {
        let mut running = self.running();
        running.engine.stop();
        running.engine = Engine::new(Tuning::default()).expect("an engine");
    }

    /// Stops the server and starts another with the first one's stable state.
    pub(crate) fn restart(&self) {
        self.restart_after(|_| {});
    }

    /// Does [`Served::restart`] with a change of the tree in between, such as the data loss of a
    /// crash.
    pub(crate) fn restart_after(&self, change: impl FnOnce(&Arc<dyn FileSystem>)) {
        let mut running = self.running();
        running.engine.stop();
        change(&self.fs);
        let (boot, acceptor) = (running.boot + 1, self.acceptor.as_ref());
        let stable = self.stable.lock();
        *running = Running::start(&self.fs, &stable, self.lease, boot, acceptor);
    }

    /// Does [`Served::restart`], and the new server knows no client: it lets none reclaim its
    /// state, as one whose grace period has ended.
    pub(crate) fn restart_without_state(&self) {
        self.restart_after(|_| *self.stable.lock() = Arc::new(InMemory::default()));
    }

    /// The tree on the server.
    pub(crate) fn tree(&self) -> &Arc<dyn FileSystem> {
        &self.fs
    }

    pub(crate) fn link(&self) -> StreamLink {
        let (ours, theirs) = transports::pair().expect("a socket pair");
        let running = self.running();
        running
            .engine
            .connect(running.service.link(theirs), &running.service)
            .expect("connected");
        ours
    }

    pub(crate) fn mount(self: &Arc<Self>, options: Asked) -> Arc<dyn FileSystem> {
        let served = self.clone();
        let (tree, _) = mount(&Mount {
            dial: Arc::new(move |_| Ok(Box::new(served.link()))),
            path: "",
            require_full_path: true,
            options,
        })
        .expect("mounted");
        tree
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let running = self.running.get_mut();
        running.engine.stop();
    }
}
