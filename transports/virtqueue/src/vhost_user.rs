//! The back end of a vhost-user connection: requests from a virtual machine monitor.

mod format;
mod keep;
mod replay;
mod suspend;

use keep::Kept;

pub use keep::DeviceKeeper;
pub use suspend::SuspendedDevice;

use std::fs::File;
use std::io::{self, ErrorKind, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};
use transports::Ring;
use vhost::VhostUserMemoryRegionBase;
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserProtocolFeatures, VhostUserShMemConfig,
    VhostUserSharedMsg, VhostUserSingleMemoryRegion, VhostUserVirtioFeatures,
    VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{
    Backend, BackendReqHandler, Error, GpuBackend, Result, VhostUserBackendReqHandlerMut,
};
use virtio_queue::{Queue, QueueT};

use crate::dirty_log::DirtyLog;
use crate::features::{EVENT_IDX, INDIRECT_DESC, LOG_ALL, VERSION_1};
use crate::in_flight::{Dimensions, InFlight, InFlightMemory, Unanswered};
use crate::mem_table::{HEADER, PaddedMemTable};
use crate::memory::{Memory, invalid};
use crate::queue::{QueueLog, RunningQueue};
use crate::state_transfer::{DeviceState, Transfer};

/// The configuration of a device.
#[derive(Clone, Debug)]
pub struct DeviceConfig {
    /// The maximum number of queues.
    pub queues: usize,
    /// The device-specific features that it offers (virtio 1.3, 2.2: bits 0 to 23 and 50 to 127),
    /// in addition to those of queues.
    pub features: u64,
    /// The device-specific configuration space (virtio 1.3, 5.11.4 for file systems, 5.16.4 for
    /// 9P); empty if the monitor provides it.
    pub config_space: Vec<u8>,
    /// Whether a new session may serve requests again that an earlier one has begun, as those of
    /// disks. The monitor may then keep records of requests in flight, and connect again after the
    /// end of the process (`VHOST_USER_PROTOCOL_F_INFLIGHT_SHMFD`).
    pub repeats_requests: bool,
}

/// A function that serves the ring of the queue with this number until it is stopped. Calling its
/// result waits until then, and until all requests are answered.
pub type ServeRing = dyn Fn(usize, Arc<dyn Ring>) -> io::Result<JoinRing> + Send + Sync;

/// A function that waits for the end of a stopped ring.
pub type JoinRing = Box<dyn FnOnce() + Send>;

/// The back end of one vhost-user connection. Dropping it stops all queues, after all requests are
/// answered, and closes the connection.
pub struct Device {
    handler: BackendReqHandler<Mutex<Control>>,
    /// The handler's socket, for poll(2).
    socket: UnixStream,
    control: Arc<Mutex<Control>>,
    /// Whether its keeper has it as it is now.
    is_kept: bool,
    /// Whether the connection has ended or continues elsewhere.
    ended: bool,
}

/// The reason for which [`Device::run`] has returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunEnd {
    /// The stop event is readable. The device can run again.
    Stopped,
    /// The monitor has closed the connection.
    Disconnected,
}

impl Device {
    /// Creates a device for the monitor connected to `socket`.
    pub fn new(
        socket: UnixStream,
        name: &str,
        config: DeviceConfig,
        drive: Arc<ServeRing>,
    ) -> io::Result<Device> {
        let control = Control::new(name, config, drive, None);
        Device::with(socket, control, |control, socket| {
            Ok(BackendReqHandler::from_stream(socket.try_clone()?, control))
        })
    }

    /// Creates a device with the handler that `handler` creates for the same socket.
    fn with(
        socket: UnixStream,
        control: Control,
        handler: impl FnOnce(
            Arc<Mutex<Control>>,
            &UnixStream,
        ) -> io::Result<BackendReqHandler<Mutex<Control>>>,
    ) -> io::Result<Device> {
        let control = Arc::new(Mutex::new(control));
        Ok(Device {
            handler: handler(control.clone(), &socket)?,
            socket,
            control,
            is_kept: false,
            ended: false,
        })
    }

    /// Lets the monitor migrate the device, with `state` in addition to its queues.
    pub fn with_state(self, state: Arc<dyn DeviceState>) -> Device {
        self.control().state = Some(state);
        self
    }

