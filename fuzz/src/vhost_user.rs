//! A vhost-user device with a monitor that sends any messages, with any descriptors.
//!
//! A script is a byte for the way in which the connection begins, followed by steps, each with a
//! byte for its kind. Messages are mostly valid, so that the device gets far, and then changed. The
//! monitor knows where the device sees the end of each message, so it also knows the number of
//! GET_FEATURES that are answered: it waits for the answer to one more after each message. The
//! rings that the device starts are served on the script's thread.
//!
//! The device's thread never accesses memory that was truncated after it was mapped, which is a
//! `SIGBUS` (`docs/design/virtiofs.md`): no ring is started or served until it has grown again.

use std::fs::{self, File};
use std::io::{ErrorKind, IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use arbitrary::{Result, Unstructured};
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, Mode, OFlags, ftruncate, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::pipe::{PipeFlags, pipe_with};
use transports::Ring;
use virtqueue::{Device, DeviceConfig, JoinRing};

/// The time after which a device that does not answer, or stop, hangs.
const LIMIT: Duration = Duration::from_secs(8);

/// Plays the script `data`: the device answers each message or ends the connection, it stops at its
/// stop event, and neither descriptors nor mappings remain.
pub fn script(data: &[u8]) {
    let mut input = Unstructured::new(data);
    let (ours, theirs) = UnixStream::pair().expect("a socket pair");
    ours.set_read_timeout(Some(LIMIT)).expect("a timeout");
    let stop = eventfd(0, EventfdFlags::CLOEXEC).expect("an event");
    let rings = Arc::new(Mutex::new(Vec::new()));
    let started = rings.clone();
    let drive = move |_, ring| -> std::io::Result<JoinRing> {
        started.lock().push(ring);
        // The script has returned all requests by then.
        Ok(Box::new(|| ()))
    };
    let config = DeviceConfig {
        queues: 2,
        features: 1,
        config_space: (0..60).collect(),
        repeats_requests: true,
    };
    let mut device = Device::new(theirs, "fuzz", config, Arc::new(drive)).expect("a device");
    let mut monitor = Monitor::new(ours, rings);
    // The end of the input is the end of the script. So is the end of the connection.
    let early = begin(&mut input, &mut monitor).unwrap_or_default();
    let monitor = std::thread::scope(|scope| {
        // A device that hangs ends with the connection, after this closure.
        let mut monitor = monitor;
        let (ended, end) = mpsc::channel::<()>();
        let stopped = stop.as_fd();
        let device = scope.spawn(move || {
            // Any error is the monitor's.
            let _ = device.run(stopped);
            drop(device);
            drop(ended);
        });
        let _ = play(&mut input, &mut monitor, &early);
        rustix::io::write(&stop, &1u64.to_ne_bytes()).expect("an event");
        let end = end.recv_timeout(LIMIT);
        let is_stopped = end == Err(mpsc::RecvTimeoutError::Disconnected);
        assert!(is_stopped, "the device does not stop");
        device.join().expect("the device does not panic");
        monitor
    });
    monitor.close();
}

/// The requests of a front end.
mod request {
    pub(super) const GET_FEATURES: u32 = 1;
    pub(super) const SET_FEATURES: u32 = 2;
    pub(super) const SET_MEM_TABLE: u32 = 5;
    pub(super) const SET_LOG_BASE: u32 = 6;
    pub(super) const SET_VRING_NUM: u32 = 8;
    pub(super) const SET_VRING_ADDR: u32 = 9;
    pub(super) const SET_VRING_BASE: u32 = 10;
    pub(super) const GET_VRING_BASE: u32 = 11;
    pub(super) const SET_VRING_KICK: u32 = 12;
    pub(super) const SET_VRING_CALL: u32 = 13;
    pub(super) const SET_VRING_ERR: u32 = 14;
    pub(super) const SET_PROTOCOL_FEATURES: u32 = 16;
    pub(super) const SET_VRING_ENABLE: u32 = 18;
    pub(super) const SET_BACKEND_REQ_FD: u32 = 21;
    pub(super) const GET_CONFIG: u32 = 24;
    pub(super) const SET_CONFIG: u32 = 25;
    pub(super) const GET_INFLIGHT_FD: u32 = 31;
    pub(super) const SET_INFLIGHT_FD: u32 = 32;
    pub(super) const ADD_MEM_REG: u32 = 37;
    pub(super) const REM_MEM_REG: u32 = 38;
    pub(super) const SET_DEVICE_STATE_FD: u32 = 42;

    /// The requests that may start a queue.
    pub(super) const STARTERS: [u32; 4] = [
        SET_FEATURES,
        SET_VRING_ADDR,
        SET_VRING_KICK,
        SET_VRING_ENABLE,
    ];
}

/// The header size.
const HEADER: usize = 12;

/// The maximum size of a body that the device accepts.
const MAX_BODY: usize = 4096;

/// The maximum number of messages that are sent before their replies are read: all of them fit into
/// the buffer of the socket.
const MAX_UNREAD: usize = 32;

/// The address of the memory, in the guest and in the monitor.
const BASE: u64 = 1 << 32;

const PAGE: u64 = 4096;

/// The device's connection ended.
struct Ended;

impl From<Ended> for arbitrary::Error {
    fn from(_: Ended) -> arbitrary::Error {
        arbitrary::Error::NotEnoughData
    }
}

struct Monitor {
    socket: UnixStream,
    rings: Arc<Mutex<Vec<Arc<dyn Ring>>>>,
    /// The number of replies to GET_FEATURES that must still arrive.
    awaited: usize,
    /// The number of messages since the last wait.
    unread: usize,
    /// The guest's memory, with the size of each file in bytes.
    memory: Vec<(File, u64)>,
    /// The events that are sent, so that their numbers are not given to others.
    events: Vec<OwnedFd>,
    /// Whether a file was truncated and has not grown again.
    truncated: bool,
    /// Whether a guest's event may be full, so that signals block until the device is stopped.
    full: bool,
    /// The names of all descriptors that the device received, as [`name`] returns them.
    sent: Vec<String>,
}

impl Monitor {
    fn new(socket: UnixStream, rings: Arc<Mutex<Vec<Arc<dyn Ring>>>>) -> Monitor {
        let mut monitor = Monitor {
            socket,
            rings,
            awaited: 0,
            unread: 0,
            memory: Vec::new(),
            events: (0..6).map(new_event).collect(),
            truncated: false,
            full: false,
            sent: Vec::new(),
        };
        for pages in [16, 1] {
            monitor.add_memory(pages * PAGE);
        }
        monitor
    }

    /// Creates a file of guest memory, with a name of its own.
    fn add_memory(&mut self, size: u64) {
        static CREATED: AtomicU64 = AtomicU64::new(0);
        let number = CREATED.fetch_add(1, Ordering::Relaxed);
        let file = memfd_create(format!("fuzz-{number}"), MemfdFlags::CLOEXEC).expect("a file");
        ftruncate(&file, size).expect("a size");
        self.memory.push((file.into(), size));
    }

    /// Changes the sizes of all memory.
    fn resize(&mut self, truncated: bool) {
        self.truncated = truncated;
        for (file, size) in &self.memory {
            ftruncate(file, if truncated { size / 2 } else { *size }).expect("a size");
        }
    }

    /// Sends whole messages, or bytes after which the device ends the connection.
    fn send(&mut self, bytes: &[u8], files: &[OwnedFd]) -> std::result::Result<(), Ended> {
        self.transmit(bytes, files)?;
        self.expect_replies(bytes)
    }

    /// Sends bytes with descriptors, in one call.
    fn transmit(&mut self, bytes: &[u8], files: &[OwnedFd]) -> std::result::Result<(), Ended> {
        self.sent.extend(files.iter().filter_map(name));
        let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
        let mut rights = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            assert!(rights.push(SendAncillaryMessage::ScmRights(&files)));
        }
        let pieces = [IoSlice::new(bytes)];
        let sent = sendmsg(&self.socket, &pieces, &mut rights, SendFlags::NOSIGNAL);
        // The device has closed its end.
        let sent = sent.map_err(|_| Ended)?;
        assert_eq!(sent, bytes.len(), "the socket has room");
        Ok(())
    }

    /// Counts the replies to these bytes. If the last message is cut, waits for the end of the
    /// connection.
    fn expect_replies(&mut self, bytes: &[u8]) -> std::result::Result<(), Ended> {
        let (requests, whole) = requests(bytes);
        let is_awaited = |request: &&u32| **request == request::GET_FEATURES;
        self.awaited += requests.iter().filter(is_awaited).count();
        self.unread += requests.len();
        if whole {
            return Ok(());
        }
        while self.receive().is_ok() {}
        Err(Ended)
    }

    /// Waits until the device has served all messages.
    fn wait(&mut self) -> std::result::Result<(), Ended> {
        self.send(&message(request::GET_FEATURES, 1, &[]), &[])?;
        while self.awaited > 0 {
            self.receive()?;
        }
        self.unread = 0;
        Ok(())
    }

    /// Receives a reply.
    fn receive(&mut self) -> std::result::Result<(), Ended> {
        let mut header = [0; HEADER];
        self.read(&mut header)?;
        let [request, flags, size] = numbers(&header);
        assert_eq!(flags, 1 | 1 << 2, "a reply to {request}");
        let mut body = vec![0; size as usize];
        assert!(body.len() <= MAX_BODY);
        self.read(&mut body)?;
        if request == request::GET_FEATURES {
            self.awaited -= 1;
        }
        Ok(())
    }

    fn read(&mut self, bytes: &mut [u8]) -> std::result::Result<(), Ended> {
        match self.socket.read_exact(bytes) {
            Ok(()) => Ok(()),
            Err(error) if [ErrorKind::WouldBlock, ErrorKind::TimedOut].contains(&error.kind()) => {
                panic!("the device does not answer")
            }
            Err(_) => Err(Ended),
        }
    }

    /// Closes all descriptors. The device must have closed its own.
    fn close(self) {
        let sent = self.sent;
        drop((self.socket, self.rings, self.memory));
        if sent.is_empty() {
            return;
        }
        let open = fs::read_dir("/proc/self/fd").expect("descriptors");
        let open = open.filter_map(|entry| name_at(entry.ok()?.file_name().to_str()?));
        let mut left: Vec<_> = open.filter(|name| sent.contains(name)).collect();
        for ours in self.events.iter().filter_map(name) {
            if let Some(at) = left.iter().position(|name| *name == ours) {
                left.remove(at);
            }
        }
        assert!(left.is_empty(), "descriptors remain open: {left:?}");
        let maps = fs::read_to_string("/proc/self/maps").expect("mappings");
        let mut memory = sent.iter().filter(|name| name.starts_with("/memfd:"));
        let mapped = memory.find(|name| maps.contains(name.as_str()));
        assert_eq!(mapped, None, "memory remains mapped");
    }
}

