//! XDR (RFC 4506): big-endian numbers, and data padded to multiples of four bytes.

use crate::{Malformed, Put, Reader};

/// A reader of XDR in a peer's message, bounded by its end.
#[derive(Clone, Copy)]
pub struct XdrReader<'a> {
    rest: Reader<'a>,
    len: usize,
    payload: Option<&'a [u8]>,
}

impl<'a> XdrReader<'a> {
    /// Creates a reader of `bytes`, from their start.
    pub fn new(bytes: &'a [u8]) -> XdrReader<'a> {
        XdrReader {
            rest: Reader::new(bytes),
            len: bytes.len(),
            payload: None,
        }
    }

    /// Creates a reader of `bytes`, followed by opaque data stored elsewhere: `payload`, whose
    /// padding is not checked.
    pub fn with_payload(bytes: &'a [u8], payload: &'a [u8]) -> XdrReader<'a> {
        XdrReader {
            payload: Some(payload),
            ..XdrReader::new(bytes)
        }
    }

    /// Returns the unread bytes.
    pub fn rest(&self) -> &'a [u8] {
        self.rest.rest()
    }

    /// Returns the number of bytes read.
    pub fn position(&self) -> usize {
        self.len - self.rest().len()
    }

    /// Returns an error if bytes are left.
    pub fn end(&self) -> Result<(), Malformed> {
        match self.payload {
            None => self.rest.end(),
            Some(_) => Err(Malformed::new("expected the payload to be read")),
        }
    }

    /// Reads an unsigned integer.
    #[inline]
    pub fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_be_bytes)
    }

    /// Reads an unsigned hyper integer.
    #[inline]
    pub fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_be_bytes)
    }

    /// Reads fixed-length opaque data, and its padding.
    #[inline]
    pub fn fixed(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        if self.rest().is_empty()
            && let Some(payload) = self.payload.take_if(|payload| payload.len() == len)
        {
            return Ok(payload);
        }
        let bytes = self.rest.bytes(len)?;
        self.rest.bytes(padding(len))?;
        Ok(bytes)
    }

    /// Reads variable-length opaque data, or a string, of `most` bytes at most.
    #[inline]
    pub fn opaque(&mut self, most: usize) -> Result<&'a [u8], Malformed> {
        let len = self.u32()? as usize;
        if len > most {
            return Err(Malformed::new(format!(
                "expected at most {most} bytes, got {len}"
            )));
        }
        self.fixed(len)
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let mut array = [0; N];
        array.copy_from_slice(self.rest.bytes(N)?);
        Ok(array)
    }
}

/// Returns the number of padding bytes after `len` bytes of opaque data: up to 3 zeros.
pub const fn padding(len: usize) -> usize {
    len.wrapping_neg() & 3
}

/// A value with an XDR representation.
pub trait Xdr<'a>: Sized {
    /// Reads the value.
    fn get(from: &mut XdrReader<'a>) -> Result<Self, Malformed>;

    /// Writes the value.
    fn put(&self, to: &mut impl Put);
}

macro_rules! numbers {
    ($($type:ident as $wire:ident),*) => {$(
        impl Xdr<'_> for $type {
            #[inline]
            fn get(from: &mut XdrReader<'_>) -> Result<Self, Malformed> {
                from.$wire().map(|number| number as $type)
            }

            #[inline]
            fn put(&self, to: &mut impl Put) {
                to.put(&self.to_be_bytes());
            }
        }
    )*};
}

numbers!(u32 as u32, i32 as u32, u64 as u64, i64 as u64);

impl Xdr<'_> for () {
    fn get(_: &mut XdrReader<'_>) -> Result<Self, Malformed> {
        Ok(())
    }

    fn put(&self, _: &mut impl Put) {}
}

impl Xdr<'_> for bool {
    #[inline]
    fn get(from: &mut XdrReader<'_>) -> Result<Self, Malformed> {
        match from.u32()? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(Malformed::new(format!("expected 0 or 1, got {other}"))),
        }
    }

    #[inline]
    fn put(&self, to: &mut impl Put) {
        u32::from(*self).put(to);
    }
}