    fn control(&self) -> MutexGuard<'_, Control> {
        self.control.lock().expect("no panic holds it")
    }

    /// Serves the monitor's messages until it disconnects or `stop` is readable. The queues
    /// continue to run afterwards: drop the device to end it, [suspend](Device::suspend) it to
    /// continue it in another process, or run it again. It stops between two messages, so none is
    /// lost.
    ///
    /// Returns an error if the monitor violates the protocol or the connection fails: it has ended
    /// then.
    pub fn run(&mut self, stop: BorrowedFd<'_>) -> io::Result<RunEnd> {
        if self.ended {
            return Err(ErrorKind::NotConnected.into());
        }
        let end = self.serve(stop);
        self.ended = !matches!(end, Ok(RunEnd::Stopped));
        end
    }

    /// Does what [`Device::run`] does, while the connection has not ended.
    fn serve(&mut self, stop: BorrowedFd<'_>) -> io::Result<RunEnd> {
        loop {
            if self.keep_between_messages()? {
                self.control().start_prepared()?;
            }
            match self.next_event(stop)? {
                ControlEvent::Message => self.forget(),
                ControlEvent::Padded(table) => {
                    self.forget();
                    self.set_padded(&table)?;
                    continue;
                }
                ControlEvent::Stop => return Ok(RunEnd::Stopped),
            }
            match self.handler.handle_request() {
                Ok(()) => {}
                Err(Error::Disconnected | Error::PartialMessage) => {
                    return Ok(RunEnd::Disconnected);
                }
                Err(Error::SocketBroken(error) | Error::SocketError(error)) => return Err(error),
                // The monitor gets an error if it requested a reply, and may continue.
                Err(Error::ReqHandlerError(error)) => tracing::warn!("vhost-user: {error}"),
                Err(error) => return Err(io::Error::other(error.to_string())),
            }
        }
    }

    /// Waits for a message, for room to answer it, and for the end of the transfer whose result it
    /// requests. The handler itself would wait for them without `stop`.
    fn next_event(&self, stop: BorrowedFd<'_>) -> io::Result<ControlEvent> {
        for event in [PollFlags::IN, PollFlags::OUT] {
            if !wait_for(&self.socket, event, stop)? {
                return Ok(ControlEvent::Stop);
            }
        }
        let (request, event) = self.peek()?;
        if request == Some(CHECK_DEVICE_STATE) {
            let end = self.control().transfer.as_ref().map(Transfer::end);
            if let Some(end) = end.transpose()?
                && !wait_for(&end, PollFlags::IN, stop)?
            {
                return Ok(ControlEvent::Stop);
            }
        }
        Ok(event)
    }

    /// Peeks at the next message, or the end of the stream, and returns the request's number as
    /// well. The complete message must be available: monitors send each with one call. Returns an
    /// error if it has more than [`MAX_FILES`] descriptors: the handler would lose its header, and
    /// wait for another one without `stop`.
    fn peek(&self) -> io::Result<(Option<u32>, ControlEvent)> {
        /// The maximum size that the handler accepts.
        const MOST: usize = 4096;
        let mut bytes = [0; HEADER + MOST];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
        let mut files = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::PEEK | RecvFlags::CMSG_CLOEXEC;
        let into = &mut [IoSliceMut::new(&mut bytes)];
        let peeked = recvmsg(&self.socket, into, &mut files, flags)?;
        // The space may have room for more than it was made for.
        let count: usize = files
            .drain()
            .map(|message| match message {
                RecvAncillaryMessage::ScmRights(files) => files.count(),
                _ => 0,
            })
            .sum();
        if count > MAX_FILES || peeked.flags.contains(ReturnFlags::CTRUNC) {
            return Err(io::Error::new(
                ErrorKind::InvalidData,
                "expected a message with fewer descriptors",
            ));
        }
        let len = peeked.bytes;
        let size = bytes[8..]
            .first_chunk()
            .map(|size| u32::from_le_bytes(*size));
        let whole = HEADER + (size.unwrap_or(0) as usize).min(MOST);
        if len != 0 && len < whole {
            return Err(io::Error::new(
                ErrorKind::InvalidData,
                "expected a complete message",
            ));
        }
        let message = bytes.get(..len).unwrap_or_default();
        let request = message.first_chunk().copied().map(u32::from_ne_bytes);
        let padded = PaddedMemTable::parse(message);
        let event = padded.map_or(ControlEvent::Message, ControlEvent::Padded);
        Ok((request, event))
    }

    /// Applies a memory table with padding. Returns an error if the connection must end.
    fn set_padded(&self, table: &PaddedMemTable) -> io::Result<()> {
        let regions = table.receive(&self.socket)?;
        let mut control = self.control.lock().expect("no panic holds it");
        let done = Memory::map(regions).map(|memory| control.set_memory(memory));
        if let Err(error) = &done {
            tracing::warn!("vhost-user: {error}");
        }
        match control.reply_ack() {
            true => table.answer(&self.socket, done.is_ok()),
            false => Ok(()),
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.forget();
        let mut control = self.control.lock().unwrap_or_else(PoisonError::into_inner);
        control.cancel_transfer();
        control.stop_all();
    }
}