/// Returns the requests of the messages in `bytes`, and whether the last one is whole.
fn requests(bytes: &[u8]) -> (Vec<u32>, bool) {
    let (mut requests, mut rest) = (Vec::new(), bytes);
    while let Some((header, more)) = rest.split_first_chunk::<HEADER>() {
        let [request, _, size] = numbers(header);
        let Some((_, more)) = more.split_at_checked(size as usize) else {
            break;
        };
        requests.push(request);
        rest = more;
    }
    (requests, rest.is_empty())
}

fn numbers(header: &[u8; HEADER]) -> [u32; 3] {
    let (numbers, _) = header.as_chunks();
    [0, 1, 2].map(|at: usize| u32::from_ne_bytes(numbers[at]))
}

/// Returns a name of an open file that no other has, if it is of a kind of which each has one.
fn name(file: &OwnedFd) -> Option<String> {
    name_at(&file.as_raw_fd().to_string())
}

/// Returns the name of this descriptor of the process.
fn name_at(number: &str) -> Option<String> {
    let link = fs::read_link(format!("/proc/self/fd/{number}")).ok()?;
    let link = link.to_str()?.to_owned();
    if link == "anon_inode:[eventfd]" {
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{number}")).ok()?;
        let id = info.lines().find(|line| line.starts_with("eventfd-id"));
        return id.map(str::to_owned);
    }
    let kinds = ["/memfd:fuzz-", "pipe:", "socket:"];
    let counts = kinds.iter().any(|kind| link.starts_with(kind));
    // The mark of a removed file is not part of the name.
    counts.then(|| link.trim_end_matches(" (deleted)").to_owned() + " ")
}

