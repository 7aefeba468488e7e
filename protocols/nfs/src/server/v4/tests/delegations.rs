//! Delegations over a directory of the host, whose kernel detects conflicts.

use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::server::v4::state::{InMemory, status_flags};
use crate::v4::attr::Who;
use crate::v4::callback::{CallbackOp, CallbackSequence, Recall};
use crate::v4::op::{BindConnToSession, Commit, Setattr, Write};
use crate::v4::reply::{Delegation, ReadDelegation, SpaceLimit, WhyNone, WriteDelegation};
use crate::v4::types::{Data, Stable};

const WANT_READ: u32 = 0x100;

/// A directory of the host with a file `f`, and a server.
struct Scene {
    directory: tempfile::TempDir,
    world: World,
}

impl Scene {
    fn new() -> Scene {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
        std::fs::write(directory.path().join("f"), "old").expect("written");
        let world = World::on_host(directory.path(), |_| {});
        Scene { directory, world }
    }

    fn file(&self) -> std::path::PathBuf {
        self.directory.path().join("f")
    }
}

/// Opens `f`, and returns its handle, stateid and delegation.
fn open(client: &Client41, access: u32) -> (Vec<u8>, StateId, Delegation<'static>) {
    let open = client.open(access, OpenHow::NoCreate, Claim::Null(b"f"));
    let reply = client.send(&[Op::Putrootfh, open, Op::Getfh]).done();
    let () = reply.ok();
    let opened: Opened<'_> = reply.ok();
    let handle: &[u8] = reply.ok();
    let delegation = match opened.delegation {
        Delegation::Read(ReadDelegation { state, recall, .. }) => {
            Delegation::Read(ReadDelegation {
                state,
                recall,
                permissions: NOBODY,
            })
        }
        Delegation::Write(WriteDelegation {
            state,
            recall,
            limit,
            ..
        }) => Delegation::Write(WriteDelegation {
            state,
            recall,
            limit,
            permissions: NOBODY,
        }),
        Delegation::None => Delegation::None,
        Delegation::NoneBecause(why) => Delegation::NoneBecause(why),
    };
    (handle.to_vec(), opened.state, delegation)
}

const NOBODY: crate::v4::attr::Ace<'static> = crate::v4::attr::Ace {
    kind: 0,
    flag: 0,
    mask: 0,
    who: Who::Name(b""),
};

/// Gets a read delegation of `f`, and returns its handle and the delegation's stateid.
fn delegated(client: &Client41) -> (Vec<u8>, StateId) {
    match open(client, READ) {
        (handle, _, Delegation::Read(given)) if !given.recall => (handle, given.state),
        (_, _, other) => panic!("expected a delegation, got {other:?}"),
    }
}

fn delegated_to_write(client: &Client41) -> (Vec<u8>, StateId) {
    match open(client, BOTH) {
        (handle, _, Delegation::Write(given)) => {
            assert_eq!(given.limit, SpaceLimit::Size(0));
            (handle, given.state)
        }
        (_, _, other) => panic!("expected a delegation, got {other:?}"),
    }
}

/// A received CB_RECALL.
struct Heard {
    call: Called,
    sequence: CallbackSequence,
    state: StateId,
    handle: Vec<u8>,
}

impl Heard {
    /// Receives the next callback on a connection.
    fn on(net: &Net) -> Heard {
        let call = Called::on(net);
        let (sequence, CallbackOp::Recall(Recall { state, handle, .. })) = call.read() else {
            panic!("no recall");
        };
        let handle = handle.to_vec();
        Heard {
            sequence,
            state,
            handle,
            call,
        }
    }

    fn answer(&self, net: &Net, status: Status) {
        self.call.answer(net, status);
    }
}

fn give_back(client: &Client41, handle: &[u8], state: StateId) {
    let reply = client.send(&[Op::Putfh(handle), Op::DelegReturn(state)]);
    reply.done();
}

/// Returns the status of an OPEN of `f`.
fn try_open(client: &Client41, access: u32) -> Status {
    let open = client.open(access, OpenHow::NoCreate, Claim::Null(b"f"));
    client.send(&[Op::Putrootfh, open]).status
}

