//! The events of an image's file: reads that wait, and the answers to them.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use sys::fanotify::{Event, Group, WaitingRead};

use super::reads::Reads;
use super::{Fill, Filled, Notice, answer};
use crate::child::message;

/// Maximum time that a reader waits for its range while no filler runs. A running filler has limits
/// of its own.
const WAIT_FOR_FILLER: Duration = Duration::from_secs(60);

/// Interval of the search for readers that have waited too long, and for threads that have ended.
const CHECK_SECONDS: u64 = 1;
const CHECK: Timespec = Timespec {
    tv_sec: CHECK_SECONDS as i64,
    tv_nsec: 0,
};

/// The events of the file.
pub(super) struct Events {
    pub(super) group: Group,
    /// Tells the thread that reads events to end.
    stopping: AtomicBool,
    reader: Mutex<Option<JoinHandle<()>>>,
    pub(super) state: Mutex<EventState>,
}

#[derive(Default)]
pub(super) struct EventState {
    /// Readers that wait, by the descriptor of their event.
    pub(super) waiting: BTreeMap<RawFd, Waiting>,
    /// The socket to the filler.
    pub(super) filler: Option<Arc<OwnedFd>>,
    /// The thread that receives the filler's replies.
    receiver: Option<JoinHandle<()>>,
    /// Reads that were allowed.
    pub(super) reads: Reads,
    /// Numbers of reads that are over, for the next message to the filler.
    over: Vec<u64>,
}

impl EventState {
    /// Removes reads that are over with `remove`, which returns their numbers.
    fn end_reads(&mut self, remove: impl FnOnce(&mut Reads) -> Vec<u64>) {
        let over = remove(&mut self.reads);
        self.over.extend(over);
    }
}

pub(super) struct Waiting {
    /// Keeps the number reserved.
    pub(super) event: OwnedFd,
    pub(super) fill: Fill,
    since: Instant,
}

impl Waiting {
    pub(super) fn new(event: OwnedFd, fill: Fill) -> Waiting {
        Waiting {
            event,
            fill,
            since: Instant::now(),
        }
    }
}

impl Events {
    pub(super) fn new(group: Group, waiting: BTreeMap<RawFd, Waiting>, reads: Reads) -> Events {
        Events {
            group,
            stopping: AtomicBool::new(false),
            reader: Mutex::default(),
            state: Mutex::new(EventState {
                waiting,
                reads,
                ..EventState::default()
            }),
        }
    }

    /// Starts a thread that reads events and passes them on.
    pub(super) fn start_reading(self: Arc<Self>) -> io::Result<()> {
        self.stopping.store(false, Ordering::Relaxed);
        let events = self.clone();
        let thread = Builder::new().name("barge-events".into());
        *self.reader.lock() = Some(thread.spawn(move || events.read())?);
        Ok(())
    }

    /// Starts it again, after others: readers wait for it.
    pub(super) fn resume_reading(self: &Arc<Self>) {
        while let Err(error) = self.clone().start_reading() {
            tracing::error!("events of the image's file: {error}");
            std::thread::sleep(Duration::from_secs(1));
        }
    }

    /// Ends that thread. Further events stay in the queue.
    pub(super) fn stop_reading(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        if let Some(reader) = self.reader.lock().take() {
            // A panic is reported by its thread.
            let _ = reader.join();
        }
    }

    /// Reads events and passes them on.
    fn read(&self) {
        let mut checked = Instant::now();
        while !self.stopping.load(Ordering::Relaxed) {
            if checked.elapsed().as_secs() >= CHECK_SECONDS {
                checked = Instant::now();
                self.find_ended_threads();
            }
            let mut ready = [PollFd::new(&self.group, PollFlags::IN)];
            match rustix::io::retry_on_intr(|| poll(&mut ready, Some(&CHECK))) {
                Ok(0) => self.deny_overdue(),
                _ => {
                    if let Err(error) = self.group.read(&mut |event| self.pass_on(event)) {
                        tracing::error!("events of the image's file: {error}");
                        std::thread::sleep(Duration::from_millis(100));
                    }
                }
            }
        }
    }

    fn pass_on(&self, event: Event) {
        match event {
            Event::Waits(read) => self.pass_on_read(read),
            Event::Over { thread } => self.state.lock().end_reads(|reads| reads.end(thread)),
        }
    }

    fn pass_on_read(&self, read: WaitingRead) {
        let mut state = self.state.lock();
        // A thread does one read at a time.
        state.end_reads(|reads| reads.end(read.thread));
        let fill = Fill {
            event: read.file.as_raw_fd(),
            start: read.range.start,
            end: read.range.end,
            thread: read.thread,
            number: state.reads.next(),
        };
        let waiting = Waiting::new(read.file, fill);
        state.waiting.insert(fill.event, waiting);
        let notice = Notice::Fill(fill, std::mem::take(&mut state.over));
        let filler = state.filler.clone();
        drop(state);
        // A filler that has ended is replaced, and gets it again.
        let _ = filler.map(|filler| message::send(filler.as_fd(), &notice, None));
    }

