//! The bytes of a session's state.
//!
//! ```text
//! "barge-9p" | version u32 | dialect u8 | bits u8 | msize u32
//! count u32 | attaches
//! count u32 | kept files: attach u32
//! count u32 | steps
//! count u32 | fids
//! "end\n"
//! ```
//! Numbers are little-endian; *version* is 1. *dialect* is 1 for 9P2000, 2 for 9P2000.u, 3 for
//! 9P2000.L, and 0 before Tversion, with no entries then. Bits of the session: 1, Thand was agreed
//! on; 2, the client never writes back through fids that are open to append.
//!
//! An attach is a user's access to an export:
//!
//! ```text
//! length u8, handle of the export's root | length u16, name of the export
//! bits u8 | uid u32 | gid u32 | root of the attach: node
//! ```
//! Bit 1: the user is the owner of the peer's socket, with its groups. A node is
//!
//! ```text
//! kind u8 | inode number u64 | length u8, handle
//! ```
//! *kind* is a `d_type`; a node that was removed has no handle, unless a descriptor of it comes
//! with the state: these kept files are listed in their order, each with an attach to its export.
//! A step is
//!
//! ```text
//! 1 u8 | attach u32 | node                        without a known name
//! 2 u8 | step u32 | length u8, name | node        a name in a directory
//! ```
//! *attach* is the number of an attach in its list, from 0 on, *step* that of an earlier step. A
//! fid is
//!
//! ```text
//! fid u32 | step u32 | 0 u8                       walked
//!                    | 1 u8 | open file
//!                    | 2 u8 | length u32, bytes   the value of an attribute being read
//!                    | 3 u8 | length u8, name | size u32 | flags u32 | length u32, bytes
//!                                                 an attribute's new value of `size` bytes, and the
//!                                                 part of it that is written
//! ```
//! with each fid greater than the one before. An open file is
//!
//! ```text
//! flags u32 | bits u8 | position u64 | cookie u64 | end u64 | verified end u64
//! count u32 | owners of locks: length u8, client id | process id u32 | count u32 | locks
//! ```
//! *flags* are those of [`OpenFlags`]. *position* and *cookie* say how far 9P2000 has read a
//! directory, the ends are those of `write_state`; each is 0 for other files. Bit 1: the file is
//! also open for writes in place. The locks of an owner are listed with one of its fids. A lock is
//!
//! ```text
//! kind u8 (0: shared, 1: exclusive) | first byte u64 | last byte u64
//! ```
//!
//! A reader trusts nothing: memory grows with the bytes that are present, and every number is
//! checked where it is used.

use vfs::{Handle, Kind, OpenFlags, XattrFlags};
use wire::Malformed;

use crate::Dialect;
use crate::server::connection::Negotiated;

const MAGIC: &[u8; 8] = b"barge-9p";
const VERSION: u32 = 1;
const END: &[u8; 4] = b"end\n";

/// Bits of the session.
const FD_PASSING: u8 = 1;
const APPENDS_ONLY: u8 = 2;

/// A bit of an attach.
const SOCKET_OWNER: u8 = 1;

/// A bit of an open file.
const IN_PLACE: u8 = 1;

const UNNAMED: u8 = 1;
const NAMED: u8 = 2;

const WALKED: u8 = 0;
const OPEN: u8 = 1;
const XATTR_READ: u8 = 2;
const XATTR_WRITE: u8 = 3;

/// The state that is in no table.
#[derive(Clone, Copy)]
pub(super) struct SavedSession {
    /// The result of Tversion; `None` before.
    pub(super) negotiated: Option<Negotiated>,
    pub(super) appends_only: bool,
}

/// A user's access to an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SavedAttach<'a> {
    /// The handle of the export's root.
    pub(super) top: Handle,
    pub(super) export: &'a str,
    /// Whether the user is the owner of the peer's socket.
    pub(super) socket_owner: bool,
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// The root of the attach.
    pub(super) root: SavedNode,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SavedNode {
    pub(super) kind: Kind,
    pub(super) id: u64,
    /// `None` if it was removed.
    pub(super) handle: Option<Handle>,
}

