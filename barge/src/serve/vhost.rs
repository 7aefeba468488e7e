//! vhost-user sockets for virtual machine monitors: permissions and accepted connections.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;

use engine::{Engine, FrozenConnection, Queues, SuspendedConnection};
use transports::{Addr, Listener};
use vfs::Call;
use virtqueue::{
    Device, DeviceConfig, DeviceKeeper, DeviceState, JoinRing, RunEnd, SuspendedDevice,
};
use wire::{SavedState, Session};

use super::args::device::{Affinity, SocketArg};
use super::broker::DeviceChannel;
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
    /// The keeper of devices for a process that continues after a crash, if there is one.
    pub(super) keeper: Option<Arc<DeviceChannel>>,
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
    /// The memory of its records, if a process can continue it after a crash of this one.
    pub(super) records: Option<OwnedFd>,
}

impl DeviceSession {
    /// Returns a session that cannot be migrated.
    pub(super) fn fixed(session: impl Session + 'static) -> DeviceSession {
        DeviceSession {
            session: Arc::new(session),
            migrates: None,
            records: None,
        }
    }
}

/// The state of a session whose process has crashed: the first of its files is the memory of its
/// records, and the others are open files without a name.
const RECORDED: &[u8] = b"records\n";

/// Returns the memory of the records and the open files without a name of a session whose process
/// has crashed.
pub(super) fn recorded(saved: &SavedState) -> Option<(&OwnedFd, &[OwnedFd])> {
    saved
        .files
        .split_first()
        .filter(|_| saved.bytes == RECORDED)
}

/// Keeps the device of a guest for a process that continues after a crash.
struct GuestKeeper {
    channel: Arc<DeviceChannel>,
    session: Arc<fuse::server::Session>,
    /// The memory of the session's records.
    records: OwnedFd,
    listener: String,
}

impl DeviceKeeper for GuestKeeper {
    fn keep(&self, device: SuspendedDevice) {
        let keep = || {
            self.channel.keep(&SuspendedConnection {
                listener: self.listener.clone(),
                peer: self.listener.clone(),
                session: SavedState {
                    bytes: RECORDED.into(),
                    files: vec![self.records.try_clone()?],
                },
                transport: device.state,
                fds: device.descriptors,
            })
        };
        if let Err(error) = keep() {
            let addr = &self.listener;
            tracing::warn!(addr, "the device ends with this process: {error}");
        }
    }

    fn forget(&self) {
        self.channel.forget();
    }

    fn note_returned(&self, message: &[u8]) {
        self.session.sent(message);
    }
}

/// The state of a virtiofs device that a monitor migrates.
struct FuseState {
    session: Arc<fuse::server::Session>,
    /// The guest's call, for its account.
    call: Call,
}

impl FuseState {
    /// Continues the session of a process that has crashed, which had these open files without a
    /// name.
    fn take_over(&self, files: &[OwnedFd], addr: &str) -> io::Result<()> {
        let taken = self.session.take_over(files).map_err(io::Error::other)?;
        let why = "another process has crashed, and its records do not permit to continue";
        let taken = taken.ok_or_else(|| io::Error::other(why))?;
        let (nodes, files, locks) = (taken.nodes, taken.files, taken.locks);
        tracing::info!(addr, nodes, files, locks, "continues the device of a guest");
        if taken.lost > 0 {
            tracing::error!(addr, "{} open files are lost", taken.lost);
        }
        Ok(())
    }
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
    Adopted(SuspendedDevice),
}

/// The guest of a monitor.
struct Guest {
    session: Arc<dyn Session>,
    /// All queues of a device share one session.
    queues: Arc<Queues>,
    /// The session's state, if it can be migrated.
    state: Option<Arc<FuseState>>,
    keeper: Option<Arc<dyn DeviceKeeper>>,
}

