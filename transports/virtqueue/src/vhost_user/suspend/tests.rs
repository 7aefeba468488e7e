//! Devices that continue while a guest uses them.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Mutex, RwLock};
use std::thread;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use transports::{Exchange, Ring};
use vfs_testkit::wait_until;
use vhost::vhost_user::message::{VhostUserInflight, VhostUserProtocolFeatures};
use vhost::vhost_user::{VhostUserBackendReqHandlerMut, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserDirtyLogRegion, VringConfigData};

use super::super::{ControlEvent, JoinRing, MAX_QUEUE_SIZE, RunEnd};
use super::*;
use crate::driver::{Driver, Lengths, Options, Queue, WaitMode};
use crate::features::{LOG_ALL, VERSION_1};

/// The time after which a test fails: a notification was lost.
const LIMIT: Duration = Duration::from_secs(60);

const QUEUES: usize = 2;

fn config() -> DeviceConfig {
    DeviceConfig {
        queues: QUEUES,
        features: 0,
        config_space: vec![7; 8],
        repeats_requests: true,
    }
}

/// An event that stops [`Device::run`].
struct Stop(OwnedFd);

impl Stop {
    fn new() -> Stop {
        Stop(eventfd(0, EventfdFlags::CLOEXEC).expect("an event"))
    }

    fn set(&self) {
        rustix::io::write(&self.0, &1u64.to_ne_bytes()).expect("written");
    }

    fn clear(&self) {
        rustix::io::read(&self.0, &mut [0; 8]).expect("read");
    }
}

/// Runs a device until it is stopped.
fn run(device: &mut Device, stop: &Stop) {
    let end = device.run(stop.0.as_fd()).expect("no error");
    assert_eq!(end, RunEnd::Stopped);
    stop.clear();
}

/// The requests of all devices of a test.
#[derive(Default)]
struct Requests {
    /// How often each was answered.
    answered: Mutex<HashMap<u64, u32>>,
    total: AtomicU64,
    put_back: AtomicU64,
    in_flight_at_stop: AtomicU64,
}

/// A request that waits for [`Requests::WAIT`] others of its queue.
const WAITS: u8 = 1;

impl Requests {
    const WAIT: usize = 3;

    /// Returns a function that serves rings.
    fn serve(self: &Arc<Self>) -> Arc<ServeRing> {
        let requests = self.clone();
        Arc::new(move |_, ring| Ok(requests.clone().start(ring)))
    }

    /// Serves a ring on two threads: one pops requests, the other answers them.
    fn start(self: Arc<Self>, ring: Arc<dyn Ring>) -> JoinRing {
        let (answer, answers) = mpsc::channel();
        let (requests, answering) = (self.clone(), ring.clone());
        let answering = thread::spawn(move || requests.answer_all(&*answering, &answers));
        let popping = thread::spawn(move || self.pop_all(&*ring, &answer));
        Box::new(move || {
            popping.join().expect("no panic");
            answering.join().expect("no panic");
        })
    }

    fn pop_all(&self, ring: &dyn Ring, answer: &Sender<Box<dyn Exchange>>) {
        let mut waiting: Vec<(usize, Box<dyn Exchange>)> = Vec::new();
        while ring.wait(true).expect("not broken") {
            while let Some(mut exchange) = ring.pop(&|head| Some(head.len())).expect("not broken") {
                for (rest, _) in &mut waiting {
                    *rest -= 1;
                }
                match exchange.split().0.bytes()[0] {
                    WAITS => waiting.push((Requests::WAIT, exchange)),
                    _ => answer.send(exchange).expect("the other thread"),
                }
                while let Some(at) = waiting.iter().position(|(rest, _)| *rest == 0) {
                    answer.send(waiting.remove(at).1).expect("the other thread");
                }
            }
        }
        for (_, exchange) in waiting {
            match ring.restarts() {
                true => {
                    self.put_back.fetch_add(1, Ordering::SeqCst);
                    ring.put_back(exchange);
                }
                false => answer.send(exchange).expect("the other thread"),
            }
        }
    }