/// A step, without its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SavedStep<'a> {
    /// A node of the attach with this number.
    Unnamed(u32),
    /// A name in the directory with this number.
    Named(u32, &'a [u8]),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SavedUse<'a> {
    Walked,
    Open(SavedOpen),
    XattrRead(&'a [u8]),
    XattrWrite {
        name: &'a [u8],
        size: u32,
        flags: XattrFlags,
        /// The part that is written.
        bytes: &'a [u8],
    },
}

/// An open file, without its locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SavedOpen {
    pub(super) flags: OpenFlags,
    /// Whether it is also open for writes in place.
    pub(super) in_place: bool,
    /// How far 9P2000 has read a directory: offset and cookie.
    pub(super) position: (u64, u64),
    /// The end as the client knows it, and the verified end.
    pub(super) ends: (u64, u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SavedLock {
    pub(super) exclusive: bool,
    pub(super) start: u64,
    pub(super) end: u64,
}

/// Writes a state.
pub(super) struct Writer(Vec<u8>);

impl Writer {
    /// Begins a state.
    pub(super) fn new(session: &SavedSession) -> Writer {
        let mut writer = Writer(MAGIC.to_vec());
        writer.u32(VERSION);
        let agreed = session.negotiated;
        let fd_passing = agreed.is_some_and(|agreed| agreed.fd_passing);
        writer.u8(match agreed.map(|agreed| agreed.dialect) {
            None => 0,
            Some(Dialect::Plan9) => 1,
            Some(Dialect::Unix) => 2,
            Some(Dialect::Linux) => 3,
        });
        writer.u8(bit(fd_passing, FD_PASSING) | bit(session.appends_only, APPENDS_ONLY));
        writer.u32(agreed.map_or(0, |agreed| agreed.msize));
        writer
    }

    /// Writes the number of the entries that follow, fewer than 2^32.
    pub(super) fn count(&mut self, count: usize) -> Result<(), Malformed> {
        let count = u32::try_from(count).map_err(|_| Malformed::new("too many entries"))?;
        self.u32(count);
        Ok(())
    }

    pub(super) fn attach(&mut self, attach: &SavedAttach<'_>) -> Result<(), Malformed> {
        self.short(attach.top.bytes())?;
        let name = attach.export.as_bytes();
        let len =
            u16::try_from(name.len()).map_err(|_| Malformed::new("a long name of an export"))?;
        self.0.extend(len.to_le_bytes());
        self.0.extend(name);
        self.u8(bit(attach.socket_owner, SOCKET_OWNER));
        self.u32(attach.uid);
        self.u32(attach.gid);
        self.node(&attach.root)
    }

    pub(super) fn step(&mut self, step: &SavedStep<'_>, node: &SavedNode) -> Result<(), Malformed> {
        match *step {
            SavedStep::Unnamed(attach) => {
                self.u8(UNNAMED);
                self.u32(attach);
            }
            SavedStep::Named(parent, name) => {
                self.u8(NAMED);
                self.u32(parent);
                self.short(name)?;
            }
        }
        self.node(node)
    }

    fn node(&mut self, node: &SavedNode) -> Result<(), Malformed> {
        self.u8(node.kind.d_type());
        self.u64(node.id);
        self.short(node.handle.as_ref().map_or(&[], Handle::bytes))
    }

    /// Writes a fid. The owners of locks follow if it is open.
    pub(super) fn fid(
        &mut self,
        fid: u32,
        step: u32,
        used: &SavedUse<'_>,
    ) -> Result<(), Malformed> {
        self.u32(fid);
        self.u32(step);
        match used {
            SavedUse::Walked => self.u8(WALKED),
            SavedUse::Open(open) => {
                self.u8(OPEN);
                self.u32(open.flags.bits());
                self.u8(bit(open.in_place, IN_PLACE));
                let ((position, cookie), (end, verified)) = (open.position, open.ends);
                for number in [position, cookie, end, verified] {
                    self.u64(number);
                }
            }
            SavedUse::XattrRead(bytes) => {
                self.u8(XATTR_READ);
                self.long(bytes)?;
            }
            SavedUse::XattrWrite {
                name,
                size,
                flags,
                bytes,
            } => {
                self.u8(XATTR_WRITE);
                self.short(name)?;
                self.u32(*size);
                self.u32(flags.bits());
                self.long(bytes)?;
            }
        }
        Ok(())
    }

    /// Writes an owner of locks. The number of its locks follows.
    pub(super) fn owner(&mut self, client_id: &[u8], proc_id: u32) -> Result<(), Malformed> {
        self.short(client_id)?;
        self.u32(proc_id);
        Ok(())
    }

    pub(super) fn lock(&mut self, lock: &SavedLock) {
        self.u8(lock.exclusive.into());
        self.u64(lock.start);
        self.u64(lock.end);
    }

    /// Writes the number of the attach to the export of a kept file.
    pub(super) fn kept_file(&mut self, attach: u32) {
        self.u32(attach);
    }

    /// Ends the state, and returns it.
    pub(super) fn end(mut self) -> Vec<u8> {
        self.0.extend(END);
        self.0
    }

    fn short(&mut self, bytes: &[u8]) -> Result<(), Malformed> {
        let len = u8::try_from(bytes.len()).map_err(|_| Malformed::new("more than 255 bytes"))?;
        self.u8(len);
        self.0.extend(bytes);
        Ok(())
    }

    fn long(&mut self, bytes: &[u8]) -> Result<(), Malformed> {
        self.count(bytes.len())?;
        self.0.extend(bytes);
        Ok(())
    }

    fn u8(&mut self, number: u8) {
        self.0.push(number);
    }

    fn u32(&mut self, number: u32) {
        self.0.extend(number.to_le_bytes());
    }

    fn u64(&mut self, number: u64) {
        self.0.extend(number.to_le_bytes());
    }
}

fn bit(set: bool, bit: u8) -> u8 {
    if set { bit } else { 0 }
}

/// Reads a state.
pub(super) struct Reader<'a>(wire::Reader<'a>);

impl<'a> Reader<'a> {
    /// Reads the head of the state `bytes`.
    pub(super) fn new(bytes: &'a [u8]) -> Result<(Reader<'a>, SavedSession), Malformed> {
        let mut reader = wire::Reader::new(bytes);
        if &reader.array::<8>()? != MAGIC {
            return Err(expected("the state of a 9P session of barge"));
        }
        let version = reader.u32()?;
        if version != VERSION {
            return Err(Malformed::new(format!(
                "expected version {VERSION}, got {version}"
            )));
        }
        let dialect = match reader.u8()? {
            0 => None,
            1 => Some(Dialect::Plan9),
            2 => Some(Dialect::Unix),
            3 => Some(Dialect::Linux),
            _ => return Err(expected("a dialect")),
        };
        let mut reader = Reader(reader);
        let bits = reader.bits(FD_PASSING | APPENDS_ONLY)?;
        let msize = reader.0.u32()?;
        let negotiated = dialect.map(|dialect| Negotiated {
            dialect,
            msize,
            fd_passing: bits & FD_PASSING != 0,
        });
        if negotiated.is_none() && (bits, msize) != (0, 0) {
            return Err(expected("a dialect"));
        }
        let appends_only = bits & APPENDS_ONLY != 0;
        let session = SavedSession {
            negotiated,
            appends_only,
        };
        Ok((reader, session))
    }

    /// Reads a number of entries. Returns an error if it is more than `most`.
    pub(super) fn count(&mut self, most: usize, entries: &str) -> Result<usize, Malformed> {
        let count = self.0.u32()?;
        let fits = usize::try_from(count).ok().filter(|&count| count <= most);
        fits.ok_or_else(|| {
            Malformed::new(format!("expected at most {most} {entries}, got {count}"))
        })
    }

    pub(super) fn attach(&mut self) -> Result<SavedAttach<'a>, Malformed> {
        let top = self
            .handle()?
            .ok_or_else(|| expected("the handle of a root"))?;
        let len = self.0.u16()?.into();
        let export = std::str::from_utf8(self.0.bytes(len)?);
        Ok(SavedAttach {
            top,
            export: export.map_err(|_| expected("the name of an export"))?,
            socket_owner: self.bits(SOCKET_OWNER)? != 0,
            uid: self.0.u32()?,
            gid: self.0.u32()?,
            root: self.node()?,
        })
    }

    /// Reads the number of the attach of a kept file.
    pub(super) fn kept_file(&mut self) -> Result<u32, Malformed> {
        self.0.u32()
    }

    pub(super) fn step(&mut self) -> Result<(SavedStep<'a>, SavedNode), Malformed> {
        let step = match self.0.u8()? {
            UNNAMED => SavedStep::Unnamed(self.0.u32()?),
            NAMED => SavedStep::Named(self.0.u32()?, self.short()?),
            _ => return Err(expected("a step")),
        };
        Ok((step, self.node()?))
    }

    fn node(&mut self) -> Result<SavedNode, Malformed> {
        let kind = Kind::from_d_type(self.0.u8()?).ok_or_else(|| expected("a type of file"))?;
        Ok(SavedNode {
            kind,
            id: self.0.u64()?,
            handle: self.handle()?,
        })
    }

    /// Reads a fid, its step and its use. The owners of locks follow if it is open.
    pub(super) fn fid(&mut self) -> Result<(u32, u32, SavedUse<'a>), Malformed> {
        let (fid, step) = (self.0.u32()?, self.0.u32()?);
        let used = match self.0.u8()? {
            WALKED => SavedUse::Walked,
            OPEN => SavedUse::Open(SavedOpen {
                flags: OpenFlags::from_bits(self.0.u32()?)
                    .ok_or_else(|| expected("flags of an open file"))?,
                in_place: self.bits(IN_PLACE)? != 0,
                position: (self.0.u64()?, self.0.u64()?),
                ends: (self.0.u64()?, self.0.u64()?),
            }),
            XATTR_READ => SavedUse::XattrRead(self.long()?),
            XATTR_WRITE => SavedUse::XattrWrite {
                name: self.short()?,
                size: self.0.u32()?,
                flags: XattrFlags::from_bits(self.0.u32()?)
                    .ok_or_else(|| expected("flags of an attribute"))?,
                bytes: self.long()?,
            },
            _ => return Err(expected("the use of a fid")),
        };
        Ok((fid, step, used))
    }

    /// Reads the client id and the process id of an owner.
    pub(super) fn owner(&mut self) -> Result<(&'a [u8], u32), Malformed> {
        Ok((self.short()?, self.0.u32()?))
    }

    pub(super) fn lock(&mut self) -> Result<SavedLock, Malformed> {
        Ok(SavedLock {
            exclusive: self.bits(1)? != 0,
            start: self.0.u64()?,
            end: self.0.u64()?,
        })
    }

    /// Reads the end of the state.
    pub(super) fn end(mut self) -> Result<(), Malformed> {
        match &self.0.array()? {
            END => self.0.end(),
            _ => Err(expected("the end of the state")),
        }
    }

    /// Reads bits, of which only those in `known` may be set.
    fn bits(&mut self, known: u8) -> Result<u8, Malformed> {
        match self.0.u8()? {
            bits if bits & !known == 0 => Ok(bits),
            bits => Err(Malformed::new(format!(
                "expected bits of {known:#x}, got {bits:#x}"
            ))),
        }
    }

    fn handle(&mut self) -> Result<Option<Handle>, Malformed> {
        let bytes = self.short()?;
        let handle = Handle::new(bytes).map_err(|_| expected("a shorter handle"))?;
        Ok(Some(handle).filter(|_| !bytes.is_empty()))
    }

    fn short(&mut self) -> Result<&'a [u8], Malformed> {
        let len = self.0.u8()?.into();
        self.0.bytes(len)
    }

    fn long(&mut self) -> Result<&'a [u8], Malformed> {
        let len = self.0.u32()? as usize;
        self.0.bytes(len)
    }
}

