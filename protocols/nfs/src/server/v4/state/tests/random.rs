//! Random sequences of operations, and the invariants of the state.

use proptest::prelude::*;
use vfs::lock::LockKind;

use super::super::client_state::{ClientState, StateEntry};
use super::*;
use crate::v4::callback::CalledBack;

#[derive(Clone, Debug)]
enum Step {
    Open {
        client: usize,
        owner: u8,
        node: u64,
        access: u8,
        deny: u8,
    },
    Downgrade {
        state: usize,
        access: u8,
        deny: u8,
    },
    Close {
        state: usize,
    },
    Lock {
        state: usize,
        owner: u8,
        at: u64,
    },
    Unlock {
        state: usize,
        at: u64,
    },
    Free {
        state: usize,
    },
    ReleaseLockOwner {
        client: usize,
        owner: u8,
    },
    Io {
        state: usize,
        by: usize,
    },
    Delegate {
        client: usize,
        node: u64,
    },
    Recall {
        node: u64,
        status: Status,
    },
    Return {
        state: usize,
    },
    Disconnect {
        client: usize,
    },
    Restart {
        client: usize,
    },
    Pass {
        seconds: u64,
        speaks: usize,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let (client, owner, node, state) = (0..4usize, 0..2u8, 0..2u64, 0..12usize);
    prop_oneof![
        3 => (client.clone(), node.clone())
            .prop_map(|(client, node)| Step::Delegate { client, node }),
        2 => (node.clone(), any::<bool>()).prop_map(|(node, knows)| Step::Recall {
            node,
            status: if knows { Status::Ok } else { Status::BadStateid },
        }),
        2 => state.clone().prop_map(|state| Step::Return { state }),
        1 => client.clone().prop_map(|client| Step::Disconnect { client }),
        6 => (client.clone(), owner.clone(), node, 1..4u8, 0..4u8)
            .prop_map(|(client, owner, node, access, deny)| Step::Open {
                client,
                owner,
                node,
                access,
                // Mostly none, so that more operations succeed.
                deny: if deny == 3 { 2 } else { 0 },
            }),
        1 => (state.clone(), 0..4u8, 0..4u8)
            .prop_map(|(state, access, deny)| Step::Downgrade { state, access, deny }),
        2 => state.clone().prop_map(|state| Step::Close { state }),
        4 => (state.clone(), owner.clone(), 0..4u64)
            .prop_map(|(state, owner, at)| Step::Lock { state, owner, at }),
        2 => (state.clone(), 0..4u64).prop_map(|(state, at)| Step::Unlock { state, at }),
        1 => state.clone().prop_map(|state| Step::Free { state }),
        1 => (client.clone(), owner)
            .prop_map(|(client, owner)| Step::ReleaseLockOwner { client, owner }),
        2 => (state, client.clone()).prop_map(|(state, by)| Step::Io { state, by }),
        1 => client.clone().prop_map(|client| Step::Restart { client }),
        1 => (30..100u64, client).prop_map(|(seconds, speaks)| Step::Pass { seconds, speaks }),
    ]
}

/// Two v4.0 and two v4.1 clients, and their stateids.
struct Run {
    world: World,
    clients: Vec<ClientRef<TestTree>>,
    boots: u8,
    /// The client, node and stateid of each state.
    states: Vec<(ClientId, NodeKey, StateId)>,
    file: File,
}

impl Run {
    fn new() -> Run {
        let world = World::new();
        let mut run = Run {
            world,
            clients: Vec::new(),
            boots: 0,
            states: Vec::new(),
            file: Arc::new("file"),
        };
        run.clients = (0..4).map(|number| run.begin(number)).collect();
        run
    }

    fn begin(&mut self, number: usize) -> ClientRef<TestTree> {
        self.boots += 1;
        let (name, state) = (number.to_string(), &self.world.state);
        if number < 2 {
            let known = state.set_client_id(set_client_id(&name, self.boots, "root"));
            let (id, confirm) = known.expect("known");
            assert_eq!(state.set_client_id_confirm(id, confirm, b"root"), Ok(()));
            return state.client(id).expect("known");
        }
        let known = state.exchange_id(&exchange_id(&name, self.boots, "root"));
        let created = state.create_session(&CreateSession {
            backchannel: true,
            ..create_session(known.expect("known"), number as u64)
        });
        let peer = Peer {
            client: known.expect("known").client,
            session: created.expect("created").session,
            seqid: AtomicU64::new(0),
        };
        let client = peer.client(&self.world);
        assert_eq!(state.reclaim_complete(&client), Ok(()));
        client
    }

    fn picked(&self, state: usize) -> Option<(ClientRef<TestTree>, NodeKey, StateId)> {
        let at = state.checked_rem(self.states.len())?;
        let (client, key, stateid) = self.states[at];
        let client = self.clients.iter().find(|one| one.id() == client)?;
        Some((client.clone(), key, stateid))
    }

