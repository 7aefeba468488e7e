//! A macro that generates parser and encoder of a structure from one definition.

/// A field type: a little-endian number or bytes.
pub(super) trait Field: Copy {
    /// Size in bytes on disk.
    const SIZE: usize;

    /// Decodes the field from `bytes`, which has [`Field::SIZE`].
    fn get(bytes: &[u8]) -> Self;

    /// Encodes the field into `bytes`, which has [`Field::SIZE`].
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

/// Defines structures with their fields in on-disk order and their total size.
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
            /// Size in bytes on disk.
            pub const SIZE: usize = $size;

            /// Parses the first [`Self::SIZE`] bytes, if there are as many.
            pub fn parse(bytes: &[u8]) -> Option<$name> {
                use $crate::layout::record::Field;
                const { assert!($(<$type>::SIZE +)* 0 == $size, "the fields come to another size") };
                let _rest = bytes.get(..$size)?;
                $(let ($field, _rest) = _rest.split_at(<$type>::SIZE);)*
                Some($name { $($field: Field::get($field),)* })
            }

            /// Returns the on-disk form.
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
