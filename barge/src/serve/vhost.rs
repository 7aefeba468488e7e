//! vhost-user sockets for virtual machine monitors: permissions and accepted connections.

use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;

use engine::{Engine, HandedConnection};
use transports::{Addr, Listener};
use vfs::Call;
use virtqueue::{Device, DeviceConfig, DeviceState, JoinRing, RunEnd, SuspendedDevice};
use wire::{SavedState, Session};

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
    /// Creates the session of a guest, which continues with a state that an earlier process has
    /// saved ([`Session::save_state`]). Returns the reason if that is not possible.
    pub(super) session: CreateSession,
    pub(super) config: DeviceConfig,
    /// Number of queues, from the first on, whose threads are not pinned.
    pub(super) unpinned: usize,
}

/// Creates the session of a device, with a saved state if there is one.
pub(super) type CreateSession =
    Box<dyn Fn(Option<&SavedState>) -> Result<DeviceSession, String> + Send + Sync>;

/// The session of a device.
pub(super) struct DeviceSession {
    pub(super) session: Arc<dyn Session>,
    /// The same session, if it can be migrated. It loads a saved state later.
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

/// The connection of a virtual machine monitor.
enum Monitor {
    New(UnixStream),
    /// An earlier process has served it.
    Adopted(HandedConnection),
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
        for connection in engine.adopted_at(&name) {
            if !self.serve_monitor(engine, Monitor::Adopted(connection), &name, stop) {
                return;
            }
        }
        loop {
            match self.listener.accept_socket(stop) {
                Ok(Some((socket, _))) => {
                    tracing::debug!(addr = name, "virtual machine monitor connected");
                    if !self.serve_monitor(engine, Monitor::New(socket.into()), &name, stop) {
                        return;
                    }
                }
                Ok(None) => return,
                Err(error) => return engine.report_failed_listener(&name, &error),
            }
        }
    }

    /// Serves a monitor until it disconnects. Returns whether another one is served afterwards.
    fn serve_monitor(
        &self,
        engine: &Arc<Engine>,
        monitor: Monitor,
        name: &str,
        stop: BorrowedFd<'_>,
    ) -> bool {
        if let Err(error) = self.serve_device(engine, monitor, name, stop) {
            tracing::warn!(addr = name, "connection closed: {error}");
        }
        !self.options.once && !engine.is_handing_over()
    }

    fn serve_device(
        &self,
        engine: &Arc<Engine>,
        monitor: Monitor,
        name: &str,
        stop: BorrowedFd<'_>,
    ) -> io::Result<()> {
        let saved = match &monitor {
            Monitor::New(_) => None,
            Monitor::Adopted(connection) => Some(&connection.session),
        };
        // All queues of a device share one session.
        let created = (self.kind.session)(saved).map_err(io::Error::other)?;
        let DeviceSession { session, migrates } = created;
        let queues = engine.queues_at(session.clone(), name);
        let call = queues.call();
        let state = migrates.map(|session| {
            let call = queues.call();
            Arc::new(FuseState { session, call })
        });
        if let (Some(state), Some(saved)) = (&state, saved) {
            state.session.load_as_successor(&state.call, saved)?;
        }
        let (affinity, free) = (self.options.affinity.clone(), self.kind.unpinned);
        let drive = move |index, ring| -> io::Result<JoinRing> {
            let queue = queues.start(ring, affinity.processor_of(index, free))?;
            Ok(Box::new(|| queue.cancel_and_join()))
        };
        let (config, drive) = (self.kind.config.clone(), Arc::new(drive));
        let migration = state.clone().map(|state| state as Arc<dyn DeviceState>);
        let mut device = match monitor {
            Monitor::New(socket) => {
                let device = Device::new(socket, name, config, drive)?;
                match migration {
                    Some(state) => device.with_state(state),
                    None => device,
                }
            }
            Monitor::Adopted(connection) => {
                let suspended = SuspendedDevice {
                    state: connection.transport,
                    descriptors: connection.fds,
                };
                Device::resume(suspended, name, config, drive, migration)?
            }
        };
        // Its end stops all queues.
        if device.run(stop)? == RunEnd::Disconnected || !engine.is_handing_over() {
            return Ok(());
        }
        let suspended = device.suspend()?;
        let session = match state {
            Some(state) => state.session.save_for_successor(&state.call)?,
            None => {
                let why = "its session cannot continue in another process";
                session
                    .save_state(&call)
                    .ok_or_else(|| io::Error::other(why))?
            }
        };
        engine.hand_over_connection(HandedConnection {
            listener: name.to_owned(),
            peer: name.to_owned(),
            session,
            transport: suspended.state,
            fds: suspended.descriptors,
        });
        Ok(())
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
