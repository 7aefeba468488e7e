//! Golden bytes from mkfs.erofs 1.5: a tree of a directory with a file (`user.colour=blue`), a link
//! to it, and the numbers up to 20000.

use std::vec::Vec;

use super::*;

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .bytes()
        .filter(u8::is_ascii_hexdigit)
        .map(|digit| (digit as char).to_digit(16).expect("a digit") as u8)
        .collect();
    digits
        .chunks(2)
        .map(|pair| pair[0] << 4 | pair[1])
        .collect()
}

/// Checks that `bytes` parse to `value`, and that it encodes to them.
macro_rules! golden {
    ($record:ident, $bytes:expr, $value:expr) => {
        let bytes = hex($bytes);
        assert_eq!($record::parse(&bytes), Some($value));
        assert_eq!($value.encode()[..], bytes);
        for len in 0..bytes.len() {
            assert_eq!($record::parse(&bytes[..len]), None);
        }
    };
}

const SUPERBLOCK: &str = "e2e1f5e0 1888e792 03000000 0c00 2400 0500000000000000 a55d0d5e00000000
    00000000 1b000000 00000000 00000000 00112233445566778899aabbccddeeff 00000000000000000000000000000000
    00000000 0000 0000 0000 00 00 00000000 0000000000000000 00 00 0000 00000000 0000000000000000 0000000000000000";

#[test]
fn a_superblock() {
    let compat = Compat::CHECKSUM | Compat::MTIME;
    let superblock = Superblock {
        magic: MAGIC,
        checksum: 0x92e7_8818,
        compat: compat.bits(),
        block_bits: 12,
        slots: 0,
        root_or_blocks_high: 0x24,
        inodes: 5,
        epoch: 1577934245,
        epoch_nsec: 0,
        blocks: 27,
        meta_block: 0,
        xattr_block: 0,
        uuid: hex("00112233445566778899aabbccddeeff")
            .try_into()
            .expect("16"),
        volume: [0; 16],
        incompat: 0,
        algorithms_or_distance: 0,
        devices: 0,
        device_table: 0,
        directory_block_bits: 0,
        prefixes: 0,
        prefix_start: 0,
        packed: 0,
        filter_reserved: 0,
        share_prefix: 0,
        reserved: [0; 2],
        build_time: 0,
        root_wide: 0,
        reserved2: [0; 8],
    };
    golden!(Superblock, SUPERBLOCK, superblock);
}

/// An image of an empty directory: the block holds only its inode and two entries.
#[test]
fn the_checksum_is_of_the_whole_block() {
    let mut block = std::vec![0; 4096 - SUPERBLOCK_OFFSET];
    let head = hex(
        "e2e1f5e0 00000000 03000000 0c002400 0100000000000000 a55d0d5e00000000
        00000000 01000000 00000000 00000000 00112233445566778899aabbccddeeff",
    );
    block[..head.len()].copy_from_slice(&head);
    let root = hex(
        "04000000 ed410200 1b000000 00000000 ffffffff 00000000 0000 0000 00000000
        2400000000000000 1800 02 00 2400000000000000 1900 02 00 2e2e2e",
    );
    block[0x80..0x80 + root.len()].copy_from_slice(&root);
    assert_eq!(checksum(&block), 0x8b3e_c231);
}

#[test]
fn a_compact_inode() {
    let format = Format {
        extended: false,
        layout: DataLayout::FlatInline,
        one_link: false,
    };
    let inode = CompactInode {
        format: format.encode(),
        xattr_count: 5,
        mode: 0o100640,
        links_or_high: 1,
        size: 13,
        mtime: 0,
        data: 0xffff_ffff,
        ino: 2,
        uid: 0,
        gid: 0,
        reserved: 0,
    };
    golden!(
        CompactInode,
        "04000500 a0810100 0d000000 00000000 ffffffff 02000000 00000000 00000000",
        inode
    );
    assert_eq!(Format::parse(4), Some(format));
}

#[test]
fn an_extended_inode() {
    let inode = ExtendedInode {
        format: 5,
        xattr_count: 0,
        mode: 0o40755,
        high: 0,
        size: 0x49,
        data: 0xffff_ffff,
        ino: 0,
        uid: 0,
        gid: 0,
        mtime: 1577934245,
        mtime_nsec: 0,
        links: 3,
        reserved: [0; 16],
    };
    golden!(
        ExtendedInode,
        "05000000 ed410000 4900000000000000 ffffffff 00000000 00000000 00000000
         a55d0d5e00000000 00000000 03000000 00000000000000000000000000000000",
        inode
    );
}