/// Fixed-length opaque data.
impl<const N: usize> Xdr<'_> for [u8; N] {
    #[inline]
    fn get(from: &mut XdrReader<'_>) -> Result<Self, Malformed> {
        let mut array = [0; N];
        array.copy_from_slice(from.fixed(N)?);
        Ok(array)
    }

    #[inline]
    fn put(&self, to: &mut impl Put) {
        to.put(self);
        to.put(&[0; 3][..padding(N)]);
    }
}

/// Variable-length opaque data, or a string, bounded by its message.
impl<'a> Xdr<'a> for &'a [u8] {
    #[inline]
    fn get(from: &mut XdrReader<'a>) -> Result<Self, Malformed> {
        from.opaque(usize::MAX)
    }

    #[inline]
    fn put(&self, to: &mut impl Put) {
        (self.len() as u32).put(to);
        to.put(self);
        to.put(&[0; 3][..padding(self.len())]);
    }
}

/// Optional data: a boolean, and the value if it is true.
impl<'a, T: Xdr<'a>> Xdr<'a> for Option<T> {
    fn get(from: &mut XdrReader<'a>) -> Result<Self, Malformed> {
        Ok(match bool::get(from)? {
            true => Some(T::get(from)?),
            false => None,
        })
    }

    fn put(&self, to: &mut impl Put) {
        self.is_some().put(to);
        if let Some(value) = self {
            value.put(to);
        }
    }
}

/// A variable-length array. Each element takes at least a byte, so that the count cannot demand
/// more memory than the message has.
impl<'a, T: Xdr<'a>> Xdr<'a> for Vec<T> {
    fn get(from: &mut XdrReader<'a>) -> Result<Self, Malformed> {
        let count = from.u32()? as usize;
        if count > from.rest().len() {
            return Err(Malformed::new(format!(
                "expected {count} elements, got {} bytes",
                from.rest().len()
            )));
        }
        // Not preallocated: an element may be larger in memory than on the wire.
        let mut elements = Vec::new();
        for _ in 0..count {
            elements.push(T::get(from)?);
        }
        Ok(elements)
    }

    fn put(&self, to: &mut impl Put) {
        (self.len() as u32).put(to);
        self.iter().for_each(|element| element.put(to));
    }
}

