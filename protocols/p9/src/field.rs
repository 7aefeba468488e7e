//! The types of message fields, with their encoding in each dialect.

use std::fmt;

use wire::{Malformed, Put, Reader};

use crate::{Dialect, Fid, Qid, QidType, Tag};

/// A field of a message.
pub(crate) trait Field<'a>: Sized {
    /// Decodes the field.
    fn get(from: &mut Reader<'a>, dialect: Dialect) -> Result<Self, Malformed>;

    /// Encodes the field except for its [`Field::tail`].
    fn put(&self, dialect: Dialect, to: &mut impl Put);

    /// Returns the encoded size in bytes, tail included.
    fn size(&self, dialect: Dialect) -> usize;

    /// Returns the payload at the end of the field, which is sent separately.
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

/// A string: `len[2]` and that many bytes, which need not be UTF-8.
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

/// Returns as much of a string as its 16-bit length can express. The caller makes sure that it
/// fits; if not, the message is still well-formed.
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

/// A payload: `count[4]` and that many bytes. The last field of its message, so that it can be sent
/// from and received into a separate buffer.
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

/// A list of names: `nwname[2]` and that many strings. The protocol allows [`Names::MAX`]; a
/// received list may be longer, and the server rejects it.
#[derive(Clone, Copy)]
pub struct Names<'a>(List<'a, &'a [u8]>);

/// A list of qids: `nwqid[2]` and that many qids.
#[derive(Clone, Copy)]
pub struct Qids<'a>(List<'a, Qid>);

#[derive(Clone, Copy)]
enum List<'a, T> {
    /// As received: `bytes` hold `count` valid items.
    Wire { count: u16, bytes: &'a [u8] },
    /// To be sent.
    Own(&'a [T]),
}

macro_rules! list_fields {
    ($($list:ident of $item:ty),*) => {$(
        impl<'a> $list<'a> {
            /// The most items that walk(5) allows (`MAXWELEM`).
            pub const MAX: usize = 16;

            /// Returns a list of these items.
            pub const fn new(items: &'a [$item]) -> Self {
                $list(List::Own(items))
            }

            /// Returns the number of items.
            pub fn len(&self) -> usize {
                match self.0 {
                    List::Wire { count, .. } => count.into(),
                    List::Own(items) => items.len(),
                }
            }

            /// Returns whether the list is empty.
            pub fn is_empty(&self) -> bool {
                self.len() == 0
            }

            /// Returns the items in order.
            pub fn iter(&self) -> impl Iterator<Item = $item> + use<'a> {
                let (bytes, own) = match self.0 {
                    List::Wire { bytes, .. } => (bytes, &[][..]),
                    List::Own(items) => (&[][..], items),
                };
                let mut from = Reader::new(bytes);
                // Checked by `get`: the first error is the end.
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

/// The numeric user of Tauth and Tattach (`n_uname`), absent in 9P2000.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Uid(pub u32);

impl Uid {
    /// No numeric user (`P9_NONUNAME`): the user is given by the string, if at all.
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

/// The field of 9P2000.u's Tcreate for a link's target or a device's numbers. Empty in other
/// dialects.
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

/// The number that 9P2000.u's Rerror adds to its text. 0 in other dialects.
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

/// Tfsync's `datasync`: nonzero for data only. Older clients omit it, which means 0.
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
