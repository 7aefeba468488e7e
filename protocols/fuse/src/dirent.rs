//! The entries of READDIR and READDIRPLUS: each a structure and a name, padded to 8 bytes.

use wire::{Malformed, Reader};

use crate::layout::{DirentHead, EntryOut, Field};

/// A directory entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dirent<'a> {
    /// The result of READDIRPLUS's look-up; its node id is 0 if the entry was not looked up.
    pub entry: Option<EntryOut>,
    /// The inode number.
    pub ino: u64,
    /// The offset at which the next READDIR continues after this entry.
    pub off: u64,
    /// The type, as `d_type` of readdir(3).
    pub kind: u8,
    /// The name.
    pub name: &'a [u8],
}

impl<'a> Dirent<'a> {
    /// The size in bytes of everything before the name, with [`Dirent::entry`].
    pub const MAX_HEAD: usize = EntryOut::SIZE + DirentHead::SIZE;

    /// Returns the size in bytes of the whole entry, padding included.
    pub const fn size(plus: bool, name: usize) -> usize {
        let head = if plus {
            Dirent::MAX_HEAD
        } else {
            DirentHead::SIZE
        };
        (head + name).next_multiple_of(8)
    }

    /// Decodes the next entry of a reply to READDIRPLUS (`plus`) or READDIR; returns `None` at the
    /// end.
    pub fn next(plus: bool, from: &mut Reader<'a>) -> Result<Option<Dirent<'a>>, Malformed> {
        if from.rest().is_empty() {
            return Ok(None);
        }
        let entry = plus.then(|| EntryOut::take(from)).transpose()?;
        let head = DirentHead::take(from)?;
        let name = from.bytes(head.namelen as usize)?;
        from.bytes(name.len().next_multiple_of(8) - name.len())?;
        Ok(Some(Dirent {
            entry,
            ino: head.ino,
            off: head.off,
            kind: head.kind as u8,
            name,
        }))
    }

    /// Passes the encoded entry to `put`, piece by piece.
    pub fn encode(&self, put: &mut dyn FnMut(&[u8])) {
        let head = DirentHead {
            ino: self.ino,
            off: self.off,
            namelen: self.name.len() as u32,
            kind: self.kind.into(),
        };
        if let Some(entry) = &self.entry {
            put(&entry.encode());
        }
        put(&head.encode());
        put(self.name);
        let padding = self.name.len().next_multiple_of(8) - self.name.len();
        put(&[0; 7][..padding]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_padded_and_come_back() {
        for (plus, name, size) in [
            (false, &b"a"[..], 32),
            (false, b"12345678", 32),
            (true, b"123456789", 168),
        ] {
            let dirent = Dirent {
                entry: plus.then(EntryOut::default),
                ino: 7,
                off: 9,
                kind: 4,
                name,
            };
            let mut bytes = Vec::new();
            dirent.encode(&mut |piece| bytes.extend_from_slice(piece));
            assert_eq!(bytes.len(), size);
            assert_eq!(Dirent::size(plus, name.len()), size);
            let mut from = Reader::new(&bytes);
            assert_eq!(Dirent::next(plus, &mut from), Ok(Some(dirent)));
            assert_eq!(Dirent::next(plus, &mut from), Ok(None));
            for len in 1..bytes.len() {
                assert!(Dirent::next(plus, &mut Reader::new(&bytes[..len])).is_err());
            }
        }
        assert_eq!(
            Dirent {
                entry: None,
                ino: 1,
                off: 2,
                kind: 8,
                name: b"ab"
            }
            .bytes(),
            [
                1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 8, 0, 0, 0, b'a', b'b',
                0, 0, 0, 0, 0, 0
            ]
        );
    }

    impl Dirent<'_> {
        fn bytes(&self) -> Vec<u8> {
            let mut bytes = Vec::new();
            self.encode(&mut |piece| bytes.extend_from_slice(piece));
            bytes
        }
    }
}
