//! Front ends that send false messages to a device: each gets an error or loses its own connection.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use hostile::guest::{
    Guest, INIT, QueueLayout, RequestType, descriptor, fuse_request, memory, words,
};
use hostile::server::{Server, tree};
use vfs::{AttrMask, Call, Caller, Cx, FileSystem};
use vfs_testkit::wait_until;

use crate::{mounted, socket};

/// Runs `lie` against a device whose queue 1 is not started, and asserts that the device then
/// accepts valid messages from that front end, or has closed its connection; another front end is
/// not affected.
#[track_caller]
fn assert_refused(server: &Server, what: &str, lie: impl FnOnce(&Guest) -> io::Result<()>) {
    let witness = mounted(&server.addr);
    let guest = Guest::set_up(socket(&server.addr), true).expect("agreed");
    lie(&guest).expect_err(what);
    let call = Call::detached();
    let cx = Cx::new(&Caller::ROOT, &call);
    let root = witness.root(&cx).expect("a root");
    root.attr(&cx, AttrMask::STAT).expect(what);
}

#[test]
fn queues_that_are_nowhere_or_no_queues_are_refused() {
    let server = Server::virtiofs(tree());
    let good = QueueLayout::VALID;
    let end = Guest::MEMORY_SIZE;
    for place in [
        QueueLayout {
            descriptors: end,
            ..good
        },
        QueueLayout {
            descriptors: end - 16,
            ..good
        },
        QueueLayout {
            descriptors: 8,
            ..good
        },
        QueueLayout {
            available: end - 4,
            ..good
        },
        QueueLayout {
            available: 0x1001,
            ..good
        },
        QueueLayout {
            used: end - 64,
            ..good
        },
        QueueLayout {
            used: u64::MAX - Guest::BASE,
            ..good
        },
        QueueLayout {
            used: 0x2002,
            ..good
        },
        QueueLayout { size: 0, ..good },
        QueueLayout { size: 3, ..good },
        QueueLayout { size: 2048, ..good },
        QueueLayout {
            size: 1 << 16,
            ..good
        },
        QueueLayout {
            size: u32::MAX,
            ..good
        },
    ] {
        assert_refused(&server, &format!("{place:?}"), |guest| {
            guest.start(1, place, 0)
        });
    }
    assert_refused(&server, "no such queue", |guest| guest.start(3, good, 0));
    for ask in [
        RequestType::SetVringNum,
        RequestType::SetVringBase,
        RequestType::SetVringEnable,
    ] {
        let payload = words(&[u32::MAX, 1]);
        assert_refused(&server, &format!("{ask:?}"), |guest| {
            guest.send_acked(ask, &payload, &[])
        });
    }
    assert_refused(&server, "the base of no queue", |guest| guest.stop(99));
    assert_refused(&server, "neither on nor off", |guest| {
        guest.send_acked(RequestType::SetVringEnable, &words(&[1, 7]), &[])
    });
}

#[test]
fn memory_that_is_not_there_is_refused() {
    let server = Server::virtiofs(tree());
    let region = Guest::region;
    let elsewhere = |at| [at, 4096, Guest::BASE, 0];
    for regions in [
        // Beyond the end of the file: an access there would kill the server.
        vec![region(0, 2 * Guest::MEMORY_SIZE)],
        vec![region(Guest::MEMORY_SIZE, 4096)],
        vec![[Guest::BASE, 4096, Guest::BASE, u64::MAX - 4095]],
        // Overlapping regions.
        vec![region(0, 8192), region(4096, 8192)],
        vec![region(0, 4096), region(0, 4096)],
        // Beyond the address space, empty, and less than a page.
        vec![elsewhere(u64::MAX - 4095)],
        vec![[u64::MAX, 4096, 0, 0]],
        vec![[0, 4096, u64::MAX, 0]],
        vec![region(0, 0)],
        vec![[Guest::BASE, 4096, Guest::BASE, 7]],
    ] {
        assert_refused(&server, &format!("{regions:x?}"), |guest| {
            guest.set_mem_table(&regions)
        });
    }
    for payload in [
        words(&[0, 0]),
        words(&[1, 0]),
        words(&[u32::MAX, 0]),
        Vec::new(),
    ] {
        assert_refused(&server, &format!("{payload:?}"), |guest| {
            guest.send_acked(RequestType::SetMemTable, &payload, &[guest.kick.as_fd()])
        });
    }
    let single = |region: [u64; 4]| {
        let words = [&[0][..], &region].concat();
        words
            .iter()
            .flat_map(|word| word.to_ne_bytes())
            .collect::<Vec<_>>()
    };
    let file = memory(4096).expect("memory");
    for at in [0, Guest::MEMORY_SIZE - 4096] {
        let same = single([Guest::BASE + at, 4096, 0, 0]);
        assert_refused(&server, "a region where one is", |guest| {
            guest.send_acked(RequestType::AddMemReg, &same, &[file.as_fd()])
        });
        let other = single([at, 4096, 0, 0]);
        assert_refused(&server, "a region that is not", |guest| {
            guest.send_acked(RequestType::RemMemReg, &other, &[])
        });
    }
}

