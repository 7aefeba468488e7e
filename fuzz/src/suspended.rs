//! A suspended vhost-user device, from a process that may have written anything.
//!
//! An input is the number of descriptors, a byte for the kind of each, and the state.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::sync::Arc;

use arbitrary::Unstructured;
use hostile::guest::{Guest, QueueLayout, memory};
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use rustix::pipe::{PipeFlags, pipe_with};
use transports::Ring;
use virtqueue::{
    Device, DeviceConfig, DeviceKeeper, DeviceState, JoinRing, RunEnd, ServeRing, SuspendedDevice,
};

/// The maximum number of descriptors.
const MOST: u8 = 64;

/// The kinds of descriptors, in the order of their numbers.
mod kind {
    pub(super) const SOCKET: u8 = 0;
    pub(super) const MEMORY: u8 = 1;
    pub(super) const EVENT: u8 = 2;
    pub(super) const DATAGRAMS: u8 = 3;
    pub(super) const PIPE: u8 = 4;
    pub(super) const SHORT_MEMORY: u8 = 5;
    pub(super) const COUNT: u8 = 6;
}

/// A session without state.
struct Stateless;

impl DeviceState for Stateless {
    fn save(&self, _: &mut dyn io::Write) -> io::Result<()> {
        Ok(())
    }

    fn load(&self, _: &mut dyn io::Read) -> io::Result<()> {
        Ok(())
    }

    fn resume(&self) {}
}

impl DeviceKeeper for Stateless {
    fn keep(&self, _: SuspendedDevice) {}

    fn forget(&self) {}

    fn note_returned(&self, _: &[u8]) {}
}

type Rings = Arc<Mutex<Vec<Arc<dyn Ring>>>>;

/// Returns a function that adds the rings that start to `rings`.
fn drive(rings: &Rings) -> Arc<ServeRing> {
    let rings = rings.clone();
    Arc::new(move |_, ring| -> io::Result<JoinRing> {
        rings.lock().push(ring);
        Ok(Box::new(|| ()))
    })
}

fn config() -> DeviceConfig {
    DeviceConfig {
        queues: 2,
        features: 1,
        config_space: Vec::new(),
        repeats_requests: true,
    }
}

fn resumed(suspended: SuspendedDevice, rings: &Rings) -> io::Result<Device> {
    let (migration, keeper) = (Arc::new(Stateless), Arc::new(Stateless));
    let (config, drive) = (config(), drive(rings));
    Device::resume(
        suspended,
        "fuzz",
        config,
        drive,
        Some(migration),
        Some(keeper),
    )
}

/// Returns a descriptor of this kind, and the other end of a connection.
fn descriptor(kind: u8) -> io::Result<(OwnedFd, Option<UnixStream>)> {
    let fd = match kind % kind::COUNT {
        kind::SOCKET => {
            let (ours, theirs) = UnixStream::pair()?;
            return Ok((theirs.into(), Some(ours)));
        }
        kind::MEMORY => memory(Guest::MEMORY_SIZE)?.into(),
        kind::EVENT => eventfd(0, EventfdFlags::CLOEXEC)?,
        kind::DATAGRAMS => UnixDatagram::unbound()?.into(),
        kind::PIPE => pipe_with(PipeFlags::CLOEXEC)?.0,
        kind::SHORT_MEMORY => memory(4096)?.into(),
        _ => unreachable!("the remainder is smaller"),
    };
    Ok((fd, None))
}

/// Resumes a device from `data`: it is refused, or it serves its rings and its monitor, and is
/// suspended and resumed again without a change.
pub fn resume(data: &[u8]) {
    let mut input = Unstructured::new(data);
    let count = input.arbitrary().unwrap_or(0u8).min(MOST);
    let Ok(kinds) = input.bytes(usize::from(count).min(input.len())) else {
        return;
    };
    let (mut descriptors, mut monitors) = (Vec::new(), Vec::new());
    for &kind in kinds {
        let (fd, monitor) = descriptor(kind).expect("a descriptor");
        descriptors.push(fd);
        monitors.extend(monitor);
    }
    let rings = Rings::default();
    let state = input.take_rest().to_vec();
    let Ok(mut device) = resumed(SuspendedDevice { state, descriptors }, &rings) else {
        return;
    };
    for ring in rings.lock().drain(..) {
        serve(&*ring);
    }
    let stop = eventfd(1, EventfdFlags::CLOEXEC).expect("an event");
    assert_eq!(device.run(stop.as_fd()).expect("stopped"), RunEnd::Stopped);
    let suspended = device.suspend().expect("suspended");
    let state = suspended.state.clone();
    let mut again = resumed(suspended, &rings).expect("resumed");
    rings.lock().clear();
    assert_eq!(again.suspend().expect("suspended").state, state);
    // A monitor that closes its connection ends the device.
    drop(device);
    drop(monitors);
}

/// Serves the available requests of a ring, at most a queue's length.
fn serve(ring: &dyn Ring) {
    for _ in 0..1024 {
        let Ok(Some(exchange)) = ring.pop(&|head| Some(head.len())) else {
            break;
        };
        ring.push_used(exchange);
    }
    ring.signal();
}

/// Returns inputs with valid states: of a device without a guest, and of one whose guest has
/// started a queue.
pub fn suspended() -> [Vec<u8>; 2] {
    let input = |device: &mut Device, kinds: &[u8]| {
        let suspended = device.suspend().expect("suspended");
        assert_eq!(suspended.descriptors.len(), kinds.len());
        [&[kinds.len() as u8][..], kinds, &suspended.state].concat()
    };
    let (ours, theirs) = UnixStream::pair().expect("a socket pair");
    let rings = Rings::default();
    let mut device = Device::new(theirs, "fuzz", config(), drive(&rings)).expect("a device");
    let new = input(&mut device, &[kind::SOCKET]);
    drop((device, ours));
    let (ours, theirs) = UnixStream::pair().expect("a socket pair");
    let mut device = Device::new(theirs, "fuzz", config(), drive(&rings)).expect("a device");
    let stop = eventfd(0, EventfdFlags::CLOEXEC).expect("an event");
    let _guest = std::thread::scope(|scope| {
        let running = scope.spawn(|| device.run(stop.as_fd()));
        let guest = Guest::set_up(ours, true).expect("agreed");
        guest.start(1, QueueLayout::VALID, 0).expect("started");
        rustix::io::write(&stop, &1u64.to_ne_bytes()).expect("an event");
        let end = running.join().expect("no panic").expect("no error");
        assert_eq!(end, RunEnd::Stopped);
        guest
    });
    let kinds = [kind::SOCKET, kind::MEMORY, kind::EVENT, kind::EVENT];
    [new, input(&mut device, &kinds)]
}