/// The maximum number of descriptors with a message: more than the device accepts.
const MAX_FILES: usize = 40;

/// Returns a descriptor of any kind.
fn file(input: &mut Unstructured<'_>, monitor: &mut Monitor) -> Result<OwnedFd> {
    let open = |path, flags| {
        let flags = flags | OFlags::CLOEXEC;
        rustix::fs::open(path, flags, Mode::empty()).expect("a device")
    };
    Ok(match input.arbitrary::<u8>()? % 24 {
        0..=7 => {
            if input.ratio(1u8, 8)? && monitor.memory.len() < 8 {
                let pages = u64::from(input.arbitrary::<u8>()? % 33);
                monitor.add_memory(pages * PAGE);
            }
            memory(input, monitor)?
        }
        8..=16 => event_of(monitor, input.arbitrary()?),
        17 => pipe_with(PipeFlags::CLOEXEC).expect("a pipe").0,
        18 => pipe_with(PipeFlags::CLOEXEC).expect("a pipe").1,
        19 => UnixStream::pair().expect("a pair").0.into(),
        20 => open("/dev/null", OFlags::RDWR),
        21 => open("/dev/zero", OFlags::RDWR),
        22 => open("/", OFlags::RDONLY),
        _ => open("/", OFlags::PATH),
    })
}