fn flags(client: &Client41) -> u32 {
    let reply = client.net.again(&client.message(&[], false)).done();
    let sequenced: crate::v4::reply::Sequenced = reply.ok();
    sequenced.flags
}

#[test]
fn rfc8881_20_2_who_wants_to_write_waits_until_a_delegation_is_given_back() {
    let scene = Scene::new();
    let [reader, other, writer] =
        [b"reader", b"other_", b"writer"].map(|name| Client41::called(&scene.world, name));
    let (handle, state) = delegated(&reader);
    let (_, also) = delegated(&other);
    assert_eq!(try_open(&writer, WRITE), Status::Delay);
    for (client, state) in [(&reader, state), (&other, also)] {
        let heard = Heard::on(&client.net);
        assert_eq!((heard.state, &heard.handle), (state, &handle));
        heard.answer(&client.net, Status::Ok);
        assert_eq!(try_open(&writer, WRITE), Status::Delay);
        give_back(client, &handle, state);
    }
    assert_eq!(try_open(&writer, WRITE), Status::Ok);
    // The file is open for writing, and was recalled just now.
    assert_eq!(open(&reader, READ).2, Delegation::None);
}

#[test]
fn a_delegation_is_recalled_by_the_handle_that_its_client_knows() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    std::fs::write(directory.path().join("f"), "old").expect("written");
    let source = hostdir::HostDir::open(directory.path(), hostdir::Options::default());
    let world = World::named("share", source.expect("exported"));
    let [client, writer] = [b"client", b"writer"].map(|name| Client41::called(&world, name));
    let open = client.open(READ, OpenHow::NoCreate, Claim::Null(b"f"));
    let reply = client.send(&[Op::Putrootfh, Op::Lookup(b"share"), open, Op::Getfh]);
    let reply = reply.done();
    let ((), ()) = (reply.ok(), reply.ok());
    let opened: Opened<'_> = reply.ok();
    let handle: &[u8] = reply.ok();
    let Delegation::Read(given) = opened.delegation else {
        panic!("expected a delegation, got {:?}", opened.delegation);
    };
    assert_eq!(try_open(&writer, WRITE), Status::Delay);
    let heard = Heard::on(&client.net);
    assert_eq!((heard.state, &heard.handle[..]), (given.state, handle));
}

#[test]
fn a_program_of_the_host_that_writes_waits_until_a_delegation_is_given_back() {
    let scene = Scene::new();
    let client = Client41::called(&scene.world, b"client");
    let (handle, state) = delegated(&client);
    let file = scene.file();
    let program = std::thread::spawn(move || std::fs::write(file, "new"));
    let heard = Heard::on(&client.net);
    assert_eq!(std::fs::read(scene.file()).expect("read"), b"old");
    heard.answer(&client.net, Status::Ok);
    give_back(&client, &handle, state);
    program.join().expect("no panic").expect("written");
}

#[test]
fn rfc8881_10_4_4_names_and_attributes_are_others_to_change_only_then() {
    let scene = Scene::new();
    let other = Client41::called(&scene.world, b"other");
    let set = Attributes {
        mode: Some(0o600),
        ..Attributes::default()
    };
    let (handle, _, _) = open(&other, READ | 0x400);
    let changes = [
        vec![
            Op::Putfh(&handle),
            Op::Setattr(Setattr {
                state: StateId::ANONYMOUS,
                attributes: set,
            }),
        ],
        vec![
            Op::Putfh(&handle),
            Op::Savefh,
            Op::Putrootfh,
            Op::Link(b"g"),
        ],
        vec![
            Op::Putrootfh,
            Op::Savefh,
            Op::Rename(crate::v4::op::Rename {
                from: b"f",
                to: b"h",
            }),
        ],
        vec![Op::Putrootfh, Op::Remove(b"h")],
    ];
    for (at, change) in changes.iter().enumerate() {
        let name = [b"client".as_slice(), &[at as u8]].concat();
        let client = Client41::called(&scene.world, &name);
        // Beyond the time for which a conflict is remembered.
        scene.world.pass(61);
        other.send(&[]).done();
        let by_handle = client.open(READ, OpenHow::NoCreate, Claim::Handle);
        let reply = client.send(&[Op::Putfh(&handle), by_handle]).done();
        let () = reply.ok();
        let opened: Opened<'_> = reply.ok();
        let Delegation::Read(given) = opened.delegation else {
            panic!("expected a delegation, got {:?}", opened.delegation);
        };
        assert_eq!(other.send(change).status, Status::Delay, "{change:?}");
        Heard::on(&client.net).answer(&client.net, Status::Ok);
        give_back(&client, &handle, given.state);
        other.send(change).done();
    }
}