    fn keep(&mut self, client: ClientId, key: NodeKey, stateid: StateId) {
        self.states
            .retain(|(_, _, kept)| kept.other != stateid.other);
        self.states.push((client, key, stateid));
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Open {
                client,
                owner,
                node,
                access,
                deny,
            } => self.open(client, owner, node, access, deny),
            Step::Downgrade {
                state,
                access,
                deny,
            } => {
                if let Some((client, key, stateid)) = self.picked(state) {
                    let [access, deny] = [access, deny].map(Share::from_bits_truncate);
                    let state = &self.world.state;
                    if let Ok(now) = state.open_downgrade(&client, &stateid, key, access, deny) {
                        self.keep(client.id(), key, now);
                    }
                }
            }
            Step::Close { state } => {
                if let Some((client, key, stateid)) = self.picked(state) {
                    let _ = self.world.state.close(&client, &stateid, key);
                }
            }
            Step::Lock { state, owner, at } => self.lock(state, owner, at),
            Step::Unlock { state, at } => {
                if let Some((client, key, stateid)) = self.picked(state)
                    && let Ok(unlocking) = self.world.state.unlock(&client, &stateid, key)
                {
                    let now = unlocking.done(at, at + 1).expect("nobody is in between");
                    self.keep(client.id(), key, now);
                }
            }
            Step::Free { state } => {
                if let Some((client, _, stateid)) = self.picked(state) {
                    let _ = self.world.state.free_stateid(&client, &stateid);
                }
            }
            Step::ReleaseLockOwner { client, owner } => {
                let client = &self.clients[client];
                let _ = self.world.state.release_lock_owner(client, &[owner]);
            }
            Step::Io { state, by } => {
                if let Some((client, key, stateid)) = self.picked(state) {
                    let by = &self.clients[by];
                    let done = self.world.state.io(Some(by), &stateid, key, R);
                    assert!(done.is_err() || by.id() == client.id(), "another's stateid");
                }
            }
            Step::Delegate { client, node } => {
                let (client, key) = (self.clients[client].clone(), NodeKey { export: 0, node });
                let state = &self.world.state;
                if state.may_delegate(&client, key, false).is_ok() {
                    let given = state.delegate(&client, key, node, R, self.file.clone());
                    self.keep(client.id(), key, given.expect("it is alive"));
                }
            }
            Step::Recall { node, status } => {
                for client in self.world.state.recall(NodeKey { export: 0, node }) {
                    self.call(client, status);
                }
            }
            Step::Return { state } => {
                if let Some((client, key, stateid)) = self.picked(state) {
                    let _ = self.world.state.delegation_return(&client, &stateid, key);
                }
            }
            Step::Disconnect { client } => {
                for client in self.world.state.disconnected(client as u64) {
                    self.call(client, Status::Ok);
                }
            }
            Step::Restart { client } => self.clients[client] = self.begin(client),
            Step::Pass { seconds, speaks } => {
                self.world.pass(Duration::from_secs(seconds));
                self.clients[speaks].0.renew(self.world.state.now());
                for client in self.world.state.maintain_callbacks() {
                    self.call(client, Status::Ok);
                }
                self.world.state.reap();
                for client in 0..self.clients.len() {
                    if self.clients[client].0.client_state.lock().destroyed {
                        self.clients[client] = self.begin(client);
                    }
                }
            }
        }
    }

    /// Sends a client all pending callbacks, and answers every other one.
    fn call(&self, client: ClientId, status: Status) {
        let state = &self.world.state;
        loop {
            let callback = state.callbacks(client);
            if callback.is_empty() {
                return;
            }
            for call in callback.iter().filter(|call| call.xid % 2 == 0) {
                let became = CalledBack::Answered(status);
                let whose = state.called_back(call.connection, call.xid, became);
                assert_eq!(whose, Some(client));
                assert_eq!(state.called_back(call.connection, call.xid, became), None);
            }
        }
    }

    fn open(&mut self, client: usize, owner: u8, node: u64, access: u8, deny: u8) {
        let client = self.clients[client].clone();
        let key = NodeKey { export: 0, node };
        let asked = OpenArgs {
            owner: &[owner],
            key,
            node,
            access: Share::from_bits_truncate(access),
            deny: Share::from_bits_truncate(deny),
            reclaim: false,
        };
        let opening = self.world.state.open(&client, asked);
        let opened = opening.and_then(|opening| opening.commit(self.file.clone()));
        if let Ok(mut opened) = opened {
            if opened.confirm {
                let confirmed = self.world.state.open_confirm(&client, &opened.stateid, key);
                opened.stateid = confirmed.expect("confirmed");
            }
            self.keep(client.id(), key, opened.stateid);
        }
    }