    /// Ends the reads of threads that have ended: one that fails raises no further event. Tells the
    /// filler which reads are over.
    fn find_ended_threads(&self) {
        let exists = |thread| match Pid::from_raw(thread) {
            Some(id) => test_kill_process(id) != Err(Errno::SRCH),
            None => true,
        };
        let (over, filler) = {
            let mut state = self.state.lock();
            state.end_reads(|reads| reads.end_without(exists));
            (std::mem::take(&mut state.over), state.filler.clone())
        };
        if let (false, Some(filler)) = (over.is_empty(), filler) {
            // Another filler is not told of them.
            let _ = message::send(filler.as_fd(), &Notice::Over(over), None);
        }
    }

    /// Returns the filler's end of a new socket, and passes on what waits. The last filler has
    /// ended.
    pub(super) fn connect(self: &Arc<Self>) -> io::Result<OwnedFd> {
        // All its replies are taken first: a second reply to the same event might otherwise answer
        // a later one that has the same number.
        let receiver = self.state.lock().receiver.take();
        if let Some(receiver) = receiver {
            // A panic is reported by its thread.
            let _ = receiver.join();
        }
        let (here, there) = message::pair()?;
        let here = Arc::new(here);
        let receiver = self.start_receiving(here.clone())?;
        let fills: Vec<Fill> = {
            let mut state = self.state.lock();
            let known = state.reads.complete.then(|| state.reads.ranges());
            // An empty socket does not block.
            if message::send(here.as_fd(), &Notice::Reads(known), None).is_err() {
                // Its buffer is smaller than by default.
                state.reads.give_up();
                message::send(here.as_fd(), &Notice::Reads(None), None)?;
            }
            state.over.clear();
            state.filler = Some(here.clone());
            state.receiver = Some(receiver);
            let now = Instant::now();
            let waiting = state.waiting.values_mut();
            waiting
                .map(|waiting| {
                    waiting.since = now;
                    waiting.fill
                })
                .collect()
        };
        // The socket's buffer may be smaller than what waits.
        let send = move || {
            for fill in fills {
                if message::send(here.as_fd(), &Notice::Fill(fill, Vec::new()), None).is_err() {
                    return;
                }
            }
        };
        Builder::new().name("barge-fills".into()).spawn(send)?;
        Ok(there)
    }

    /// Makes `socket` that of the filler, and starts a thread that receives its replies.
    pub(super) fn set_filler(self: &Arc<Self>, socket: Arc<OwnedFd>) -> io::Result<()> {
        let receiver = self.start_receiving(socket.clone())?;
        let mut state = self.state.lock();
        state.receiver = Some(receiver);
        state.filler = Some(socket);
        Ok(())
    }

    fn start_receiving(self: &Arc<Self>, socket: Arc<OwnedFd>) -> io::Result<JoinHandle<()>> {
        let events = self.clone();
        let receive = move || events.receive(&socket);
        Builder::new().name("barge-filled".into()).spawn(receive)
    }

    /// Answers what the filler at the other end of `socket` has filled, until that ends.
    fn receive(&self, socket: &Arc<OwnedFd>) {
        loop {
            match message::receive::<Filled>(socket.as_fd()) {
                Ok((Filled { event, done }, _)) => {
                    let mut state = self.state.lock();
                    let was_complete = state.reads.complete;
                    let waiting = state.waiting.remove(&event);
                    if let Some(waiting) = &waiting {
                        if done {
                            state.reads.allow(&waiting.fill);
                        }
                        // Fails if the reader was killed.
                        let _ = self.group.answer(event, answer(done));
                    }
                    // The number may be used again after the answer.
                    drop(waiting);
                    let gave_up = was_complete && !state.reads.complete;
                    drop(state);
                    if gave_up {
                        let _ = message::send(socket.as_fd(), &Notice::Unknown, None);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {}
                Err(_) => break,
            }
        }
        let mut state = self.state.lock();
        if state
            .filler
            .as_ref()
            .is_some_and(|filler| Arc::ptr_eq(filler, socket))
        {
            state.filler = None;
        }
    }

    /// Denies reads that have waited too long while no filler runs.
    fn deny_overdue(&self) {
        let overdue: Vec<Waiting> = {
            let mut state = self.state.lock();
            if state.filler.is_some() {
                return;
            }
            let waiting = state.waiting.values();
            let late = waiting.filter(|waiting| waiting.since.elapsed() > WAIT_FOR_FILLER);
            let late: Vec<RawFd> = late.map(|waiting| waiting.fill.event).collect();
            let late = late.iter();
            late.filter_map(|event| state.waiting.remove(event))
                .collect()
        };
        for waiting in overdue {
            let _ = self.group.answer(waiting.fill.event, answer(false));
        }
    }
}
