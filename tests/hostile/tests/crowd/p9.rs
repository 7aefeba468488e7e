//! 9P: fids, file descriptors, directories, locks and extended attribute values.

use hostile::client::{Client, FILE, Protocol};
use p9::{Data, Fid, Tmessage as T};

use super::sockets::{SocketServer, attackers, plain_server};
use super::{DIRECTORIES, Guard, TestServer, assert_all_pass, case};

/// Opens unlinked files, whose file descriptors cannot be reclaimed.
fn open_descriptors(stage: &SocketServer) -> Guard {
    let mut client = stage.client("attacker");
    let made = (2..200u32).find_map(|number| {
        let (fid, name) = (Fid(number), format!("unnamed {number}"));
        client.walk(fid, &[]).expect("walked");
        let name = name.as_bytes();
        let made = client.p9_rpc(&hostile::raw_client::create(fid, name));
        let (dirfid, flags) = (Fid(0), 0);
        let unlink = T::Unlinkat {
            dirfid,
            name,
            flags,
        };
        made.and_then(|()| client.p9_rpc(&unlink)).err()
    });
    assert!(made.is_some(), "no bound");
    Box::new(client)
}

/// Lists more directories at a time than there are file descriptors.
fn directory_streams(stage: &SocketServer) -> Guard {
    let mut client = stage.client("attacker");
    for number in 2..400u32 {
        let fid = Fid(number);
        let name = (number % DIRECTORIES).to_string();
        let (offset, count) = (0, 4096);
        let done = client
            .walk(fid, &[name.as_bytes()])
            .and_then(|()| client.p9_rpc(&T::Lopen { fid, flags: 0 }))
            .and_then(|()| client.p9_rpc(&T::Readdir { fid, offset, count }));
        assert!(done.is_ok() || done == Err(24), "{done:?}");
    }
    let tree = stage.tree.as_ref().expect("a directory");
    assert!(tree.host_dir.open_descriptors() > 20);
    Box::new(client)
}

/// Lists the root, and opens, reads and closes the file.
fn lists_and_opens(client: &mut Client) {
    for (names, flags) in [(&[][..], 0), (&[FILE.as_bytes()][..], 2)] {
        let fid = Fid(500);
        client.walk(fid, names).expect("walked");
        client.p9_rpc(&T::Lopen { fid, flags }).expect("opened");
        let (offset, count) = (0, 4096);
        let read = match names.len() {
            0 => T::Readdir { fid, offset, count },
            _ => T::Read { fid, offset, count },
        };
        client.p9_rpc(&read).expect("read");
        client.p9_rpc(&T::Clunk { fid }).expect("closed");
    }
}

fn lock(kind: u8, start: u64, proc_id: u32) -> T<'static> {
    T::Lock {
        fid: Fid(1),
        kind,
        flags: 0,
        start,
        length: 1,
        proc_id,
        client_id: b"client",
    }
}

fn locks(stage: &SocketServer) -> Guard {
    /// Offset of attackers' locks.
    const FAR: u64 = 1 << 40;
    let mut client = stage.client("attacker");
    let refused = (0..5000).find_map(|number| {
        // All with one owner: the number of owners per fid is limited.
        client.p9_rpc(&lock(1, FAR + 2 * number, 1)).err()
    });
    assert!(refused.is_some(), "no bound");
    Box::new(client)
}

fn locks_a_byte(client: &mut Client) {
    client.p9_rpc(&lock(1, 0, 1)).expect("locked");
    client.p9_rpc(&lock(2, 0, 1)).expect("unlocked");
}

/// Creates sparse fids, each of which takes a page of the table, over many connections.
fn fids(stage: &SocketServer) -> Guard {
    let mut all = attackers(stage, 4);
    for client in &mut all {
        let refused = (1..100_000).any(|fid| client.walk(Fid(fid * 8), &[]).is_err());
        assert!(refused, "no bound");
    }
    Box::new(all)
}

/// Walks to as many files as a program that lists a directory does.
fn walks(client: &mut Client) {
    let fids = (100..1100).map(Fid);
    for fid in fids.clone() {
        client.walk(fid, &[FILE.as_bytes()]).expect("walked");
    }
    for fid in fids {
        client.p9_rpc(&T::Clunk { fid }).expect("closed");
    }
}

/// Sends Txattrcreate for a value of `size` bytes.
fn begin_value(client: &mut Client, fid: Fid, size: u64) -> Result<(), u32> {
    client.walk(fid, &[FILE.as_bytes()])?;
    client.p9_rpc(&T::Xattrcreate {
        fid,
        name: b"user.value",
        size,
        flags: 0,
    })
}

/// Starts values that are never complete, over many connections: large ones first, then ever
/// smaller ones.
fn values(stage: &SocketServer) -> Guard {
    let mut all = attackers(stage, 8);
    for client in &mut all {
        let mut fids = (2..10_000).map(Fid);
        for size in [64 << 10, 1 << 10, 1] {
            let refused = fids.any(|fid| begin_value(client, fid, size).is_err());
            assert!(refused, "no bound");
        }
    }
    Box::new(all)
}

fn writes_a_value(client: &mut Client) {
    let (fid, offset, data) = (Fid(900), 0, Data(b"value"));
    begin_value(client, fid, 5).expect("begun");
    let written = client.p9_rpc(&T::Write { fid, offset, data });
    written.expect("written");
    client.p9_rpc(&T::Clunk { fid }).expect("set");
}

#[test]
fn one_client_that_fills_a_table_of_9p_makes_no_other_fail() {
    type Fill = fn(&SocketServer) -> Guard;
    type Ordinary = fn(&mut Client);
    let tables: [(&str, Fill, Ordinary); 5] = [
        ("open descriptors", open_descriptors, lists_and_opens),
        ("directory streams", directory_streams, lists_and_opens),
        ("byte-range locks", locks, locks_a_byte),
        ("fids", fids, walks),
        ("values of attributes", values, writes_a_value),
    ];
    let rows = [Protocol::P9, Protocol::P9Unix]
        .into_iter()
        .flat_map(|protocol| {
            let serve = move || plain_server(protocol);
            tables.map(|(table, fill, ordinary)| case(protocol, table, serve, fill, ordinary))
        });
    assert_all_pass(rows);
}