    fn answer_all(&self, ring: &dyn Ring, answers: &Receiver<Box<dyn Exchange>>) {
        for mut exchange in answers {
            let (request, reply) = exchange.split();
            let id: [u8; 9] = *request.bytes().first_chunk().expect("a request");
            reply.bytes(&id);
            let number = u64::from_le_bytes(*id.last_chunk().expect("a number"));
            *self
                .answered
                .lock()
                .expect("free")
                .entry(number)
                .or_default() += 1;
            self.total.fetch_add(1, Ordering::SeqCst);
            if ring.restarts() {
                self.in_flight_at_stop.fetch_add(1, Ordering::SeqCst);
            }
            ring.push_used(exchange);
            ring.signal();
        }
    }
}

/// Returns a function that starts rings and serves no request.
fn idle() -> Arc<ServeRing> {
    Arc::new(|_, _| Ok(Box::new(|| {})))
}

const LENGTHS: Lengths = Lengths {
    request: 9,
    request_payload: 0,
    reply: 9,
    reply_payload: 0,
};

fn message(kind: u8, number: u64) -> Vec<u8> {
    [&[kind][..], &number.to_le_bytes()].concat()
}

/// Sends a request and waits for its reply.
fn request(queue: &Queue, kind: u8, number: u64) {
    let mut chain = queue.chain(|| false).expect("a slot");
    chain.request(&message(kind, number));
    let reply = chain.submit(LENGTHS).wait(|| false).expect("a reply");
    let mut bytes = [0; 9];
    assert_eq!(reply.inline(&mut bytes), 9);
    assert_eq!(bytes[..], message(kind, number));
}

/// A guest whose threads sleep until they are notified, for any time.
fn options() -> Options {
    Options {
        queues: QUEUES,
        depth: 16,
        payload: 0,
        waiting: WaitMode::Interrupts,
    }
}

/// Returns a device that `serve` serves, and the monitor's end of its connection.
fn device(serve: Arc<ServeRing>) -> (Device, UnixStream) {
    let (ours, theirs) = UnixStream::pair().expect("a pair");
    let device = Device::new(theirs, "test", config(), serve).expect("a device");
    (device, ours)
}

fn resume(suspended: SuspendedDevice, serve: Arc<ServeRing>) -> io::Result<Device> {
    Device::resume(suspended, "test", config(), serve, None, None)
}

/// Runs a part of a test on its own thread, so that the test fails if it blocks.
fn ends<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, result) = mpsc::channel();
    let thread = thread::spawn(move || done.send(run()));
    let result = result.recv_timeout(LIMIT);
    if matches!(result, Err(mpsc::RecvTimeoutError::Disconnected)) {
        thread.join().expect("no panic").expect("sent");
    }
    result.expect("it blocks")
}

/// Connects a driver while `device` runs, and stops it after that.
fn connected(device: &mut Device, socket: UnixStream, features: u64) -> Driver {
    connected_with(device, socket, features, options())
}

fn connected_with(
    device: &mut Device,
    socket: UnixStream,
    features: u64,
    options: Options,
) -> Driver {
    let (stop, control) = (Stop::new(), device.control.clone());
    thread::scope(|scope| {
        let driver = scope.spawn(|| {
            let driver = Driver::with_features(socket, QUEUES, options, features);
            wait_for_queues(&control);
            stop.set();
            driver.expect("connected")
        });
        run(device, &stop);
        driver.join().expect("no panic")
    })
}

/// Waits until the device has served all messages of a driver, most of which have no reply.
fn wait_for_queues(control: &Mutex<Control>) {
    let runs = |slot: &QueueSetup| slot.running.is_some();
    wait_until("all queues run", || {
        control.lock().expect("free").queues.iter().all(runs)
    });
}

/// The guest's threads for each queue, one of whose requests wait.
const THREADS: u64 = 3;

