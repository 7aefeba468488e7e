//! The virtio device: requests as a guest's driver sends them.

use std::sync::Arc;

use block::virtio::{Device, SECTOR, config_space, features};
use proptest::prelude::*;
use vfs::Call;
use vfs_testkit::Message;
use vfs_testkit::context::ok;
use vfs_testkit::session::serve_patiently;
use wire::{ServeOutcome, Session};

use crate::{DATA, SIZE, content, export, open};

const OK: u8 = 0;
const IOERR: u8 = 1;
const UNSUPP: u8 = 2;

/// Sends a request with `room` bytes for data to read, and returns these and the status.
fn ask(device: &Device, kind: u32, sector: u64, data: &[u8], room: usize) -> (Vec<u8>, u8) {
    let mut bytes = [&kind.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes()].concat();
    bytes.extend(data);
    let framed = device.frame(&bytes).expect("a length").unwrap_or(0);
    let together = framed.min(bytes.len());
    let message = Message::with_separate_payload(bytes, together);
    let (answer, mut reply) =
        serve_patiently(device, &Call::detached(), &message, room + 1).expect("a request");
    assert_eq!((answer, reply.len()), (ServeOutcome::Done, room + 1));
    let status = reply.pop().expect("a status");
    (reply, status)
}

fn device(read_only: bool) -> (Arc<vfs::Export>, Device) {
    let export = export();
    let disk = ok(open(&export, "dir/disk", read_only));
    (export, Device::new(Arc::new(disk)))
}