/// Waits for `event` of `fd`; returns false if `stop` is readable.
fn wait_for(fd: impl AsFd, event: PollFlags, stop: BorrowedFd<'_>) -> io::Result<bool> {
    let mut fds = [
        PollFd::from_borrowed_fd(stop, PollFlags::IN),
        PollFd::new(&fd, event),
    ];
    while let Err(error) = poll(&mut fds, None) {
        if error != rustix::io::Errno::INTR {
            return Err(error.into());
        }
    }
    Ok(fds[0].revents().is_empty())
}

/// The request for the result of a transfer.
const CHECK_DEVICE_STATE: u32 = 43;

/// The next event of a connection.
enum ControlEvent {
    /// A message for the handler, or the end of the stream.
    Message,
    /// A memory table that the handler would refuse.
    Padded(PaddedMemTable),
    /// `stop` is readable.
    Stop,
}

/// The state of a connection.
struct Control {
    name: String,
    config: DeviceConfig,
    serve_ring: Arc<ServeRing>,
    /// The negotiated features.
    features: u64,
    /// Whether the monitor has requested the features.
    features_requested: bool,
    /// The features that the monitor acknowledged last. A reset does not change them: they are
    /// those of the connection.
    acked_features: u64,
    acked_protocol_features: u64,
    memory: Arc<Memory>,
    /// The records of requests in flight, if the monitor keeps them.
    in_flight: Option<Arc<InFlightMemory>>,
    /// The keeper of the device, and the device's own records, used without those of the monitor.
    kept: Option<Kept>,
    /// Whether the device continues after the end of the process that served it: queues that start
    /// are in the state of their records.
    recovers: bool,
    /// The dirty log, used while [`LOG_ALL`] is negotiated.
    log: Option<Arc<DirtyLog>>,
    /// The state to migrate; without one the device cannot.
    state: Option<Arc<dyn DeviceState>>,
    /// The last transfer of the state, until its result is requested.
    transfer: Option<Transfer>,
    /// Whether the state was saved since a queue was last started.
    saved: bool,
    queues: Vec<QueueSetup>,
}

/// A queue's state, as set by the monitor so far.
#[derive(Default)]
struct QueueSetup {
    size: u16,
    addresses: Option<Addresses>,
    /// The guest address of the used ring for the dirty log, if its writes are logged.
    log_used: Option<u64>,
    next_avail: u16,
    kick: Option<OwnedFd>,
    call: Option<OwnedFd>,
    enabled: bool,
    /// The requests that were popped and not answered before the last stop.
    put_back: Vec<Unanswered>,
    running: Option<(Arc<RunningQueue>, Progress)>,
}

/// The progress of a queue that runs.
enum Progress {
    /// It starts when the keeper has the device: see [`Control::start_prepared`].
    Prepared,
    /// It serves requests, and ends with this.
    Serving(JoinRing),
}

impl QueueSetup {
    /// Stops the queue if it runs. Requests that wait are put back if it `may_start_again`, and
    /// answered otherwise.
    fn stop(&mut self, may_start_again: bool) {
        if let Some((running, progress)) = self.running.take() {
            running.stop(may_start_again);
            if let Progress::Serving(join) = progress {
                join();
            }
            self.next_avail = running.next_avail();
            self.put_back = running.take_put_back();
            self.call = running.take_call();
        }
    }
}