fn is_suspended_under_load(features: u64, records: bool) {
    const TIMES: u64 = 100;
    let requests = Arc::new(Requests::default());
    let (mut device, socket) = device(requests.serve());
    if records {
        let mut control = device.control();
        let wanted = VhostUserInflight::new(0, 0, QUEUES as u16, MAX_QUEUE_SIZE);
        let (given, file) = control.get_inflight_fd(&wanted).expect("memory");
        control.set_inflight_fd(&given, file).expect("taken");
    }
    let driver = connected(&mut device, socket, features);
    let (waiting_end, end) = (AtomicBool::new(false), AtomicBool::new(false));
    let numbers = AtomicU64::new(0);
    let next = || numbers.fetch_add(1, Ordering::SeqCst);
    let stop = Stop::new();
    thread::scope(|scope| {
        let mut waiting = Vec::new();
        let mut others = Vec::new();
        for queue in driver.queues() {
            let wait = || {
                while !waiting_end.load(Ordering::SeqCst) {
                    request(queue, WAITS, next());
                }
            };
            waiting.push(scope.spawn(wait));
            for _ in 1..THREADS {
                others.push(scope.spawn(|| {
                    while !end.load(Ordering::SeqCst) {
                        request(queue, 0, next());
                    }
                }));
            }
        }
        let ended = scope.spawn(|| {
            let mut device = device;
            for _ in 0..TIMES {
                run(&mut device, &stop);
                let suspended = device.suspend().expect("suspended");
                assert!(device.run(stop.0.as_fd()).is_err(), "it has ended");
                drop(device);
                device = resume(suspended, requests.serve()).expect("resumed");
            }
            device.run(stop.0.as_fd()).expect("no error")
        });
        for _ in 0..TIMES {
            let before = requests.total.load(Ordering::SeqCst);
            wait_until("twenty more requests", || {
                requests.total.load(Ordering::SeqCst) >= before + 20
            });
            stop.set();
            // The event is cleared by the thread that runs the device.
            wait_until("the event is cleared", || !is_set(&stop));
        }
        // The requests that wait need others.
        waiting_end.store(true, Ordering::SeqCst);
        waiting
            .into_iter()
            .for_each(|thread| thread.join().expect("no panic"));
        end.store(true, Ordering::SeqCst);
        others
            .into_iter()
            .for_each(|thread| thread.join().expect("no panic"));
        stop.set();
        assert_eq!(ended.join().expect("no panic"), RunEnd::Stopped);
    });
    let answered = requests.answered.lock().expect("free");
    let sent = numbers.load(Ordering::SeqCst);
    assert_eq!(answered.len() as u64, sent);
    assert!(answered.values().all(|&times| times == 1));
    assert!(requests.put_back.load(Ordering::SeqCst) > 0);
    assert!(requests.in_flight_at_stop.load(Ordering::SeqCst) > 0);
}

/// A process that may be killed. While a thread has the lock and it lives, it is not.
#[derive(Default)]
struct Process(RwLock<Killed>);

#[derive(Default)]
struct Killed(bool);

/// Requests that processes serve, one after another.
#[derive(Default)]
struct Killable {
    /// How often each was answered.
    answered: Mutex<HashMap<u64, u32>>,
    /// The number of requests that wait for others in the current process.
    waiting: AtomicU64,
    /// The number of requests that were popped again, and whose replies were noted.
    repeated: AtomicU64,
    noted: AtomicU64,
    kept: Mutex<Option<SuspendedDevice>>,
}

impl DeviceKeeper for Killable {
    fn keep(&self, device: SuspendedDevice) {
        *self.kept.lock().expect("free") = Some(device);
    }

    fn forget(&self) {
        *self.kept.lock().expect("free") = None;
    }

    fn note_returned(&self, _: &[u8]) {
        self.noted.fetch_add(1, Ordering::SeqCst);
    }
}

impl Killable {
    /// Returns a function that serves rings in `process`: some requests wait for others.
    fn serve(self: &Arc<Self>, process: &Arc<Process>) -> Arc<ServeRing> {
        let (all, process) = (self.clone(), process.clone());
        Arc::new(move |_, ring| -> io::Result<JoinRing> {
            let (all, process) = (all.clone(), process.clone());
            let thread = thread::spawn(move || all.serve_ring(&process, &*ring));
            Ok(Box::new(move || thread.join().expect("no panic")))
        })
    }

    /// Serves a ring until it is stopped or the process is killed.
    fn serve_ring(&self, process: &Process, ring: &dyn Ring) {
        let mut waiting = Vec::new();
        loop {
            thread::yield_now();
            let killed = process.0.read().expect("free");
            if killed.0 {
                // These are not returned.
                return std::mem::forget(waiting);
            }
            match ring.wait(false) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    continue;
                }
            }
            let popped = ring.pop(&|head| Some(head.len())).expect("not broken");
            let Some(mut exchange) = popped else {
                continue;
            };
            let request = exchange.split().0;
            if request.is_repeated() {
                self.repeated.fetch_add(1, Ordering::SeqCst);
            }
            if request.bytes()[0] == WAITS && waiting.len() < Requests::WAIT {
                self.waiting.fetch_add(1, Ordering::SeqCst);
                waiting.push(exchange);
                continue;
            }
            self.answer(ring, exchange);
            if let Some(exchange) = waiting.pop() {
                self.waiting.fetch_sub(1, Ordering::SeqCst);
                self.answer(ring, exchange);
            }
        }
        waiting.into_iter().for_each(|it| self.answer(ring, it));
    }

    fn answer(&self, ring: &dyn Ring, mut exchange: Box<dyn Exchange>) {
        let (request, reply) = exchange.split();
        let id: [u8; 9] = *request.bytes().first_chunk().expect("a request");
        reply.bytes(&id);
        let number = u64::from_le_bytes(*id.last_chunk().expect("a number"));
        let mut answered = self.answered.lock().expect("free");
        *answered.entry(number).or_default() += 1;
        ring.push_used(exchange);
        ring.signal();
    }
}

