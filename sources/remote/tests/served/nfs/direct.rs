//! Direct calls of the protocol's procedures and compounds.

use std::sync::Arc;

use nfs::client::v4::Root;
use nfs::client::{Tree, v3};
use remote::nfs::{Compounds, Dial, Procedures};
use vfs::{Call, Caller, Cx, Kind};

use super::net::Served;

fn dial(served: &Arc<Served>) -> Dial {
    let served = served.clone();
    Box::new(move || Ok(Box::new(served.link())))
}

fn with_cx(work: impl FnOnce(&Cx<'_>)) {
    let call = Call::detached();
    work(&Cx::new(&Caller::ROOT, &call));
}

#[test]
fn procedures_are_in_flight_together_and_outlast_their_connection() {
    let served = Served::new();
    let link = Procedures::open(dial(&served)).expect("connected");
    with_cx(|cx| {
        let handle = link.call(cx, &v3::Mount { path: b"/" }, |root| root);
        let handle = &handle.expect("mounted");
        let tree = Tree::default();
        let ask = v3::GetAttr { handle, tree };
        let mut flights: Vec<_> = (0..100).map(|_| link.begin(cx, &ask)).collect();
        let first = flights.remove(0);
        assert!(link.end(cx, first, &ask, drop).is_ok());
        served.hang_up();
        // In reverse order.
        while let Some(flight) = flights.pop() {
            let kind = link.end(cx, flight, &ask, |attr| attr.kind);
            assert_eq!(kind, Ok(Kind::Directory));
        }
    });
}

#[test]
fn compounds_are_in_flight_as_long_as_there_are_slots() {
    for minor in 0..=2 {
        let served = Served::new();
        let link = Compounds::open(dial(&served), minor).expect("connected");
        assert_eq!(link.minor(), minor);
        with_cx(|cx| {
            for _ in 0..2 {
                let mut turns = Vec::new();
                while turns.len() < 1000
                    && let Some(turn) = link.begin(cx, &Root).expect("begun")
                {
                    turns.push(turn);
                }
                // v4.0 has no slots.
                assert!(turns.len() > 1 && (minor == 0) == (turns.len() == 1000));
                while let Some(turn) = turns.pop() {
                    let kind = link.end(cx, turn, &Root, |made| made.attr.map(|attr| attr.kind));
                    assert_eq!(kind, Ok(Some(Kind::Directory)));
                }
            }
            assert!(link.call(cx, Root, |made| made.handle.is_some()) == Ok(true));
        });
    }
}
