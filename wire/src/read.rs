use std::borrow::Cow;
use std::fmt;
use std::io::{self, Read};

/// A reader of little-endian values in a peer's message, bounded by its end.
#[derive(Clone, Copy)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

/// The error for a malformed message: the expected contents and what arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed(Cow<'static, str>);

impl Malformed {
    /// Creates an error that describes the expected and the actual contents.
    pub fn new(what: impl Into<Cow<'static, str>>) -> Malformed {
        Malformed(what.into())
    }
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Malformed {}

impl<'a> Reader<'a> {
    /// Creates a reader of `bytes`, from their start.
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { rest: bytes }
    }

    /// Returns the unread bytes.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Reads the next `len` bytes.
    #[inline]
    pub fn bytes(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        match self.rest.split_at_checked(len) {
            Some((bytes, rest)) => {
                self.rest = rest;
                Ok(bytes)
            }
            None => Err(self.short(len)),
        }
    }

    /// Reads the next byte.
    #[inline]
    pub fn u8(&mut self) -> Result<u8, Malformed> {
        self.array().map(u8::from_le_bytes)
    }

    /// Reads the next 2 bytes as a little-endian number.
    #[inline]
    pub fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_le_bytes)
    }

    /// Reads the next 4 bytes as a little-endian number.
    #[inline]
    pub fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    /// Reads the next 8 bytes as a little-endian number.
    #[inline]
    pub fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }

    /// Returns an error if bytes are left.
    pub fn end(&self) -> Result<(), Malformed> {
        if self.rest.is_empty() {
            return Ok(());
        }
        Err(Malformed::new(format!(
            "expected the end, got {} more bytes",
            self.rest.len()
        )))
    }

    /// Reads the next `N` bytes.
    #[inline]
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        match self.rest.split_first_chunk() {
            Some((array, rest)) => {
                self.rest = rest;
                Ok(*array)
            }
            None => Err(self.short(N)),
        }
    }

    #[cold]
    fn short(&self, wanted: usize) -> Malformed {
        Malformed::new(format!("expected {wanted} bytes, got {}", self.rest.len()))
    }
}

/// A reader of little-endian values in a stream. Returns `UnexpectedEof` if that ends.
pub struct StreamReader<R>(R);

impl<R: Read> StreamReader<R> {
    /// Creates a reader of `stream`, from its position on.
    pub fn new(stream: R) -> StreamReader<R> {
        StreamReader(stream)
    }

    /// Returns the stream, with the bytes that are left.
    pub fn stream(&mut self) -> &mut R {
        &mut self.0
    }

    /// Reads the next `N` bytes.
    pub fn array<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.0.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// Reads the next byte.
    pub fn u8(&mut self) -> io::Result<u8> {
        self.array().map(u8::from_le_bytes)
    }

    /// Reads the next 2 bytes as a little-endian number.
    pub fn u16(&mut self) -> io::Result<u16> {
        self.array().map(u16::from_le_bytes)
    }

    /// Reads the next 4 bytes as a little-endian number.
    pub fn u32(&mut self) -> io::Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    /// Reads the next 8 bytes as a little-endian number.
    pub fn u64(&mut self) -> io::Result<u64> {
        self.array().map(u64::from_le_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_little_endian_and_the_end_is_the_end() {
        let mut reader = Reader::new(&[1, 2, 0, 3, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 9]);
        assert_eq!(reader.u8(), Ok(1));
        assert_eq!(reader.u16(), Ok(2));
        assert_eq!(reader.u32(), Ok(3));
        assert_eq!(reader.u64(), Ok(4));
        assert!(reader.end().is_err());
        assert_eq!(
            reader.u16().map_err(|e| e.to_string()),
            Err("expected 2 bytes, got 1".into())
        );
        assert_eq!(reader.bytes(1), Ok(&[9][..]));
        assert_eq!(reader.end(), Ok(()));
        assert!(reader.bytes(usize::MAX).is_err());
    }

    proptest::proptest! {
        #[test]
        fn no_sequence_of_reads_leaves_the_message(
            bytes: Vec<u8>,
            lens in proptest::collection::vec(0usize..20, 0..20),
        ) {
            let mut reader = Reader::new(&bytes);
            let mut read = 0;
            for len in lens {
                if let Ok(got) = reader.bytes(len) {
                    proptest::prop_assert_eq!(got, &bytes[read..read + len]);
                    read += len;
                }
            }
            proptest::prop_assert_eq!(reader.rest(), &bytes[read..]);
        }
    }
}