/// A guest whose process is killed as soon as it has a reply continues.
#[test]
fn a_queue_is_served_after_the_device_is_kept() {
    ends(|| {
        let requests = Arc::new(Killable::default());
        let was_kept = Arc::new(Mutex::new(HashMap::<usize, Option<bool>>::new()));
        let serve = {
            let (requests, was_kept) = (requests.clone(), was_kept.clone());
            move |index: usize, _: Arc<dyn Ring>| -> io::Result<JoinRing> {
                let kept = requests.kept.lock().expect("free");
                let runs = kept.as_ref().map(|kept: &SuspendedDevice| {
                    let saved = SavedDevice::parse(&kept.state, QUEUES).expect("valid");
                    let queue: &SavedQueue = &saved.queues[index];
                    queue.runs
                });
                was_kept.lock().expect("free").insert(index, runs);
                Ok(Box::new(|| {}))
            }
        };
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        let device = Device::new(theirs, "test", config(), Arc::new(serve));
        let device = device.and_then(|device| device.with_keeper(requests.clone()));
        let mut device = device.expect("a device");
        let driver = connected(&mut device, ours, VERSION_1 | EVENT_IDX);
        let stop = Stop::new();
        thread::scope(|scope| {
            scope.spawn(|| {
                wait_until("all queues are served", || {
                    was_kept.lock().expect("free").len() == QUEUES
                });
                stop.set();
            });
            run(&mut device, &stop);
        });
        let was_kept = was_kept.lock().expect("free");
        assert!(
            was_kept.values().all(|it| *it == Some(true)),
            "{was_kept:?}"
        );
        drop(driver);
    });
}

/// A device is killed under load again and again.
#[test]
fn each_request_is_answered_once_when_the_process_is_killed() {
    const TIMES: u64 = 30;
    let config = || DeviceConfig {
        repeats_requests: false,
        ..config()
    };
    ends(move || {
        let requests = Arc::new(Killable::default());
        let mut process = Arc::new(Process::default());
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        let device = Device::new(theirs, "test", config(), requests.serve(&process));
        let device = device.and_then(|device| device.with_keeper(requests.clone()));
        let mut device = device.expect("a device");
        let driver = connected(&mut device, ours, VERSION_1 | EVENT_IDX);
        let stop = Stop::new();
        thread::scope(|scope| {
            scope.spawn(|| {
                wait_until("the device is kept", || {
                    requests.kept.lock().expect("free").is_some()
                });
                stop.set();
            });
            run(&mut device, &stop);
        });
        let (ends, numbers) = ([false; 2].map(AtomicBool::new), AtomicU64::new(0));
        thread::scope(|scope| {
            let guests = driver.queues().iter().flat_map(|queue| {
                [WAITS, 0, 0, 0].map(|kind| {
                    let (end, numbers) = (&ends[usize::from(kind)], &numbers);
                    let guest = scope.spawn(move || {
                        while !end.load(Ordering::SeqCst) {
                            request(queue, kind, numbers.fetch_add(1, Ordering::SeqCst));
                        }
                    });
                    (kind, guest)
                })
            });
            let guests: Vec<_> = guests.collect();
            for _ in 0..TIMES {
                let before = numbers.load(Ordering::SeqCst);
                wait_until("twenty more requests", || {
                    numbers.load(Ordering::SeqCst) >= before + 20
                });
                wait_until("a request waits", || {
                    let mut killed = process.0.write().expect("free");
                    killed.0 = requests.waiting.swap(0, Ordering::SeqCst) > 0;
                    killed.0
                });
                // No destructor runs.
                std::mem::forget(device);
                process = Arc::default();
                let kept = requests.kept.lock().expect("free").take();
                let kept = kept.expect("it is kept");
                let serve = requests.serve(&process);
                let keeper: Arc<dyn DeviceKeeper> = requests.clone();
                let resumed = Device::resume(kept, "test", config(), serve, None, Some(keeper));
                device = resumed.expect("resumed");
            }
            // The requests that wait need others.
            let (waiting, others): (Vec<_>, Vec<_>) =
                guests.into_iter().partition(|(kind, _)| *kind == WAITS);
            for (end, guests) in [(WAITS, waiting), (0, others)] {
                ends[usize::from(end)].store(true, Ordering::SeqCst);
                for (_, guest) in guests {
                    guest.join().expect("no panic");
                }
            }
            drop(device);
        });
        let answered = requests.answered.lock().expect("free");
        let sent = numbers.load(Ordering::SeqCst);
        assert_eq!(answered.len() as u64, sent);
        assert!(answered.values().all(|&times| times == 1));
        assert_eq!(requests.noted.load(Ordering::SeqCst), sent);
        assert!(requests.repeated.load(Ordering::SeqCst) >= TIMES);
        assert!(
            requests.kept.lock().expect("free").is_none(),
            "it has ended"
        );
    });
}

