//! The bytes of a session's state.
//!
//! ```text
//! "barge-fs" | version u32 | negotiated u64
//! max_write u32 | generations u32 | root's inode number u64 | next handle u64
//! count u64 | nodes
//! count u64 | open files: fh u64, nodeid u64, flags u32, bits u8
//! count u64 | locks: nodeid u64, family u8, kind u8, start u64, end u64, owner u64, pid u32,
//!                    handle u64, 0 for several
//! "end\n"
//! ```
//! Numbers are little-endian. The state of a session before INIT ends after `negotiated`, which is
//! 0 then. The first node is the root; a node is
//!
//! ```text
//! where u8 | kind u8 | nodeid u64 | lookups u32 | generation u32
//!     1, the root, or 2, a name in a directory: parent u32, length u8, name
//!                  or 3, a file handle
//!     length u8, handle: that of the node, or 0 without one
//! ```
//! *parent* is the number of an earlier node in this list, from 0 on. A directory on the way to
//! others that the client has not looked up has the node id 0. *kind* is a `d_type`.
//!
//! In version 1, of barge 0.1, locks have no handle.
//!
//! A reader trusts nothing: counts are bounded by the tables of the session, memory grows with the
//! bytes that arrive, and every number is checked where it is used.

use std::io::{self, ErrorKind, Read, Write};

use vfs::lock::{LockFamily, LockKind};
use vfs::{Handle, Kind, OpenFlags};
use wire::StreamReader;

use super::super::lock::{LockRecord, UNKNOWN_HANDLE};

const MAGIC: &[u8; 8] = b"barge-fs";
const VERSION: u32 = 2;

/// The version without handles of locks.
const VERSION_1: u32 = 1;

const END: &[u8; 4] = b"end\n";

const ROOT: u8 = 1;
const CHILD: u8 = 2;
const HANDLE: u8 = 3;

/// Bits of an open file.
const DIRECT: u8 = 1;
const LOCKS: u8 = 2;

/// The part of the state that is not in a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fixed {
    /// The longest write that the client sends, in bytes.
    pub(super) max_write: u32,
    /// The next generation of a node.
    pub(super) generations: u32,
    /// The root's inode number, as the client sees it.
    pub(super) root: u64,
    /// The number of the next open file.
    pub(super) next_handle: u64,
}

/// A node that the client has looked up, or a directory on the way to one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NodeState {
    pub(super) at: Location,
    pub(super) kind: Kind,
    pub(super) nodeid: u64,
    pub(super) lookups: u32,
    pub(super) generation: u32,
    /// Its handle: to find it with, or to check that it is the same one.
    pub(super) handle: Option<Handle>,
}

/// The way to find a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Location {
    Root,
    /// A name in the directory with this number in the list.
    Child(u32, Vec<u8>),
    /// Its handle.
    Handle,
}

/// An open file or directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OpenState {
    pub(super) fh: u64,
    pub(super) nodeid: u64,
    pub(super) flags: OpenFlags,
    /// Whether its I/O bypasses the client's page cache.
    pub(super) direct: bool,
    /// Whether locks were requested through it.
    pub(super) locks: bool,
}

/// Writes a state.
pub(super) struct Writer<'a>(pub(super) &'a mut dyn Write);

