//! Clients that send requests and do not read the replies.

use hostile::process::Process;
use hostile::raw_client::{Bystander, ROOT, RawClient, encode_request, lock_exclusive};
use p9::{Data, Fid, Rmessage, Tag, Tmessage as T};
use transports::Addr;

use crate::over_both;

const MSIZE: u32 = 1 << 20;

/// Attaches, and creates a file as large as the maximum reply.
fn with_large_file(addr: &Addr, msize: u32) -> RawClient {
    let mut peer = RawClient::connect_attached(addr, msize);
    peer.create(Fid(1), b"large");
    let data = contents(msize);
    let (fid, offset) = (Fid(1), 0);
    peer.expect_ok(&T::Write {
        fid,
        offset,
        data: Data(&data),
    });
    peer
}

/// Returns contents with a prime period, so that adjacent pieces differ.
fn contents(msize: u32) -> Vec<u8> {
    (0..msize - 100).map(|n| (n % 251) as u8).collect()
}

fn read(count: u32) -> T<'static> {
    let (fid, offset) = (Fid(1), 0);
    T::Read { fid, offset, count }
}

#[test]
fn who_does_not_read_is_not_heard_and_gets_all_in_the_end() {
    over_both(|server| {
        let mut bystander = Bystander::new(&server.addr);
        let mut slow = with_large_file(&server.addr, MSIZE);
        let asked = slow.fill_socket(&encode_request(Tag(1), &read(MSIZE)), 1_000_000);
        assert!(asked < 1_000_000, "no bound");
        bystander.assert_unaffected();
        let expected = contents(MSIZE);
        // A limited number; the other replies are not read.
        for _ in 0..asked.min(100) {
            let (tag, reply) = slow.reply();
            let Rmessage::Read { data } = reply else {
                panic!("{reply:?}")
            };
            assert_eq!(tag, Tag(1));
            assert!(data.0 == expected, "not what was written");
        }
        bystander.assert_unaffected();
        drop(slow);
        bystander.assert_unaffected();
    });
}

#[test]
fn many_who_do_not_read_hold_nobody_up() {
    over_both(|server| {
        let mut bystander = Bystander::new(&server.addr);
        let slow: Vec<RawClient> = (0..20)
            .map(|_| {
                let mut peer = RawClient::connect_attached(&server.addr, 8192);
                peer.fill_socket(&encode_request(Tag(1), &T::Statfs { fid: ROOT }), 1_000_000);
                peer
            })
            .collect();
        bystander.assert_unaffected();
        drop(slow);
        bystander.assert_unaffected();
    });
}

/// The server's memory for a client that does not read, while one of its requests waits: then
/// replies are not sent one by one.
#[test]
fn who_does_not_read_while_a_request_waits_costs_bounded_memory() {
    let server = Process::start(env!("CARGO_BIN_EXE_hostile-server"), None, None);
    let mut bystander = Bystander::new(&server.addr);
    let mut slow = with_large_file(&server.addr, MSIZE);
    slow.create(Fid(2), b"locked");
    slow.expect_ok(&lock_exclusive(Fid(2), 1));
    slow.open(Fid(3), &[b"locked"]);
    slow.send_request(9, &lock_exclusive(Fid(3), 2));
    slow.expect_ok(&T::Statfs { fid: ROOT });
    let before = server.memory();
    slow.fill_socket(&encode_request(Tag(1), &read(MSIZE)), 1_000_000);
    // The memory is final when it has not grown while other requests were served.
    let (mut held, mut rounds) = (server.memory(), 0);
    while rounds < 500 {
        bystander.assert_unaffected();
        rounds += 1;
        if server.memory() > held {
            (held, rounds) = (server.memory(), 0);
        }
        assert!(
            held < 1 << 30,
            "a client that does not read costs all there is"
        );
    }
    let grown = held.saturating_sub(before);
    println!("a client that does not read costs {} KiB", grown >> 10);
    assert!(
        grown < 16 << 20,
        "{grown} bytes for a client that does not read"
    );
}