fn is_set(stop: &Stop) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut fds = [PollFd::new(&stop.0, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).expect("polled") == 1
}

#[test]
fn each_request_is_answered_once_with_event_indices() {
    ends(|| is_suspended_under_load(VERSION_1 | EVENT_IDX, false));
}

#[test]
fn each_request_is_answered_once_without_event_indices() {
    ends(|| is_suspended_under_load(VERSION_1, false));
}

#[test]
fn each_request_is_answered_once_with_records_of_requests_in_flight() {
    ends(|| is_suspended_under_load(VERSION_1 | EVENT_IDX, true));
}

/// The monitor sets up the device, which continues as another one after each message.
#[test]
fn a_device_is_suspended_after_any_message() {
    ends(|| {
        let requests = Arc::new(Requests::default());
        let (mut device, socket) = device(requests.serve());
        let stop = Stop::new();
        let mut messages = 0;
        let driver = thread::scope(|scope| {
            let driver = scope.spawn(|| {
                let driver = Driver::connect(socket, QUEUES, options());
                driver.expect("connected")
            });
            while !device.control().queues[QUEUES - 1].enabled {
                let suspended = device.suspend().expect("suspended");
                device = resume(suspended, requests.serve()).expect("resumed");
                let event = device.next_event(stop.0.as_fd()).expect("no error");
                assert!(matches!(event, ControlEvent::Message));
                device.handler.handle_request().expect("valid");
                messages += 1;
            }
            device.control().start_prepared().expect("started");
            driver.join().expect("no panic")
        });
        assert!(messages > 10, "{messages}");
        for queue in driver.queues() {
            request(queue, 0, messages);
        }
    });
}

#[test]
fn a_message_that_is_sent_meanwhile_is_answered_later() {
    ends(|| {
        let (mut device, mut monitor) = device(idle());
        const GET_FEATURES: u32 = 1;
        let suspended = device.suspend().expect("suspended");
        let header = [GET_FEATURES, 1, 0].map(u32::to_ne_bytes);
        monitor.write_all(header.as_flattened()).expect("sent");
        drop(device);
        let mut device = resume(suspended, idle()).expect("resumed");
        let stop = Stop::new();
        thread::scope(|scope| {
            let device = scope.spawn(|| run(&mut device, &stop));
            let mut answer = [0; 20];
            monitor.read_exact(&mut answer).expect("an answer");
            assert_eq!(answer[..4], GET_FEATURES.to_ne_bytes());
            stop.set();
            device.join().expect("no panic");
        });
        drop(device);
        assert_eq!(monitor.read(&mut [0]).expect("the end"), 0);
    });
}

#[test]
fn a_request_whose_kick_was_received_is_served() {
    ends(|| {
        let (mut device, socket) = device(idle());
        let driver = connected(&mut device, socket, VERSION_1 | EVENT_IDX);
        let kick = device.control().queues[0]
            .kick
            .as_ref()
            .map(OwnedFd::try_clone);
        let kick = kick.expect("a kick").expect("a descriptor");
        thread::scope(|scope| {
            let sent = scope.spawn(|| request(&driver.queues()[0], 0, 1));
            // Blocks until the guest has notified the device.
            let poll = &mut [rustix::event::PollFd::new(
                &kick,
                rustix::event::PollFlags::IN,
            )];
            rustix::event::poll(poll, None).expect("polled");
            rustix::io::read(&kick, &mut [0; 8]).expect("read");
            let suspended = device.suspend().expect("suspended");
            let requests = Arc::new(Requests::default());
            let _device = resume(suspended, requests.serve()).expect("resumed");
            sent.join().expect("no panic");
        });
    });
}

