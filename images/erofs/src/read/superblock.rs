//! The superblock and its tables: reading and validation.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::contents::SpecialContents;
use super::meta::MetadataReader;
use super::{Error, MAX_OFFSET, Storage};
use crate::layout::{
    Compat, DeviceSlot, Incompat, MAGIC, METABOX_NID, MetaboxSlot, SUPERBLOCK_OFFSET, Superblock,
    checksum,
};

/// An opened image.
#[derive(Clone, Debug)]
pub struct Image {
    /// The volume's UUID.
    pub uuid: [u8; 16],
    /// The volume name, if there is one.
    pub volume: Vec<u8>,
    /// Number of inodes.
    pub inodes: u64,
    /// Number of blocks, including those of extra devices.
    pub blocks: u64,
    /// Inode number of the root directory.
    pub root: u64,
    pub(super) compat: Compat,
    pub(super) incompat: Incompat,
    pub(super) block_bits: u32,
    pub(super) meta: u64,
    pub(super) xattr: u64,
    pub(super) epoch: i64,
    pub(super) epoch_nsec: u32,
    /// A bit for each algorithm that may be used.
    pub(super) algorithms: u16,
    pub(super) prefixes: Vec<Prefix>,
    pub(super) packed: Option<Box<SpecialContents>>,
    pub(super) metabox: Option<Box<SpecialContents>>,
    devices: Vec<Device>,
    /// Whether all devices are in the file of the primary one.
    flatdev: bool,
}

/// A long attribute name prefix.
#[derive(Clone, Debug)]
pub(super) struct Prefix {
    pub(super) base: u8,
    pub(super) infix: Vec<u8>,
}

/// The range of an extra device in the unified address space, in bytes.
#[derive(Clone, Copy, Debug)]
struct Device {
    start: u64,
    len: u64,
}

impl Image {
    /// Reads the superblock, the tables it refers to, and the special inodes.
    pub fn open<S: Storage>(storage: &S) -> Result<Image, Error<S::Error>> {
        let mut bytes = [0; Superblock::SIZE];
        read(storage, SUPERBLOCK_OFFSET as u64, &mut bytes)?;
        let raw = Superblock::parse(&bytes).expect("as long as it is");
        if raw.magic != MAGIC {
            return Err(Error::Corrupt("no EROFS superblock at offset 1024"));
        }
        let incompat =
            Incompat::from_bits(raw.incompat).ok_or(Error::Unsupported("superblock feature"))?;
        if !(9..=16).contains(&raw.block_bits) || raw.directory_block_bits != 0 {
            return Err(Error::Unsupported(
                "blocks other than of 512 to 65536 bytes",
            ));
        }
        let compat = Compat::from_bits_truncate(raw.compat);
        let block_bits = u32::from(raw.block_bits);
        if compat.contains(Compat::CHECKSUM) {
            verify_checksum(storage, block_bits, raw.checksum)?;
        }
        let wide = incompat.contains(Incompat::BIT48) && raw.root_wide != 0;
        let (root, high) = match wide {
            true => (raw.root_wide, u64::from(raw.root_or_blocks_high) << 32),
            false => (raw.root_or_blocks_high.into(), 0),
        };
        let mut image = Image {
            uuid: raw.uuid,
            volume: raw
                .volume
                .split(|byte| *byte == 0)
                .next()
                .unwrap_or_default()
                .to_vec(),
            inodes: raw.inodes,
            blocks: u64::from(raw.blocks) | high,
            root,
            compat,
            incompat,
            block_bits,
            meta: u64::from(raw.meta_block) << block_bits,
            xattr: u64::from(raw.xattr_block) << block_bits,
            epoch: raw.epoch as i64,
            epoch_nsec: raw.epoch_nsec.min(999_999_999),
            // Without configurations the only algorithm is LZ4.
            algorithms: match incompat.contains(Incompat::CONFIGS) {
                true => raw.algorithms_or_distance,
                false => 1,
            },
            prefixes: Vec::new(),
            packed: None,
            metabox: None,
            devices: Vec::new(),
            flatdev: storage.devices() < 2,
        };
        image.load_devices(storage, &raw)?;
        if incompat.contains(Incompat::METABOX) {
            let mut slot = [0; MetaboxSlot::SIZE];
            if raw.slots == 0 {
                return Err(Error::Corrupt("a metabox without its slot"));
            }
            read(
                storage,
                (SUPERBLOCK_OFFSET + Superblock::SIZE) as u64,
                &mut slot,
            )?;
            let nid = MetaboxSlot::parse(&slot).expect("as long as it is").nid;
            image.metabox = Some(image.read_special(storage, nid)?);
        }
        // The flag also allows partially shared clusters; without fragments there is no packed
        // inode.
        if incompat.contains(Incompat::FRAGMENTS) && raw.packed != 0 {
            image.packed = Some(image.read_special(storage, raw.packed)?);
        }
        if incompat.contains(Incompat::XATTR_PREFIXES) {
            image.load_prefixes(storage, &raw)?;
        }
        Ok(image)
    }

    /// Returns the size in bytes of a block.
    pub fn block_size(&self) -> u64 {
        1 << self.block_bits
    }

    /// Reads the contents of a special inode, which must not be in the metabox itself.
    fn read_special<S: Storage>(
        &self,
        storage: &S,
        nid: u64,
    ) -> Result<Box<SpecialContents>, Error<S::Error>> {
        if nid & METABOX_NID != 0 {
            return Err(Error::Corrupt("a special inode within the metabox"));
        }
        let inode = self.inode(storage, nid)?;
        let contents = self.contents(storage, &inode)?;
        if contents.has_fragments() {
            return Err(Error::Corrupt("a special inode of fragments"));
        }
        Ok(Box::new(contents))
    }