/// Structs whose representation is that of their fields, in order.
#[macro_export]
macro_rules! xdr_struct {
    ($($(#[$meta:meta])* $vis:vis struct $name:ident $(<$life:lifetime>)? {
        $($(#[$field_meta:meta])* $field_vis:vis $field:ident: $type:ty,)*
    })*) => {$(
        $(#[$meta])*
        $vis struct $name $(<$life>)? {
            $($(#[$field_meta])* $field_vis $field: $type,)*
        }

        impl<'a> $crate::Xdr<'a> for $name $(<$life>)? {
            fn get(from: &mut $crate::XdrReader<'a>) -> Result<Self, $crate::Malformed> {
                Ok(Self { $($field: $crate::Xdr::get(from)?,)* })
            }

            fn put(&self, to: &mut impl $crate::Put) {
                $($crate::Xdr::put(&self.$field, to);)*
            }
        }
    )*};
}

/// Enumerations: each variant has a number, any other is malformed. `from_number` returns the
/// variant.
#[macro_export]
macro_rules! xdr_enum {
    ($($(#[$meta:meta])* $vis:vis enum $name:ident {
        $($(#[$variant_meta:meta])* $variant:ident = $number:expr,)*
    })*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u32)]
        $vis enum $name {
            $($(#[$variant_meta])* $variant = $number,)*
        }

        impl $name {
            /// Returns the variant with this number.
            $vis const fn from_number(number: u32) -> Option<$name> {
                match number {
                    $(number if number == $number => Some($name::$variant),)*
                    _ => None,
                }
            }
        }

        impl<'a> $crate::Xdr<'a> for $name {
            fn get(from: &mut $crate::XdrReader<'a>) -> Result<Self, $crate::Malformed> {
                let number = from.u32()?;
                $name::from_number(number).ok_or_else(|| {
                    $crate::Malformed::new(format!("unknown {} {number}", stringify!($name)))
                })
            }

            fn put(&self, to: &mut impl $crate::Put) {
                $crate::Xdr::put(&(*self as u32), to);
            }
        }
    )*};
}

/// Discriminated unions: each arm has a number and, optionally, a value.
#[macro_export]
macro_rules! xdr_union {
    ($($(#[$meta:meta])* $vis:vis enum $name:ident $(<$life:lifetime>)? {
        $($(#[$variant_meta:meta])* $variant:ident $(($type:ty))? = $number:expr,)*
    })*) => {$(
        $(#[$meta])*
        $vis enum $name $(<$life>)? {
            $($(#[$variant_meta])* $variant $(($type))?,)*
        }

        impl $(<$life>)? $name $(<$life>)? {
            /// The numbers of all arms.
            #[allow(dead_code)]
            $vis const NUMBERS: &'static [u32] = &[$($number),*];
        }

        impl<'a> $crate::Xdr<'a> for $name $(<$life>)? {
            fn get(from: &mut $crate::XdrReader<'a>) -> Result<Self, $crate::Malformed> {
                match from.u32()? {
                    $(number if number == $number => {
                        Ok($name::$variant $((<$type as $crate::Xdr>::get(from)?))?)
                    })*
                    number => Err($crate::Malformed::new(format!(
                        "unknown {} {number}",
                        stringify!($name)
                    ))),
                }
            }

            fn put(&self, to: &mut impl $crate::Put) {
                match self {
                    $($crate::xdr_union!(@pattern value $name $variant $(($type))?) => {
                        $crate::Xdr::put(&($number as u32), to);
                        $crate::xdr_union!(@put value to $(($type))?);
                    })*
                }
            }
        }
    )*};
    (@pattern $value:ident $name:ident $variant:ident ($type:ty)) => { $name::$variant($value) };
    (@pattern $value:ident $name:ident $variant:ident) => { $name::$variant };
    (@put $value:ident $to:ident ($type:ty)) => { $crate::Xdr::put($value, $to) };
    (@put $value:ident $to:ident) => {};
}

#[cfg(test)]
mod tests {
    use super::*;

    xdr_struct! {
        #[derive(Debug, PartialEq)]
        struct Both<'a> {
            name: &'a [u8],
            hole: Option<u32>,
            list: Vec<u64>,
        }
    }

    xdr_enum! {
        enum Color {
            Red = 1,
            Blue = 7,
        }
    }

    xdr_union! {
        #[derive(Debug, PartialEq)]
        enum Either<'a> {
            Nothing = 0,
            Name(&'a [u8]) = 2,
        }
    }

    fn put<'a>(value: &impl Xdr<'a>) -> Vec<u8> {
        let mut bytes = Vec::new();
        value.put(&mut bytes);
        bytes
    }

    #[test]
    fn everything_is_big_endian_and_padded() {
        let value = Both {
            name: b"abcde",
            hole: Some(9),
            list: vec![1],
        };
        let bytes = put(&value);
        let want = b"\0\0\0\x05abcde\0\0\0\0\0\0\x01\0\0\0\x09\0\0\0\x01\0\0\0\0\0\0\0\x01";
        assert_eq!(bytes, want);
        let mut reader = XdrReader::new(&bytes);
        assert_eq!(Both::get(&mut reader), Ok(value));
        assert_eq!(reader.position(), bytes.len());
        assert_eq!(reader.end(), Ok(()));
        for len in 0..bytes.len() {
            assert!(
                Both::get(&mut XdrReader::new(&bytes[..len])).is_err(),
                "{len}"
            );
        }
    }

    #[test]
    fn an_enumeration_knows_its_numbers_and_a_union_its_arms() {
        assert_eq!(put(&Color::Blue), [0, 0, 0, 7]);
        assert_eq!(Color::from_number(1), Some(Color::Red));
        assert!(Color::get(&mut XdrReader::new(&[0, 0, 0, 2])).is_err());
        for value in [Either::Nothing, Either::Name(b"abcd")] {
            let bytes = put(&value);
            assert_eq!(Either::get(&mut XdrReader::new(&bytes)), Ok(value));
        }
        assert!(Either::get(&mut XdrReader::new(&[0, 0, 0, 1])).is_err());
    }

    #[test]
    fn a_count_asks_for_no_more_memory_than_there_are_bytes() {
        assert!(Vec::<()>::get(&mut XdrReader::new(&[0xff; 4])).is_err());
        assert!(Vec::<u32>::get(&mut XdrReader::new(&[0x7f; 16])).is_err());
        assert!(
            XdrReader::new(&[0, 0, 0, 5, 1, 2, 3, 4, 5, 0, 0, 0])
                .opaque(4)
                .is_err()
        );
    }
}