impl Guest {
    /// Returns the state of its session for another process.
    fn save(&self) -> io::Result<SavedState> {
        match &self.state {
            Some(state) => state.session.save_for_successor(&state.call),
            None => {
                let saved = self.session.save_state(&self.queues.call());
                let why = "its session cannot continue in another process";
                saved.ok_or_else(|| io::Error::other(why))
            }
        }
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

    /// Creates the session of a guest, with the state that an earlier process has saved.
    fn guest(
        &self,
        engine: &Arc<Engine>,
        name: &str,
        saved: Option<&SavedState>,
    ) -> io::Result<Guest> {
        let created = (self.kind.session)(saved).map_err(io::Error::other)?;
        let DeviceSession {
            session,
            migrates,
            records,
        } = created;
        let queues = engine.queues_at(session.clone(), name);
        let state = migrates.map(|session| {
            let call = queues.call();
            Arc::new(FuseState { session, call })
        });
        if let (Some(state), Some(saved)) = (&state, saved) {
            match recorded(saved) {
                Some((_, files)) => state.take_over(files, name)?,
                None => state.session.load_as_successor(&state.call, saved)?,
            }
        }
        let keeper = match (&self.kind.keeper, &state, records) {
            (Some(channel), Some(state), Some(records)) => Some(Arc::new(GuestKeeper {
                channel: channel.clone(),
                session: state.session.clone(),
                records,
                listener: name.to_owned(),
            })
                as Arc<dyn DeviceKeeper>),
            _ => None,
        };
        Ok(Guest {
            session,
            queues,
            state,
            keeper,
        })
    }

    /// Ends what the broker keeps of the device.
    fn end_keeping(&self) {
        if let Some(keeper) = &self.kind.keeper {
            keeper.end();
        }
    }

    /// Resumes the devices of guests that an earlier process has served at `name`. The broker keeps
    /// them before this process is ready.
    fn adopt(&self, engine: &Arc<Engine>, name: &str) -> Vec<(Guest, Device)> {
        let resume = |connection: SuspendedConnection| {
            let guest = self.guest(engine, name, Some(&connection.session))?;
            let suspended = SuspendedDevice {
                state: connection.transport,
                descriptors: connection.fds,
            };
            let device = self.device(&guest, Monitor::Adopted(suspended), name)?;
            Ok((guest, device))
        };
        let adopted = engine.adopted_at(name).into_iter();
        let adopted = adopted.map(|connection| {
            resume(connection).inspect_err(|error: &io::Error| {
                self.end_keeping();
                tracing::warn!(addr = name, "connection closed: {error}");
            })
        });
        adopted.filter_map(Result::ok).collect()
    }

    /// Serves one monitor after another, as virtual machines end and start. The first ones are
    /// `adopted`.
    fn accept(
        &self,
        engine: &Arc<Engine>,
        adopted: Vec<(Guest, Device)>,
        name: &str,
        stop: BorrowedFd<'_>,
    ) {
        for guest in adopted {
            if !self.serve_monitor(engine, Ok(guest), name, stop) {
                return;
            }
        }
        loop {
            match self.listener.accept_socket(stop) {
                Ok(Some((socket, _))) => {
                    tracing::debug!(addr = name, "virtual machine monitor connected");
                    let guest = self.guest(engine, name, None).and_then(|guest| {
                        let monitor = Monitor::New(socket.into());
                        let device = self.device(&guest, monitor, name)?;
                        Ok((guest, device))
                    });
                    if !self.serve_monitor(engine, guest, name, stop) {
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
        guest: io::Result<(Guest, Device)>,
        name: &str,
        stop: BorrowedFd<'_>,
    ) -> bool {
        let served = guest.and_then(|(guest, device)| run(engine, guest, device, name, stop));
        if let Err(error) = served {
            tracing::warn!(addr = name, "connection closed: {error}");
        }
        self.end_keeping();
        !self.options.once && !engine.is_handing_over()
    }

    /// Returns the device of `guest`, whose queues run if an earlier process has served them.
    fn device(&self, guest: &Guest, monitor: Monitor, name: &str) -> io::Result<Device> {
        let queues = guest.queues.clone();
        let (affinity, free) = (self.options.affinity.clone(), self.kind.unpinned);
        let drive = move |index, ring| -> io::Result<JoinRing> {
            let queue = queues.start(ring, affinity.processor_of(index, free))?;
            Ok(Box::new(|| queue.cancel_and_join()))
        };
        let (config, drive) = (self.kind.config.clone(), Arc::new(drive));
        let state = guest.state.clone();
        let migration = state.map(|state| state as Arc<dyn DeviceState>);
        let keeper = guest.keeper.clone();
        match monitor {
            Monitor::Adopted(suspended) => {
                Device::resume(suspended, name, config, drive, migration, keeper)
            }
            Monitor::New(socket) => {
                let mut device = Device::new(socket, name, config, drive)?;
                if let Some(state) = migration {
                    device = device.with_state(state);
                }
                match keeper {
                    Some(keeper) => device.with_keeper(keeper),
                    None => Ok(device),
                }
            }
        }
    }
}

/// Serves the messages of a monitor until it disconnects or the engine stops, and suspends the
/// device if the engine hands its connections over.
fn run(
    engine: &Arc<Engine>,
    guest: Guest,
    mut device: Device,
    name: &str,
    stop: BorrowedFd<'_>,
) -> io::Result<()> {
    // Its end stops all queues.
    if device.run(stop)? == RunEnd::Disconnected || !engine.is_handing_over() {
        return Ok(());
    }
    let suspended = device.suspend()?;
    let own = name.to_owned();
    engine.hand_over_connection(FrozenConnection {
        listener: name.to_owned(),
        peer: name.to_owned(),
        transport: suspended.state,
        fds: suspended.descriptors,
        save: Box::new(move || {
            let saved = guest.save();
            let lost = |error| tracing::warn!(addr = own, "connection closed: {error}");
            saved.map_err(lost).ok()
        }),
    });
    Ok(())
}

/// Serves the monitors that connect until the engine stops, and those that it has adopted.
pub(super) fn start(engine: &Arc<Engine>, sockets: Vec<DeviceSocket>) -> Result<(), Failure> {
    for socket in sockets {
        let drives = engine.clone();
        let name = socket.listener.addr().to_string();
        let adopted = socket.adopt(engine, &name);
        let own = name.clone();
        engine
            .spawn_listener(&name, move |stop| {
                socket.accept(&drives, adopted, &own, stop);
            })
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
