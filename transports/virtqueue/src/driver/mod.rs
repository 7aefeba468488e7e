//! The driver side: a front end in user space, with its own memory, that sends requests to the
//! queues of any vhost-user device without a virtual machine.

mod chain;
mod layout;
mod ring;
mod stream;

use std::fs::File;
use std::io;
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use vhost::vhost_user::message::{VhostUserProtocolFeatures, VhostUserVirtioFeatures};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vm_memory::{FileOffset, MmapRegion};
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

pub use self::chain::{Chain, Lengths, Reply, Ticket};
use self::layout::Layout;
pub use self::ring::Queue;
use self::ring::{Events, Shared};
pub use self::stream::{FrameLength, Stream};
use crate::features::{EVENT_IDX, VERSION_1};

/// The options of a driver.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The maximum number of queues; the device may have fewer.
    pub queues: usize,
    /// The minimum number of requests in flight per queue; 254 at most.
    pub depth: u16,
    /// The payload size of each request in bytes, in addition to [`Queue::MAX_INLINE_REQUEST`].
    pub payload: usize,
    /// The method of waiting for replies.
    pub waiting: WaitMode,
}

/// A driver's method of waiting for replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitMode {
    /// Polls for at most this time before it sleeps in epoll_wait(2), adaptively as
    /// [`transports::Poller`].
    Adaptive(Duration),
    /// Polls for this time before it sleeps in epoll_wait(2), regardless of success: like a guest
    /// whose idle processors poll.
    Polling(Duration),
    /// Sleeps in read(2) of a blocking eventfd: like a driver in user space that waits for
    /// interrupts. Not for a [`Stream`].
    Interrupts,
}

/// The driver of a vhost-user device. Dropping it closes the connection: the device abandons the
/// requests in flight.
pub struct Driver {
    queues: Vec<Queue>,
    /// Closed when dropped.
    #[cfg_attr(not(test), expect(dead_code, reason = "only its end has an effect"))]
    frontend: Frontend,
    /// The connection.
    socket: UnixStream,
}

impl Driver {
    /// Sets up the device connected to `socket`.
    ///
    /// Returns an error if it does not support virtio 1, has fewer than `least` queues, or violates
    /// the protocol.
    pub fn connect(socket: UnixStream, least: usize, options: Options) -> io::Result<Driver> {
        Driver::with_features(socket, least, options, VERSION_1 | EVENT_IDX)
    }