/// The addresses of its parts in the monitor's address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Addresses {
    descriptors: u64,
    available: u64,
    used: u64,
}

/// The maximum number of memory regions, the same as libvhost-user's.
const MAX_REGIONS: usize = 509;

/// The maximum number of descriptors with a message, the same as the handler's.
const MAX_FILES: usize = 32;

/// The maximum queue size.
pub(crate) const MAX_QUEUE_SIZE: u16 = 1024;

impl Control {
    /// The features of every device.
    const FEATURES: u64 =
        VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits() | VERSION_1 | EVENT_IDX | INDIRECT_DESC;

    fn new(
        name: &str,
        config: DeviceConfig,
        serve_ring: Arc<ServeRing>,
        state: Option<Arc<dyn DeviceState>>,
    ) -> Control {
        let queues = (0..config.queues).map(|_| QueueSetup::default()).collect();
        Control {
            name: name.to_owned(),
            config,
            serve_ring,
            features: 0,
            features_requested: false,
            acked_features: 0,
            acked_protocol_features: 0,
            memory: Arc::new(Memory::map([]).expect("no region fails")),
            in_flight: None,
            kept: None,
            recovers: false,
            log: None,
            state,
            transfer: None,
            saved: false,
            queues,
        }
    }

    /// Returns whether messages that request a reply are answered.
    fn reply_ack(&self) -> bool {
        self.acked_protocol_features & VhostUserProtocolFeatures::REPLY_ACK.bits() != 0
    }

    fn offered(&self) -> u64 {
        let log = self.state.as_ref().map_or(0, |_| LOG_ALL);
        Control::FEATURES | self.config.features | log
    }

    /// Returns the dimensions of memory for the records of requests in flight.
    fn dimensions(&self, of: &VhostUserInflight) -> Result<Dimensions> {
        let dimensions = Dimensions::checked(of.num_queues, of.queue_size, self.queues.len());
        let dimensions = dimensions.filter(|_| self.config.repeats_requests);
        dimensions.ok_or(Error::InvalidParam)
    }

    /// Returns the log for a queue that logs its used ring at `used`, if pages are logged.
    fn queue_log(&self, used: Option<u64>) -> Option<QueueLog> {
        let pages = self.log.clone().filter(|_| self.features & LOG_ALL != 0)?;
        Some(QueueLog { pages, used })
    }

    /// Gives each running queue the current log.
    fn update_logs(&self) {
        for slot in &self.queues {
            if let Some((running, _)) = &slot.running {
                running.set_log(self.queue_log(slot.log_used));
            }
        }
    }

    /// Waits for the end of a transfer, and returns its result; of no transfer, an error.
    fn end_transfer(&mut self) -> io::Result<()> {
        let none = || io::Error::other("no state was transferred");
        let requests = self.transfer.take().ok_or_else(none)?.join()?;
        for (slot, heads) in self.queues.iter_mut().zip(requests) {
            slot.put_back = heads;
        }
        Ok(())
    }

    /// Ends the migration before a queue starts: the device continues here.
    fn resume(&mut self) {
        self.cancel_transfer();
        if let Some(state) = &self.state
            && std::mem::take(&mut self.saved)
        {
            state.resume();
        }
    }

    /// Returns the memory of the records of requests in flight, if there are any, and whether a
    /// queue that starts continues with the requests in them.
    fn in_flight_memory(&self) -> Option<(Arc<InFlightMemory>, bool)> {
        match (&self.in_flight, &self.kept) {
            (Some(monitors), _) => Some((monitors.clone(), true)),
            (None, Some(kept)) => Some((kept.in_flight.clone(), self.recovers)),
            (None, None) => None,
        }
    }

    fn cancel_transfer(&mut self) {
        self.transfer.take().into_iter().for_each(Transfer::cancel);
    }

    fn queue_setup(&mut self, index: u32) -> Result<&mut QueueSetup> {
        self.queues
            .get_mut(index as usize)
            .ok_or(Error::InvalidParam)
    }

    /// Prepares a queue to start, if it is not running and its state is complete.
    fn start_if_ready(&mut self, index: u32) -> Result<()> {
        if let Some(running) = self.prepare(index)? {
            self.queue_setup(index)?.running = Some((Arc::new(running), Progress::Prepared));
        }
        Ok(())
    }

