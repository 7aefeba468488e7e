//! What a virtual machine monitor says over a vhost-user connection.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{RecvFlags, recv};
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

use crate::features::{EVENT_IDX, INDIRECT_DESC, VERSION_1};
use crate::mem_table::{HEADER, Padded};
use crate::memory::{Memory, invalid};
use crate::queue::Running;

/// What a device says of itself.
#[derive(Clone, Debug)]
pub struct Config {
    /// How many queues there may be.
    pub queues: usize,
    /// The device's own features that it offers (virtio 1.3, 2.2: bits 0 to 23 and 50 to 127), besides those of queues.
    pub features: u64,
    /// The device's own space of configuration (virtio 1.3, 5.11.4 for file systems, 5.16.4 for 9P); nothing leaves it to
    /// the monitor.
    pub space: Vec<u8>,
}

/// Drives rings: has what comes through the ring of the queue of this number answered, until that is stopped;
/// calling what this returns waits until then, and until all is answered.
pub type Drive = dyn Fn(usize, Arc<dyn Ring>) -> io::Result<Stop> + Send + Sync;

/// Waits for the end of a ring that was stopped.
pub type Stop = Box<dyn FnOnce() + Send>;

/// The back-end of one vhost-user connection.
pub struct Device {
    handler: BackendReqHandler<Mutex<Control>>,
    /// The handler's, to wait for.
    socket: UnixStream,
    control: Arc<Mutex<Control>>,
}

impl Device {
    /// A device for the monitor at the other end of `socket`.
    pub fn new(
        socket: UnixStream,
        name: &str,
        config: Config,
        drive: Arc<Drive>,
    ) -> io::Result<Device> {
        let queues = (0..config.queues).map(|_| Slot::default()).collect();
        let control = Arc::new(Mutex::new(Control {
            name: name.to_owned(),
            config,
            drive,
            features: 0,
            replies: false,
            memory: Arc::new(Memory::map([]).expect("no region fails")),
            queues,
        }));
        Ok(Device {
            socket: socket.try_clone()?,
            handler: BackendReqHandler::from_stream(socket, control.clone()),
            control,
        })
    }

    /// Does as the monitor says until it goes, or `stop` is readable. Nothing runs any more then.
    pub fn run(mut self, stop: BorrowedFd<'_>) -> io::Result<()> {
        let end = loop {
            match self.awaits(stop) {
                Ok(Awaited::Message) => {}
                Ok(Awaited::Padded(table)) => match self.set_padded(&table) {
                    Ok(()) => continue,
                    Err(error) => break Err(error),
                },
                Ok(Awaited::Stop) => break Ok(()),
                Err(error) => break Err(error),
            }
            match self.handler.handle_request() {
                Ok(()) => {}
                Err(Error::Disconnected | Error::PartialMessage) => break Ok(()),
                Err(Error::SocketBroken(error) | Error::SocketError(error)) => break Err(error),
                // The monitor hears of it if it asked to, and may go on.
                Err(Error::ReqHandlerError(error)) => tracing::warn!("vhost-user: {error}"),
                Err(error) => break Err(io::Error::other(error.to_string())),
            }
        };
        self.control.lock().expect("no panic holds it").stop_all();
        end
    }

    /// Waits for a message, and for room to answer it. The handler cannot be stopped while it waits
    /// for either.
    fn awaits(&self, stop: BorrowedFd<'_>) -> io::Result<Awaited> {
        for event in [PollFlags::IN, PollFlags::OUT] {
            let mut fds = [
                PollFd::from_borrowed_fd(stop, PollFlags::IN),
                PollFd::new(&self.socket, event),
            ];
            while let Err(error) = poll(&mut fds, None) {
                if error != rustix::io::Errno::INTR {
                    return Err(error.into());
                }
            }
            if !fds[0].revents().is_empty() {
                return Ok(Awaited::Stop);
            }
        }
        self.peek()
    }

