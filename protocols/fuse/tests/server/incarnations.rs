//! INIT and DESTROY while the source serves requests: a request of one incarnation of the mount has
//! no effect on the next.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{ScopedJoinHandle, ThreadId};
use std::time::Duration;

use fuse::Request as R;
use fuse::layout::*;
use fuse::message::Text;
use fuse::numbers::{ROOT_ID, lock_kind};
use fuse::server::{Options, Server, SessionStats};
use layers::Fault;
use layers::fault::{FaultKind, Trigger};
use memory::Memory;
use parking_lot::Mutex;
use proptest::prelude::*;
use vfs::{Errno, Export, Op};
use vfs_testkit::{clock, wait_until};

use crate::net::{Net, OFFERED, create, entry, init, lookup};

/// A tree whose operations wait until the gate opens.
#[derive(Default)]
struct Gate {
    /// Incremented by each opening.
    now: AtomicU64,
    /// The threads that have reached the gate.
    reached: Mutex<HashSet<ThreadId>>,
}

impl Gate {
    fn export(self: &Arc<Gate>) -> Arc<Export> {
        let gate = self.clone();
        let now = move || {
            // A thread that reaches the gate does not see a later opening.
            let now = gate.now.load(Ordering::SeqCst);
            let mut reached = gate.reached.lock();
            reached.insert(std::thread::current().id());
            Duration::from_millis(now)
        };
        let fault = Fault::new(1, Arc::new(now));
        for op in [Op::Lookup, Op::Create, Op::Open, Op::Make] {
            fault.add(
                op,
                Trigger::Always,
                FaultKind::Delay(Duration::from_millis(1)),
            );
        }
        let memory = Memory::new(clock());
        let plain = Server::new(
            Arc::new(Export::new("", memory.clone())),
            Options::default(),
        );
        Net::on(&plain).create(ROOT_ID, "there");
        Arc::new(Export::new("", layers::stack(memory, fault)))
    }

    fn await_reached(&self, thread: ThreadId) {
        wait_until("the thread is there", || {
            self.reached.lock().contains(&thread)
        });
    }

    fn open(&self) {
        self.now.fetch_add(1, Ordering::SeqCst);
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Init,
    Destroy,
    /// A request reaches the source.
    Begin(Asked),
    /// All requests in the source are answered.
    Finish,
    /// A new owner locks the first open file.
    Lock,
}

#[derive(Clone, Copy, Debug)]
enum Asked {
    Lookup,
    Create,
    Opendir,
    Mkdir,
}

fn step() -> impl Strategy<Value = Step> {
    use Step::*;
    prop_oneof![
        1 => Just(Init),
        1 => Just(Destroy),
        1 => Just(Begin(Asked::Lookup)),
        2 => Just(Begin(Asked::Create)),
        1 => Just(Begin(Asked::Opendir)),
        1 => Just(Begin(Asked::Mkdir)),
        3 => Just(Finish),
        1 => Just(Lock),
    ]
}

/// The result of a request: a node and a handle.
type Brought = (Option<u64>, Option<u64>);

fn ask(net: &Net, asked: Asked, number: usize) -> Result<Brought, Errno> {
    let name = number.to_string();
    let node = |bytes: &[u8]| Some(entry(bytes).nodeid);
    let handle = |bytes: &[u8]| Some(OpenOut::decode(bytes).expect("a handle").fh);
    match asked {
        Asked::Lookup => {
            let reply = net.rpc(ROOT_ID, &lookup("there"))?;
            Ok((node(&reply), None))
        }
        Asked::Create => {
            let reply = net.rpc(ROOT_ID, &create(&name, 2))?;
            let (made, open) = reply.split_at(EntryOut::SIZE);
            Ok((node(made), handle(open)))
        }
        Asked::Opendir => {
            let args = OpenIn::default();
            Ok((None, handle(&net.rpc(ROOT_ID, &R::Opendir { args })?)))
        }
        Asked::Mkdir => {
            let args = MkdirIn::default();
            let name = Text(name.as_bytes());
            let reply = net.rpc(ROOT_ID, &R::Mkdir { args, name })?;
            Ok((node(&reply), None))
        }
    }
}

/// The client's state according to the replies so far.
#[derive(Default)]
struct Model {
    life: usize,
    mounted: bool,
    nodes: HashSet<u64>,
    handles: Vec<u64>,
    files: Vec<u64>,
    /// The nodes and handles of previous incarnations.
    past: Vec<Brought>,
}

impl Model {
    fn begin(&mut self, mounted: bool) {
        self.life += 1;
        self.mounted = mounted;
        self.past
            .extend(self.nodes.drain().map(|node| (Some(node), None)));
        self.past
            .extend(self.handles.drain(..).map(|handle| (None, Some(handle))));
        self.files.clear();
    }