#[test]
fn kicks_that_are_no_events_start_nothing_that_cannot_be_stopped() {
    let server = Server::virtiofs(tree());
    let file = tempfile::tempfile().expect("a file");
    let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
    let kicks: [(OwnedFd, bool); 5] = [
        (file.into(), false),
        (File::open("/").expect("a directory").into(), false),
        (File::open("/dev/null").expect("a device").into(), false),
        (reader, true),
        (writer, true),
    ];
    for (kick, starts) in kicks {
        let guest = Guest::set_up(socket(&server.addr), true).expect("agreed");
        guest.start(1, QueueLayout::VALID, 0).expect("started");
        let by = 1u64.to_ne_bytes();
        let told = guest.send_acked(RequestType::SetVringKick, &by, &[kick.as_fd()]);
        assert_eq!(told.is_ok(), starts, "{kick:?}");
        guest.stop(1).expect("stopped");
    }
    drop(mounted(&server.addr));
}

#[test]
fn messages_that_never_end_keep_no_server_from_stopping() {
    let server = Server::virtiofs(tree());
    let whole = words(&[RequestType::GetFeatures as u32, 1, 0]);
    let longer = words(&[RequestType::SetFeatures as u32, 1, 8]);
    let longest = words(&[RequestType::SetFeatures as u32, 1, u32::MAX]);
    let guests: Vec<Guest> = [&whole[..1], &whole[..11], &longer, &longest]
        .into_iter()
        .map(|bytes| {
            let guest = Guest::set_up(socket(&server.addr), true).expect("agreed");
            guest.raw(bytes, &[]).expect("sent");
            guest
        })
        .collect();
    // A front end that does not read replies.
    let deaf = socket(&server.addr);
    deaf.set_nonblocking(true).expect("set");
    while io::Write::write(&mut &deaf, &whole).is_ok() {}
    drop(mounted(&server.addr));
    drop(server);
    drop(guests);
}

#[test]
fn a_request_there_is_none_of_ends_its_connection() {
    let server = Server::virtiofs(tree());
    for (ask, flags) in [(0, 1), (12345, 1), (1, 2), (1, u32::MAX)] {
        assert_refused(&server, &format!("{ask} {flags}"), |guest| {
            guest.message(ask, flags, &[0; 64], &[])?;
            guest
                .send_for_reply(RequestType::GetFeatures, &[])
                .map(drop)
        });
    }
}

#[test]
fn memory_may_go_from_under_a_queue_that_runs() {
    let server = Server::virtiofs(tree());
    let guest = Guest::set_up(socket(&server.addr), false).expect("agreed");
    let place = QueueLayout::VALID;
    let (init, reply) = (0x8000, 0x9000);
    let message = fuse_request(26, 2, 0, &INIT);
    guest.write(init, &message);
    guest.write(0, &descriptor(init, message.len() as u32, 1, 1));
    guest.write(16, &descriptor(reply, 4096, 2, 0));
    guest.start(1, place, 0).expect("started");
    for available in 1..=100u16 {
        // Removes the request and its reply from the memory, then also the rings.
        let kept = [Guest::MEMORY_SIZE, 0x8000, 0x1000][usize::from(available % 3)];
        guest
            .set_mem_table(&[Guest::region(0, kept)])
            .expect("told");
        guest.write(place.available + 2, &available.to_le_bytes());
        guest.kick();
    }
    guest.stop(1).expect("stopped");
    guest
        .set_mem_table(&[Guest::region(0, Guest::MEMORY_SIZE)])
        .expect("told");
    guest.write(place.available + 2, &0u16.to_le_bytes());
    guest.write(place.used + 2, &0u16.to_le_bytes());
    guest.start(1, place, 0).expect("started");
    guest.write(place.available + 2, &1u16.to_le_bytes());
    guest.kick();
    wait_until("the request is answered", || {
        guest.read_u16(place.used + 2) == 1
    });
    guest.stop(1).expect("stopped");
}
