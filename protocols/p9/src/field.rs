//! What messages are made of: each type says how it looks in each dialect.

use std::fmt;

use wire::{Malformed, Put, Reader};

use crate::{Dialect, Fid, Qid, QidType, Tag};

/// A field of a message.
pub(crate) trait Field<'a>: Sized {
    /// Reads it.
    fn get(from: &mut Reader<'a>, dialect: Dialect) -> Result<Self, Malformed>;

    /// Writes it, but for its [`Field::tail`].
    fn put(&self, dialect: Dialect, to: &mut impl Put);

    /// How many bytes it has, tail included.
    fn size(&self, dialect: Dialect) -> usize;

    /// The payload at its end, which travels on its own.
    fn tail(&self) -> &'a [u8] {
        &[]
    }
}

macro_rules! number_fields {
    ($($type:ident),*) => {$(
        impl Field<'_> for $type {
            #[inline]
            fn get(from: &mut Reader<'_>, _: Dialect) -> Result<Self, Malformed> {
                from.$type()
            }

            #[inline]
            fn put(&self, _: Dialect, to: &mut impl Put) {
                to.put(&self.to_le_bytes());
            }

            #[inline]
            fn size(&self, _: Dialect) -> usize {
                size_of::<$type>()
            }
        }
    )*};
}

number_fields!(u8, u16, u32, u64);

macro_rules! newtype_fields {
    ($($type:ident($number:ident)),*) => {$(
        impl Field<'_> for $type {
            #[inline]
            fn get(from: &mut Reader<'_>, _: Dialect) -> Result<Self, Malformed> {
                from.$number().map($type)
            }

            #[inline]
            fn put(&self, dialect: Dialect, to: &mut impl Put) {
                self.0.put(dialect, to);
            }

            #[inline]
            fn size(&self, _: Dialect) -> usize {
                size_of::<$number>()
            }
        }
    )*};
}

newtype_fields!(Fid(u32), Tag(u16));

/// A string: `len[2]` and so many bytes, which need not be UTF-8.
impl<'a> Field<'a> for &'a [u8] {
    #[inline]
    fn get(from: &mut Reader<'a>, _: Dialect) -> Result<Self, Malformed> {
        let len = from.u16()?;
        from.bytes(len.into())
    }

    #[inline]
    fn put(&self, dialect: Dialect, to: &mut impl Put) {
        let string = sendable(self);
        (string.len() as u16).put(dialect, to);
        to.put(string);
    }

    #[inline]
    fn size(&self, _: Dialect) -> usize {
        2 + sendable(self).len()
    }
}

/// What of a string fits its 16-bit length. Whoever encodes checks that it does; if not, the
/// message must still be one.
fn sendable(string: &[u8]) -> &[u8] {
    debug_assert!(
        string.len() <= u16::MAX.into(),
        "a string that no message can carry"
    );
    &string[..string.len().min(u16::MAX.into())]
}

impl Field<'_> for Qid {
    #[inline]
    fn get(from: &mut Reader<'_>, _: Dialect) -> Result<Self, Malformed> {
        Ok(Qid {
            kind: QidType::from_bits_retain(from.u8()?),
            version: from.u32()?,
            path: from.u64()?,
        })
    }

    #[inline]
    fn put(&self, _: Dialect, to: &mut impl Put) {
        let mut bytes = [0; Qid::SIZE];
        bytes[0] = self.kind.bits();
        bytes[1..5].copy_from_slice(&self.version.to_le_bytes());
        bytes[5..].copy_from_slice(&self.path.to_le_bytes());
        to.put(&bytes);
    }

    #[inline]
    fn size(&self, _: Dialect) -> usize {
        Qid::SIZE
    }
}

/// A payload: `count[4]` and so many bytes. Stands last in its message, so that it can be sent
/// from, and received into, another place than the head.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Data<'a>(pub &'a [u8]);

impl fmt::Debug for Data<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

impl<'a> Field<'a> for Data<'a> {
    #[inline]
    fn get(from: &mut Reader<'a>, _: Dialect) -> Result<Self, Malformed> {
        let len = from.u32()?;
        from.bytes(len as usize).map(Data)
    }

    #[inline]
    fn put(&self, dialect: Dialect, to: &mut impl Put) {
        (self.0.len() as u32).put(dialect, to);
    }

    #[inline]
    fn size(&self, _: Dialect) -> usize {
        4 + self.0.len()
    }

    #[inline]
    fn tail(&self) -> &'a [u8] {
        self.0
    }
}

/// A list of names: `nwname[2]` and so many strings. The protocol allows [`Names::MAX`]; a list that
/// came over the wire may be longer, and whoever serves it says so.
#[derive(Clone, Copy)]
pub struct Names<'a>(List<'a, &'a [u8]>);

/// A list of qids: `nwqid[2]` and so many qids.
#[derive(Clone, Copy)]
pub struct Qids<'a>(List<'a, Qid>);