    fn brought(&mut self, (node, handle): Brought) {
        self.nodes.extend(node);
        self.handles.extend(handle);
        self.files.extend(node.and(handle));
    }

    fn figures(&self) -> SessionStats {
        SessionStats {
            nodes: self.nodes.len() + usize::from(self.mounted),
            handles: self.handles.len(),
        }
    }
}

fn play(steps: &[Step]) {
    let gate = Arc::new(Gate::default());
    let export = gate.export();
    let net = &Net::silent(&Server::new(export.clone(), Options::default()));
    let mut model = Model::default();
    std::thread::scope(|scope| {
        let mut held: Vec<(usize, ScopedJoinHandle<'_, _>)> = Vec::new();
        let finish = |held: &mut Vec<(usize, ScopedJoinHandle<'_, _>)>, model: &mut Model| {
            gate.open();
            for (life, thread) in held.drain(..) {
                match thread.join().expect("no panic") {
                    Ok(brought) if life == model.life => model.brought(brought),
                    Err(Errno::ESTALE) if life != model.life => {}
                    other => panic!("{other:?} of life {life} in life {}", model.life),
                }
            }
            assert_eq!(net.session.stats(), model.figures());
        };
        for (number, &step) in steps.iter().enumerate() {
            match step {
                Step::Init => {
                    net.init();
                    model.begin(true);
                }
                Step::Destroy => {
                    net.ok(ROOT_ID, &R::Destroy {});
                    model.begin(false);
                }
                Step::Begin(asked) if model.mounted => {
                    let thread = scope.spawn(move || ask(net, asked, number));
                    gate.await_reached(thread.thread().id());
                    held.push((model.life, thread));
                }
                Step::Finish => finish(&mut held, &mut model),
                Step::Lock => {
                    if let Some(&fh) = model.files.first() {
                        let args = LkIn {
                            fh,
                            owner: number as u64,
                            kind: lock_kind::RDLCK,
                            ..LkIn::default()
                        };
                        net.ok(ROOT_ID, &R::Setlk { args });
                    }
                }
                Step::Begin(_) => {}
            }
            assert_eq!(net.session.stats().nodes, model.figures().nodes);
            assert!(!model.files.is_empty() || export.locks.is_empty());
        }
        finish(&mut held, &mut model);
    });
    net.init();
    for (node, handle) in std::mem::take(&mut model.past) {
        if let Some(node) = node {
            let args = GetattrIn::default();
            assert_eq!(net.err(node, &R::Getattr { args }), Errno::ESTALE);
        }
        if let Some(fh) = handle {
            let args = ReleaseIn {
                fh,
                ..ReleaseIn::default()
            };
            assert_eq!(net.err(ROOT_ID, &R::Release { args }), Errno::EBADF);
        }
    }
    net.ok(ROOT_ID, &R::Destroy {});
    assert_eq!(net.session.stats(), SessionStats::default());
    assert!(export.locks.is_empty());
}

#[test]
fn what_is_opened_while_another_life_begins_is_not_open_in_it() {
    use Step::*;
    for asked in [Asked::Lookup, Asked::Create, Asked::Opendir, Asked::Mkdir] {
        for end in [Init, Destroy] {
            play(&[Init, Begin(asked), end, Finish]);
            play(&[Init, Begin(asked), end, Init, Finish]);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn nothing_of_a_life_is_in_the_next(steps in proptest::collection::vec(step(), 1..24)) {
        play(&steps);
    }
}

/// Threads send requests while others begin incarnations: at the end no resources remain.
#[test]
fn lives_that_begin_at_once_leave_nothing_behind() {
    let export = Arc::new(Export::new("", Memory::new(clock())));
    let net = &Net::silent(&Server::new(export.clone(), Options::default()));
    std::thread::scope(|scope| {
        for thread in 0..4usize {
            scope.spawn(move || {
                for round in 0..300 {
                    let number = thread * 1000 + round;
                    let again = (round + thread) % 7 == 0;
                    if again && thread % 2 == 0 {
                        // Another INIT at the same time may have come first.
                        let _ = net.rpc(ROOT_ID, &init(7, 45, OFFERED));
                    } else if again {
                        net.ok(ROOT_ID, &R::Destroy {});
                    }
                    for asked in [Asked::Lookup, Asked::Create, Asked::Opendir, Asked::Mkdir] {
                        let Ok((Some(_), Some(fh))) = ask(net, asked, number) else {
                            continue;
                        };
                        let args = LkIn {
                            fh,
                            owner: number as u64,
                            kind: lock_kind::WRLCK,
                            ..LkIn::default()
                        };
                        let _ = net.rpc(ROOT_ID, &R::Setlk { args });
                    }
                }
            });
        }
    });
    net.ok(ROOT_ID, &R::Destroy {});
    assert_eq!(net.session.stats(), SessionStats::default());
    assert!(export.locks.is_empty());
}