    /// Looks at the next message, or the end. All of it has to be there: monitors send each by one
    /// call.
    fn peek(&self) -> io::Result<Awaited> {
        /// More than that is refused by the handler.
        const MOST: usize = 4096;
        let mut bytes = [0; HEADER + MOST];
        let (_, len) = recv(&self.socket, &mut bytes, RecvFlags::PEEK)?;
        let size = bytes[8..]
            .first_chunk()
            .map(|size| u32::from_le_bytes(*size));
        let whole = HEADER + (size.unwrap_or(0) as usize).min(MOST);
        if len != 0 && len < whole {
            return Err(io::Error::new(
                ErrorKind::InvalidData,
                "expected a whole message at once",
            ));
        }
        let padded = Padded::parse(bytes.get(..len).unwrap_or_default());
        Ok(padded.map_or(Awaited::Message, Awaited::Padded))
    }

    /// Does as a memory table with padding says. Errs if the connection is to end.
    fn set_padded(&self, table: &Padded) -> io::Result<()> {
        let regions = table.receive(&self.socket)?;
        let mut control = self.control.lock().expect("no panic holds it");
        let done = Memory::map(regions).map(|memory| control.set_memory(memory));
        if let Err(error) = &done {
            tracing::warn!("vhost-user: {error}");
        }
        match control.replies {
            true => table.answer(&self.socket, done.is_ok()),
            false => Ok(()),
        }
    }
}

/// The next event of a connection.
enum Awaited {
    /// A message for the handler, or the end.
    Message,
    /// A memory table that the handler would refuse.
    Padded(Padded),
    /// To end.
    Stop,
}

/// The state of a connection.
struct Control {
    name: String,
    config: Config,
    drive: Arc<Drive>,
    /// Those agreed on.
    features: u64,
    /// Whether messages are answered that ask for it (`REPLY_ACK`).
    replies: bool,
    memory: Arc<Memory>,
    queues: Vec<Slot>,
}

/// A queue, as far as the monitor has said.
#[derive(Default)]
struct Slot {
    size: u16,
    addresses: Option<Addresses>,
    next_avail: u16,
    kick: Option<OwnedFd>,
    call: Option<OwnedFd>,
    enabled: bool,
    running: Option<(Arc<Running>, Stop)>,
}

/// Where its parts are to the monitor.
#[derive(Clone, Copy)]
struct Addresses {
    descriptors: u64,
    available: u64,
    used: u64,
}

/// The most regions of memory: as many as libvhost-user takes.
const REGIONS: usize = 509;

/// The longest queue.
const LONGEST: u16 = 1024;

impl Control {
    /// Those of every device.
    const FEATURES: u64 =
        VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits() | VERSION_1 | EVENT_IDX | INDIRECT_DESC;

    fn offered(&self) -> u64 {
        Control::FEATURES | self.config.features
    }

    fn slot(&mut self, index: u32) -> Result<&mut Slot> {
        self.queues
            .get_mut(index as usize)
            .ok_or(Error::InvalidParam)
    }

    /// Starts a queue once all of it is known.
    fn start_if_ready(&mut self, index: u32) -> Result<()> {
        let event_idx = self.features & EVENT_IDX != 0;
        let (memory, drive) = (self.memory.clone(), self.drive.clone());
        let name = format!("{}/{index}", self.name);
        let slot = self.slot(index)?;
        let (Some(addresses), None, true) = (slot.addresses, &slot.running, slot.enabled) else {
            return Ok(());
        };
        if slot.kick.is_none() || slot.size == 0 {
            return Ok(());
        }
        let queue = queue(&memory, slot, addresses, event_idx)?;
        let Some(kick) = slot.kick.take() else {
            return Ok(());
        };
        let again = kick.try_clone().map_err(Error::ReqHandlerError)?;
        let call = slot.call.take();
        let running =
            Running::new(name, queue, memory, kick, call).map_err(Error::ReqHandlerError)?;
        let running = Arc::new(running);
        // For when it is disabled and enabled once more.
        slot.kick = Some(again);
        let stop = drive(index as usize, running.clone()).map_err(Error::ReqHandlerError)?;
        slot.running = Some((running, stop));
        Ok(())
    }

