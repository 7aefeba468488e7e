//! The structures of messages, little-endian and without implicit padding: a table, from which
//! their types, decoding and encoding are generated.

use wire::{Malformed, Reader};

/// A component of a structure: a number or another structure.
pub(crate) trait Field: Sized {
    /// Its size in bytes.
    const BYTES: usize;

    /// Decodes it.
    fn take(from: &mut Reader<'_>) -> Result<Self, Malformed>;

    /// Encodes it into `to`, which is [`Field::BYTES`] bytes long.
    fn put(&self, to: &mut [u8]);
}

macro_rules! numbers {
    ($($type:ident)*) => {$(
        impl Field for $type {
            const BYTES: usize = size_of::<$type>();

            #[inline]
            fn take(from: &mut Reader<'_>) -> Result<$type, Malformed> {
                let mut bytes = [0; size_of::<$type>()];
                bytes.copy_from_slice(from.bytes(size_of::<$type>())?);
                Ok($type::from_le_bytes(bytes))
            }

            #[inline]
            fn put(&self, to: &mut [u8]) {
                to.copy_from_slice(&self.to_le_bytes());
            }
        }
    )*};
}

numbers! { u16 u32 u64 i32 i64 }

macro_rules! layouts {
    ($(
        $(#[$doc:meta])*
        $name:ident { $($field:ident: $type:ident $(+ $pad:literal)?),* $(,)? }
    )*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[allow(missing_docs)]
        pub struct $name {
            $(pub $field: $type,)*
        }

        impl $name {
            /// The size in bytes on the wire.
            pub const SIZE: usize = <$name as Field>::BYTES;

            /// Decodes the structure from the start of `bytes`.
            pub fn decode(bytes: &[u8]) -> Result<$name, Malformed> {
                Field::take(&mut Reader::new(bytes))
            }

            /// Encodes the structure.
            pub fn encode(&self) -> [u8; $name::SIZE] {
                let mut bytes = [0; $name::SIZE];
                self.put(&mut bytes);
                bytes
            }
        }

        impl Field for $name {
            const BYTES: usize = 0 $(+ <$type as Field>::BYTES $(+ $pad)?)*;

            #[inline]
            fn take(from: &mut Reader<'_>) -> Result<$name, Malformed> {
                $(
                    let $field = <$type as Field>::take(from)?;
                    $(from.bytes($pad)?;)?
                )*
                Ok($name { $($field),* })
            }

            #[inline]
            fn put(&self, to: &mut [u8]) {
                let rest = to;
                $(
                    let (field, rest) = rest.split_at_mut(<$type as Field>::BYTES);
                    self.$field.put(field);
                    $(let rest = &mut rest[$pad..];)?
                )*
                debug_assert!(rest.is_empty(), "a structure is written whole");
            }
        }
    )*};
}

// `+ n`: n bytes of padding after the field.
layouts! {
    /// `fuse_in_header`, the start of every request. `total_extlen` is in units of 8 bytes.
    InHeader {
        len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32,
        total_extlen: u16 + 2,
    }

    /// `fuse_out_header`, the start of every reply. `error` is a negative errno, or 0.
    OutHeader { len: u32, error: i32, unique: u64 }

    /// `fuse_attr`.
    Attr {
        ino: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64, atimensec: u32,
        mtimensec: u32, ctimensec: u32, mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32,
        blksize: u32, flags: u32,
    }

    /// `fuse_entry_out`.
    EntryOut {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_nsec: u32,
        attr_valid_nsec: u32, attr: Attr,
    }

    /// `fuse_attr_out`.
    AttrOut { attr_valid: u64, attr_valid_nsec: u32 + 4, attr: Attr }

    /// `fuse_init_out`, in its size since 7.23.
    InitOut {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16,
        congestion_threshold: u16, max_write: u32, time_gran: u32, max_pages: u16,
        map_alignment: u16, flags2: u32, max_stack_depth: u32, request_timeout: u16 + 22,
    }

    /// `fuse_interrupt_in`.
    InterruptIn { unique: u64 }

    /// `fuse_forget_in`.
    ForgetIn { nlookup: u64 }

    /// `fuse_forget_one`.
    ForgetOne { nodeid: u64, nlookup: u64 }

    /// `fuse_notify_inval_inode_out`. A negative `off` means the attributes only, a `len` of 0 all
    /// after `off`.
    NotifyInvalInode { ino: u64, off: i64, len: i64 }

    /// `fuse_notify_inval_entry_out`, before the name and a NUL.
    NotifyInvalEntry { parent: u64, namelen: u32, flags: u32 }

    /// `fuse_notify_delete_out`, before the name and a NUL.
    NotifyDelete { parent: u64, child: u64, namelen: u32 + 4 }

    /// `fuse_batch_forget_in`.
    BatchForgetIn { count: u32 + 4 }

    /// `fuse_getattr_in`.
    GetattrIn { getattr_flags: u32 + 4, fh: u64 }

    /// `fuse_setattr_in`.
    SetattrIn {
        valid: u32 + 4, fh: u64, size: u64, lock_owner: u64, atime: u64, mtime: u64, ctime: u64,
        atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32 + 4, uid: u32, gid: u32 + 4,
    }

    /// `fuse_mknod_in`.
    MknodIn { mode: u32, rdev: u32, umask: u32 + 4 }

    /// `fuse_mkdir_in`.
    MkdirIn { mode: u32, umask: u32 }

    /// `fuse_rename_in`.
    RenameIn { newdir: u64 }

    /// `fuse_rename2_in`.
    Rename2In { newdir: u64, flags: u32 + 4 }

    /// `fuse_link_in`.
    LinkIn { oldnodeid: u64 }

    /// `fuse_open_in`.
    OpenIn { flags: u32, open_flags: u32 }

    /// `fuse_create_in`.
    CreateIn { flags: u32, mode: u32, umask: u32, open_flags: u32 }

    /// `fuse_open_out`.
    OpenOut { fh: u64, open_flags: u32, backing_id: i32 }

    /// `fuse_release_in`.
    ReleaseIn { fh: u64, flags: u32, release_flags: u32, lock_owner: u64 }

    /// `fuse_flush_in`.
    FlushIn { fh: u64 + 8, lock_owner: u64 }

    /// `fuse_read_in`, also the arguments of READDIR and READDIRPLUS.
    ReadIn {
        fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32 + 4,
    }

    /// `fuse_write_in`.
    WriteIn {
        fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32 + 4,
    }

    /// `fuse_write_out`.
    WriteOut { size: u32 + 4 }

    /// `fuse_kstatfs`.
    StatFs {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32,
        frsize: u32 + 28,
    }

    /// `fuse_fsync_in`.
    FsyncIn { fh: u64, fsync_flags: u32 + 4 }

    /// `fuse_getxattr_in`, also the arguments of LISTXATTR.
    GetxattrIn { size: u32 + 4 }

    /// `fuse_getxattr_out`.
    GetxattrOut { size: u32 + 4 }

    /// `fuse_lk_in`.
    LkIn {
        fh: u64, owner: u64, start: u64, end: u64, kind: u32, pid: u32, lk_flags: u32 + 4,
    }

    /// `fuse_lk_out`.
    LkOut { start: u64, end: u64, kind: u32, pid: u32 }

    /// `fuse_access_in`.
    AccessIn { mask: u32 + 4 }

    /// `fuse_bmap_in`.
    BmapIn { block: u64, blocksize: u32 + 4 }

    /// `fuse_ioctl_in`.
    IoctlIn { fh: u64, flags: u32, cmd: u32, arg: u64, in_size: u32, out_size: u32 }

    /// `fuse_poll_in`.
    PollIn { fh: u64, kh: u64, flags: u32, events: u32 }

    /// `fuse_fallocate_in`.
    FallocateIn { fh: u64, offset: u64, length: u64, mode: u32 + 4 }

    /// `fuse_lseek_in`.
    LseekIn { fh: u64, offset: u64, whence: u32 + 4 }

    /// `fuse_lseek_out`.
    LseekOut { offset: u64 }

    /// `fuse_copy_file_range_in`.
    CopyIn {
        fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64, len: u64, flags: u64,
    }

    /// `fuse_copy_file_range_out`, of COPY_FILE_RANGE_64.
    CopyOut { bytes_copied: u64 }

    /// `fuse_statx_in`.
    StatxIn { getattr_flags: u32 + 4, fh: u64, sx_flags: u32, sx_mask: u32 }

    /// `fuse_sx_time`.
    SxTime { sec: i64, nsec: u32 + 4 }

    /// `fuse_statx`.
    Statx {
        mask: u32, blksize: u32, attributes: u64, nlink: u32, uid: u32, gid: u32, mode: u16 + 2,
        ino: u64, size: u64, blocks: u64, attributes_mask: u64, atime: SxTime, btime: SxTime,
        ctime: SxTime, mtime: SxTime, rdev_major: u32, rdev_minor: u32, dev_major: u32,
        dev_minor: u32 + 112,
    }

    /// `fuse_statx_out`.
    StatxOut { attr_valid: u64, attr_valid_nsec: u32, flags: u32 + 16, stat: Statx }

    /// `fuse_dirent`, up to its name.
    DirentHead { ino: u64, off: u64, namelen: u32, kind: u32 }

    /// `fuse_ext_header`, the start of every extension; `size` includes it.
    ExtHeader { size: u32, kind: u32 }

    /// `fuse_secctx`, followed by the name and `size` bytes of value.
    SecctxHead { size: u32 + 4 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_are_as_long_as_the_kernels() {
        for (name, size, expected) in [
            ("in_header", InHeader::SIZE, 40),
            ("out_header", OutHeader::SIZE, 16),
            ("attr", Attr::SIZE, 88),
            ("entry_out", EntryOut::SIZE, 128),
            ("notify_inval_inode_out", NotifyInvalInode::SIZE, 24),
            ("notify_inval_entry_out", NotifyInvalEntry::SIZE, 16),
            ("notify_delete_out", NotifyDelete::SIZE, 24),
            ("attr_out", AttrOut::SIZE, 104),
            ("init_out", InitOut::SIZE, 64),
            ("getattr_in", GetattrIn::SIZE, 16),
            ("setattr_in", SetattrIn::SIZE, 88),
            ("mknod_in", MknodIn::SIZE, 16),
            ("create_in", CreateIn::SIZE, 16),
            ("open_out", OpenOut::SIZE, 16),
            ("release_in", ReleaseIn::SIZE, 24),
            ("flush_in", FlushIn::SIZE, 24),
            ("read_in", ReadIn::SIZE, 40),
            ("write_in", WriteIn::SIZE, 40),
            ("kstatfs", StatFs::SIZE, 80),
            ("fsync_in", FsyncIn::SIZE, 16),
            ("lk_in", LkIn::SIZE, 48),
            ("lk_out", LkOut::SIZE, 24),
            ("ioctl_in", IoctlIn::SIZE, 32),
            ("poll_in", PollIn::SIZE, 24),
            ("fallocate_in", FallocateIn::SIZE, 32),
            ("lseek_in", LseekIn::SIZE, 24),
            ("copy_file_range_in", CopyIn::SIZE, 56),
            ("statx_in", StatxIn::SIZE, 24),
            ("statx", Statx::SIZE, 256),
            ("statx_out", StatxOut::SIZE, 288),
            ("dirent", DirentHead::SIZE, 24),
        ] {
            assert_eq!(size, expected, "fuse_{name}");
        }
    }

    #[test]
    fn fields_stand_where_the_kernel_has_them() {
        let attr = SetattrIn {
            valid: 1,
            gid: 2,
            uid: 3,
            mode: 4,
            ..SetattrIn::default()
        };
        let bytes = attr.encode();
        assert_eq!((bytes[0], bytes[68], bytes[76], bytes[80]), (1, 4, 3, 2));
        assert_eq!(SetattrIn::decode(&bytes), Ok(attr));
        let init = InitOut {
            max_pages: 0x0102,
            flags2: 0x0304,
            request_timeout: 0x0506,
            ..InitOut::default()
        };
        let bytes = init.encode();
        assert_eq!(bytes[28..30], [2, 1]);
        assert_eq!(bytes[32..34], [4, 3]);
        assert_eq!(bytes[40..42], [6, 5]);
        assert_eq!(InitOut::decode(&bytes), Ok(init));
    }

    #[test]
    fn replies_have_their_golden_bytes() {
        /// Returns little-endian numbers, each given with its size in bytes.
        fn bytes(numbers: &[(u64, usize)]) -> Vec<u8> {
            let one = |&(number, len): &(u64, usize)| number.to_le_bytes()[..len].to_vec();
            numbers.iter().flat_map(one).collect()
        }
        let attr = Attr {
            ino: 1,
            size: 2,
            blocks: 3,
            atime: 4,
            mtime: 5,
            ctime: 6,
            atimensec: 7,
            mtimensec: 8,
            ctimensec: 9,
            mode: 10,
            nlink: 11,
            uid: 12,
            gid: 13,
            rdev: 14,
            blksize: 15,
            flags: 16,
        };
        let longs = (1..=6).map(|number| (number, 8));
        let attr_bytes: Vec<_> = longs.chain((7..=16).map(|number| (number, 4))).collect();
        assert_eq!(attr.encode(), *bytes(&attr_bytes));
        let entry = EntryOut {
            nodeid: 21,
            generation: 22,
            entry_valid: 23,
            attr_valid: 24,
            entry_valid_nsec: 25,
            attr_valid_nsec: 26,
            attr,
        };
        let head = [(21, 8), (22, 8), (23, 8), (24, 8), (25, 4), (26, 4)];
        let whole = [&bytes(&head)[..], &attr.encode()].concat();
        assert_eq!(entry.encode(), *whole);
        assert_eq!(EntryOut::decode(&whole), Ok(entry));
        let answer = AttrOut {
            attr_valid: 1,
            attr_valid_nsec: 2,
            attr,
        };
        let whole = [&bytes(&[(1, 8), (2, 4), (0, 4)])[..], &attr.encode()].concat();
        assert_eq!(answer.encode(), *whole);
        let open = OpenOut {
            fh: 1,
            open_flags: 2,
            backing_id: 3,
        };
        assert_eq!(open.encode(), *bytes(&[(1, 8), (2, 4), (3, 4)]));
        let lock = LkOut {
            start: 1,
            end: 2,
            kind: 3,
            pid: 4,
        };
        assert_eq!(lock.encode(), *bytes(&[(1, 8), (2, 8), (3, 4), (4, 4)]));
        let figures = StatFs {
            blocks: 1,
            bfree: 2,
            bavail: 3,
            files: 4,
            ffree: 5,
            bsize: 6,
            namelen: 7,
            frsize: 8,
        };
        let longs = (1..=5).map(|number| (number, 8));
        let ints = [(6, 4), (7, 4), (8, 4), (0, 8), (0, 8), (0, 8), (0, 4)];
        let whole: Vec<_> = longs.chain(ints).collect();
        assert_eq!(figures.encode(), *bytes(&whole));
        let time = |sec| SxTime { sec, nsec: 1 };
        let stat = Statx {
            mask: 1,
            blksize: 2,
            attributes: 3,
            nlink: 4,
            uid: 5,
            gid: 6,
            mode: 7,
            ino: 8,
            size: 9,
            blocks: 10,
            attributes_mask: 11,
            atime: time(12),
            btime: time(13),
            ctime: time(14),
            mtime: time(15),
            rdev_major: 16,
            rdev_minor: 17,
            dev_major: 18,
            dev_minor: 19,
        };
        let mut whole = vec![
            (1, 4),
            (2, 4),
            (3, 8),
            (4, 4),
            (5, 4),
            (6, 4),
            (7, 2),
            (0, 2),
        ];
        whole.extend([(8, 8), (9, 8), (10, 8), (11, 8)]);
        whole.extend((12..=15).flat_map(|sec| [(sec, 8), (1, 4), (0, 4)]));
        whole.extend([(16, 4), (17, 4), (18, 4), (19, 4)]);
        whole.extend([(0, 8); 14]);
        assert_eq!(stat.encode(), *bytes(&whole));
        assert_eq!(Statx::decode(&bytes(&whole)), Ok(stat));
        for len in 0..EntryOut::SIZE {
            assert!(EntryOut::decode(&entry.encode()[..len]).is_err());
        }
    }
}