fn expected(what: &str) -> Malformed {
    Malformed::new(format!("expected {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handle(bytes: &[u8]) -> Handle {
        Handle::new(bytes).expect("short")
    }

    fn session() -> SavedSession {
        SavedSession {
            negotiated: Some(Negotiated {
                dialect: Dialect::Linux,
                msize: 0x10018,
                fd_passing: false,
            }),
            appends_only: true,
        }
    }

    fn root() -> SavedNode {
        SavedNode {
            kind: Kind::Directory,
            id: 2,
            handle: Some(handle(b"root")),
        }
    }

    fn removed() -> SavedNode {
        SavedNode {
            kind: Kind::File,
            id: 77,
            handle: None,
        }
    }

    fn attach() -> SavedAttach<'static> {
        SavedAttach {
            top: handle(b"top"),
            export: "home",
            socket_owner: true,
            uid: 1000,
            gid: 100,
            root: root(),
        }
    }

    const OPEN_FILE: SavedOpen = SavedOpen {
        flags: OpenFlags::READ
            .union(OpenFlags::WRITE)
            .union(OpenFlags::APPEND),
        in_place: true,
        position: (1, 2),
        ends: (3, 4),
    };

    const LOCK: SavedLock = SavedLock {
        exclusive: true,
        start: 5,
        end: u64::MAX,
    };

    fn uses() -> [SavedUse<'static>; 4] {
        [
            SavedUse::Walked,
            SavedUse::Open(OPEN_FILE),
            SavedUse::XattrRead(b"value"),
            SavedUse::XattrWrite {
                name: b"user.a",
                size: 9,
                flags: XattrFlags::REPLACE,
                bytes: b"half",
            },
        ]
    }

    fn written() -> Vec<u8> {
        let write = || {
            let mut writer = Writer::new(&session());
            writer.count(1)?;
            writer.attach(&attach())?;
            writer.count(1)?;
            writer.kept_file(0);
            writer.count(2)?;
            writer.step(&SavedStep::Unnamed(0), &root())?;
            writer.step(&SavedStep::Named(0, b"file"), &removed())?;
            writer.count(4)?;
            for (fid, used) in uses().iter().enumerate() {
                writer.fid(fid as u32, 1, used)?;
                if matches!(used, SavedUse::Open(_)) {
                    writer.count(1)?;
                    writer.owner(b"guest", 7)?;
                    writer.count(1)?;
                    writer.lock(&LOCK);
                }
            }
            Ok::<_, Malformed>(writer.end())
        };
        write().expect("short fields")
    }

    fn read(bytes: &[u8]) -> Result<(), Malformed> {
        let (mut reader, head) = Reader::new(bytes)?;
        let agreed = head.negotiated.expect("agreed");
        let expected = session().negotiated.expect("agreed");
        assert_eq!((agreed.pack(), head.appends_only), (expected.pack(), true));
        assert_eq!(reader.count(1, "attaches")?, 1);
        assert_eq!(reader.attach()?, attach());
        assert_eq!(reader.count(1, "kept files")?, 1);
        assert_eq!(reader.kept_file()?, 0);
        assert_eq!(reader.count(2, "steps")?, 2);
        assert_eq!(reader.step()?, (SavedStep::Unnamed(0), root()));
        assert_eq!(reader.step()?, (SavedStep::Named(0, b"file"), removed()));
        assert_eq!(reader.count(4, "fids")?, 4);
        for (fid, used) in uses().into_iter().enumerate() {
            let is_open = matches!(used, SavedUse::Open(_));
            assert_eq!(reader.fid()?, (fid as u32, 1, used));
            if is_open {
                assert_eq!(reader.count(1, "owners")?, 1);
                assert_eq!(reader.owner()?, (&b"guest"[..], 7));
                assert_eq!(reader.count(1, "locks")?, 1);
                assert_eq!(reader.lock()?, LOCK);
            }
        }
        reader.end()
    }

    #[test]
    fn golden_bytes() {
        let golden: Vec<u8> = [
            &b"barge-9p\x01\0\0\0\x03\x02\x18\0\x01\0"[..],
            b"\x01\0\0\0\x03top\x04\0home\x01\xe8\x03\0\0\x64\0\0\0",
            b"\x04\x02\0\0\0\0\0\0\0\x04root",
            b"\x01\0\0\0\0\0\0\0",
            b"\x02\0\0\0\x01\0\0\0\0\x04\x02\0\0\0\0\0\0\0\x04root",
            b"\x02\0\0\0\0\x04file\x08\x4d\0\0\0\0\0\0\0\0",
            b"\x04\0\0\0",
            b"\0\0\0\0\x01\0\0\0\0",
            b"\x01\0\0\0\x01\0\0\0\x01\x07\0\0\0\x01\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0",
            b"\x03\0\0\0\0\0\0\0\x04\0\0\0\0\0\0\0",
            b"\x01\0\0\0\x05guest\x07\0\0\0\x01\0\0\0",
            b"\x01\x05\0\0\0\0\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff",
            b"\x02\0\0\0\x01\0\0\0\x02\x05\0\0\0value",
            b"\x03\0\0\0\x01\0\0\0\x03\x06user.a\x09\0\0\0\x02\0\0\0\x04\0\0\0half",
            b"end\n",
        ]
        .concat();
        assert_eq!(written(), golden);
        read(&golden).expect("whole");
    }

    #[test]
    fn a_truncated_state_is_refused() {
        let bytes = written();
        for len in 0..bytes.len() {
            read(&bytes[..len]).expect_err("truncated");
        }
    }

    #[test]
    fn other_bytes_are_refused() {
        let head = |bytes: &[u8]| Reader::new(bytes).map(drop);
        assert_eq!(head(b"barge-9p\x01\0\0\0\0\0\0\0\0\0"), Ok(()));
        for other in [
            &b"barge-fs\x01\0\0\0\0\0\0\0\0\0"[..],
            b"barge-9p\x02\0\0\0\0\0\0\0\0\0",
            b"barge-9p\x01\0\0\0\x04\0\0\0\0\0",
            b"barge-9p\x01\0\0\0\x03\x04\0\0\x01\0",
            // A size of messages, or a bit, without a dialect.
            b"barge-9p\x01\0\0\0\0\0\0\0\x01\0",
            b"barge-9p\x01\0\0\0\0\x01\0\0\0\0",
        ] {
            head(other).expect_err("refused");
        }
        let refused = |bytes: &[u8], read: &dyn Fn(&mut Reader<'_>) -> Result<(), Malformed>| {
            let mut reader = Reader(wire::Reader::new(bytes));
            read(&mut reader).expect_err("refused");
        };
        refused(&5u32.to_le_bytes(), &|reader| {
            reader.count(4, "fids").map(drop)
        });
        // A step of another form, and nodes of no type and with a long handle.
        refused(&[0; 32], &|reader| reader.step().map(drop));
        let node =
            |kind: u8, len: usize| [&[kind][..], &[0; 8], &[len as u8], &vec![0; len]].concat();
        refused(&node(3, 0), &|reader| reader.node().map(drop));
        refused(&node(8, 64), &|reader| reader.node().map(drop));
        // An attach without the handle of a root, and one of a name that is not UTF-8.
        let attach = |top: &[u8], name| {
            let rest = [&[1, 0, name, 0][..], &[0; 8], &node(4, 0)].concat();
            [top, &rest].concat()
        };
        refused(&attach(b"\0", b'a'), &|reader| reader.attach().map(drop));
        refused(&attach(b"\x01h", 0xff), &|reader| reader.attach().map(drop));
        // Uses, flags and bits.
        let fid = |rest: &[u8]| [&[0; 8][..], rest, &[0; 48]].concat();
        for other in [
            &[4][..],
            &[1, 0, 0, 1, 0],
            &[1, 0, 0, 0, 0, 2],
            &[3, 0, 0, 0, 0, 0, 4],
        ] {
            refused(&fid(other), &|reader| reader.fid().map(drop));
        }
        refused(&[2; 17], &|reader| reader.lock().map(drop));
        Reader(wire::Reader::new(b"END\n"))
            .end()
            .expect_err("refused");
        Reader(wire::Reader::new(b"end\n."))
            .end()
            .expect_err("longer");
    }
}