    fn stop(&mut self, index: u32) -> Result<()> {
        let slot = self.slot(index)?;
        if let Some((running, stop)) = slot.running.take() {
            running.stop();
            stop();
            slot.next_avail = running.next_avail();
            slot.call = running.take_call();
        }
        Ok(())
    }

    fn stop_all(&mut self) {
        for index in 0..self.queues.len() {
            // The index is one there is.
            let _ = self.stop(index as u32);
        }
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

/// A queue as the monitor has described it.
fn queue(memory: &Memory, slot: &Slot, at: Addresses, event_idx: bool) -> Result<Queue> {
    let wrong = |error: virtio_queue::Error| invalid(&error.to_string());
    let guest = |address| {
        memory
            .guest_address(address)
            .ok_or_else(|| invalid("a queue outside the guest's memory"))
    };
    let mut queue = Queue::new(LONGEST).map_err(wrong)?;
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
        return Err(invalid("a queue that reaches beyond the guest's memory"));
    }
    // What was given back is the guest's to know: a monitor tells only what was taken.
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
        self.queues
            .iter_mut()
            .for_each(|slot| *slot = Slot::default());
        Ok(())
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(self.offered())
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        if features & !self.offered() != 0 {
            return Err(Error::InvalidParam);
        }
        self.features = features;
        // Without these there is no message to enable a queue by.
        if features & VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits() == 0 {
            for index in 0..self.queues.len() as u32 {
                self.slot(index)?.enabled = true;
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
        let configured = !self.config.space.is_empty();
        features.set(VhostUserProtocolFeatures::CONFIG, configured);
        Ok(features)
    }

    fn set_protocol_features(&mut self, features: u64) -> Result<()> {
        self.replies = features & VhostUserProtocolFeatures::REPLY_ACK.bits() != 0;
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
        Ok(REGIONS as u64)
    }

    fn add_mem_region(
        &mut self,
        region: &VhostUserSingleMemoryRegion,
        file: File,
        _: Option<bool>,
    ) -> Result<Option<VhostUserMemoryRegionBase>> {
        if self.memory.regions() >= REGIONS {
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
        if !size.is_power_of_two() || size > LONGEST {
            return Err(Error::InvalidParam);
        }
        self.slot(index)?.size = size;
        Ok(())
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        _: VhostUserVringAddrFlags,
        descriptors: u64,
        used: u64,
        available: u64,
        _: u64,
    ) -> Result<()> {
        self.slot(index)?.addresses = Some(Addresses {
            descriptors,
            available,
            used,
        });
        self.start_if_ready(index)
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        self.slot(index)?.next_avail = base as u16;
        Ok(())
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        self.stop(index)?;
        let slot = self.slot(index)?;
        (slot.kick, slot.call) = (None, None);
        Ok(VhostUserVringState::new(index, slot.next_avail.into()))
    }

    fn set_vring_kick(&mut self, index: u8, file: Option<File>) -> Result<()> {
        let index = u32::from(index);
        self.stop(index)?;
        self.slot(index)?.kick = file.map(OwnedFd::from);
        self.start_if_ready(index)
    }

    fn set_vring_call(&mut self, index: u8, file: Option<File>) -> Result<()> {
        let slot = self.slot(index.into())?;
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
        self.slot(index)?.enabled = enable;
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
        let bytes = self.config.space.get(start..end);
        bytes.map(<[u8]>::to_vec).ok_or(Error::InvalidParam)
    }

    fn set_config(&mut self, _: u32, _: &[u8], _: VhostUserConfigFlags) -> Result<()> {
        Err(Error::InvalidOperation("the configuration is read-only"))
    }

    fn set_backend_req_fd(&mut self, _: Backend) {}

    fn set_gpu_socket(&mut self, _: GpuBackend) -> Result<()> {
        Err(Error::InvalidOperation("this is no graphics device"))
    }

    fn get_shared_object(&mut self, _: VhostUserSharedMsg) -> Result<File> {
        Err(Error::InvalidOperation("there are no shared objects"))
    }

    fn get_inflight_fd(&mut self, _: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        Err(Error::InvalidOperation(
            "requests in flight are not recorded",
        ))
    }

    fn set_inflight_fd(&mut self, _: &VhostUserInflight, _: File) -> Result<()> {
        Err(Error::InvalidOperation(
            "requests in flight are not recorded",
        ))
    }

    fn set_device_state_fd(
        &mut self,
        _: VhostTransferStateDirection,
        _: VhostTransferStatePhase,
        _: File,
    ) -> Result<Option<File>> {
        Err(Error::InvalidOperation("the device's state does not move"))
    }

    fn check_device_state(&mut self) -> Result<()> {
        Err(Error::InvalidOperation("the device's state does not move"))
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        Ok(VhostUserShMemConfig::new(0, &[]))
    }

    fn set_log_base(&mut self, _: &VhostUserLog, _: File) -> Result<()> {
        Err(Error::InvalidOperation("dirty pages are not logged"))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{IoSlice, Read};
    use std::os::fd::AsFd;

    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

    use super::*;

    /// A device, what it has learned, and the monitor's end of its connection.
    struct Bench {
        monitor: UnixStream,
        control: Arc<Mutex<Control>>,
        device: std::thread::JoinHandle<io::Result<()>>,
        /// Ends it when dropped.
        _stop: UnixStream,
    }

    fn bench() -> Bench {
        let (monitor, socket) = UnixStream::pair().expect("a pair");
        let (ours, stop) = UnixStream::pair().expect("a pair");
        let config = Config {
            queues: 2,
            features: 0,
            space: Vec::new(),
        };
        let drive: Arc<Drive> = Arc::new(|_, _| Ok(Box::new(|| {})));
        let device = Device::new(socket, "test", config, drive).expect("a device");
        let control = device.control.clone();
        Bench {
            monitor,
            control,
            device: std::thread::spawn(move || device.run(stop.as_fd())),
            _stop: ours,
        }
    }

    impl Bench {
        fn send(&self, request: u32, flags: u32, body: &[u64], files: &[&File]) {
            let head = [request, flags, body.len() as u32 * 8].map(u32::to_ne_bytes);
            let body: Vec<_> = body.iter().map(|number| number.to_ne_bytes()).collect();
            let message = [head.as_flattened(), body.as_flattened()].concat();
            let files: Vec<_> = files.iter().map(|file| file.as_fd()).collect();
            let mut space = vec![std::mem::MaybeUninit::uninit(); 256];
            let mut rights = SendAncillaryBuffer::new(&mut space);
            assert!(rights.push(SendAncillaryMessage::ScmRights(&files)));
            let parts = [IoSlice::new(&message)];
            let sent = sendmsg(&self.monitor, &parts, &mut rights, SendFlags::empty());
            assert_eq!(sent, Ok(message.len()));
        }

        /// The value of the answer to `request`.
        fn answer(&mut self, request: u32) -> u64 {
            let mut answer = [0; 20];
            self.monitor.read_exact(&mut answer).expect("an answer");
            let number = |at: usize| u32::from_ne_bytes(*answer[at..].first_chunk().expect("4"));
            assert_eq!((number(0), number(4), number(8)), (request, 5, 8));
            u64::from_ne_bytes(*answer[12..].first_chunk().expect("8"))
        }

        /// Agrees on answers.
        fn agree(&mut self) {
            const GET_FEATURES: u32 = 1;
            const SET_PROTOCOL_FEATURES: u32 = 16;
            self.send(GET_FEATURES, 1, &[], &[]);
            let features = self.answer(GET_FEATURES);
            assert!(features & VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits() != 0);
            let replies = VhostUserProtocolFeatures::REPLY_ACK.bits();
            self.send(SET_PROTOCOL_FEATURES, 1, &[replies], &[]);
        }

        fn guest_address(&self, monitor: u64) -> Option<u64> {
            let control = self.control.lock().expect("no panic holds it");
            control
                .memory
                .guest_address(monitor)
                .map(|address| address.0)
        }
    }

    fn memory() -> File {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(8192).expect("room");
        file
    }

    const SET_MEM_TABLE: u32 = 5;
    const NEED_REPLY: u32 = 1 | 1 << 3;
    /// At 0x1000 in the guest and at 0x5000 in the monitor, from the file's second page.
    const REGION: [u64; 4] = [0x1000, 0x1000, 0x5000, 0x1000];

    fn table(count: u64, regions: &[[u64; 4]]) -> Vec<u64> {
        [&[count][..], regions.as_flattened()].concat()
    }

    /// As user-mode Linux without high memory sends it: room for two regions, one of them counted.
    #[test]
    fn a_memory_table_may_be_padded() {
        let file = memory();
        let mut bench = bench();
        bench.agree();
        let padding = [0, 0, 0, 0];
        let garbage = [u64::MAX, 0, u64::MAX, u64::MAX];
        for (body, files) in [
            (table(1, &[REGION, padding]), &[&file][..]),
            (table(1, &[REGION, garbage]), &[&file]),
            (table(2, &[garbage, REGION]), &[&file, &file]),
        ] {
            bench.send(SET_MEM_TABLE, NEED_REPLY, &body, files);
            assert_eq!(bench.answer(SET_MEM_TABLE), 0);
            assert_eq!(bench.guest_address(0x5010), Some(0x1010));
            let regions = bench.control.lock().expect("free").memory.regions();
            assert_eq!(regions, 1);
        }
        // One that is beyond the end of its file is refused, and the connection goes on.
        let beyond = [0x1000, 0x2000, 0x5000, 0x1000];
        bench.send(
            SET_MEM_TABLE,
            NEED_REPLY,
            &table(1, &[beyond, padding]),
            &[&file],
        );
        assert_eq!(bench.answer(SET_MEM_TABLE), 1);
        assert_eq!(bench.guest_address(0x5010), Some(0x1010));
        // Without a wish for an answer there is none: the next one is of the next message.
        bench.send(SET_MEM_TABLE, 1, &table(1, &[REGION, padding]), &[&file]);
        bench.agree();
    }

    #[test]
    fn a_memory_table_with_other_padding_ends_the_connection() {
        let file = memory();
        let good = [0, 0, 0, 0];
        let full = [0x3000, 0x1000, 0x7000, 0];
        for (body, files) in [
            // What is not counted has a size.
            (table(1, &[REGION, full]), &[&file][..]),
            // Files that nobody counts, or none for what is counted.
            (table(1, &[REGION, good]), &[&file, &file]),
            (table(2, &[REGION, good]), &[&file]),
            (table(1, &[REGION, good]), &[]),
            // No region at all.
            (table(1, &[good, good]), &[&file]),
            // Beyond the end of all addresses.
            (table(1, &[[u64::MAX, 0x1000, 0, 0], good]), &[&file]),
            (table(1, &[[0, 0x1000, 0, u64::MAX], good]), &[&file]),
        ] {
            let bench = bench();
            bench.send(SET_MEM_TABLE, 1, &body, files);
            let ended = bench.device.join().expect("no panic");
            assert!(ended.is_err(), "{body:x?}");
            let control = bench.control.lock().expect("free");
            assert_eq!(control.memory.regions(), 0, "{body:x?}");
        }
    }
}
