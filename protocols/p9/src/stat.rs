//! The stat record of 9P2000 and 9P2000.u: stat(5).

use wire::{Malformed, Put, Reader};

use crate::field::Field;
use crate::{Dialect, Qid};

/// A file's attributes in Rstat, Twstat and the contents of a directory. In Twstat, all ones and
/// empty strings leave a field unchanged: [`Stat::UNTOUCHED`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat<'a> {
    /// For use by the kernel.
    pub kind: u16,
    /// For use by the kernel.
    pub dev: u32,
    /// The qid.
    pub qid: Qid,
    /// Permissions and the `DM` bits of [`crate::numbers::Dm`].
    pub mode: u32,
    /// Time of last read, in seconds.
    pub atime: u32,
    /// Time of last write, in seconds.
    pub mtime: u32,
    /// Size in bytes; 0 for a directory.
    pub length: u64,
    /// The name, `/` for the root.
    pub name: &'a [u8],
    /// The owner.
    pub uid: &'a [u8],
    /// The group.
    pub gid: &'a [u8],
    /// The user who wrote it last.
    pub muid: &'a [u8],
    /// The fields added by 9P2000.u; all ones and empty in 9P2000.
    pub unix: UnixStat<'a>,
}

/// The fields that 9P2000.u adds to [`Stat`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnixStat<'a> {
    /// A symbolic link's target, or a device's type and numbers (`b 8 1`).
    pub extension: &'a [u8],
    /// The owner.
    pub n_uid: u32,
    /// The group.
    pub n_gid: u32,
    /// The user who wrote it last.
    pub n_muid: u32,
}

impl UnixStat<'static> {
    /// No values.
    pub const NONE: UnixStat<'static> = UnixStat {
        extension: &[],
        n_uid: u32::MAX,
        n_gid: u32::MAX,
        n_muid: u32::MAX,
    };
}

impl Stat<'static> {
    /// A Twstat with this record changes nothing and requests that the file be made durable.
    pub const UNTOUCHED: Stat<'static> = Stat {
        kind: u16::MAX,
        dev: u32::MAX,
        qid: Qid {
            kind: crate::QidType::all(),
            version: u32::MAX,
            path: u64::MAX,
        },
        mode: u32::MAX,
        atime: u32::MAX,
        mtime: u32::MAX,
        length: u64::MAX,
        name: &[],
        uid: &[],
        gid: &[],
        muid: &[],
        unix: UnixStat::NONE,
    };
}

impl<'a> Stat<'a> {
    /// Decodes a record of a directory's contents: `size[2]` and that many bytes, without a
    /// remainder.
    pub fn decode(from: &mut Reader<'a>, dialect: Dialect) -> Result<Stat<'a>, Malformed> {
        let size = from.u16()?;
        let mut body = Reader::new(from.bytes(size.into())?);
        let from = &mut body;
        let stat = Stat {
            kind: from.u16()?,
            dev: from.u32()?,
            qid: Qid::get(from, dialect)?,
            mode: from.u32()?,
            atime: from.u32()?,
            mtime: from.u32()?,
            length: from.u64()?,
            name: Field::get(from, dialect)?,
            uid: Field::get(from, dialect)?,
            gid: Field::get(from, dialect)?,
            muid: Field::get(from, dialect)?,
            unix: match dialect {
                Dialect::Unix => UnixStat {
                    extension: Field::get(from, dialect)?,
                    n_uid: from.u32()?,
                    n_gid: from.u32()?,
                    n_muid: from.u32()?,
                },
                Dialect::Plan9 | Dialect::Linux => UnixStat::NONE,
            },
        };
        body.end()?;
        Ok(stat)
    }

    /// Encodes a record of a directory's contents.
    pub fn encode(&self, dialect: Dialect, to: &mut impl Put) {
        ((self.record_size(dialect) - 2) as u16).put(dialect, to);
        self.kind.put(dialect, to);
        self.dev.put(dialect, to);
        self.qid.put(dialect, to);
        self.mode.put(dialect, to);
        self.atime.put(dialect, to);
        self.mtime.put(dialect, to);
        self.length.put(dialect, to);
        for string in [self.name, self.uid, self.gid, self.muid] {
            string.put(dialect, to);
        }
        if dialect == Dialect::Unix {
            self.unix.extension.put(dialect, to);
            self.unix.n_uid.put(dialect, to);
            self.unix.n_gid.put(dialect, to);
            self.unix.n_muid.put(dialect, to);
        }
    }

    /// Returns the size in bytes of the record that [`Stat::encode`] writes, which the caller keeps
    /// within 16 bits.
    pub fn record_size(&self, dialect: Dialect) -> usize {
        let strings = [self.name, self.uid, self.gid, self.muid];
        let unix = match dialect {
            Dialect::Unix => self.unix.extension.size(dialect) + 12,
            Dialect::Plan9 | Dialect::Linux => 0,
        };
        Stat::FIXED + strings.iter().map(|s| s.size(dialect)).sum::<usize>() + unix
    }

    /// `size[2] type[2] dev[4] qid[13] mode[4] atime[4] mtime[4] length[8]`.
    const FIXED: usize = 2 + 2 + 4 + Qid::SIZE + 4 + 4 + 4 + 8;
}

/// In Rstat and Twstat another `size[2]` precedes the record: stat(5), BUGS.
impl<'a> Field<'a> for Stat<'a> {
    fn get(from: &mut Reader<'a>, dialect: Dialect) -> Result<Self, Malformed> {
        let size = from.u16()?;
        let mut record = Reader::new(from.bytes(size.into())?);
        let stat = Stat::decode(&mut record, dialect)?;
        record.end()?;
        Ok(stat)
    }

    fn put(&self, dialect: Dialect, to: &mut impl Put) {
        (self.record_size(dialect) as u16).put(dialect, to);
        self.encode(dialect, to);
    }

    fn size(&self, dialect: Dialect) -> usize {
        2 + self.record_size(dialect)
    }
}