/// Encodes ranges to discard or zero.
fn ranges(ranges: &[(u64, u32, u32)]) -> Vec<u8> {
    let range = |&(sector, sectors, flags): &(u64, u32, u32)| {
        let mut bytes = sector.to_le_bytes().to_vec();
        bytes.extend(sectors.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes
    };
    ranges.iter().flat_map(range).collect()
}

#[test]
fn what_is_written_is_read() {
    let (export, device) = device(false);
    let sector = DATA.start / SECTOR - 1;
    assert_eq!(ask(&device, 1, sector, &[9; 1024], 0), (vec![], OK));
    let (read, status) = ask(&device, 0, sector - 1, b"", 2048);
    let expected = [&[0; 512][..], &[9; 1024], &[7; 512]].concat();
    assert_eq!((read, status), (expected, OK));
    assert_eq!(ask(&device, 4, 0, b"", 0), (vec![], OK));
    assert_eq!(content(&export)[DATA.start as usize - 1..][..2], [9, 9]);
}

#[test]
fn what_is_not_of_the_disk_is_an_error_and_changes_nothing() {
    let (export, device) = device(false);
    let (before, last) = (content(&export), SIZE / SECTOR - 1);
    for (kind, sector, data, room) in [
        (0, last, &[][..], 1024),
        (0, u64::MAX, &[], 512),
        (0, 0, &[], 100),
        (1, last, &[1; 1024], 0),
        (1, u64::MAX / SECTOR, &[1; 512], 0),
        (1, 0, &[1; 100], 0),
    ] {
        let (read, status) = ask(&device, kind, sector, data, room);
        assert_eq!((read, status), (vec![0; room], IOERR), "{kind} {sector}");
    }
    assert_eq!(ask(&device, 77, 0, b"", 8), (vec![0; 8], UNSUPP));
    assert_eq!(content(&export), before);
}

#[test]
fn zeros_and_discards_are_of_whole_requests() {
    let (export, device) = device(false);
    let first = DATA.start / SECTOR;
    // With one invalid range none is processed.
    let bad = ranges(&[(first, 8, 0), (SIZE / SECTOR, 1, 0)]);
    assert_eq!(ask(&device, 13, 0, &bad, 0).1, IOERR);
    assert_eq!(ask(&device, 11, 0, &ranges(&[(first, 8, 1)]), 0).1, UNSUPP);
    assert_eq!(
        ask(&device, 13, 0, &ranges(&[(0, 0x30_0000, 0)]), 0).1,
        IOERR
    );
    assert_eq!(ask(&device, 13, 0, b"", 0).1, IOERR);
    assert_eq!(content(&export)[DATA.start as usize], 7);
    let good = ranges(&[(first, 8, 1), (first + 16, 8, 0)]);
    assert_eq!(ask(&device, 13, 0, &good, 0).1, OK);
    assert_eq!(ask(&device, 11, 0, &ranges(&[(first + 32, 8, 0)]), 0).1, OK);
    let data = &content(&export)[DATA.start as usize..];
    for (at, expected) in [(0, 0), (8, 7), (16, 0), (24, 7), (32, 0), (40, 7)] {
        assert_eq!(data[at * 512..][..4096], [expected; 4096], "sector {at}");
    }
}

#[test]
fn a_disk_to_be_read_says_so_and_is_not_written() {
    let (export, device) = device(true);
    let before = content(&export);
    let disk = ok(open(&export, "dir/disk", true));
    let (read_only, discard, zeroes) = (1 << 5, 1 << 13, 1 << 14);
    assert_eq!(features(&disk) & (read_only | discard | zeroes), read_only);
    assert_eq!(ask(&device, 1, 0, &[1; 512], 0).1, IOERR);
    assert_eq!(ask(&device, 13, 0, &ranges(&[(600, 8, 0)]), 0).1, UNSUPP);
    assert_eq!(ask(&device, 4, 0, b"", 0).1, OK);
    assert_eq!(content(&export), before);
}

#[test]
fn the_configuration_stands_where_virtio_has_it() {
    let export = export();
    let disk = ok(open(&export, "dir/disk", false));
    let space = config_space(&disk, 4, 128);
    assert_eq!(space.len(), 96);
    let field = |at: usize, len: usize| {
        let bytes = space[at..at + len].iter().rev();
        bytes.fold(0u64, |value, &byte| value << 8 | u64::from(byte))
    };
    assert_eq!(field(0, 8), SIZE / 512, "capacity");
    assert_eq!(field(12, 4), 126, "seg_max");
    assert_eq!(field(20, 4), 512, "blk_size");
    assert_eq!(field(24, 1), 3, "physical_block_exp");
    assert_eq!(field(26, 2), 8, "min_io_size");
    assert_eq!(field(32, 1), 1, "writeback");
    assert_eq!(field(34, 2), 4, "num_queues");
    assert_eq!(field(36, 4), 1 << 21, "max_discard_sectors");
    assert_eq!(field(40, 4), 256, "max_discard_seg");
    assert_eq!(field(48, 4), 1 << 21, "max_write_zeroes_sectors");
    assert_eq!(field(56, 1), 1, "write_zeroes_may_unmap");
}

#[test]
fn the_name_is_of_twenty_bytes_and_the_same_again() {
    let (_export, device) = device(false);
    let (name, status) = ask(&device, 8, 0, b"", 20);
    assert_eq!((name.len(), status), (20, OK));
    assert_ne!(name, [0; 20]);
    assert_eq!(ask(&device, 8, 0, b"", 20).0, name);
    assert_eq!(ask(&device, 8, 0, b"", 4).0, name[..4]);
}

#[test]
fn a_request_without_room_for_its_status_has_none() {
    let (_export, device) = device(false);
    let message = Message::new(vec![0; 16]);
    assert!(serve_patiently(&device, &Call::detached(), &message, 0).is_err());
}

proptest! {
    #[test]
    fn whatever_is_asked_is_answered(
        kind in prop_oneof![0u32..16, any::<u32>()],
        sector in prop_oneof![0u64..3000, any::<u64>()],
        data in proptest::collection::vec(any::<u8>(), 0..2000),
        cut in 0usize..20,
        room in 1usize..3000,
    ) {
        let (_export, device) = device(false);
        let mut bytes = [&kind.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes()].concat();
        bytes.extend(data);
        bytes.truncate(bytes.len() - cut.min(bytes.len()));
        let framed = device.frame(&bytes).expect("a length");
        prop_assert!(framed.is_some());
        let message = Message::new(bytes);
        let (_, reply) = serve_patiently(&device, &Call::detached(), &message, room).expect("an answer");
        prop_assert_eq!(reply.len(), room);
        prop_assert!(reply[room - 1] <= UNSUPP);
    }
}
