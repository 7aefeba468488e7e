//! Inodes.

use super::{Error, Image, Storage};
use crate::layout::{
    CompactInode, DataLayout, ExtendedInode, FileType, Format, INODE_SLOT, METABOX_NID,
    decode_device, xattr_body_size,
};

/// An inode, compact or extended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inode {
    /// Its number.
    pub nid: u64,
    /// The file type; never [`FileType::Unknown`].
    pub kind: FileType,
    /// Permissions, `0o7777`.
    pub mode: u16,
    /// Owner's user ID.
    pub uid: u32,
    /// Group ID.
    pub gid: u32,
    /// Number of hard links.
    pub links: u32,
    /// Size in bytes; at most `i64::MAX`.
    pub size: u64,
    /// Modification time: seconds since the Unix epoch.
    pub mtime: i64,
    /// Modification time: nanoseconds.
    pub mtime_nsec: u32,
    /// Major and minor device number.
    pub device: (u32, u32),
    /// The data layout of its contents.
    pub layout: DataLayout,
    /// Whether it is a directory without an entry `.`.
    pub(super) dot_omitted: bool,
    /// The `data` field.
    pub(super) data: u32,
    /// Bits of a block number from bit 32, if the inode has them.
    pub(super) high: Option<u16>,
    /// Offset of the first byte after the inode.
    pub(super) xattr_offset: u64,
    /// Size in bytes of the attributes there.
    pub(super) xattr_size: usize,
}

impl Inode {
    /// Returns whether its metadata are in the metabox.
    pub(super) fn in_metabox(&self) -> bool {
        self.nid & METABOX_NID != 0
    }

    /// Returns the offset after its attributes.
    pub(super) fn xattr_end(&self) -> u64 {
        self.xattr_offset + self.xattr_size as u64
    }

    /// Returns the space taken by its contents, in units of 512 bytes.
    pub fn sectors(&self, image: &Image) -> u64 {
        match self.layout {
            DataLayout::CompressedFull | DataLayout::CompressedCompact => {
                u64::from(self.data) << (image.block_bits - 9)
            }
            _ => self.size.next_multiple_of(image.block_size()) >> 9,
        }
    }
}

impl Image {
    /// Reads the inode with this number, which may be untrusted.
    pub fn inode<S: Storage>(&self, storage: &S, nid: u64) -> Result<Inode, Error<S::Error>> {
        let metabox = nid & METABOX_NID != 0;
        let base = if metabox { 0 } else { self.meta };
        let at = (nid & !METABOX_NID)
            .checked_mul(INODE_SLOT)
            .and_then(|at| at.checked_add(base))
            .filter(|at| *at < i64::MAX as u64)
            .ok_or(Error::Corrupt("an inode beyond the address space"))?;
        let mut bytes = [0; ExtendedInode::SIZE];
        let (first, rest) = bytes.split_at_mut(CompactInode::SIZE);
        self.metadata(storage, metabox, at, first)?;
        let compact = CompactInode::parse(first).expect("as long as it is");
        let format = Format::parse(compact.format).ok_or(Error::Unsupported("inode format"))?;
        if format.extended {
            self.metadata(storage, metabox, at + CompactInode::SIZE as u64, rest)?;
        }
        let kind = kind(compact.mode).ok_or(Error::Corrupt("an inode of unknown type"))?;
        let directory = kind == FileType::Directory;
        let mut inode = Inode {
            nid,
            kind,
            mode: compact.mode & 0o7777,
            uid: compact.uid.into(),
            gid: compact.gid.into(),
            links: compact.links_or_high.into(),
            size: compact.size.into(),
            mtime: self.epoch.wrapping_add(compact.mtime.into()),
            mtime_nsec: self.epoch_nsec,
            device: decode_device(compact.data),
            layout: format.layout,
            dot_omitted: directory && format.one_link,
            data: compact.data,
            high: None,
            xattr_offset: at + CompactInode::SIZE as u64,
            xattr_size: xattr_body_size(compact.xattr_count),
        };
        if format.extended {
            let extended = ExtendedInode::parse(&bytes).expect("as long as it is");
            inode.uid = extended.uid;
            inode.gid = extended.gid;
            inode.links = extended.links;
            inode.size = extended.size;
            inode.mtime = extended.mtime as i64;
            inode.mtime_nsec = extended.mtime_nsec.min(999_999_999);
            inode.device = decode_device(extended.data);
            inode.data = extended.data;
            inode.high = Some(extended.high);
            inode.xattr_offset = at + ExtendedInode::SIZE as u64;
        } else if format.one_link && !directory {
            inode.links = 1;
            inode.high = Some(compact.links_or_high);
        }
        if !matches!(kind, FileType::CharDevice | FileType::BlockDevice) {
            inode.device = (0, 0);
        }
        match inode.size <= i64::MAX as u64 {
            true => Ok(inode),
            false => Err(Error::Corrupt("a size beyond 63 bits")),
        }
    }
}

/// Returns the file type in the format bits of an `st_mode`.
fn kind(mode: u16) -> Option<FileType> {
    Some(match mode & 0o170000 {
        0o100000 => FileType::File,
        0o040000 => FileType::Directory,
        0o120000 => FileType::Symlink,
        0o020000 => FileType::CharDevice,
        0o060000 => FileType::BlockDevice,
        0o010000 => FileType::Fifo,
        0o140000 => FileType::Socket,
        _ => return None,
    })
}
