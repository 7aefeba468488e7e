//! Messages of a monitor.

use std::io::{IoSlice, Read};
use std::net::Shutdown;
use std::os::fd::AsFd;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use vfs_testkit::wait_until;

use super::*;

/// A device, its state, and the monitor's end of its connection.
struct Bench {
    monitor: UnixStream,
    control: Arc<Mutex<Control>>,
    device: std::thread::JoinHandle<io::Result<RunEnd>>,
    /// Stops the device when dropped.
    stop: UnixStream,
}

fn bench() -> Bench {
    bench_with(Arc::new(|_, _| Ok(Box::new(|| {}))))
}

/// Returns a device whose rings `drive` serves.
fn bench_with(drive: Arc<ServeRing>) -> Bench {
    let (monitor, socket) = UnixStream::pair().expect("a pair");
    let (ours, stop) = UnixStream::pair().expect("a pair");
    let config = DeviceConfig {
        queues: 2,
        features: 0,
        config_space: Vec::new(),
        repeats_requests: true,
    };
    let mut device = Device::new(socket, "test", config, drive).expect("a device");
    let control = device.control.clone();
    Bench {
        monitor,
        control,
        device: std::thread::spawn(move || device.run(stop.as_fd())),
        stop: ours,
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

    /// Returns the value in the reply to `request`.
    fn answer(&mut self, request: u32) -> u64 {
        let mut answer = [0; 20];
        self.monitor.read_exact(&mut answer).expect("an answer");
        let number = |at: usize| u32::from_ne_bytes(*answer[at..].first_chunk().expect("4"));
        assert_eq!((number(0), number(4), number(8)), (request, 5, 8));
        u64::from_ne_bytes(*answer[12..].first_chunk().expect("8"))
    }

    /// Negotiates replies.
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
/// Guest address 0x1000, monitor address 0x5000, second page of the file.
const REGION: [u64; 4] = [0x1000, 0x1000, 0x5000, 0x1000];

fn table(count: u64, regions: &[[u64; 4]]) -> Vec<u64> {
    [&[count][..], regions.as_flattened()].concat()
}

#[test]
fn a_message_has_at_most_32_files() {
    let file = memory();
    let mut bench = bench();
    bench.agree();
    let regions: [_; MAX_FILES] =
        std::array::from_fn(|number| [0x1000 * number as u64, 0x1000, 0x5000, 0]);
    let files = [&file; MAX_FILES + 1];
    let body = table(MAX_FILES as u64, &regions);
    bench.send(SET_MEM_TABLE, NEED_REPLY, &body, &files[1..]);
    assert_eq!(bench.answer(SET_MEM_TABLE), 0);
    const GET_QUEUE_NUM: u32 = 17;
    bench.send(GET_QUEUE_NUM, 1, &[], &files);
    // A device that waits for another message sees the end of the stream.
    bench.monitor.shutdown(Shutdown::Write).expect("the end");
    let ended = bench.device.join().expect("no panic");
    let why = ended.map_err(|error| error.kind());
    assert_eq!(why, Err(ErrorKind::InvalidData));
}

/// The message of user-mode Linux without high memory: two regions, one of them counted.
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
    // A region beyond the end of its file is refused, and the connection continues.
    let beyond = [0x1000, 0x2000, 0x5000, 0x1000];
    bench.send(
        SET_MEM_TABLE,
        NEED_REPLY,
        &table(1, &[beyond, padding]),
        &[&file],
    );
    assert_eq!(bench.answer(SET_MEM_TABLE), 1);
    assert_eq!(bench.guest_address(0x5010), Some(0x1010));
    // A message that requests no reply gets none: the next reply is that of the next message.
    bench.send(SET_MEM_TABLE, 1, &table(1, &[REGION, padding]), &[&file]);
    bench.agree();
}

#[test]
fn a_memory_table_with_other_padding_ends_the_connection() {
    let file = memory();
    let good = [0, 0, 0, 0];
    let full = [0x3000, 0x1000, 0x7000, 0];
    for (body, files) in [
        // Padding that has a size.
        (table(1, &[REGION, full]), &[&file][..]),
        // More files than regions, or fewer.
        (table(1, &[REGION, good]), &[&file, &file]),
        (table(2, &[REGION, good]), &[&file]),
        (table(1, &[REGION, good]), &[]),
        // No region at all.
        (table(1, &[good, good]), &[&file]),
        // Beyond the end of the address space.
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

#[test]
fn only_a_queue_that_may_start_again_gets_requests_back() {
    // Whether the ring restarts, at each of its stops.
    let stops = Arc::new(Mutex::new(Vec::new()));
    let seen = stops.clone();
    let bench = bench_with(Arc::new(move |_, ring| {
        let seen = seen.clone();
        Ok(Box::new(move || {
            seen.lock().expect("free").push(ring.restarts());
        }))
    }));
    bench.send(SET_MEM_TABLE, 1, &table(1, &[REGION]), &[&memory()]);
    let started = || {
        let kick = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC);
        let mut control = bench.control.lock().expect("free");
        control.set_vring_num(0, 4)?;
        let flags = VhostUserVringAddrFlags::empty();
        control.set_vring_addr(0, flags, 0x5000, 0x5200, 0x5100, 0)?;
        control.set_vring_kick(0, Some(kick.expect("an event").into()))?;
        control.set_vring_enable(0, true)?;
        control.start_prepared().expect("it does not fail");
        assert!(control.queues[0].running.is_some());
        Ok::<_, Error>(control)
    };
    let wait_for_memory = || {
        wait_until("the device has the memory", || {
            bench.guest_address(0x5000).is_some()
        });
    };
    wait_for_memory();
    let running = |what: fn(&mut Control) -> Result<()>| {
        what(&mut started().expect("started")).expect("stopped");
        std::mem::take(&mut *stops.lock().expect("free"))
    };
    assert_eq!(
        running(|control| control.get_vring_base(0).map(drop)),
        [true]
    );
    assert_eq!(
        running(|control| control.set_vring_enable(0, false)),
        [true]
    );
    assert_eq!(running(|control| control.set_vring_kick(0, None)), [true]);
    assert_eq!(
        running(VhostUserBackendReqHandlerMut::reset_device),
        [false]
    );
    assert_eq!(running(|_| Ok(())), []);
    // The end of the device.
    drop(bench.stop);
    bench.device.join().expect("no panic").expect("stopped");
    assert_eq!(*stops.lock().expect("free"), [false]);
}

#[test]
fn a_monitor_keeps_the_records_of_requests_in_flight() {
    let bench = bench();
    let mut control = bench.control.lock().expect("free");
    let (given, file) = control
        .get_inflight_fd(&VhostUserInflight::new(0, 0, 2, 128))
        .expect("memory");
    assert_eq!(given.mmap_size, 2 * (16 + 16 * 128));
    let mut set = |size, offset, queues, entries| {
        let given = VhostUserInflight::new(size, offset, queues, entries);
        control.set_inflight_fd(&given, file.try_clone().expect("a descriptor"))
    };
    let size = given.mmap_size;
    for (size, offset, queues, entries) in [
        (size - 8, 0, 2, 128),
        (size, 8, 2, 128),
        (size, 0, 1, 128),
        (size, 0, 3, 128),
        (size / 2, 0, 1, 128),
    ] {
        set(size, offset, queues, entries).expect_err("refused");
    }
    set(size, 0, 2, 128).expect("taken");
    // Memory that may shrink.
    let given = VhostUserInflight::new(4096, 0, 1, 127);
    control
        .set_inflight_fd(&given, memory())
        .expect_err("refused");
    let features = control.get_protocol_features().expect("some");
    assert!(features.contains(VhostUserProtocolFeatures::INFLIGHT_SHMFD));
    // A device whose requests cannot be repeated.
    control.config.repeats_requests = false;
    let features = control.get_protocol_features().expect("some");
    assert!(!features.contains(VhostUserProtocolFeatures::INFLIGHT_SHMFD));
    let wanted = VhostUserInflight::new(0, 0, 2, 128);
    assert!(control.get_inflight_fd(&wanted).is_err());
}

struct Text(Mutex<(Vec<u8>, usize)>);

impl DeviceState for Text {
    fn save(&self, to: &mut dyn io::Write) -> io::Result<()> {
        to.write_all(&self.0.lock().expect("free").0)
    }

    fn load(&self, from: &mut dyn Read) -> io::Result<()> {
        let mut state = self.0.lock().expect("free");
        state.0.clear();
        from.read_to_end(&mut state.0).map(drop)
    }

    fn resume(&self) {
        self.0.lock().expect("free").1 += 1;
    }
}

const SET_DEVICE_STATE_FD: u32 = 42;

#[test]
fn a_device_with_state_transfers_it() {
    let mut bench = bench();
    bench.agree();
    let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
    let (mut reader, writer) = (File::from(reader), File::from(writer));
    const NO_FILE: u64 = 1 << 8;
    const SAVE: u64 = 0;
    const LOAD: u64 = 1;
    // Without state.
    bench.send(SET_DEVICE_STATE_FD, 1, &[SAVE], &[&writer]);
    assert_ne!(bench.answer(SET_DEVICE_STATE_FD) & 0xff, 0);
    bench.send(CHECK_DEVICE_STATE, 1, &[], &[]);
    assert_ne!(bench.answer(CHECK_DEVICE_STATE), 0);
    bench.send(1, 1, &[], &[]);
    assert_eq!(bench.answer(1) & LOG_ALL, 0);

    let text = Arc::new(Text(Mutex::new((b"state".to_vec(), 0))));
    bench.control.lock().expect("free").state = Some(text.clone());
    bench.send(1, 1, &[], &[]);
    assert_ne!(bench.answer(1) & LOG_ALL, 0);
    bench.send(SET_DEVICE_STATE_FD, 1, &[SAVE], &[&writer]);
    assert_eq!(bench.answer(SET_DEVICE_STATE_FD), NO_FILE);
    drop(writer);
    let mut saved = Vec::new();
    reader.read_to_end(&mut saved).expect("read");
    assert!(saved.ends_with(b"state"));
    bench.send(CHECK_DEVICE_STATE, 1, &[], &[]);
    assert_eq!(bench.answer(CHECK_DEVICE_STATE), 0);
    // The result is returned once.
    bench.send(CHECK_DEVICE_STATE, 1, &[], &[]);
    assert_ne!(bench.answer(CHECK_DEVICE_STATE), 0);
    // The guest continues here.
    let mut control = bench.control.lock().expect("free");
    assert!(control.saved);
    control.resume();
    control.resume();
    drop(control);
    assert_eq!(text.0.lock().expect("free").1, 1);

    for (bytes, valid) in [(&saved[..], true), (b"barge-vq", false), (b"", false)] {
        let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
        let reader = File::from(reader);
        bench.send(SET_DEVICE_STATE_FD, 1, &[LOAD], &[&reader]);
        assert_eq!(bench.answer(SET_DEVICE_STATE_FD), NO_FILE);
        rustix::io::write(&writer, bytes).expect("written");
        drop(writer);
        bench.send(CHECK_DEVICE_STATE, 1, &[], &[]);
        assert_eq!(bench.answer(CHECK_DEVICE_STATE) == 0, valid);
    }
    assert_eq!(text.0.lock().expect("free").0, b"state");
}

#[test]
fn a_log_that_cannot_be_mapped_ends_the_connection() {
    const SET_LOG_BASE: u32 = 6;
    let mut bench = bench();
    let state = Arc::new(Text(Mutex::default()));
    bench.control.lock().expect("free").state = Some(state);
    bench.send(1, 1, &[], &[]);
    bench.answer(1);
    let features = VhostUserProtocolFeatures::LOG_SHMFD.bits();
    bench.send(16, 1, &[features], &[]);
    let file = memory();
    bench.send(SET_LOG_BASE, 1, &[8192, 0], &[&file]);
    let mut answer = [0; 28];
    bench.monitor.read_exact(&mut answer).expect("an answer");
    assert!(bench.control.lock().expect("free").log.is_some());
    bench.send(SET_LOG_BASE, 1, &[8192, 4096], &[&file]);
    bench
        .device
        .join()
        .expect("no panic")
        .expect_err("beyond the end of its file");
}