    fn lock(&mut self, state: usize, owner: u8, at: u64) {
        let Some((client, key, stateid)) = self.picked(state) else {
            return;
        };
        let is_lock = {
            let client_state = client.0.client_state.lock();
            let serial = super::super::stateid::Parts::of(&stateid).serial;
            matches!(client_state.get(serial), Some(StateEntry::Lock(_)))
        };
        // Another test covers the seqids of v4.0's lock owners.
        let known = client.0.client_state.lock().lock_owners.find(&[owner]);
        let locker = if is_lock {
            Locker::Known { lock: &stateid }
        } else if client.minor() == Minor::V40 && known.is_some() {
            return;
        } else {
            Locker::New {
                open: &stateid,
                owner: &[owner],
                seqid: 0,
            }
        };
        let state = &self.world.state;
        if let Ok(locking) = state.lock(&client, locker, key, LockKind::Exclusive, false) {
            let now = locking.granted(at, at).expect("nobody is in between");
            self.keep(client.id(), key, now);
        }
    }

    /// Checks the invariants.
    fn check(&self) {
        self.world.gone.lock().clear();
        let state = &self.world.state;
        let mut opens: Vec<(ClientId, u32, NodeKey, Share, Share)> = Vec::new();
        let (mut files, mut delegations) = (0, 0);
        for client in state.clients.all() {
            let client_state = client.client_state.lock();
            assert!(!client_state.destroyed);
            files += check_holdings(&client_state, |owner, key, access, deny| {
                opens.push((client.id, owner, key, access, deny));
            });
            delegations += client_state.delegations;
            assert!(client_state.recalled.len() <= client_state.delegations);
            assert!(
                client_state.opens == 0 || *client.recorded.lock() != client::Recorded::Never,
                "it could not reclaim"
            );
        }
        for (at, one) in opens.iter().enumerate() {
            for other in &opens[..at] {
                let same_owner = (one.0, one.1) == (other.0, other.1);
                if one.2 == other.2 && !same_owner {
                    let conflict = one.3.intersects(other.4) || one.4.intersects(other.3);
                    assert!(!conflict, "{one:?} and {other:?}");
                }
            }
        }
        assert_eq!(state.shares.len(), opens.len());
        assert_eq!(state.delegations.len(), delegations);
        // All other handles to the file have been dropped.
        assert_eq!(Arc::strong_count(&self.file), files + 1);
    }
}

/// Calls `each` for every open, and returns the number of files.
fn check_holdings(
    client_state: &ClientState<TestTree>,
    mut each: impl FnMut(u32, NodeKey, Share, Share),
) -> usize {
    let (mut opens, mut locks, mut delegations, mut revoked, mut files) = (0, 0, 0, 0, 0);
    for (&serial, held) in client_state.all() {
        match held {
            StateEntry::Open(open) => {
                opens += 1;
                files += open.files.count();
                let owner = client_state.open_owners.get(open.owner).expect("an owner");
                assert_eq!(owner.opens.get(&open.key), Some(&serial));
                assert!(open.files.get(R).is_some() || !open.access.contains(R));
                assert!(open.files.get(W).is_some() || !open.access.contains(W));
                for &lock in &open.locks {
                    assert_eq!(client_state.lock(lock).map(|lock| lock.open), Ok(serial));
                }
                each(open.owner, open.key, open.access, open.deny);
            }
            StateEntry::Lock(state) => {
                locks += 1;
                let open = client_state.open(state.open).expect("an open");
                assert!(open.locks.contains(&serial));
                let owner = client_state.lock_owners.get(state.owner).expect("an owner");
                assert!(owner.states.contains(&serial));
            }
            StateEntry::Closed(_) | StateEntry::Copy(_) => {}
            StateEntry::Delegation(_) => {
                delegations += 1;
                files += 1;
            }
            StateEntry::Revoked => revoked += 1,
            StateEntry::RevokedDelegation => {}
        }
    }
    assert_eq!(
        (opens, locks, delegations, revoked),
        (
            client_state.opens,
            client_state.locks,
            client_state.delegations,
            client_state.revoked
        )
    );
    let unused = client_state
        .lock_owners
        .which(|owner| owner.states.is_empty());
    assert!(unused.is_empty());
    files
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn whatever_clients_do(steps in prop::collection::vec(step(), 1..80)) {
        let mut run = Run::new();
        for step in &steps {
            run.step(step);
            run.check();
        }
        let world = &run.world;
        let mut gone = Released::default();
        for client in world.state.clients.all() {
            world.state.destroy(&mut world.state.registry.lock(), &client, &mut gone);
        }
        drop(gone);
        prop_assert_eq!(Arc::strong_count(&run.file), 1);
        let quotas = &world.state.quotas;
        let used = [&quotas.clients, &quotas.slots, &quotas.state_bytes, &quotas.delegations];
        prop_assert_eq!(used.map(|quota| quota.in_use()), [0; 4]);
        prop_assert_eq!(world.state.shares.len(), 0);
        prop_assert!(world.state.sessions.all().is_empty());
        prop_assert!(world.state.connections.lock().is_empty());
        prop_assert!(world.stable.list().is_empty());
    }
}