    /// Returns a queue that is not running and whose state is complete.
    fn prepare(&mut self, index: u32) -> Result<Option<RunningQueue>> {
        let event_idx = self.features & EVENT_IDX != 0;
        let memory = self.memory.clone();
        let name = format!("{}/{index}", self.name);
        let slot = self.queue_setup(index)?;
        let (Some(addresses), None, true) = (slot.addresses, &slot.running, slot.enabled) else {
            return Ok(None);
        };
        if slot.kick.is_none() || slot.size == 0 {
            return Ok(None);
        }
        let log_used = slot.log_used;
        self.resume();
        let log = self.queue_log(log_used);
        let in_flight = self.in_flight_memory();
        let keeper = self.kept.as_ref().map(|kept| kept.keeper.clone());
        let slot = self.queue_setup(index)?;
        let mut queue = queue(&memory, slot, addresses, event_idx)?;
        let Some(kick) = slot.kick.take() else {
            return Ok(None);
        };
        let mut records = None;
        if let Some((in_flight, recovers)) = in_flight {
            let opened = InFlight::of_queue(in_flight, index as usize, slot.size);
            let mut opened = opened.map_err(Error::ReqHandlerError)?;
            let used = queue.next_used();
            if recovers {
                let recovered = opened.recover(used);
                queue.set_next_avail(recovered.next_avail);
                slot.put_back = recovered.unanswered;
            } else {
                opened.clear(used);
            }
            records = Some(opened);
        }
        let again = kick.try_clone().map_err(Error::ReqHandlerError)?;
        let call = slot.call.take();
        let running =
            RunningQueue::new(name, queue, memory, kick, call).map_err(Error::ReqHandlerError)?;
        running.set_log(log);
        running.set_put_back(std::mem::take(&mut slot.put_back));
        if let Some(records) = records {
            running.set_records(records);
        }
        if let Some(keeper) = keeper {
            running.set_keeper(keeper);
        }
        // For the next start, if the queue is disabled and enabled again.
        slot.kick = Some(again);
        Ok(Some(running))
    }

    /// Starts to serve the queues that are prepared, after the keeper got the device with them. So
    /// a guest that has a reply does not lose its device with this process.
    fn start_prepared(&mut self) -> io::Result<()> {
        for (index, slot) in self.queues.iter_mut().enumerate() {
            if let Some((running, progress @ Progress::Prepared)) = &mut slot.running {
                *progress = Progress::Serving((self.serve_ring)(index, running.clone())?);
            }
        }
        Ok(())
    }

    /// Stops a queue, which may start again.
    fn stop(&mut self, index: u32) -> Result<()> {
        self.queue_setup(index)?.stop(true);
        Ok(())
    }

    /// Stops all queues at the end of the device or at a reset.
    fn stop_all(&mut self) {
        self.queues.iter_mut().for_each(|slot| slot.stop(false));
    }

    fn set_memory(&mut self, memory: Memory) {
        self.memory = Arc::new(memory);
        for slot in &self.queues {
            if let Some((running, _)) = &slot.running {
                running.set_memory(&self.memory);
            }
        }
    }
}

/// Creates a queue from the state that the monitor set.
fn queue(memory: &Memory, slot: &QueueSetup, at: Addresses, event_idx: bool) -> Result<Queue> {
    let wrong = |error: virtio_queue::Error| invalid(&error.to_string());
    let guest = |address| {
        memory
            .guest_address(address)
            .ok_or_else(|| invalid("a queue outside the guest's memory"))
    };
    let mut queue = Queue::new(MAX_QUEUE_SIZE).map_err(wrong)?;
    queue.try_set_size(slot.size).map_err(wrong)?;
    queue
        .try_set_desc_table_address(guest(at.descriptors)?)
        .map_err(wrong)?;
    queue
        .try_set_avail_ring_address(guest(at.available)?)
        .map_err(wrong)?;
    queue
        .try_set_used_ring_address(guest(at.used)?)
        .map_err(wrong)?;
    queue.set_event_idx(event_idx);
    queue.set_next_avail(slot.next_avail);
    queue.set_ready(true);
    if !queue.is_valid(memory.map_ref()) {
        return Err(invalid("a queue beyond the guest's memory"));
    }
    // Only the guest's memory has the used index: a monitor sends the available index alone.
    let used = queue
        .used_idx(memory.map_ref(), std::sync::atomic::Ordering::Acquire)
        .map_err(wrong)?;
    queue.set_next_used(used.0);
    Ok(queue)
}