#[test]
fn a_reply_without_its_notification_is_signalled() {
    ends(|| {
        // Answers one request, and never signals.
        let (done, answered) = mpsc::channel();
        let serve: Arc<ServeRing> = Arc::new(move |_, ring: Arc<dyn Ring>| {
            let done = done.clone();
            let thread = thread::spawn(move || {
                while ring.wait(true).expect("not broken") {
                    let popped = ring.pop(&|head| Some(head.len())).expect("not broken");
                    let Some(mut exchange) = popped else { continue };
                    exchange.split().1.bytes(&message(0, 1));
                    ring.push_used(exchange);
                    done.send(()).expect("received");
                }
            });
            Ok(Box::new(move || thread.join().expect("no panic")))
        });
        let (mut device, socket) = device(serve);
        let driver = connected(&mut device, socket, VERSION_1);
        thread::scope(|scope| {
            let sent = scope.spawn(|| request(&driver.queues()[0], 0, 1));
            answered.recv().expect("answered");
            let suspended = device.suspend().expect("suspended");
            let _device = resume(suspended, idle()).expect("resumed");
            sent.join().expect("no panic");
        });
    });
}

/// A session without state.
struct Stateless;

impl DeviceState for Stateless {
    fn save(&self, to: &mut dyn Write) -> io::Result<()> {
        // More than a pipe holds.
        to.write_all(&[0; 1 << 20])
    }

    fn load(&self, _: &mut dyn Read) -> io::Result<()> {
        Ok(())
    }

    fn resume(&self) {}
}

#[test]
fn a_device_that_logs_pages_continues_to_do_so() {
    const PAGE: u64 = 4096;
    ends(|| {
        let requests = Arc::new(Requests::default());
        let (device, socket) = device(requests.serve());
        let mut device = device.with_state(Arc::new(Stateless));
        // One that takes no message for the end of the connection.
        let options = Options {
            waiting: WaitMode::Adaptive(Duration::ZERO),
            ..options()
        };
        let features = VERSION_1 | EVENT_IDX;
        let mut driver = connected_with(&mut device, socket, features, options);
        let at = device.control().queues[0].addresses.expect("a queue");
        let size = device.control().queues[0].size;
        let file = tempfile::tempfile().expect("a file");
        let len = at.used / PAGE / 8 + PAGE;
        file.set_len(PAGE + len).expect("room");
        let frontend = driver.frontend();
        let stop = Stop::new();
        thread::scope(|scope| {
            let device = scope.spawn(|| run(&mut device, &stop));
            let log = VhostUserDirtyLogRegion {
                mmap_size: len,
                mmap_offset: PAGE,
                mmap_handle: file.as_raw_fd(),
            };
            let offered = frontend.get_features().expect("features");
            let protocol = frontend.get_protocol_features().expect("features");
            assert!(protocol.contains(VhostUserProtocolFeatures::LOG_SHMFD));
            let set = frontend.set_protocol_features(protocol);
            set.expect("accepted");
            frontend.set_log_base(0, Some(log)).expect("mapped");
            frontend.set_features(offered).expect("accepted");
            let config = VringConfigData {
                queue_max_size: size,
                queue_size: size,
                flags: 1,
                desc_table_addr: at.descriptors,
                used_ring_addr: at.used,
                avail_ring_addr: at.available,
                log_addr: Some(at.used),
            };
            frontend.set_vring_addr(0, &config).expect("accepted");
            frontend.get_features().expect("served");
            stop.set();
            device.join().expect("no panic");
        });
        let marked = || {
            let mut bytes = vec![0; len as usize];
            file.read_exact_at(&mut bytes, PAGE).expect("read");
            let is_marked = |page: &u64| bytes[(page / 8) as usize] & 1 << (page % 8) != 0;
            let pages: Vec<_> = (0..len * 8).filter(is_marked).collect();
            file.write_all_at(&vec![0; len as usize], PAGE)
                .expect("written");
            pages
        };
        request(&driver.queues()[0], 0, 1);
        let before = marked();
        assert!(before.contains(&(at.used / PAGE)));
        let suspended = device.suspend().expect("suspended");
        drop(device);
        assert_eq!(suspended.descriptors.len(), 1 + 1 + 1 + 2 * QUEUES);
        // Only devices that can migrate have a log.
        let copy = duplicate(&suspended);
        let refused = resume(copy, requests.serve())
            .map(drop)
            .expect_err("features");
        assert_eq!(refused.kind(), ErrorKind::InvalidData, "{refused}");
        let state: Arc<dyn DeviceState> = Arc::new(Stateless);
        let serve = requests.serve();
        let device = Device::resume(suspended, "test", config(), serve, Some(state), None);
        let device = device.expect("resumed");
        assert_ne!(device.control().features & LOG_ALL, 0);
        // The same slot is used again.
        request(&driver.queues()[0], 0, 2);
        // The page of the used ring is marked when the ring starts as well.
        assert_eq!(marked(), before);
    });
}

