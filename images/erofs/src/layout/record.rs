//! What makes a parser and an encoder of a structure's one definition.

/// A field: a little-endian number or bytes.
pub(super) trait Field: Copy {
    /// Bytes on disk.
    const SIZE: usize;

    /// Reads it off `bytes`, which are [`Field::SIZE`].
    fn get(bytes: &[u8]) -> Self;

    /// Writes it to `bytes`, which are [`Field::SIZE`].
    fn put(self, bytes: &mut [u8]);
}

macro_rules! numbers {
    ($($number:ty)*) => {$(
        impl Field for $number {
            const SIZE: usize = size_of::<$number>();

            fn get(bytes: &[u8]) -> $number {
                <$number>::from_le_bytes(<[u8; size_of::<$number>()]>::get(bytes))
            }

            fn put(self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_le_bytes());
            }
        }
    )*};
}

numbers!(u8 u16 u32 u64);

impl<const N: usize> Field for [u8; N] {
    const SIZE: usize = N;

    fn get(bytes: &[u8]) -> [u8; N] {
        bytes.try_into().expect("as long as the field")
    }

    fn put(self, bytes: &mut [u8]) {
        bytes.copy_from_slice(&self);
    }
}

/// Structures with their fields in the order on disk, and the size that they must come to.
macro_rules! records {
    ($(
        $(#[$meta:meta])*
        pub struct $name:ident: $size:literal {
            $($(#[$field_meta:meta])* $field:ident: $type:ty,)*
        }
    )*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name {
            $($(#[$field_meta])* pub $field: $type,)*
        }

        impl $name {
            /// Bytes on disk.
            pub const SIZE: usize = $size;

            /// Reads it off the first [`Self::SIZE`] bytes, if there are as many.
            pub fn parse(bytes: &[u8]) -> Option<$name> {
                use $crate::layout::record::Field;
                const { assert!($(<$type>::SIZE +)* 0 == $size, "the fields come to another size") };
                let _rest = bytes.get(..$size)?;
                $(let ($field, _rest) = _rest.split_at(<$type>::SIZE);)*
                Some($name { $($field: Field::get($field),)* })
            }

            /// As it lies on disk.
            pub fn encode(&self) -> [u8; $size] {
                use $crate::layout::record::Field;
                let mut bytes = [0; $size];
                let _rest = &mut bytes[..];
                $(
                    let (head, _rest) = _rest.split_at_mut(<$type>::SIZE);
                    self.$field.put(head);
                )*
                bytes
            }
        }
    )*};
}

pub(super) use records;
