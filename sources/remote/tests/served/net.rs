//! A tree in memory, served over a socket pair.

use std::sync::Arc;

use engine::{Engine, Tuning};
use memory::Memory;
use p9::Dialect;
use p9::server::{ExportList, NumericUsers, Server};
use remote::ninep::{Options, Remote9p};
use transports::StreamLink;
use vfs::{Export, FileSystem};

struct Service(Server);

impl engine::Service for Service {
    fn session(&self) -> Box<dyn wire::Session> {
        Box::new(self.0.session())
    }
}

fn server(export: Export, options: p9::server::Options) -> Server {
    let exports = ExportList(vec![Arc::new(export)]);
    Server::new(Arc::new(exports), Arc::new(NumericUsers), options)
}

/// A tree and an engine that serves it, stopped when dropped.
pub(crate) struct Served {
    engine: Arc<Engine>,
    service: Service,
}

impl Served {
    pub(crate) fn new() -> Served {
        Served::of(Memory::new(vfs_testkit::clock()))
    }

    pub(crate) fn of(fs: Arc<dyn FileSystem>) -> Served {
        Served::tuned(fs, Tuning::default())
    }

    pub(crate) fn tuned(fs: Arc<dyn FileSystem>, tuning: Tuning) -> Served {
        Served::handing(Export::new("", fs), false, tuning)
    }

    /// Serves an export, over connections that pass file descriptors if `hands_over`.
    pub(crate) fn handing(export: Export, hands_over: bool, tuning: Tuning) -> Served {
        let server = server(export, p9::server::Options::default()).with_fd_passing(hands_over);
        Served::by(server, tuning)
    }

    /// Serves with a limit of `max_fids` fids per connection.
    pub(crate) fn narrow(fs: Arc<dyn FileSystem>, max_fids: usize) -> Served {
        let options = p9::server::Options {
            max_fids,
            ..p9::server::Options::default()
        };
        Served::by(server(Export::new("", fs), options), Tuning::default())
    }

    fn by(server: Server, tuning: Tuning) -> Served {
        Served {
            engine: Engine::new(tuning).expect("an engine"),
            service: Service(server),
        }
    }

    /// The session of a new device.
    pub(crate) fn queue_session(&self) -> Arc<dyn wire::Session> {
        Arc::new(self.service.0.queue_session())
    }

    /// The client's end of a new connection.
    pub(crate) fn link(&self) -> StreamLink {
        let (ours, theirs) = transports::pair().expect("a socket pair");
        self.serve(theirs);
        ours
    }

    /// Serves the peer of `link`.
    pub(crate) fn serve(&self, link: StreamLink) {
        self.engine
            .connect(Box::new(link), &self.service)
            .expect("connected");
    }

    /// Connects a new client.
    pub(crate) fn connect(&self, options: Options) -> Arc<Remote9p> {
        Remote9p::connect(self.link(), options).expect("attached")
    }

    pub(crate) fn speaking(&self, version: Dialect, msize: u32) -> Arc<Remote9p> {
        self.connect(Options {
            version,
            msize,
            uname: "root".into(),
            ..Options::default()
        })
    }
}

impl Served {
    /// Stops the server, and waits until all its requests have ended.
    pub(crate) fn end(self) {
        self.engine.stop();
        self.engine.wait();
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.engine.stop();
    }
}
