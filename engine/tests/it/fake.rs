//! A session whose requests do what their third byte says, and an engine that drives it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, LazyLock, Mutex};
use std::task::Waker;
use std::time::Duration;

use engine::{Engine, Service, Tuning};
use transports::{StreamLink, pair};
use vfs::{Call, Errno, Patience};
use vfs_testkit::wait_until;
use wire::{
    ClientInfo, Incoming, Malformed, MessageSender, Outgoing, Role, SavedState, ServeOutcome,
    Session, Vocabulary,
};

/// The length of the reply to `l` in bytes.
pub(crate) const LARGE: usize = 1 << 20;

/// Messages are `len[1] id[1] what[1] more…`; a reply repeats its message, except that to `l`,
/// which has [`LARGE`] bytes.
#[derive(Default)]
pub(crate) struct Fake {
    /// Requests wait here: `w` on their worker's thread, `s` likewise until cancelled, `p` and `n`
    /// by parking.
    pub(crate) gates: Mutex<HashMap<u8, Gate>>,
    opened: Condvar,
    pub(crate) sessions: AtomicUsize,
    pub(crate) served: AtomicUsize,
    /// The channels of all connections.
    pub(crate) voices: Mutex<Vec<Arc<dyn MessageSender>>>,
}

#[derive(Default)]
pub(crate) struct Gate {
    pub(crate) open: bool,
    reached: bool,
    waker: Option<Waker>,
}

impl Fake {
    pub(crate) fn open(&self, id: u8) {
        let mut gates = self.gates.lock().expect("no panic holds it");
        let gate = gates.entry(id).or_default();
        gate.open = true;
        if let Some(waker) = gate.waker.take() {
            waker.wake();
        }
        self.opened.notify_all();
    }

    pub(crate) fn await_reached(&self, id: u8) {
        let gates = self.gates.lock().expect("no panic holds it");
        drop(
            self.opened
                .wait_while(gates, |gates| {
                    !gates.get(&id).is_some_and(|gate| gate.reached)
                })
                .expect("no panic holds it"),
        );
    }
}

impl Fake {
    /// Waits until all sessions are dropped: the last worker may have answered and still hold one.
    pub(crate) fn await_no_session(&self) {
        wait_until("no session is left", || {
            self.sessions.load(Ordering::SeqCst) == 0
        });
    }
}

pub(crate) struct FakeSession(pub(crate) Arc<Fake>);