#[test]
fn rfc8881_10_2_1_who_does_not_give_back_in_time_has_lost_it_and_is_told() {
    let scene = Scene::new();
    let client = Client41::called(&scene.world, b"client");
    let writer = Client41::called(&scene.world, b"writer");
    let (handle, state) = delegated(&client);
    assert_eq!(try_open(&writer, WRITE), Status::Delay);
    Heard::on(&client.net).answer(&client.net, Status::Ok);
    scene.world.pass(40);
    assert_eq!(try_open(&writer, WRITE), Status::Delay);
    scene.world.pass(1);
    assert_eq!(try_open(&writer, WRITE), Status::Ok);

    let lost = status_flags::RECALLABLE_STATE_REVOKED;
    assert_eq!(flags(&client), lost);
    let read = Op::Read(crate::v4::op::Read {
        state,
        offset: 0,
        count: 1,
    });
    let refused = client.send(&[Op::Putfh(&handle), read]);
    assert_eq!(refused.status, Status::DelegRevoked);
    let tested = client.send(&[Op::TestStateId(vec![state])]).done();
    assert_eq!(tested.ok::<Vec<Status>>(), [Status::DelegRevoked]);
    client.send(&[Op::FreeStateId(state)]).done();
    assert_eq!(flags(&client), 0);
}

#[test]
fn rfc8881_2_10_6_2_a_call_that_was_lost_comes_again_by_another_connection() {
    let scene = Scene::new();
    let mut client = Client41::called(&scene.world, b"client");
    let writer = Client41::called(&scene.world, b"writer");
    let (handle, state) = delegated(&client);
    assert_eq!(try_open(&writer, WRITE), Status::Delay);
    let before = Heard::on(&client.net);
    client.net = scene.world.net(1);
    let down = status_flags::CB_PATH_DOWN | status_flags::CB_PATH_DOWN_SESSION;
    assert_eq!(flags(&client), down);
    let bind = Op::BindConnToSession(BindConnToSession {
        session: client.session,
        direction: 3,
        rdma: false,
    });
    client.net.send(&[bind]).done();
    let again = Heard::on(&client.net);
    assert_eq!(again.sequence, before.sequence);
    assert_eq!(again.state, state);
    // The first call was carried out, and its reply not cached.
    again.answer(&client.net, Status::Ok);
    assert_eq!(flags(&client), 0);
    give_back(&client, &handle, state);
    assert_eq!(try_open(&writer, WRITE), Status::Ok);
}

#[test]
fn rfc8881_20_2_4_a_client_that_does_not_know_it_yet_is_asked_again() {
    let scene = Scene::new();
    let client = Client41::called(&scene.world, b"client");
    let writer = Client41::called(&scene.world, b"writer");
    let (_, state) = delegated(&client);
    assert_eq!(try_open(&writer, WRITE), Status::Delay);
    let first = Heard::on(&client.net);
    first.answer(&client.net, Status::BadStateid);
    assert!(client.net.heard.try_recv().is_err(), "not at once");
    scene.world.pass(1);
    let second = Heard::on(&client.net);
    assert_eq!(second.state, state);
    assert_eq!(second.sequence.sequence, first.sequence.sequence + 1);
}

#[test]
fn a_client_that_cannot_be_called_is_given_nothing() {
    let scene = Scene::new();
    let client = Client41::new(&scene.world, b"client");
    assert_eq!(open(&client, READ).2, Delegation::None);
    let why = Delegation::NoneBecause(WhyNone::Resource(false));
    assert_eq!(open(&client, READ | WANT_READ).2, why);
    let world = World::on_host(scene.directory.path(), |options| {
        options.delegations = false
    });
    let client = Client41::called(&world, b"client");
    assert_eq!(open(&client, READ).2, Delegation::None);
}

