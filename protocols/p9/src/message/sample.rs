//! Messages made from random bytes, for round trips.

use super::*;
use crate::QidType;
use crate::stat::UnixStat;

/// Random bytes, then zeros.
pub(super) struct Entropy<'a>(pub(super) &'a [u8]);

impl<'a> Entropy<'a> {
    fn number(&mut self) -> u64 {
        let mut bytes = [0; 8];
        let (head, rest) = self.0.split_at(self.0.len().min(8));
        bytes[..head.len()].copy_from_slice(head);
        self.0 = rest;
        u64::from_le_bytes(bytes)
    }

    fn bytes(&mut self) -> &'a [u8] {
        let len = self.number() as usize % 64;
        let (bytes, rest) = self.0.split_at(self.0.len().min(len));
        self.0 = rest;
        bytes
    }
}

/// A field made from random bytes.
pub(super) trait Sample<'a> {
    fn sample(from: &mut Entropy<'a>) -> Self;
}

macro_rules! numbers {
    ($($type:ident)*) => {$(
        impl Sample<'_> for $type {
            fn sample(from: &mut Entropy<'_>) -> Self {
                from.number() as $type
            }
        }
    )*};
}

numbers!(u8 u16 u32 u64);

macro_rules! newtypes {
    ($($type:ident)*) => {$(
        impl<'a> Sample<'a> for $type {
            fn sample(from: &mut Entropy<'a>) -> Self {
                $type(Sample::sample(from))
            }
        }
    )*};
}

newtypes!(Fid Tag Uid DotuErrno Datasync);

impl<'a> Sample<'a> for &'a [u8] {
    fn sample(from: &mut Entropy<'a>) -> Self {
        from.bytes()
    }
}

impl<'a> Sample<'a> for Data<'a> {
    fn sample(from: &mut Entropy<'a>) -> Self {
        Data(from.bytes())
    }
}

impl<'a> Sample<'a> for Extension<'a> {
    fn sample(from: &mut Entropy<'a>) -> Self {
        Extension(from.bytes())
    }
}

impl Sample<'_> for Qid {
    fn sample(from: &mut Entropy<'_>) -> Self {
        Qid {
            kind: QidType::from_bits_retain(from.number() as u8),
            version: from.number() as u32,
            path: from.number(),
        }
    }
}

/// Lists borrow their items; a test leaks them.
macro_rules! lists {
    ($($type:ident of $item:ty),*) => {$(
        impl<'a> Sample<'a> for $type<'a> {
            fn sample(from: &mut Entropy<'a>) -> Self {
                let items: Vec<$item> = (0..from.number() % 17)
                    .map(|_| Sample::sample(from))
                    .collect();
                $type::new(Vec::leak(items))
            }
        }
    )*};
}

lists!(Names of &'a [u8], Qids of Qid);

impl<'a> Sample<'a> for Stat<'a> {
    fn sample(from: &mut Entropy<'a>) -> Self {
        Stat {
            kind: from.number() as u16,
            dev: from.number() as u32,
            qid: Sample::sample(from),
            mode: from.number() as u32,
            atime: from.number() as u32,
            mtime: from.number() as u32,
            length: from.number(),
            name: from.bytes(),
            uid: from.bytes(),
            gid: from.bytes(),
            muid: from.bytes(),
            unix: UnixStat {
                extension: from.bytes(),
                n_uid: from.number() as u32,
                n_gid: from.number() as u32,
                n_muid: from.number() as u32,
            },
        }
    }
}
