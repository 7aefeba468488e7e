//! LOCK (RFC 7530 section 16.10).

use super::*;
use crate::v4::op::{Lock, Locker, NewLocker};
use crate::v4::types::LockKind;

#[test]
fn rfc7530_16_10_a_lock_owner_is_of_the_client_of_its_open() {
    let world = World::new();
    let client = Client40::new(&world, b"client");
    let other = Client40::new(&world, b"other");
    let (handle, open) = client.create(b"owner", b"file");
    for (whose, want) in [
        (0, Status::StaleClientid),
        (other.id, Status::BadStateid),
        (client.id, Status::Ok),
    ] {
        let lock = Op::Lock(Lock {
            kind: LockKind::Write,
            reclaim: false,
            offset: 0,
            length: 1,
            locker: Locker::New(NewLocker {
                open_seqid: 3,
                open,
                lock_seqid: 0,
                owner: Owner {
                    client: whose,
                    name: b"locker",
                },
            }),
        });
        let reply = client.net.send(&[Op::Putfh(&handle), lock]);
        assert_eq!(reply.status, want);
    }
}