#[derive(Clone, Copy)]
enum List<'a, T> {
    /// As it came: that many items are in there, which was checked.
    Wire { count: u16, bytes: &'a [u8] },
    /// As it shall go.
    Own(&'a [T]),
}

macro_rules! list_fields {
    ($($list:ident of $item:ty),*) => {$(
        impl<'a> $list<'a> {
            /// The most that walk(5) allows (`MAXWELEM`).
            pub const MAX: usize = 16;

            /// These.
            pub const fn new(items: &'a [$item]) -> Self {
                $list(List::Own(items))
            }

            /// How many there are.
            pub fn len(&self) -> usize {
                match self.0 {
                    List::Wire { count, .. } => count.into(),
                    List::Own(items) => items.len(),
                }
            }

            /// Whether there are none.
            pub fn is_empty(&self) -> bool {
                self.len() == 0
            }

            /// One after the other.
            pub fn iter(&self) -> impl Iterator<Item = $item> + use<'a> {
                let (bytes, own) = match self.0 {
                    List::Wire { bytes, .. } => (bytes, &[][..]),
                    List::Own(items) => (&[][..], items),
                };
                let mut from = Reader::new(bytes);
                // Checked when it came: the first error is the end.
                std::iter::from_fn(move || <$item>::get(&mut from, Dialect::Linux).ok())
                    .chain(own.iter().copied())
            }
        }

        impl<'a> Field<'a> for $list<'a> {
            fn get(from: &mut Reader<'a>, dialect: Dialect) -> Result<Self, Malformed> {
                let count = from.u16()?;
                let start = from.rest();
                for _ in 0..count {
                    <$item>::get(from, dialect)?;
                }
                let bytes = &start[..start.len() - from.rest().len()];
                Ok($list(List::Wire { count, bytes }))
            }

            fn put(&self, dialect: Dialect, to: &mut impl Put) {
                debug_assert!(self.len() <= Self::MAX, "a list that no peer takes");
                (self.len() as u16).put(dialect, to);
                match self.0 {
                    List::Wire { bytes, .. } => to.put(bytes),
                    List::Own(items) => items.iter().for_each(|item| item.put(dialect, to)),
                }
            }

            fn size(&self, dialect: Dialect) -> usize {
                2 + match self.0 {
                    List::Wire { bytes, .. } => bytes.len(),
                    List::Own(items) => items.iter().map(|item| item.size(dialect)).sum(),
                }
            }
        }

        impl PartialEq for $list<'_> {
            fn eq(&self, other: &Self) -> bool {
                self.iter().eq(other.iter())
            }
        }

        impl Eq for $list<'_> {}

        impl fmt::Debug for $list<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_list().entries(self.iter()).finish()
            }
        }
    )*};
}

list_fields!(Names of &'a [u8], Qids of Qid);

/// The numeric user of Tauth and Tattach (`n_uname`), which 9P2000 lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Uid(pub u32);

impl Uid {
    /// None is named (`P9_NONUNAME`): the string says who, if anything does.
    pub const NONE: Uid = Uid(u32::MAX);
}

impl Field<'_> for Uid {
    fn get(from: &mut Reader<'_>, dialect: Dialect) -> Result<Self, Malformed> {
        match dialect {
            Dialect::Plan9 => Ok(Uid::NONE),
            Dialect::Unix | Dialect::Linux => from.u32().map(Uid),
        }
    }

    fn put(&self, dialect: Dialect, to: &mut impl Put) {
        if dialect != Dialect::Plan9 {
            self.0.put(dialect, to);
        }
    }

    fn size(&self, dialect: Dialect) -> usize {
        if dialect == Dialect::Plan9 { 0 } else { 4 }
    }
}

/// What only 9P2000.u's Tcreate says: a link's target, a device's numbers. Empty elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extension<'a>(pub &'a [u8]);

impl<'a> Field<'a> for Extension<'a> {
    fn get(from: &mut Reader<'a>, dialect: Dialect) -> Result<Self, Malformed> {
        match dialect {
            Dialect::Unix => Field::get(from, dialect).map(Extension),
            Dialect::Plan9 | Dialect::Linux => Ok(Extension(&[])),
        }
    }

    fn put(&self, dialect: Dialect, to: &mut impl Put) {
        if dialect == Dialect::Unix {
            self.0.put(dialect, to);
        }
    }

    fn size(&self, dialect: Dialect) -> usize {
        match dialect {
            Dialect::Unix => self.0.size(dialect),
            Dialect::Plan9 | Dialect::Linux => 0,
        }
    }
}

/// The number that 9P2000.u's Rerror adds to its text. 0 elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DotuErrno(pub u32);

impl Field<'_> for DotuErrno {
    fn get(from: &mut Reader<'_>, dialect: Dialect) -> Result<Self, Malformed> {
        match dialect {
            Dialect::Unix => from.u32().map(DotuErrno),
            Dialect::Plan9 | Dialect::Linux => Ok(DotuErrno(0)),
        }
    }

    fn put(&self, dialect: Dialect, to: &mut impl Put) {
        if dialect == Dialect::Unix {
            self.0.put(dialect, to);
        }
    }

    fn size(&self, dialect: Dialect) -> usize {
        if dialect == Dialect::Unix { 4 } else { 0 }
    }
}

/// Tfsync's word: not 0 for data alone. Older clients leave it away, which means 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datasync(pub u32);

impl Field<'_> for Datasync {
    fn get(from: &mut Reader<'_>, _: Dialect) -> Result<Self, Malformed> {
        if from.rest().is_empty() {
            return Ok(Datasync(0));
        }
        from.u32().map(Datasync)
    }

    fn put(&self, dialect: Dialect, to: &mut impl Put) {
        self.0.put(dialect, to);
    }

    fn size(&self, _: Dialect) -> usize {
        4
    }
}
