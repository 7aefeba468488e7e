//! The numeric fields of an image, and changes to them.

use erofs::layout::{INODE_SLOT, SUPERBLOCK_OFFSET, Superblock, checksum};
use erofs::read::{Contents, Image, Location};
use fastrand::Rng;

use crate::CountingStorage;
use crate::images::{Format, SampleImage};

/// A field: offset and size in bytes (1, 2, 4 or 8).
#[derive(Clone, Copy)]
pub(crate) struct Field {
    at: usize,
    size: usize,
}

/// Returns the fields of an image.
pub(crate) fn of(whole: &SampleImage) -> Vec<Field> {
    let mut fields = match whole.format {
        Format::Rofs => of_rofs(&whole.bytes),
        Format::Erofs | Format::Hashes => of_erofs(&whole.bytes),
    };
    if whole.format == Format::Hashes {
        // Version, ranges, length, root.
        push_fields(&mut fields, 0, &[8, 4, 4, 8, 8]);
    }
    fields.retain(|field| field.at + field.size <= whole.bytes.len());
    fields
}

/// Adds contiguous fields of these sizes.
fn push_fields(fields: &mut Vec<Field>, mut at: usize, sizes: &[usize]) {
    for &size in sizes {
        fields.push(Field { at, size });
        at += size;
    }
}

/// Returns the fields of the superblock, the inodes, the data after them (attributes, indexes,
/// inline entries), the directories and the beginnings of clusters.
fn of_erofs(bytes: &[u8]) -> Vec<Field> {
    let mut fields = Vec::new();
    let superblock = [4, 4, 4, 1, 1, 2, 8, 8, 4, 4, 4, 4];
    push_fields(&mut fields, SUPERBLOCK_OFFSET, &superblock);
    let rest = [4, 2, 2, 2, 1, 1, 4, 8, 1, 1, 2, 4, 8];
    push_fields(&mut fields, SUPERBLOCK_OFFSET + 80, &rest);
    // Codec configurations.
    push_fields(&mut fields, SUPERBLOCK_OFFSET + Superblock::SIZE, &[2; 12]);
    let raw = Superblock::parse(&bytes[SUPERBLOCK_OFFSET..]).expect("a superblock");
    let meta = (raw.meta_block as usize) << raw.block_bits;
    let storage = CountingStorage::new(bytes.to_vec());
    let image = Image::open(&storage).expect("an image");
    let mut pending = vec![image.root];
    if let Some(packed) = image.packed() {
        clusters(&image, &storage, packed, &mut fields);
        pending.push(raw.packed);
    }
    while let Some(nid) = pending.pop() {
        let at = meta + nid as usize * INODE_SLOT as usize;
        let (sizes, behind): (&[usize], _) = match bytes[at] & 1 {
            0 => (&[2, 2, 2, 2, 4, 4, 4, 4, 2, 2, 4], 32),
            _ => (&[2, 2, 2, 2, 8, 4, 4, 4, 4, 8, 4, 4], 64),
        };
        push_fields(&mut fields, at, sizes);
        // Attributes, headers and indexes consist of numbers of 1 to 8 bytes.
        for size in [1, 2, 4, 8] {
            push_fields(&mut fields, at + behind, &vec![size; 64 / size]);
        }
        let inode = image.inode(&storage, nid).expect("an inode");
        let Ok(contents) = image.contents(&storage, &inode) else {
            continue;
        };
        clusters(&image, &storage, &contents, &mut fields);
        if inode.kind != erofs::layout::FileType::Directory {
            continue;
        }
        let mut entries = image.entries(&storage, &contents, 0);
        while let Some((entry, _)) = entries.next_entry().expect("an entry") {
            if ![&b"."[..], b".."].contains(&entry.name) {
                pending.push(entry.nid);
            }
        }
        let run = image.map(&storage, &contents, 0).expect("a first block");
        if let Location::Plain { offset: place, .. } = run.location {
            for number in 0..8 {
                push_fields(&mut fields, place as usize + number * 12, &[8, 2, 1, 1]);
            }
        }
    }
    fields
}