/// Returns another descriptor of guest memory.
fn memory(input: &mut Unstructured<'_>, monitor: &Monitor) -> Result<OwnedFd> {
    let at = match input.arbitrary::<u8>()? {
        0..=191 => 0,
        other => usize::from(other) % monitor.memory.len(),
    };
    let file = monitor.memory[at].0.try_clone();
    Ok(file.expect("another descriptor").into())
}

/// Creates the event with this number. The last one is full, and blocks.
fn new_event(number: u8) -> OwnedFd {
    match number {
        0..5 => {
            let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
            eventfd(0, flags).expect("an event")
        }
        _ => {
            let event = eventfd(0, EventfdFlags::CLOEXEC).expect("an event");
            rustix::io::write(&event, &(u64::MAX - 1).to_ne_bytes()).expect("a number");
            event
        }
    }
}

/// Returns another descriptor of an event.
fn event_of(monitor: &mut Monitor, number: u8) -> OwnedFd {
    let at = match number {
        0..=239 => usize::from(number) % (monitor.events.len() - 1),
        _ => monitor.events.len() - 1,
    };
    monitor.full |= at == monitor.events.len() - 1;
    monitor.events[at].try_clone().expect("another descriptor")
}

/// Returns an event, as a front end passes it, or any descriptor.
fn event(input: &mut Unstructured<'_>, monitor: &mut Monitor) -> Result<OwnedFd> {
    match input.arbitrary::<u8>()? {
        number @ 0..=223 => Ok(event_of(monitor, number)),
        240.. => Ok(event_of(monitor, u8::MAX)),
        _ => file(input, monitor),
    }
}

fn message(request: u32, flags: u32, body: &[u8]) -> Vec<u8> {
    let header = [request, flags, body.len() as u32].map(u32::to_ne_bytes);
    [header.as_flattened(), body].concat()
}

/// Sends a message before the device starts, in two pieces with descriptors of their own: both have
/// arrived when it looks for the first one. Returns the bytes.
fn begin(input: &mut Unstructured<'_>, monitor: &mut Monitor) -> Result<Vec<u8>> {
    if input.arbitrary::<u8>()? < 224 {
        return Ok(Vec::new());
    }
    let (bytes, files) = any(input, monitor)?;
    let at = input.int_in_range(0..=bytes.len())?;
    let others = (0..input.arbitrary::<u8>()? % 4).map(|_| file(input, monitor));
    let others = others.collect::<Result<Vec<_>>>()?;
    let (one, other) = bytes.split_at(at);
    for (piece, files) in [(one, files), (other, others)] {
        if !piece.is_empty() {
            monitor.transmit(piece, &files)?;
        }
    }
    Ok(bytes)
}

fn play(input: &mut Unstructured<'_>, monitor: &mut Monitor, early: &[u8]) -> Result<()> {
    monitor.expect_replies(early)?;
    while !input.is_empty() {
        match input.arbitrary::<u8>()? {
            kind @ 0..=159 => {
                let (bytes, files) = any(input, monitor)?;
                let starts = |request: &u32| request::STARTERS.contains(request);
                if monitor.truncated && requests(&bytes).0.iter().any(starts) {
                    continue;
                }
                monitor.send(&bytes, &files)?;
                drop(files);
                if kind % 4 > 0 || monitor.unread >= MAX_UNREAD {
                    monitor.wait()?;
                }
            }
            160..=167 => {
                let len = usize::from(input.arbitrary::<u8>()?).min(input.len());
                let bytes = input.bytes(len)?;
                // It may be a message that starts a queue.
                if !monitor.truncated && !bytes.is_empty() {
                    monitor.send(bytes, &[])?;
                    monitor.wait()?;
                }
            }
            168..=183 => {
                monitor.wait()?;
                monitor.resize(!monitor.truncated);
            }
            184..=219 => {
                monitor.wait()?;
                let at = u64::from(input.arbitrary::<u16>()?);
                let len = usize::from(input.arbitrary::<u8>()? % 33).min(input.len());
                let (memory, size) = &monitor.memory[0];
                if !monitor.truncated && at + len as u64 <= *size {
                    memory.write_all_at(input.bytes(len)?, at).expect("memory");
                }
            }
            _ => {
                monitor.wait()?;
                if !monitor.truncated {
                    serve(monitor);
                }
            }
        }
    }
    monitor.wait()?;
    Ok(())
}

