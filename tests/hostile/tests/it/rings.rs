//! Guests with invalid queues: a real engine serves them while they change.

use std::time::{Duration, Instant};

use fastrand::Rng;
use hostile::guest::{Guest, INIT, QueueLayout, descriptor, fuse_request};
use hostile::process::Process;
use vfs::{AttrMask, Call, Caller, Cx, FileSystem};

use crate::{mounted, socket};

const SERVER: &str = env!("CARGO_BIN_EXE_hostile-server");

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

/// Number of kicks of a guest, and of changes of its memory meanwhile.
const KICKS: u16 = 300;
const CHANGES: usize = 20_000;

/// Number of guests. The descriptors that a server opens later, for the next front end, are fewer.
const GUESTS: usize = 16;

/// Number of polls for a reply.
const POLLS: usize = 200;

const MESSAGES: u64 = 0x8000;
const REPLIES: u64 = 0x4_0000;
const TABLES: u64 = 0x3000;

/// Writes requests into guest memory, and a valid queue of them: two descriptors for each, every
/// fourth in an indirect table.
fn write_queue(guest: &Guest, place: QueueLayout, random: &mut Rng) {
    // LOOKUP, GETATTR, SETATTR, MKDIR, OPEN, READ, WRITE, RELEASE, SETXATTR, OPENDIR, READDIR,
    // SETLKW, CREATE, INTERRUPT, BATCH_FORGET, READDIRPLUS, INIT, DESTROY.
    const OPCODES: [u32; 18] = [
        1, 3, 4, 9, 14, 15, 16, 18, 21, 27, 28, 33, 35, 36, 42, 44, 26, 38,
    ];
    for slot in 0..32u16 {
        let opcode = OPCODES[random.usize(..OPCODES.len())];
        let mut args: [u8; 96] = [0; 96];
        args[..8].copy_from_slice(&random.u64(..4).to_le_bytes());
        args[16..24].copy_from_slice(&random.u64(..4096).to_le_bytes());
        args[48..50].copy_from_slice(b"a\0");
        let message = match slot {
            0 => fuse_request(26, 2, 0, &INIT),
            _ => fuse_request(opcode, 2 * u64::from(slot), 1 + random.u64(..3), &args),
        };
        let at = MESSAGES + 0x1000 * u64::from(slot);
        guest.write(at, &message);
        let head = 2 * slot;
        let reply = REPLIES + 0x1000 * u64::from(slot);
        let table = TABLES + 32 * u64::from(slot);
        let pair = |next| {
            let asked = descriptor(at, message.len() as u32, NEXT, next);
            [asked, descriptor(reply, 0x1000, WRITE, 0)].concat()
        };
        guest.write(table, &pair(1));
        let here = place.descriptors + 16 * u64::from(head);
        match slot % 4 {
            3 => guest.write(here, &descriptor(table, 32, INDIRECT, 0)),
            _ => guest.write(here, &pair(head + 1)),
        }
        for turn in 0..2 {
            let entry = place.available + 4 + 2 * u64::from(slot + 32 * turn);
            guest.write(entry, &head.to_le_bytes());
        }
    }
}

/// Changes bytes that the device reads.
fn corrupt_memory(guest: &Guest, random: &mut Rng) {
    let (begin, len) = match random.u64(..4) {
        0 => (0, 0x400),
        // Except the available index: a jump of it stops a queue.
        1 => (0x1004, 0x80),
        2 => (TABLES, 0x400),
        _ => (MESSAGES + 0x1000 * random.u64(..32), 136),
    };
    let at = begin + random.u64(..len);
    match random.u64(..3) {
        0 => guest.write(at, &[random.u8(..)]),
        1 => guest.write(at & !7, &random.u64(..).to_le_bytes()),
        // Small numbers are valid indexes.
        _ => guest.write(at & !1, &(random.u16(..64)).to_le_bytes()),
    }
}