impl VhostUserBackendReqHandlerMut for Control {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        self.reset_device()
    }

    fn reset_device(&mut self) -> Result<()> {
        self.stop_all();
        self.features = 0;
        (self.log, self.in_flight) = (None, None);
        self.queues
            .iter_mut()
            .for_each(|slot| *slot = QueueSetup::default());
        Ok(())
    }

    fn get_features(&mut self) -> Result<u64> {
        self.features_requested = true;
        Ok(self.offered())
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        self.acked_features = features;
        if features & !self.offered() != 0 {
            return Err(Error::InvalidParam);
        }
        self.features = features;
        self.update_logs();
        // Without this feature there is no message to enable a queue.
        if features & VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits() == 0 {
            for index in 0..self.queues.len() as u32 {
                self.queue_setup(index)?.enabled = true;
                self.start_if_ready(index)?;
            }
        }
        Ok(())
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        let mut features = VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
            | VhostUserProtocolFeatures::RESET_DEVICE;
        let configured = !self.config.config_space.is_empty();
        features.set(VhostUserProtocolFeatures::CONFIG, configured);
        let migration =
            VhostUserProtocolFeatures::LOG_SHMFD | VhostUserProtocolFeatures::DEVICE_STATE;
        features.set(migration, self.state.is_some());
        let repeats = self.config.repeats_requests;
        features.set(VhostUserProtocolFeatures::INFLIGHT_SHMFD, repeats);
        Ok(features)
    }

    fn set_protocol_features(&mut self, features: u64) -> Result<()> {
        self.acked_protocol_features = features;
        Ok(())
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(self.queues.len() as u64)
    }

    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _: Option<bool>,
    ) -> Result<Option<Vec<VhostUserMemoryRegionBase>>> {
        let memory = Memory::map(regions.iter().copied().zip(files))?;
        self.set_memory(memory);
        Ok(None)
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Ok(MAX_REGIONS as u64)
    }

    fn add_mem_region(
        &mut self,
        region: &VhostUserSingleMemoryRegion,
        file: File,
        _: Option<bool>,
    ) -> Result<Option<VhostUserMemoryRegionBase>> {
        if self.memory.regions() >= MAX_REGIONS {
            return Err(Error::InvalidParam);
        }
        let memory = self.memory.with(region, file)?;
        self.set_memory(memory);
        Ok(None)
    }

    fn remove_mem_region(&mut self, region: &VhostUserSingleMemoryRegion) -> Result<()> {
        let memory = self
            .memory
            .without(region.guest_phys_addr, region.memory_size)?;
        self.set_memory(memory);
        Ok(())
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        let size = u16::try_from(num).map_err(|_| Error::InvalidParam)?;
        if !size.is_power_of_two() || size > MAX_QUEUE_SIZE {
            return Err(Error::InvalidParam);
        }
        self.queue_setup(index)?.size = size;
        Ok(())
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        flags: VhostUserVringAddrFlags,
        descriptors: u64,
        used: u64,
        available: u64,
        log: u64,
    ) -> Result<()> {
        let logged = flags.contains(VhostUserVringAddrFlags::VHOST_VRING_F_LOG);
        let slot = self.queue_setup(index)?;
        slot.addresses = Some(Addresses {
            descriptors,
            available,
            used,
        });
        slot.log_used = logged.then_some(log);
        self.update_logs();
        self.start_if_ready(index)
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        self.queue_setup(index)?.next_avail = base as u16;
        Ok(())
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        self.stop(index)?;
        let slot = self.queue_setup(index)?;
        (slot.kick, slot.call) = (None, None);
        Ok(VhostUserVringState::new(index, slot.next_avail.into()))
    }

    fn set_vring_kick(&mut self, index: u8, file: Option<File>) -> Result<()> {
        let index = u32::from(index);
        self.stop(index)?;
        self.queue_setup(index)?.kick = file.map(OwnedFd::from);
        self.start_if_ready(index)
    }

    fn set_vring_call(&mut self, index: u8, file: Option<File>) -> Result<()> {
        let slot = self.queue_setup(index.into())?;
        let call = file.map(OwnedFd::from);
        match &slot.running {
            Some((running, _)) => running.set_call(call).map_err(Error::ReqHandlerError),
            None => {
                slot.call = call;
                Ok(())
            }
        }
    }

    fn set_vring_err(&mut self, _: u8, _: Option<File>) -> Result<()> {
        Ok(())
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        self.queue_setup(index)?.enabled = enable;
        match enable {
            true => self.start_if_ready(index),
            false => self.stop(index),
        }
    }

    fn get_config(&mut self, offset: u32, size: u32, _: VhostUserConfigFlags) -> Result<Vec<u8>> {
        let start = offset as usize;
        let end = start
            .checked_add(size as usize)
            .ok_or(Error::InvalidParam)?;
        let bytes = self.config.config_space.get(start..end);
        bytes.map(<[u8]>::to_vec).ok_or(Error::InvalidParam)
    }

    fn set_config(&mut self, _: u32, _: &[u8], _: VhostUserConfigFlags) -> Result<()> {
        Err(Error::InvalidOperation("the configuration is read-only"))
    }

    fn set_backend_req_fd(&mut self, _: Backend) {}

    fn set_gpu_socket(&mut self, _: GpuBackend) -> Result<()> {
        Err(Error::InvalidOperation("not a graphics device"))
    }

    fn get_shared_object(&mut self, _: VhostUserSharedMsg) -> Result<File> {
        Err(Error::InvalidOperation("shared objects are not supported"))
    }

    /// Returns new memory for the records. The monitor keeps it, and passes it at each start.
    fn get_inflight_fd(&mut self, wanted: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        let dimensions = self.dimensions(wanted)?;
        let memory = InFlightMemory::create(dimensions).map_err(Error::ReqHandlerError)?;
        let granted =
            VhostUserInflight::new(dimensions.bytes(), 0, dimensions.queues, dimensions.size);
        Ok((granted, memory.into()))
    }

    fn set_inflight_fd(&mut self, given: &VhostUserInflight, file: File) -> Result<()> {
        let dimensions = self.dimensions(given)?;
        if given.mmap_offset != 0 || given.mmap_size != dimensions.bytes() {
            return Err(Error::InvalidParam);
        }
        let memory = InFlightMemory::map(file, dimensions).map_err(Error::ReqHandlerError)?;
        self.in_flight = Some(Arc::new(memory));
        Ok(())
    }

    /// Starts the transfer of the state: the monitor reads or writes it after the reply.
    fn set_device_state_fd(
        &mut self,
        direction: VhostTransferStateDirection,
        _: VhostTransferStatePhase,
        pipe: File,
    ) -> Result<Option<File>> {
        let Some(state) = self.state.clone() else {
            return Err(Error::InvalidOperation("the device cannot migrate"));
        };
        let stopped = self.queues.iter().all(|slot| slot.running.is_none());
        if !stopped || self.transfer.is_some() {
            return Err(Error::InvalidOperation(
                "the state is transferred once, while all queues are stopped",
            ));
        }
        let requests = self
            .queues
            .iter()
            .map(|slot| slot.put_back.clone())
            .collect();
        let transfer = Transfer::start(state, direction, pipe, requests);
        self.transfer = Some(transfer.map_err(Error::ReqHandlerError)?);
        self.saved |= direction == VhostTransferStateDirection::SAVE;
        Ok(None)
    }

    /// Returns the result of the transfer. The monitor requests it after the end of the pipe.
    fn check_device_state(&mut self) -> Result<()> {
        let done = self.end_transfer();
        if let Err(error) = &done {
            tracing::error!(device = self.name, "migration failed: {error}");
        }
        done.map_err(Error::ReqHandlerError)
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        Ok(VhostUserShMemConfig::new(0, &[]))
    }

    /// The handler replies to no request that failed with `ReqHandlerError`, and the monitor waits
    /// for this reply: any other error ends the connection.
    fn set_log_base(&mut self, log: &VhostUserLog, file: File) -> Result<()> {
        let map = DirtyLog::map(file, log.mmap_offset, log.mmap_size);
        self.log = Some(Arc::new(map.map_err(|_| Error::InvalidParam)?));
        self.update_logs();
        Ok(())
    }
}

#[cfg(test)]
mod tests;