/// Returns some of the requests that rings have, without serving them.
fn serve(monitor: &Monitor) {
    let rings = monitor.rings.lock().clone();
    for ring in rings {
        for _ in 0..4 {
            let Ok(Some(mut exchange)) = ring.pop(&|head| Some(head.len())) else {
                break;
            };
            let (message, out) = exchange.split();
            assert!(message.bytes().len() <= message.size());
            let len = out.room().min(4);
            out.bytes(&[0x5a; 4][..len]);
            ring.push_used(exchange);
        }
        // A stopped ring notes that a signal is due.
        let is_stopped = matches!(ring.wait(false), Ok(false));
        if is_stopped || !monitor.full {
            ring.signal();
            let _ = ring.enable_notifications();
        }
    }
}

/// Returns a message, mostly valid, with descriptors.
fn any(input: &mut Unstructured<'_>, monitor: &mut Monitor) -> Result<(Vec<u8>, Vec<OwnedFd>)> {
    let request = match input.arbitrary::<u8>()? {
        known @ 0..=223 => KNOWN[usize::from(known) % KNOWN.len()],
        other => (u32::from(other) - 224) * 2,
    };
    let flags = match input.arbitrary::<u8>()? {
        0..=119 => 1,
        120..=239 => 1 | 1 << 3,
        other => u32::from(other & 15) << (other >> 2 & 4),
    };
    let mut body = Vec::new();
    let mut files = Vec::new();
    fill(request, input, monitor, &mut body, &mut files)?;
    let mut bytes = message(request, flags, &body);
    match input.arbitrary::<u8>()? {
        // A byte is changed.
        0..=7 => {
            let at = input.choose_index(bytes.len())?;
            bytes[at] = input.arbitrary()?;
        }
        // The message is longer or shorter than its size says.
        8..=11 => bytes.truncate(input.int_in_range(1..=bytes.len())?),
        12..=15 => bytes.extend_from_slice(&[1; 20][..input.int_in_range(0..=20)?]),
        // Its body is longer or shorter.
        16..=19 => {
            body.resize(input.int_in_range(0..=body.len() + 40)?, 0);
            bytes = message(request, flags, &body);
        }
        // It has other descriptors.
        20..=23 => files.clear(),
        24..=31 => files.push(file(input, monitor)?),
        32..=33 => {
            let more = input.int_in_range(0..=MAX_FILES - files.len())?;
            let file = file(input, monitor)?;
            let copies = (0..more).map(|_| file.try_clone().expect("a descriptor"));
            files.extend(copies);
        }
        _ => {}
    }
    Ok((bytes, files))
}

/// The requests that a device serves, and others that take descriptors.
const KNOWN: [u32; 28] = [
    1, 2, 3, 4, 5, 5, 6, 8, 9, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 18, 21, 24, 25, 34, 36, 37,
    38, 42,
];