#[test]
fn rings_and_messages_that_change_while_they_are_served_harm_nobody() {
    let server = Process::virtiofs(SERVER, None, None);
    // Makes one-time allocations before the measurement.
    let witness = mounted(&server.addr);
    let (memory, descriptors) = (server.memory(), server.descriptors());
    for seed in 1..=GUESTS as u64 {
        let mut random = Rng::with_seed(seed);
        let guest = Guest::set_up(socket(&server.addr), seed % 2 == 0).expect("agreed");
        let place = QueueLayout::VALID;
        write_queue(&guest, place, &mut random);
        guest.start(1, place, 0).expect("started");
        std::thread::scope(|scope| {
            let guest = &guest;
            scope.spawn(move || {
                let mut random = Rng::with_seed(!seed);
                (0..CHANGES).for_each(|_| corrupt_memory(guest, &mut random));
            });
            let (mut available, mut answered) = (0u16, 0);
            for kick in 1..=KICKS {
                available = available.wrapping_add(1 + random.u16(..4));
                guest.write(place.available + 2, &available.to_le_bytes());
                guest.kick();
                // The reply comes soon or never: the queue may be stopped.
                let waits = || guest.read_u16(place.used + 2) == answered;
                (0..POLLS)
                    .take_while(|_| waits())
                    .for_each(|_| std::thread::yield_now());
                answered = guest.read_u16(place.used + 2);
                if kick % 10 == 0 {
                    let jump = available.wrapping_add(random.u16(..));
                    guest.write(place.available + 2, &jump.to_le_bytes());
                    guest.kick();
                    // Restarts a stopped queue, with a driver that knows the used index.
                    guest.stop(1).expect("stopped");
                    write_queue(guest, place, &mut random);
                    guest.write(place.available + 2, &available.to_le_bytes());
                    guest.start(1, place, available.into()).expect("started");
                }
            }
            // How many depends on when the memory changes.
            assert!(answered > KICKS / 8, "{answered} answered");
        });
    }
    // Devices end some time after their front ends.
    let deadline = Instant::now() + Duration::from_secs(30);
    let kept = || server.descriptors().saturating_sub(descriptors);
    while kept() >= GUESTS && Instant::now() < deadline {
        std::thread::yield_now();
    }
    assert!(kept() < GUESTS, "{} descriptors more", kept());
    let more = server.memory().saturating_sub(memory);
    assert!(more < 16 << 20, "{more} bytes more");
    let call = Call::detached();
    let cx = Cx::new(&Caller::ROOT, &call);
    for mount in [witness, mounted(&server.addr)] {
        let root = mount.root(&cx).expect("a root");
        root.attr(&cx, AttrMask::STAT).expect("attributes");
    }
}

#[test]
fn a_monitor_that_truncates_its_memory_ends_its_own_device_alone() {
    let server = Process::virtiofs(SERVER, None, None);
    let witness = mounted(&server.addr);
    let call = Call::detached();
    let cx = Cx::new(&Caller::ROOT, &call);
    let works = || {
        let root = witness.root(&cx).expect("a root");
        root.attr(&cx, AttrMask::STAT).expect("attributes");
    };
    for seed in 1..=GUESTS as u64 {
        let guest = Guest::set_up(socket(&server.addr), seed % 2 == 0).expect("agreed");
        let place = QueueLayout::VALID;
        write_queue(&guest, place, &mut Rng::with_seed(seed));
        guest.write(place.available + 2, &32u16.to_le_bytes());
        guest.start(1, place, 0).expect("started");
        guest.kick();
        // Some of the requests are being read, with any luck.
        (0..seed * 20).for_each(|_| std::thread::yield_now());
        guest.truncate();
        guest.kick();
        works();
        // The queue is read once more; the device may have ended.
        let _ = guest.stop(1);
        works();
    }
    let again = mounted(&server.addr);
    again.root(&cx).expect("a root");
}