impl Writer<'_> {
    pub(super) fn head(&mut self, negotiated: u64) -> io::Result<()> {
        self.0.write_all(MAGIC)?;
        self.u32(VERSION)?;
        self.u64(negotiated)
    }

    pub(super) fn fixed(&mut self, fixed: &Fixed) -> io::Result<()> {
        self.u32(fixed.max_write)?;
        self.u32(fixed.generations)?;
        self.u64(fixed.root)?;
        self.u64(fixed.next_handle)
    }

    pub(super) fn count(&mut self, count: usize) -> io::Result<()> {
        self.u64(count as u64)
    }

    pub(super) fn node(&mut self, node: &NodeState) -> io::Result<()> {
        let at = match node.at {
            Location::Root => ROOT,
            Location::Child(..) => CHILD,
            Location::Handle => HANDLE,
        };
        self.0.write_all(&[at, node.kind.d_type()])?;
        self.u64(node.nodeid)?;
        self.u32(node.lookups)?;
        self.u32(node.generation)?;
        if let Location::Child(parent, name) = &node.at {
            self.u32(*parent)?;
            self.short(name)?;
        }
        self.short(node.handle.as_ref().map_or(&[], Handle::bytes))
    }

    pub(super) fn open(&mut self, open: &OpenState) -> io::Result<()> {
        self.u64(open.fh)?;
        self.u64(open.nodeid)?;
        self.u32(open.flags.bits())?;
        let bits = if open.direct { DIRECT } else { 0 } | if open.locks { LOCKS } else { 0 };
        self.0.write_all(&[bits])
    }

    pub(super) fn lock(&mut self, lock: &LockRecord) -> io::Result<()> {
        self.u64(lock.node)?;
        let family = u8::from(lock.family == LockFamily::Flock);
        let kind = u8::from(lock.kind == LockKind::Exclusive);
        self.0.write_all(&[family, kind])?;
        self.u64(lock.start)?;
        self.u64(lock.end)?;
        self.u64(lock.owner)?;
        self.u32(lock.pid)?;
        self.u64(lock.handle)
    }

    pub(super) fn end(&mut self) -> io::Result<()> {
        self.0.write_all(END)?;
        self.0.flush()
    }

    fn short(&mut self, bytes: &[u8]) -> io::Result<()> {
        let len = u8::try_from(bytes.len()).map_err(|_| invalid("a name of at most 255 bytes"))?;
        self.0.write_all(&[len])?;
        self.0.write_all(bytes)
    }

    fn u32(&mut self, number: u32) -> io::Result<()> {
        self.0.write_all(&number.to_le_bytes())
    }

    fn u64(&mut self, number: u64) -> io::Result<()> {
        self.0.write_all(&number.to_le_bytes())
    }
}

/// Reads a state.
pub(super) struct Reader<'a> {
    stream: StreamReader<&'a mut dyn Read>,
    version: u32,
}