    /// Does the same as [`Driver::connect`] with no other features than these.
    pub(crate) fn with_features(
        socket: UnixStream,
        least: usize,
        options: Options,
        wanted: u64,
    ) -> io::Result<Driver> {
        let watched = socket.try_clone()?;
        let mut frontend = Frontend::from_stream(socket, options.queues as u64);
        let negotiated = negotiate(&mut frontend, options.queues, wanted);
        let (queues, features) = negotiated.map_err(connect_error)?;
        if queues < least {
            let why = format!("expected a device of at least {least} queues, got {queues}");
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        let layout = Layout::new(options.depth, options.payload);
        let bytes = layout.bytes() * queues;
        // The device seals it.
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = File::from(memfd_create("barge-driver", flags)?);
        ftruncate(&file, bytes as u64)?;
        let memory = FileOffset::new(file.try_clone()?, 0);
        let memory = MmapRegion::<()>::from_file(memory, bytes).map_err(io::Error::other)?;
        let memory = Arc::new(memory);
        let table = VhostUserMemoryRegionInfo {
            guest_phys_addr: BASE,
            memory_size: bytes as u64,
            userspace_addr: BASE,
            mmap_offset: 0,
            mmap_handle: file.as_raw_fd(),
        };
        frontend.set_mem_table(&[table]).map_err(connect_error)?;
        let disconnected = Arc::new(AtomicBool::new(false));
        let queues = (0..queues)
            .map(|index| {
                let begin = layout.bytes() * index;
                let kick = EventFd::new(EFD_CLOEXEC | EFD_NONBLOCK)?;
                let call = EventFd::new(match options.waiting {
                    WaitMode::Interrupts => EFD_CLOEXEC,
                    WaitMode::Adaptive(_) | WaitMode::Polling(_) => EFD_CLOEXEC | EFD_NONBLOCK,
                })?;
                set_up(&mut frontend, index, &layout, begin, &kick, &call)
                    .map_err(connect_error)?;
                Ok(Queue::new(Shared {
                    memory: memory.clone(),
                    begin,
                    layout,
                    event_idx: features & EVENT_IDX != 0,
                    events: Events::new(&call, &watched)?,
                    kick,
                    call,
                    waiting: options.waiting,
                    disconnected: disconnected.clone(),
                }))
            })
            .collect::<io::Result<Vec<_>>>()?;
        if options.waiting == WaitMode::Interrupts {
            let calls = queues.iter().map(|queue| queue.call().try_clone());
            wake_on_disconnect(
                watched.try_clone()?,
                calls.collect::<io::Result<_>>()?,
                disconnected,
            )?;
        }
        Ok(Driver {
            queues,
            frontend,
            socket: watched,
        })
    }

    /// Returns its queues, at least one.
    pub fn queues(&self) -> &[Queue] {
        &self.queues
    }

    /// Returns the monitor's side of the connection.
    #[cfg(test)]
    pub(crate) fn frontend(&mut self) -> &mut Frontend {
        &mut self.frontend
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // Also ends the thread that watches the connection. An error means that the device closed
        // it already.
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

/// Wakes the threads that sleep in read(2) of `calls` once the connection is closed.
fn wake_on_disconnect(
    socket: UnixStream,
    calls: Vec<EventFd>,
    disconnected: Arc<AtomicBool>,
) -> io::Result<()> {
    let thread = std::thread::Builder::new().name("barge-driver".into());
    thread.spawn(move || {
        let mut ends = [PollFd::new(&socket, PollFlags::IN | PollFlags::RDHUP)];
        // The device sends no unsolicited messages.
        while matches!(poll(&mut ends, None), Err(rustix::io::Errno::INTR)) {}
        disconnected.store(true, Ordering::SeqCst);
        for call in &calls {
            let _ = call.write(1);
        }
    })?;
    Ok(())
}

/// The memory's address in the device's address space. Not 0, which some devices treat as null.
const BASE: u64 = 1 << 32;

/// Negotiates features, at most those that are `wanted`, and the number of queues.
fn negotiate(frontend: &mut Frontend, most: usize, wanted: u64) -> vhost::Result<(usize, u64)> {
    frontend.set_owner()?;
    let offered = frontend.get_features()?;
    let protocol = VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits();
    let mut queues = most;
    if offered & protocol != 0 {
        let known = VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS;
        let taken = frontend.get_protocol_features()? & known;
        frontend.set_protocol_features(taken)?;
        if taken.contains(VhostUserProtocolFeatures::MQ) {
            queues = queues.min(usize::try_from(frontend.get_queue_num()?).unwrap_or(queues));
        }
    }
    let features = offered & (protocol | wanted);
    if features & VERSION_1 == 0 {
        let why = io::Error::new(io::ErrorKind::Unsupported, "a device older than virtio 1");
        return Err(vhost::vhost_user::Error::ReqHandlerError(why).into());
    }
    frontend.set_features(features)?;
    Ok((queues, features))
}

/// Describes a queue to the device and enables it.
fn set_up(
    frontend: &mut Frontend,
    index: usize,
    layout: &Layout,
    begin: usize,
    kick: &EventFd,
    call: &EventFd,
) -> vhost::Result<()> {
    let at = |offset: usize| BASE + (begin + offset) as u64;
    let config = VringConfigData {
        queue_max_size: layout.size(),
        queue_size: layout.size(),
        flags: 0,
        desc_table_addr: at(layout.descriptors()),
        used_ring_addr: at(layout.used()),
        avail_ring_addr: at(layout.available()),
        log_addr: None,
    };
    frontend.set_vring_num(index, layout.size())?;
    frontend.set_vring_addr(index, &config)?;
    frontend.set_vring_base(index, 0)?;
    frontend.set_vring_call(index, call)?;
    frontend.set_vring_kick(index, kick)?;
    match frontend.set_vring_enable(index, true) {
        // Without the feature every queue starts enabled.
        Err(vhost::Error::VhostUserProtocol(vhost::vhost_user::Error::InactiveFeature(_))) => {
            Ok(())
        }
        done => done,
    }
}

fn connect_error(error: vhost::Error) -> io::Error {
    io::Error::other(format!("vhost-user: {error}"))
}