fn duplicate(suspended: &SuspendedDevice) -> SuspendedDevice {
    let descriptors = suspended.descriptors.iter().map(OwnedFd::try_clone);
    SuspendedDevice {
        state: suspended.state.clone(),
        descriptors: descriptors.collect::<io::Result<_>>().expect("descriptors"),
    }
}

#[test]
fn other_parts_are_refused() {
    ends(|| {
        let requests = Arc::new(Requests::default());
        let (mut device, socket) = device(requests.serve());
        let driver = connected(&mut device, socket, VERSION_1 | EVENT_IDX);
        let valid = device.suspend().expect("suspended");
        drop(device);
        let saved = SavedDevice::parse(&valid.state, QUEUES).expect("valid");
        let refused = |change: &dyn Fn(&mut SuspendedDevice)| {
            let mut parts = duplicate(&valid);
            change(&mut parts);
            let error = resume(parts, idle()).map(drop).expect_err("refused");
            error.kind()
        };
        for len in 0..valid.state.len() {
            let kind = refused(&|parts| parts.state.truncate(len));
            assert_eq!(kind, ErrorKind::UnexpectedEof, "{len}");
        }
        let invalid = |what: &str, change: &dyn Fn(&mut SuspendedDevice)| {
            assert_eq!(refused(change), ErrorKind::InvalidData, "{what}");
        };
        invalid("fewer descriptors", &|parts| drop(parts.descriptors.pop()));
        invalid("no descriptors", &|parts| parts.descriptors.clear());
        invalid("more descriptors", &|parts| {
            let more = parts.descriptors[0].try_clone().expect("a descriptor");
            parts.descriptors.push(more);
        });
        invalid("no socket", &|parts| parts.descriptors.swap(0, 1));
        invalid("a datagram socket", &|parts| {
            let (socket, _) = std::os::unix::net::UnixDatagram::pair().expect("a pair");
            parts.descriptors[0] = socket.into();
        });
        let state = |what: &str, change: &dyn Fn(&mut SavedDevice)| {
            let mut saved = saved.clone();
            change(&mut saved);
            invalid(what, &|parts| parts.state = saved.encode());
        };
        state("more queues", &|saved| {
            saved.queues.push(SavedQueue::default())
        });
        state("more regions", &|saved| {
            saved.regions = vec![saved.regions[0]; 510];
        });
        state("another feature", &|saved| saved.features |= 1);
        state("another feature", &|saved| saved.acked_features |= 1);
        state("an empty region", &|saved| saved.regions[0].size = 0);
        for at in [
            (|region| &mut region.guest) as fn(&mut SavedRegion) -> &mut u64,
            |region| &mut region.monitor,
            |region| &mut region.offset,
            |region| &mut region.size,
        ] {
            state("beyond the address space", &|saved| {
                *at(&mut saved.regions[0]) = u64::MAX - 4095;
            });
        }
        state("beyond the file", &|saved| saved.regions[0].size += 4096);
        state("an offset within a page", &|saved| {
            saved.regions[0].offset = 1;
            saved.regions[0].size -= 1;
        });
        // Queues that run.
        state("no addresses", &|saved| saved.queues[0].addresses = None);
        state("no size", &|saved| saved.queues[0].size = 0);
        state("not enabled", &|saved| saved.queues[1].enabled = false);
        state("beyond the memory", &|saved| {
            if let Some(at) = &mut saved.queues[1].addresses {
                at.used = 0;
            }
        });
        invalid("no kick", &|parts| {
            let mut saved = saved.clone();
            saved.queues[1].has_kick = false;
            parts.state = saved.encode();
            parts.descriptors.remove(4);
        });
        invalid("two regions at one address", &|parts| {
            let mut saved = saved.clone();
            saved.regions.push(saved.regions[0]);
            parts.state = saved.encode();
            let again = parts.descriptors[1].try_clone().expect("a descriptor");
            parts.descriptors.insert(1, again);
        });
        invalid("a log beyond its file", &|parts| {
            let mut saved = saved.clone();
            saved.log = Some((0, 1 << 40));
            parts.state = saved.encode();
            let file = parts.descriptors[1].try_clone().expect("a descriptor");
            parts.descriptors.insert(2, file);
        });
        // A socket that is no event, in the place of each file and event.
        for number in 1..valid.descriptors.len() {
            let (file, _) = std::os::unix::net::UnixDatagram::pair().expect("a pair");
            let kind = refused(&|parts| {
                parts.descriptors[number] = file.try_clone().expect("a descriptor").into();
            });
            let expected = [ErrorKind::InvalidData, ErrorKind::InvalidInput];
            assert!(expected.contains(&kind), "{number}: {kind}");
        }
        // The monitor has noticed nothing.
        let _device = resume(valid, requests.serve()).expect("resumed");
        for queue in driver.queues() {
            request(queue, 0, 1);
        }
    });
}

