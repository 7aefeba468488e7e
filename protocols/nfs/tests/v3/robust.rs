//! Malformed calls, and bytes that are not calls.

use nfs::v3::Procedure;
use proptest::prelude::*;
use vfs::{Call, Patience};
use vfs_testkit::{Message, session};
use wire::{Session, Xdr};

use crate::net::{MOUNT, NFS, NLM, NSM, Net, PORTMAP};

#[test]
fn what_is_not_served_is_said_so() {
    let net = Net::new();
    assert_eq!(net.call((NFS, 3, 0), &()), Ok(&b""[..]));
    assert_eq!(net.call((100_227, 3, 0), &()), Err(1), "no such program");
    assert_eq!(net.call((NFS, 2, 0), &()), Err(2), "no such version");
    assert_eq!(net.call((NFS, 3, 22), &()), Err(3), "no such procedure");
    assert_eq!(net.call((NLM, 3, 0), &()), Err(2));
    assert_eq!(net.call((NLM, 4, 5), &()), Err(3), "a client's");
    assert_eq!(net.call((NSM, 1, 2), &()), Err(3));
}

#[test]
fn arguments_that_cannot_be_read_change_nothing() {
    let net = Net::new();
    for procedure in 1..22 {
        assert_eq!(net.call((NFS, 3, procedure), &()), Err(4), "{procedure}");
    }
    let long = [b'x'; 65];
    let get = Procedure::GetAttr as u32;
    assert_eq!(net.call((NFS, 3, get), &long.as_slice()), Err(4));
}

struct Words(Vec<u32>);

impl Xdr<'_> for Words {
    fn get(_: &mut wire::XdrReader<'_>) -> Result<Words, wire::Malformed> {
        Err(wire::Malformed::new("they are only sent"))
    }

    fn put(&self, to: &mut impl wire::Put) {
        self.0.iter().for_each(|word| word.put(to));
    }
}

proptest! {
    #[test]
    fn every_call_is_answered(
        program in prop::sample::select(vec![(PORTMAP, 2), (PORTMAP, 4), (NFS, 3), (MOUNT, 3), (NLM, 4), (NSM, 1)]),
        procedure in 0u32..25,
        words in prop::collection::vec(prop_oneof![0u32..4, any::<u32>()], 0..40),
        with_root in any::<bool>(),
    ) {
        let net = Net::new();
        let mut bytes = Vec::new();
        if with_root {
            net.root().put(&mut bytes);
        }
        let mut all: Vec<u32> = bytes
            .chunks(4)
            .map(|word| u32::from_be_bytes([word[0], word[1], word[2], word[3]]))
            .collect();
        all.extend(words);
        let (number, version) = program;
        let _ = net.call((number, version, procedure), &Words(all));
    }

    #[test]
    fn no_bytes_end_the_server(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let net = Net::new();
        if net.session.frame(&bytes) == Ok(Some(bytes.len())) {
            let message = Message::new(&bytes);
            let _ = session::serve(&net.session, &Call::detached(), Patience::Full, &message, 1 << 16);
        }
        let datagrams = net.host.server.datagrams();
        let message = Message::new(&bytes);
        let _ = session::serve(&datagrams, &Call::detached(), Patience::Full, &message, 1 << 16);
    }
}

#[test]
fn a_server_that_may_not_act_sends_no_reply_also_if_that_ends_during_a_call() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use memory::Memory;
    use vfs_testkit::clock;

    use crate::net::Host;

    // The number of checks that succeed.
    let checks = Arc::new(AtomicU32::new(0));
    let left = checks.clone();
    let may_act = move || {
        let take = |left: u32| left.checked_sub(1);
        left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take)
            .is_ok()
    };
    let host = Host::with(Memory::new(clock()), |options| {
        options.may_act = Some(Arc::new(may_act));
    });
    let net = Net::on(&host);
    for (count, answers) in [(0, false), (1, false), (2, true)] {
        checks.store(count, Ordering::SeqCst);
        let record = net.bytes((NFS, 3, 0), &());
        let message = Message::new(&record);
        let served = session::serve_patiently(&net.session, &Call::detached(), &message, 1 << 20);
        assert_eq!(served.is_ok(), answers, "{count}: {served:?}");
    }
}