/// Adds the first bytes of clusters, which codecs parse.
fn clusters(
    image: &Image,
    storage: &CountingStorage,
    contents: &Contents,
    fields: &mut Vec<Field>,
) {
    let mut at = 0;
    while at < contents.size() {
        let run = image.map(storage, contents, at).expect("a part");
        if let Location::Encoded(cluster) = run.location {
            push_fields(fields, cluster.offset as usize, &[1; 16]);
            let end = (cluster.offset + u64::from(cluster.encoded)) as usize;
            push_fields(fields, end - 64, &[1; 64]);
        }
        at = run.start + run.len;
    }
}

/// Returns the fields of the superblock and the tables, in which numbers are not aligned.
fn of_rofs(bytes: &[u8]) -> Vec<Field> {
    let mut fields = Vec::new();
    push_fields(&mut fields, 0, &[8; 8]);
    let tables = u64::from_le_bytes(bytes[24..32].try_into().expect("8 bytes")) as usize * 512;
    for at in tables..bytes.len() {
        push_fields(&mut fields, at, &[8]);
        push_fields(&mut fields, at, &[2]);
    }
    fields
}

/// Returns a changed image: a few numbers are replaced, perhaps some bytes are moved, perhaps the
/// end is missing. The superblock's checksum is usually corrected.
pub(crate) fn corrupted(whole: &SampleImage, fields: &[Field], chance: &mut Rng) -> Vec<u8> {
    let mut bytes = whole.bytes.clone();
    for _ in 0..1 + chance.usize(..4) {
        match chance.usize(..8) {
            0 => {
                let at = chance.usize(..bytes.len());
                bytes[at] = chance.u8(..);
            }
            1 => {
                let len = 1 + chance.usize(..64);
                let from = chance.usize(..bytes.len() - len);
                let to = chance.usize(..bytes.len() - len);
                bytes.copy_within(from..from + len, to);
            }
            _ => {
                let field = fields[chance.usize(..fields.len())];
                set(&mut bytes, field, fields, chance);
            }
        }
    }
    if chance.usize(..10) == 0 {
        bytes.truncate(chance.usize(..whole.bytes.len()));
    }
    if whole.format != Format::Rofs && chance.usize(..20) != 0 {
        update_checksums(&mut bytes);
    }
    bytes
}

fn get(bytes: &[u8], field: Field) -> u64 {
    let mut number = [0; 8];
    number[..field.size].copy_from_slice(&bytes[field.at..field.at + field.size]);
    u64::from_le_bytes(number)
}

/// Sets a field to a critical number: a limit, a neighbour, one of the image's lengths, another
/// field's value.
fn set(bytes: &mut [u8], field: Field, fields: &[Field], chance: &mut Rng) {
    let (old, len) = (get(bytes, field), bytes.len() as u64);
    let most = u64::MAX >> (64 - 8 * field.size);
    let new = match chance.usize(..14) {
        0 => 0,
        1 => most,
        2 => most >> 1,
        3 => (most >> 1) + 1,
        4 => old.wrapping_add(1),
        5 => old.wrapping_sub(1),
        6 => old ^ 1 << chance.usize(..8 * field.size),
        7 => old << 1,
        8 => len,
        9 => len / 512,
        10 => chance.u64(..),
        11 => chance.u64(..) % 64,
        12 => 1 << chance.usize(..64),
        _ => get(bytes, fields[chance.usize(..fields.len())]),
    };
    bytes[field.at..field.at + field.size].copy_from_slice(&new.to_le_bytes()[..field.size]);
}

/// Corrects the checksum of a superblock, so that the data after it are read.
fn update_checksums(bytes: &mut [u8]) {
    let Some(bits) = bytes.get(SUPERBLOCK_OFFSET + 12).filter(|bits| **bits < 17) else {
        return;
    };
    let end = match 1_usize << bits {
        block if block > SUPERBLOCK_OFFSET => block,
        block => SUPERBLOCK_OFFSET + block,
    };
    let sum = SUPERBLOCK_OFFSET + 4..SUPERBLOCK_OFFSET + 8;
    if bytes.len() >= end {
        bytes[sum.clone()].fill(0);
        let right = checksum(&bytes[SUPERBLOCK_OFFSET..end]);
        bytes[sum].copy_from_slice(&right.to_le_bytes());
    }
}
