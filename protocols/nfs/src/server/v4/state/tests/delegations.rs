//! The limits of delegations.

use super::*;
use crate::v4::callback::CalledBack;

#[test]
fn rfc8881_20_6_a_client_with_many_delegations_is_asked_for_some() {
    let world = World::with(Limits {
        delegations: 8,
        ..Limits::default()
    });
    let known = world.state.exchange_id(&exchange_id("a", 1, "root"));
    let known = known.expect("a new client");
    let ask = CreateSession {
        backchannel: true,
        ..create_session(known, 7)
    };
    let created = world.state.create_session(&ask).expect("a session");
    let peer = Peer {
        client: known.client,
        session: created.session,
        seqid: AtomicU64::new(0),
    };
    let client = peer.client(&world);
    let delegate = |node| {
        let key = NodeKey { export: 0, node };
        let may = world.state.may_delegate(&client, key, false);
        may.map(|()| {
            let file = Arc::new("file");
            let given = world.state.delegate(&client, key, node, R, file);
            (key, given.expect("it is alive"))
        })
    };
    let asked = || {
        let whom = world.state.maintain_callbacks();
        let callbacks = whom
            .into_iter()
            .flat_map(|whom| world.state.callbacks(whom));
        let callbacks = callbacks.map(|call| {
            let became = CalledBack::Answered(Status::Ok);
            world.state.called_back(7, call.xid, became);
            assert_eq!(call.node, None);
            call.kind
        });
        callbacks.collect::<Vec<_>>()
    };
    let mut given: Vec<_> = (0..6).map(|node| delegate(node).expect("room")).collect();
    assert_eq!(asked(), []);
    given.push(delegate(6).expect("room"));
    assert_eq!(asked(), [CallbackKind::RecallAny(5)]);
    assert_eq!(asked(), [], "not each second");
    given.push(delegate(7).expect("room"));
    assert_eq!(delegate(8).err(), Some(NoDelegation::Resource));
    world.pass(Duration::from_secs(5));
    assert_eq!(asked(), [CallbackKind::RecallAny(6)]);
    for (key, stateid) in given.drain(3..) {
        let returned = world.state.delegation_return(&client, &stateid, key);
        assert_eq!(returned, Ok(()));
    }
    world.pass(Duration::from_secs(5));
    assert_eq!(asked(), []);
    world.state.no_room_for_delegations();
    assert_eq!(asked(), [CallbackKind::RecallAny(2)]);
}