impl<'a> Reader<'a> {
    /// Returns a reader of `stream`.
    pub(super) fn new(stream: &'a mut dyn Read) -> Reader<'a> {
        Reader {
            stream: StreamReader::new(stream),
            version: VERSION,
        }
    }

    /// Reads the head, and returns `negotiated`.
    pub(super) fn head(&mut self) -> io::Result<u64> {
        if &self.stream.array::<8>()? != MAGIC {
            return Err(invalid("the state of a virtiofs device of barge"));
        }
        self.version = self.stream.u32()?;
        match self.version {
            VERSION_1 | VERSION => self.stream.u64(),
            other => Err(invalid(&format!("version {VERSION}, got {other}"))),
        }
    }

    pub(super) fn fixed(&mut self) -> io::Result<Fixed> {
        Ok(Fixed {
            max_write: self.stream.u32()?,
            generations: self.stream.u32()?,
            root: self.stream.u64()?,
            next_handle: self.stream.u64()?,
        })
    }

    /// Reads a number of entries. Returns an error if it is more than `most`.
    pub(super) fn count(&mut self, most: usize, entries: &str) -> io::Result<usize> {
        let count = self.stream.u64()?;
        let fits = usize::try_from(count).ok().filter(|&count| count <= most);
        fits.ok_or_else(|| invalid(&format!("at most {most} {entries}, got {count}")))
    }

    pub(super) fn node(&mut self) -> io::Result<NodeState> {
        let [at, kind] = self.stream.array()?;
        let kind = Kind::from_d_type(kind).ok_or_else(|| invalid("a type of file"))?;
        let (nodeid, lookups, generation) =
            (self.stream.u64()?, self.stream.u32()?, self.stream.u32()?);
        let at = match at {
            ROOT => Location::Root,
            CHILD => Location::Child(self.stream.u32()?, self.short()?),
            HANDLE => Location::Handle,
            _ => return Err(invalid("a way to find a node")),
        };
        let handle = self.short()?;
        let handle = Handle::new(&handle).map_err(|_| invalid("a shorter file handle"))?;
        Ok(NodeState {
            at,
            kind,
            nodeid,
            lookups,
            generation,
            handle: Some(handle).filter(|handle| !handle.bytes().is_empty()),
        })
    }

    pub(super) fn open(&mut self) -> io::Result<OpenState> {
        let (fh, nodeid, flags) = (self.stream.u64()?, self.stream.u64()?, self.stream.u32()?);
        let [bits] = self.stream.array()?;
        if bits & !(DIRECT | LOCKS) != 0 {
            return Err(invalid("the bits of an open file"));
        }
        Ok(OpenState {
            fh,
            nodeid,
            flags: OpenFlags::from_bits(flags).ok_or_else(|| invalid("flags of an open file"))?,
            direct: bits & DIRECT != 0,
            locks: bits & LOCKS != 0,
        })
    }

    pub(super) fn lock(&mut self) -> io::Result<LockRecord> {
        let node = self.stream.u64()?;
        let (family, kind) = match self.stream.array()? {
            [family @ 0..=1, kind @ 0..=1] => (family, kind),
            _ => return Err(invalid("a kind of lock")),
        };
        Ok(LockRecord {
            node,
            family: match family {
                0 => LockFamily::Posix,
                _ => LockFamily::Flock,
            },
            kind: match kind {
                0 => LockKind::Shared,
                _ => LockKind::Exclusive,
            },
            start: self.stream.u64()?,
            end: self.stream.u64()?,
            owner: self.stream.u64()?,
            pid: self.stream.u32()?,
            handle: match self.version {
                VERSION_1 => UNKNOWN_HANDLE,
                _ => self.stream.u64()?,
            },
        })
    }

    pub(super) fn end(&mut self) -> io::Result<()> {
        match &self.stream.array()? {
            END => Ok(()),
            _ => Err(invalid("the end of the state")),
        }
    }

    fn short(&mut self) -> io::Result<Vec<u8>> {
        let [len] = self.stream.array()?;
        let mut bytes = vec![0; len.into()];
        self.stream.stream().read_exact(&mut bytes)?;
        Ok(bytes)
    }
}

pub(super) fn invalid(expected: &str) -> io::Error {
    io::Error::new(
        ErrorKind::InvalidData,
        format!("state: expected {expected}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIXED: Fixed = Fixed {
        max_write: 1 << 20,
        generations: 9,
        root: 77,
        next_handle: 5,
    };

    fn nodes() -> [NodeState; 3] {
        let root = NodeState {
            at: Location::Root,
            kind: Kind::Directory,
            nodeid: 1,
            lookups: 1,
            generation: 0,
            handle: None,
        };
        let child = NodeState {
            at: Location::Child(0, b"name".to_vec()),
            kind: Kind::File,
            nodeid: 78,
            lookups: 3,
            generation: 4,
            handle: Handle::new(b"h").ok(),
        };
        let handle = NodeState {
            at: Location::Handle,
            nodeid: 79,
            ..child.clone()
        };
        [root, child, handle]
    }

    const OPEN: OpenState = OpenState {
        fh: 4,
        nodeid: 78,
        flags: OpenFlags::READ.union(OpenFlags::WRITE),
        direct: false,
        locks: true,
    };

    const LOCK: LockRecord = LockRecord {
        node: 78,
        family: LockFamily::Flock,
        kind: LockKind::Exclusive,
        start: 0,
        end: u64::MAX,
        owner: 3,
        pid: 2,
        handle: 4,
    };

    fn written() -> Vec<u8> {
        let mut bytes = Vec::new();
        let write = |writer: &mut Writer<'_>| {
            writer.head(6)?;
            writer.fixed(&FIXED)?;
            writer.count(3)?;
            nodes().iter().try_for_each(|node| writer.node(node))?;
            writer.count(1)?;
            writer.open(&OPEN)?;
            writer.count(1)?;
            writer.lock(&LOCK)?;
            writer.end()
        };
        write(&mut Writer(&mut bytes)).expect("memory");
        bytes
    }

    fn read(mut bytes: &[u8]) -> io::Result<()> {
        let mut reader = Reader::new(&mut bytes);
        assert_eq!(reader.head()?, 6);
        assert_eq!(reader.fixed()?, FIXED);
        assert_eq!(reader.count(9, "nodes")?, 3);
        for node in nodes() {
            assert_eq!(reader.node()?, node);
        }
        assert_eq!(reader.count(1, "open files")?, 1);
        assert_eq!(reader.open()?, OPEN);
        assert_eq!(reader.count(1, "locks")?, 1);
        assert_eq!(reader.lock()?, LOCK);
        reader.end()
    }

    #[test]
    fn golden_bytes() {
        let golden: Vec<u8> = [
            &b"barge-fs\x02\0\0\0\x06\0\0\0\0\0\0\0"[..],
            b"\0\0\x10\0\x09\0\0\0\x4d\0\0\0\0\0\0\0\x05\0\0\0\0\0\0\0",
            b"\x03\0\0\0\0\0\0\0",
            b"\x01\x04\x01\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\0",
            b"\x02\x08\x4e\0\0\0\0\0\0\0\x03\0\0\0\x04\0\0\0\0\0\0\0\x04name\x01h",
            b"\x03\x08\x4f\0\0\0\0\0\0\0\x03\0\0\0\x04\0\0\0\x01h",
            b"\x01\0\0\0\0\0\0\0\x04\0\0\0\0\0\0\0\x4e\0\0\0\0\0\0\0\x03\0\0\0\x02",
            b"\x01\0\0\0\0\0\0\0\x4e\0\0\0\0\0\0\0\x01\x01",
            b"\0\0\0\0\0\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff\x03\0\0\0\0\0\0\0\x02\0\0\0",
            b"\x04\0\0\0\0\0\0\0",
            b"end\n",
        ]
        .concat();
        assert_eq!(written(), golden);
        read(&golden).expect("whole");
    }

    #[test]
    fn a_state_of_version_0_1_is_read() {
        let mut bytes = written();
        bytes[8] = 1;
        // The handle of the only lock, before the end.
        let handle = bytes.len() - END.len() - 8;
        bytes.drain(handle..handle + 8);
        let mut bytes = &bytes[..];
        let mut reader = Reader::new(&mut bytes);
        let mut read = || -> io::Result<LockRecord> {
            reader.head()?;
            reader.fixed()?;
            for _ in 0..reader.count(9, "nodes")? {
                reader.node()?;
            }
            reader.count(1, "open files")?;
            reader.open()?;
            reader.count(1, "locks")?;
            let lock = reader.lock()?;
            reader.end().map(|()| lock)
        };
        let expected = LockRecord {
            handle: UNKNOWN_HANDLE,
            ..LOCK
        };
        assert_eq!(read().expect("whole"), expected);
    }

    #[test]
    fn a_truncated_state_is_refused() {
        let bytes = written();
        for len in 0..bytes.len() {
            let error = read(&bytes[..len]).expect_err("truncated");
            assert_eq!(error.kind(), ErrorKind::UnexpectedEof, "{len}");
        }
    }

    #[test]
    fn other_bytes_are_refused() {
        let refused = |bytes: &[u8], read: &dyn Fn(&mut Reader<'_>) -> io::Result<()>| {
            let error = read(&mut Reader::new(&mut &*bytes)).expect_err("refused");
            assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
        };
        refused(b"barge-9p\x01\0\0\0\0\0\0\0\0\0\0\0", &|reader| {
            reader.head().map(drop)
        });
        refused(b"barge-fs\x03\0\0\0\0\0\0\0\0\0\0\0", &|reader| {
            reader.head().map(drop)
        });
        refused(&5u64.to_le_bytes(), &|reader| {
            reader.count(4, "nodes").map(drop)
        });
        refused(&u64::MAX.to_le_bytes(), &|reader| {
            reader.count(4, "nodes").map(drop)
        });
        for (at, kind) in [(0, 8), (4, 8), (3, 3)] {
            let node = [&[at, kind][..], &[0; 17]].concat();
            refused(&node, &|reader| reader.node().map(drop));
        }
        refused(
            &[&[3, 8][..], &[0; 16], &[64], &[0; 64]].concat(),
            &|reader| reader.node().map(drop),
        );
        refused(&[&[0; 19][..], &[0xff, 0]].concat(), &|reader| {
            reader.open().map(drop)
        });
        refused(&[&[0; 20][..], &[4]].concat(), &|reader| {
            reader.open().map(drop)
        });
        for kinds in [[2, 0], [0, 2]] {
            let lock = [&[0; 8][..], &kinds, &[0; 36]].concat();
            refused(&lock, &|reader| reader.lock().map(drop));
        }
        refused(b"END\n", &|reader| reader.end());
    }
}