    fn load_devices<S: Storage>(
        &mut self,
        storage: &S,
        raw: &Superblock,
    ) -> Result<(), Error<S::Error>> {
        if !self.incompat.contains(Incompat::DEVICES) {
            return Ok(());
        }
        let table = u64::from(raw.device_table) * DeviceSlot::SIZE as u64;
        let high = |bits: u16| match self.incompat.contains(Incompat::BIT48) {
            true => u64::from(bits) << 32,
            false => 0,
        };
        for number in 0..raw.devices {
            let mut slot = [0; DeviceSlot::SIZE];
            read(
                storage,
                table + u64::from(number) * DeviceSlot::SIZE as u64,
                &mut slot,
            )?;
            let slot = DeviceSlot::parse(&slot).expect("as long as it is");
            let blocks = u64::from(slot.blocks) | high(slot.blocks_high);
            self.blocks += blocks;
            self.devices.push(Device {
                start: (u64::from(slot.start) | high(slot.start_high)) << self.block_bits,
                len: blocks << self.block_bits,
            });
        }
        Ok(())
    }

    fn load_prefixes<S: Storage>(
        &mut self,
        storage: &S,
        raw: &Superblock,
    ) -> Result<(), Error<S::Error>> {
        let plain = self.compat.contains(Compat::PLAIN_PREFIXES);
        let body = match plain {
            true => None,
            false => self.metabox.as_deref().or(self.packed.as_deref()),
        };
        let mut at = u64::from(raw.prefix_start) * 4;
        let mut bytes = [0; 2 + 1 + 255];
        let mut prefixes = Vec::with_capacity(raw.prefixes.into());
        let mut meta = MetadataReader::new(self, storage, false);
        for _ in 0..raw.prefixes {
            at = at.next_multiple_of(4);
            let mut fill = |at, into: &mut [u8]| match body {
                Some(body) => self.read(storage, body, at, into),
                None => {
                    into.copy_from_slice(meta.bytes(at, into.len())?);
                    Ok(())
                }
            };
            fill(at, &mut bytes[..2])?;
            let len = usize::from(u16::from_le_bytes([bytes[0], bytes[1]]));
            if !(1..=256).contains(&len) {
                return Err(Error::Corrupt("a long prefix of more than 255 bytes"));
            }
            fill(at + 2, &mut bytes[2..2 + len])?;
            prefixes.push(Prefix {
                base: bytes[2],
                infix: bytes[3..2 + len].to_vec(),
            });
            at += 2 + len as u64;
        }
        self.prefixes = prefixes;
        Ok(())
    }

    /// Returns the storage device and the offset on it of `position` on the image's `device`.
    pub(super) fn locate<E>(&self, device: u16, position: u64) -> Result<(u16, u64), Error<E>> {
        match usize::from(device).checked_sub(1) {
            Some(further) => {
                let further = self
                    .devices
                    .get(further)
                    .ok_or(Error::Corrupt("a device missing from the table"))?;
                Ok(match self.flatdev {
                    true => (0, further.start.saturating_add(position)),
                    false => (device, position),
                })
            }
            None if self.flatdev => Ok((0, position)),
            None => {
                let beyond = |further: &Device| {
                    further.start != 0
                        && position
                            .checked_sub(further.start)
                            .is_some_and(|at| at < further.len)
                };
                Ok(match self.devices.iter().position(beyond) {
                    Some(at) => (at as u16 + 1, position - self.devices[at].start),
                    None => (0, position),
                })
            }
        }
    }

    /// Returns the mask of valid bits in a device number.
    pub(super) fn device_mask(&self) -> u16 {
        let numbers = (self.devices.len() + 1).next_power_of_two();
        (numbers - 1) as u16
    }

    /// Returns the offset of a block in bytes, or an error if it exceeds the maximum.
    pub(super) fn block_offset<E>(&self, block: u64) -> Result<u64, Error<E>> {
        match block < MAX_OFFSET >> self.block_bits {
            true => Ok(block << self.block_bits),
            false => Err(Error::Corrupt("a block beyond the address space")),
        }
    }

    /// Reads metadata from the primary device or the metabox.
    pub(super) fn metadata<S: Storage>(
        &self,
        storage: &S,
        metabox: bool,
        at: u64,
        into: &mut [u8],
    ) -> Result<(), Error<S::Error>> {
        match (metabox, &self.metabox) {
            (false, _) => read(storage, at, into),
            (true, Some(body)) => self.read(storage, body, at, into),
            (true, None) => Err(Error::Corrupt("an inode in a missing metabox")),
        }
    }
}

fn read<S: Storage>(storage: &S, at: u64, into: &mut [u8]) -> Result<(), Error<S::Error>> {
    storage.read_at(0, at, into).map_err(Error::Storage)
}

/// Verifies the checksum of the superblock's block.
fn verify_checksum<S: Storage>(
    storage: &S,
    block_bits: u32,
    expected: u32,
) -> Result<(), Error<S::Error>> {
    let block = 1usize << block_bits;
    let len = match block > SUPERBLOCK_OFFSET {
        true => block - SUPERBLOCK_OFFSET,
        false => block,
    };
    let mut bytes = alloc::vec![0; len];
    read(storage, SUPERBLOCK_OFFSET as u64, &mut bytes)?;
    bytes[4..8].fill(0);
    match checksum(&bytes) == expected {
        true => Ok(()),
        false => Err(Error::Corrupt("wrong checksum of the superblock")),
    }
}
