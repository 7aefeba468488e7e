//! A tree in memory, served over socket pairs.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use engine::{Engine, Tuning};
use memory::Memory;
use nfs::server::{Options, Server};
use remote::nfs::{Mount, Options as Asked, mount};
use transports::StreamLink;
use vfs::{Export, FileSystem};

struct Service(Arc<Server>);

impl engine::Service for Service {
    fn session(&self) -> Box<dyn wire::Session> {
        Box::new(self.0.session())
    }
}

/// A tree and an engine that serves it. Stops when dropped.
pub(crate) struct Served {
    running: Mutex<Running>,
    export: Arc<Export>,
}

struct Running {
    engine: Arc<Engine>,
    service: Service,
}

impl Running {
    fn start(export: &Arc<Export>, boot: u64) -> Running {
        let start = Instant::now();
        let options = Options::new(boot, Arc::new(move || start.elapsed()));
        Running {
            engine: Engine::new(Tuning::default()).expect("an engine"),
            service: Service(Server::new(export.clone(), options)),
        }
    }
}

impl Served {
    pub(crate) fn new() -> Arc<Served> {
        let fs: Arc<dyn FileSystem> = Memory::new(vfs_testkit::clock());
        let export = Arc::new(Export::new("", fs));
        Arc::new(Served {
            running: Mutex::new(Running::start(&export, 1)),
            export,
        })
    }

    fn link(&self) -> StreamLink {
        let (ours, theirs) = transports::pair().expect("a socket pair");
        let running = self.running.lock().expect("no panic holds it");
        running
            .engine
            .connect(Box::new(theirs), &running.service)
            .expect("connected");
        ours
    }

    pub(crate) fn mount(self: &Arc<Self>, options: Asked) -> Arc<dyn FileSystem> {
        let served = self.clone();
        let (tree, _) = mount(&Mount {
            dial: Arc::new(move |_| Ok(served.link())),
            path: "",
            whole: true,
            options,
        })
        .expect("mounted");
        tree
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let running = self.running.get_mut().expect("no panic holds it");
        running.engine.stop();
    }
}