/// Appends the body of a request, and the descriptors that it needs.
fn fill(
    request: u32,
    input: &mut Unstructured<'_>,
    monitor: &mut Monitor,
    body: &mut Vec<u8>,
    files: &mut Vec<OwnedFd>,
) -> Result<()> {
    let mut put = |numbers: &[u64]| body.extend(numbers.iter().flat_map(|n| n.to_ne_bytes()));
    match request {
        request::SET_FEATURES => {
            let (common, all): (u8, u64) = input.arbitrary()?;
            /// The features of queues, and that of protocol features.
            const COMMON: u64 = 1 << 32 | 0x7000_0000 | 1;
            put(&[if common < 240 {
                COMMON & !(1 << (common % 32))
            } else {
                all
            }]);
        }
        request::SET_PROTOCOL_FEATURES => {
            let (common, all): (u8, u64) = input.arbitrary()?;
            put(&[if common < 192 { u64::MAX } else { all }]);
        }
        request::SET_MEM_TABLE => {
            let counted = match input.arbitrary::<u8>()? {
                many @ 250.. => u64::from(many) - 220,
                few => u64::from(few % 4),
            };
            put(&[counted]);
            for _ in 0..counted {
                put(&region(input)?);
                files.push(memory(input, monitor)?);
            }
            // Padding, as of front ends that send room for more regions.
            if input.ratio(1u8, 8)? {
                put(&[0; 4]);
            }
        }
        request::ADD_MEM_REG | request::REM_MEM_REG => {
            put(&[0]);
            put(&region(input)?);
            if request == request::ADD_MEM_REG {
                files.push(memory(input, monitor)?);
            }
        }
        request::SET_VRING_NUM | request::SET_VRING_BASE | request::SET_VRING_ENABLE => {
            let (index, common): (u8, u8) = input.arbitrary()?;
            let number = match request {
                _ if common >= 240 => input.arbitrary()?,
                request::SET_VRING_NUM => 1 << (common % 12),
                request::SET_VRING_BASE => u32::from(common % 4),
                _ => u32::from(common % 4 > 0),
            };
            put(&[u64::from(index % 9 / 4) | u64::from(number) << 32]);
        }
        request::GET_VRING_BASE => put(&[u64::from(input.arbitrary::<u8>()? % 9 / 4)]),
        request::SET_VRING_ADDR => {
            let (index, flags): (u8, u8) = input.arbitrary()?;
            put(&[u64::from(index % 9 / 4) | u64::from(flags / 250) << 32]);
            for align in [16, 4, 2] {
                let (common, at): (u8, u16) = input.arbitrary()?;
                put(&[match common {
                    0..=239 => BASE + (u64::from(at) & !(align - 1)),
                    _ => input.arbitrary()?,
                }]);
            }
            put(&[0]);
        }
        request::SET_VRING_KICK | request::SET_VRING_CALL | request::SET_VRING_ERR => {
            let index = input.arbitrary::<u8>()?;
            let without = index >= 224;
            put(&[u64::from(index % 9 / 4) | u64::from(without) << 8]);
            if !without {
                files.push(event(input, monitor)?);
            }
        }
        request::GET_CONFIG | request::SET_CONFIG => {
            let (offset, size, flags): (u8, u8, u8) = input.arbitrary()?;
            put(&[u64::from(offset % 64) | u64::from(size) << 32]);
            body.extend(u32::from(flags / 64).to_ne_bytes());
            body.resize(12 + usize::from(size), 0);
        }
        request::SET_LOG_BASE => {
            put(&[input.arbitrary()?, input.arbitrary()?]);
            files.push(memory(input, monitor)?);
        }
        request::GET_INFLIGHT_FD | request::SET_INFLIGHT_FD => {
            put(&[input.arbitrary()?, input.arbitrary()?, input.arbitrary()?]);
            files.push(memory(input, monitor)?);
        }
        request::SET_BACKEND_REQ_FD | request::SET_DEVICE_STATE_FD => {
            if request == request::SET_DEVICE_STATE_FD {
                put(&[u64::from(input.arbitrary::<u8>()? % 3)]);
            }
            files.push(file(input, monitor)?);
        }
        // The requests without a body.
        1 | 3 | 4 | 15 | 17 | 34 | 36 => {}
        _ => {
            let len = usize::from(input.arbitrary::<u8>()? % 65).min(input.len());
            body.extend_from_slice(input.bytes(len)?);
        }
    }
    Ok(())
}

/// Returns a memory region: guest address, size, monitor's address, file offset.
fn region(input: &mut Unstructured<'_>) -> Result<[u64; 4]> {
    let (place, pages, offset): (u8, u8, u8) = input.arbitrary()?;
    let at = BASE + u64::from(place % 16 / 4) * 16 * PAGE;
    let offset = u64::from(offset / 64) * PAGE;
    let size = match pages {
        0..=127 => 16 * PAGE - offset,
        _ => u64::from(pages % 20) * PAGE,
    };
    Ok(match place {
        0..=239 => [at, size, at, offset],
        _ => [
            input.arbitrary()?,
            input.arbitrary()?,
            input.arbitrary()?,
            input.arbitrary()?,
        ],
    })
}