impl Drop for FakeSession {
    fn drop(&mut self) {
        self.0.sessions.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Session for FakeSession {
    fn frame(&self, head: &[u8]) -> Result<Option<usize>, Malformed> {
        match head.first() {
            Some(len) if *len < 3 => Err(Malformed::new("expected 3 bytes at least")),
            len => Ok(len.map(|len| (*len).into())),
        }
    }

    fn role(&self, message: &[u8]) -> Result<Role, Malformed> {
        let id = message[1].into();
        Ok(match message[2] {
            b'c' => Role::Cancel {
                id,
                target: message[3].into(),
            },
            b'r' => Role::Reset { id },
            _ => Role::Request { id },
        })
    }

    fn serve(
        &self,
        call: &Call,
        patience: Patience,
        message: &dyn Incoming,
        out: &mut dyn Outgoing,
    ) -> Result<ServeOutcome, Malformed> {
        let fake = &*self.0;
        fake.served.fetch_add(1, Ordering::SeqCst);
        let message = message.bytes();
        let (id, what) = (message[1], message[2]);
        // Also if the attempt has no result, which does not count as a request.
        call.note_operation(what.into());
        let mut gates = fake.gates.lock().expect("no panic holds it");
        match what {
            b'w' | b's' | b'p' | b'n' | b'l' if patience < Patience::Full => {
                return Ok(ServeOutcome::WouldBlock);
            }
            b'w' | b'l' => {
                if what == b'l' {
                    out.zeros(LARGE);
                }
                gates.entry(id).or_default().reached = true;
                fake.opened.notify_all();
                drop(
                    fake.opened
                        .wait_while(gates, |gates| !gates[&id].open)
                        .expect("no panic holds it"),
                );
            }
            b's' => {
                let waker = vfs::cx::thread_waker();
                call.wake_on_cancel(&waker);
                let gate = gates.entry(id).or_default();
                (gate.reached, gate.waker) = (true, Some(waker));
                fake.opened.notify_all();
                while !gates[&id].open {
                    drop(gates);
                    if call.check().is_err() {
                        out.bytes(&[3, id, b'i']);
                        return Ok(ServeOutcome::Done);
                    }
                    std::thread::park();
                    gates = fake.gates.lock().expect("no panic holds it");
                }
            }
            b'p' | b'n' => {
                let gate = gates.entry(id).or_default();
                gate.reached = true;
                fake.opened.notify_all();
                if call.check().is_err() {
                    call.note_error(Errno::EINTR.raw());
                    out.bytes(&[3, id, b'i']);
                    return Ok(ServeOutcome::Done);
                }
                if !gate.open {
                    if what == b'p' {
                        gate.waker = call.waker().cloned();
                    } else {
                        call.wake_within(Duration::from_millis(1));
                    }
                    return Ok(ServeOutcome::Parked);
                }
            }
            b'k' if patience < Patience::Full => return Ok(ServeOutcome::WouldBlock),
            b'k' | b'K' => {
                drop(gates);
                out.bytes(b"half a reply");
                panic!("as a test wants it");
            }
            b'x' => return Err(Malformed::new("expected anything but x")),
            _ => {}
        }
        if what == b'f' {
            call.note_error(2);
        }
        if what == b'l' {
            return Ok(ServeOutcome::Done);
        }
        out.bytes(message);
        Ok(ServeOutcome::Done)
    }

    fn answer_failure(&self, message: &dyn Incoming, out: &mut dyn Outgoing) -> bool {
        out.bytes(&[3, message.bytes()[1], b'!']);
        true
    }

    fn was_interrupted(&self, call: &Call) -> bool {
        call.noted_error() == Errno::EINTR.raw()
    }

    fn vocabulary(&self) -> &'static Vocabulary {
        &VOCABULARY
    }

    fn client_info(&self) -> ClientInfo {
        ClientInfo {
            version: "1".into(),
            user: String::new(),
        }
    }

    fn save_state(&self, _: &Call) -> Option<SavedState> {
        Some(SavedState {
            bytes: STATE.to_vec(),
            files: Vec::new(),
        })
    }

    fn set_message_sender(&self, voice: Arc<dyn MessageSender>) {
        self.0.voices.lock().expect("no panic holds it").push(voice);
    }
}

/// The name of a request is its type byte.
static VOCABULARY: LazyLock<Vocabulary> = LazyLock::new(|| Vocabulary {
    protocol: "fake",
    operations: (0..128u8).map(|byte| char::from(byte).into()).collect(),
    error: Vocabulary::errno,
});

pub(crate) struct FakeService(pub(crate) Arc<Fake>);

impl Service for FakeService {
    fn session(&self) -> Box<dyn Session> {
        self.0.sessions.fetch_add(1, Ordering::SeqCst);
        Box::new(FakeSession(self.0.clone()))
    }

    fn resume(&self, _: &Call, state: &SavedState) -> Result<Box<dyn Session>, String> {
        match state.bytes == STATE {
            true => Ok(self.session()),
            false => Err("expected its state".into()),
        }
    }
}

/// The state of each session for another process.
const STATE: &[u8] = b"fake";

pub(crate) struct Rig {
    pub(crate) fake: Arc<Fake>,
    pub(crate) engine: Arc<Engine>,
}

impl Rig {
    pub(crate) fn new(tuning: Tuning) -> Rig {
        Rig {
            fake: Arc::default(),
            engine: Engine::new(tuning).expect("an engine"),
        }
    }

    pub(crate) fn connect(&self) -> StreamLink {
        let (client, server) = pair().expect("a pair");
        self.engine
            .connect(Box::new(server), &FakeService(self.fake.clone()))
            .expect("connected");
        client
    }
}