#[test]
fn formats_come_back() {
    for number in 0..0x40 {
        match Format::parse(number) {
            Some(format) => assert_eq!(format.encode(), number),
            None => assert!(number & 0x20 != 0 || number >> 1 & 7 > 4, "{number:#x}"),
        }
    }
}

#[test]
fn an_entry() {
    let entry = Dirent {
        nid: 0x28,
        name_offset: 0x3f,
        file_type: FileType::Directory as u8,
        reserved: 0,
    };
    golden!(Dirent, "2800000000000000 3f00 02 00", entry);
}

#[test]
fn attributes() {
    let body = hex("000000000000000000000000 06010400 636f6c6f7572 626c7565 0000");
    assert_eq!(xattr_body_size(5), body.len());
    assert_eq!(xattr_count_for(body.len()), Some(5));
    let entry = XattrEntry {
        name_len: 6,
        prefix: 1,
        value_len: 4,
    };
    assert_eq!(XattrEntry::parse(&body[XattrHeader::SIZE..]), Some(entry));
    assert_eq!(prefix_name(entry.prefix), Some("user."));
    assert_eq!((xattr_body_size(0), xattr_count_for(0)), (0, Some(0)));
    assert_eq!(xattr_count_for(XattrHeader::SIZE), Some(1));
    assert_eq!(xattr_count_for(4 * 65536 + 8), None);
}

#[test]
fn device_numbers_come_back() {
    for (major, minor) in [(1, 3), (0, 0), (0xfff, 0xf_ffff), (8, 0x1_2345)] {
        let data = encode_device(major, minor).expect("fits");
        assert_eq!(decode_device(data), (major, minor));
    }
    assert_eq!(encode_device(1, 3), Some(0x103));
    assert_eq!(encode_device(0x1000, 0), None);
    assert_eq!(encode_device(0, 0x10_0000), None);
}

#[test]
fn chunk_formats_come_back() {
    for data in 0..0x80 {
        assert_eq!(ChunkFormat::parse(data).expect("known").encode(), data);
    }
    assert_eq!(ChunkFormat::parse(0x80), None);
}

#[test]
fn a_full_index() {
    let head = LclusterIndex {
        advise: LclusterKind::Head1 as u16,
        offset: 0x4d8,
        data: 0xd,
    };
    golden!(LclusterIndex, "0100 d804 0d000000", head);
    let behind = LclusterIndex {
        advise: LclusterKind::Nonhead as u16,
        offset: 0xc61,
        data: 1 | 1 << 16,
    };
    golden!(LclusterIndex, "0200 610c 01000100", behind);
}

/// The index of a file with physical clusters of 64 KiB.
#[test]
fn a_compact_index() {
    use LclusterKind::{Head1, Nonhead};
    let header = MapHeader {
        place: 0,
        advise: (Advise::COMPACT_2B | Advise::BIG_1 | Advise::BIG_2).bits(),
        algorithms: 0,
        cluster_bits: 0,
    };
    golden!(MapHeader, "00000000 0700 00 00", header);
    let nonhead = |number| (Nonhead, number);
    for (bytes, block, clusters) in [
        (
            "00101028 01000000",
            1,
            &[(Head1, 0), nonhead(D0_CBLKCNT | 16)][..],
        ),
        ("02200f20 11000000", 0x11, &[nonhead(2), nonhead(15)]),
        (
            "06e00188 0026800a e002c800 3680 0ee00308 01468047 90012a00 1680 11000000",
            0x11,
            &[
                nonhead(6),
                nonhead(7),
                nonhead(8),
                nonhead(9),
                nonhead(10),
                nonhead(11),
                nonhead(12),
                nonhead(13),
                nonhead(14),
                nonhead(15),
                nonhead(16),
                nonhead(17),
                (Head1, 0x47),
                nonhead(D0_CBLKCNT | 6),
                nonhead(2),
                nonhead(5),
            ],
        ),
    ] {
        let bytes = hex(bytes);
        let pack = CompactPack::parse(&bytes, 12).expect("a pack");
        assert_eq!(pack.block(), block);
        let read: Vec<_> = (0..pack.clusters()).map(|at| pack.get(at)).collect();
        assert_eq!(read, clusters);
        let mut again = CompactPack::new(bytes.len(), 12);
        for (at, (kind, number)) in clusters.iter().enumerate() {
            again.set(at, *kind, *number);
        }
        again.set_block(block);
        assert_eq!(again.encode(), bytes);
    }
    assert_eq!(CompactPack::parse(&[0; 16], 12), None);
    assert_eq!(CompactPack::parse(&[0; 32], 13), None);
}