#[test]
fn a_device_that_is_being_migrated_is_not_suspended() {
    const CHECK_DEVICE_STATE: u32 = 43;
    ends(|| {
        let (device, mut monitor) = device(idle());
        let mut device = device.with_state(Arc::new(Stateless));
        let refused = |device: &mut Device| {
            let error = device.suspend().map(drop).expect_err("refused");
            assert_eq!(error.kind(), ErrorKind::ResourceBusy);
        };
        let (mut reader, writer) = rustix::pipe::pipe()
            .map(|(r, w)| (File::from(r), w))
            .expect("a pipe");
        let save = vhost::vhost_user::message::VhostTransferStateDirection::SAVE;
        let stopped = vhost::vhost_user::message::VhostTransferStatePhase::STOPPED;
        let started = {
            device
                .control()
                .set_device_state_fd(save, stopped, writer.into())
        };
        assert!(started.expect("started").is_none());
        refused(&mut device);
        // The monitor requests the result, and the device stops while it waits for the end.
        let header = [CHECK_DEVICE_STATE, 1, 0].map(u32::to_ne_bytes);
        monitor.write_all(header.as_flattened()).expect("sent");
        let stop = Stop::new();
        stop.set();
        run(&mut device, &stop);
        refused(&mut device);
        // The transfer continues, and the message is answered later.
        thread::scope(|scope| {
            let device = scope.spawn(|| run(&mut device, &stop));
            let mut state = Vec::new();
            reader.read_to_end(&mut state).expect("read");
            assert!(state.len() > 1 << 20);
            let mut answer = [0; 20];
            monitor.read_exact(&mut answer).expect("an answer");
            assert_eq!(answer[12..], [0; 8], "saved");
            stop.set();
            device.join().expect("no panic");
        });
        // The guest may continue at the destination.
        refused(&mut device);
        // It continues here.
        device.control().resume();
        device.suspend().expect("suspended");
    });
}

#[test]
fn features_of_the_connection_outlast_a_reset() {
    ends(|| {
        let (mut device, socket) = device(idle());
        let driver = connected(&mut device, socket, VERSION_1);
        device.control().reset_device().expect("reset");
        let suspended = device.suspend().expect("suspended");
        let device = resume(suspended, idle()).expect("resumed");
        let control = device.control();
        assert_eq!(control.features, 0);
        assert_ne!(control.acked_features & VERSION_1, 0);
        assert!(control.reply_ack() && control.features_requested);
        assert!(control.queues.iter().all(|slot| slot.running.is_none()));
        drop((control, driver));
    });
}

#[test]
fn a_connection_that_has_ended_is_not_suspended() {
    let (mut device, monitor) = device(idle());
    drop(monitor);
    let end = device.run(Stop::new().0.as_fd()).expect("no error");
    assert_eq!(end, RunEnd::Disconnected);
    let error = device.suspend().map(drop).expect_err("ended");
    assert_eq!(error.kind(), ErrorKind::NotConnected);
}
