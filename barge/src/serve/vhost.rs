//! vhost-user sockets for virtual machine monitors: permissions and accepted connections.

use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;

use engine::Engine;
use transports::{Addr, Listener};
use vfs::Call;
use virtqueue::{Device, DeviceConfig, DeviceState, JoinRing};
use wire::Session;

use super::args::device::{Affinity, SocketArg};
use super::endpoint::{BindContext, EndpointEntry};
use crate::Failure;

/// Options that the devices of an endpoint share.
#[derive(Clone, Debug, Default)]
pub(super) struct VhostOptions {
    /// The processors of the queues' threads.
    pub(super) affinity: Affinity,
    /// Whether serving ends after the first monitor.
    pub(super) once: bool,
}

/// A kind of device.
pub(super) struct DeviceKind {
    /// Creates a session for the guest of each monitor that connects.
    pub(super) session: Box<dyn Fn() -> DeviceSession + Send + Sync>,
    pub(super) config: DeviceConfig,
    /// Number of queues, from the first on, whose threads are not pinned.
    pub(super) unpinned: usize,
}

/// The session of a device.
pub(super) struct DeviceSession {
    pub(super) session: Arc<dyn Session>,
    /// The same session, if it can be migrated.
    pub(super) migrates: Option<Arc<fuse::server::Session>>,
}

impl DeviceSession {
    /// Returns a session that cannot be migrated.
    pub(super) fn fixed(session: impl Session + 'static) -> DeviceSession {
        DeviceSession {
            session: Arc::new(session),
            migrates: None,
        }
    }
}

/// The state of a virtiofs device that a monitor migrates.
struct FuseState {
    session: Arc<fuse::server::Session>,
    /// The guest's call, for its account.
    call: Call,
}

impl DeviceState for FuseState {
    fn save(&self, to: &mut dyn io::Write) -> io::Result<()> {
        self.session.save(&self.call, to)
    }

    fn load(&self, from: &mut dyn io::Read) -> io::Result<()> {
        self.session.load(&self.call, from)
    }

    fn resume(&self) {
        self.session.resume(&self.call);
    }
}

/// A bound socket, and the kind of its devices.
pub(super) struct DeviceSocket {
    listener: Listener,
    options: VhostOptions,
    kind: DeviceKind,
}

impl DeviceSocket {
    /// Binds a socket that only this user and the members of the group may connect to, as a monitor
    /// can access the whole tree.
    pub(super) fn bind(
        at: &Addr,
        context: &BindContext<'_>,
        options: &VhostOptions,
        kind: DeviceKind,
    ) -> Result<DeviceSocket, Failure> {
        Ok(DeviceSocket {
            listener: context.listen(at)?,
            options: options.clone(),
            kind,
        })
    }

    /// Serves one monitor after another, as virtual machines end and start.
    fn accept(&self, engine: &Arc<Engine>, stop: BorrowedFd<'_>) {
        let name = self.listener.addr().to_string();
        loop {
            match self.listener.accept_socket(stop) {
                Ok(Some((socket, _))) => {
                    tracing::debug!(addr = name, "virtual machine monitor connected");
                    if let Err(error) = self.serve_device(engine, socket.into(), &name, stop) {
                        tracing::warn!(addr = name, "connection closed: {error}");
                    }
                    if self.options.once {
                        return;
                    }
                }
                Ok(None) => return,
                Err(error) => return engine.report_failed_listener(&name, &error),
            }
        }
    }

    fn serve_device(
        &self,
        engine: &Arc<Engine>,
        socket: UnixStream,
        name: &str,
        stop: BorrowedFd<'_>,
    ) -> io::Result<()> {
        // All queues of a device share one session.
        let DeviceSession { session, migrates } = (self.kind.session)();
        let queues = engine.queues_at(session, name);
        let call = queues.call();
        let (affinity, free) = (self.options.affinity.clone(), self.kind.unpinned);
        let drive = move |index, ring| -> io::Result<JoinRing> {
            let queue = queues.start(ring, affinity.processor_of(index, free))?;
            Ok(Box::new(|| queue.cancel_and_join()))
        };
        let device = Device::new(socket, name, self.kind.config.clone(), Arc::new(drive))?;
        let mut device = match migrates {
            Some(session) => device.with_state(Arc::new(FuseState { session, call })),
            None => device,
        };
        // Its end stops all queues.
        device.run(stop).map(drop)
    }
}

/// Serves the monitors that connect until the engine stops.
pub(super) fn start(engine: &Arc<Engine>, sockets: Vec<DeviceSocket>) -> Result<(), Failure> {
    for socket in sockets {
        let drives = engine.clone();
        let name = socket.listener.addr().to_string();
        engine
            .spawn_listener(&name, move |stop| socket.accept(&drives, stop))
            .map_err(Failure::new)?;
    }
    Ok(())
}

/// Returns the entry of a device at `socket`, with the options of QEMU that `qemu` returns for its
/// path.
pub(super) fn entry(
    protocol: &str,
    socket: &SocketArg,
    qemu: impl Fn(&Path) -> String,
) -> EndpointEntry {
    let path = match &socket.addr {
        Addr::Unix(path) => Some(path),
        _ => None,
    };
    EndpointEntry {
        protocol: protocol.into(),
        address: socket.addr.to_string(),
        share: socket.name.clone(),
        qemu: path.map(|path| qemu(path)),
        ..EndpointEntry::default()
    }
}

/// Returns a QEMU command line with the options `device` of a vhost-user device.
pub(super) fn monitor_command(device: &str) -> String {
    format!(
        "qemu-system-x86_64 -m 2G -object memory-backend-memfd,id=mem,size=2G,share=on -numa node,memdev=mem {device}\n"
    )
}