#[test]
fn while_clients_of_v3_reclaim_locks_nobody_locks_by_itself() {
    let scene = Scene::new();
    let client = Client41::called(&scene.world, b"client");
    scene
        .world
        .server
        .state
        .extend_lock_grace(Duration::from_secs(10));
    assert_eq!(open(&client, READ).2, Delegation::None);
    scene.world.pass(10);
    delegated(&Client41::called(&scene.world, b"later!"));
}

#[test]
fn rfc8881_10_4_who_writes_has_a_file_to_itself() {
    let scene = Scene::new();
    let client = Client41::called(&scene.world, b"client");
    let reader = Client41::called(&scene.world, b"reader");
    let (handle, state) = delegated_to_write(&client);
    // The holder's own operations do not conflict.
    let write = Op::Write(Write {
        state,
        offset: 0,
        stable: Stable::Unstable,
        data: Data(b"new"),
    });
    let commit = Op::Commit(Commit {
        offset: 0,
        count: 0,
    });
    let cut = Op::Setattr(Setattr {
        state,
        attributes: Attributes {
            size: Some(2),
            ..Attributes::default()
        },
    });
    let again = client.open(BOTH, OpenHow::NoCreate, Claim::Handle);
    let all = [Op::Putfh(&handle), write, commit, cut, again];
    client.send(&all).done();
    assert!(client.net.heard.try_recv().is_err());

    assert_eq!(try_open(&reader, READ), Status::Delay);
    Heard::on(&client.net).answer(&client.net, Status::Ok);
    // The client has opened the file once more locally meanwhile.
    let claim = Claim::DelegateCurrentHandle(state);
    let mine = client.open(BOTH, OpenHow::NoCreate, claim);
    client.send(&[Op::Putfh(&handle), mine]).done();
    give_back(&client, &handle, state);
    assert_eq!(try_open(&reader, READ), Status::Ok);
    assert_eq!(std::fs::read(scene.file()).expect("read"), b"ne");
    assert_eq!(open(&client, BOTH).2, Delegation::None);
}

#[test]
fn rfc8881_10_4_1_who_denies_others_waits_for_those_who_open_by_themselves() {
    let scene = Scene::new();
    let client = Client41::called(&scene.world, b"client");
    let other = Client41::called(&scene.world, b"other");
    let (handle, state) = delegated(&client);
    let denying = |deny| {
        let open = other.open(READ, OpenHow::NoCreate, Claim::Null(b"f"));
        let Op::Open(open) = open else {
            panic!("an OPEN");
        };
        let open = Op::Open(Open { deny, ..open });
        other.send(&[Op::Putrootfh, open]).status
    };
    assert_eq!(denying(WRITE), Status::Ok);
    assert_eq!(denying(READ), Status::Delay);
    Heard::on(&client.net).answer(&client.net, Status::Ok);
    give_back(&client, &handle, state);
    // The client has the file open for reading itself.
    assert_eq!(denying(READ), Status::ShareDenied);
    assert_eq!(open(&client, READ).2, Delegation::None);
}

#[test]
fn rfc8881_10_2_1_a_delegation_comes_back_after_a_restart() {
    let scene = Scene::new();
    let stable = Arc::new(InMemory::default());
    let start = |boot| {
        World::on_host(scene.directory.path(), |options| {
            options.stable = stable.clone();
            options.boot = boot;
        })
    };
    let world = start(8);
    let client = Client41::called(&world, b"client");
    let (handle, _) = delegated(&client);
    drop((client, world));

    let world = start(9);
    let client = Client41::with_flags(&world, b"client", CHANNEL, BACKCHANNEL);
    let claim = client.open(READ, OpenHow::NoCreate, Claim::Previous(1));
    let reply = client.send(&[Op::Putfh(&handle), claim]).done();
    let () = reply.ok();
    let opened: Opened<'_> = reply.ok();
    // But the host's programs may have conflicted meanwhile, unseen.
    let Delegation::Read(given) = opened.delegation else {
        panic!("expected a delegation, got {:?}", opened.delegation);
    };
    assert!(given.recall);
    world.pass(1);
    let heard = Heard::on(&client.net);
    assert_eq!(heard.state, given.state);
    give_back(&client, &handle, given.state);
}
