//! The table of all messages, from which their types, decoding and encoding are generated.
//!
//! A message is `size[4] type[1] tag[2]` and its fields; the size includes itself. Decoding reads
//! within the message only, never panics, rejects trailing bytes, and borrows from the message.

use wire::{Malformed, Put, Reader};

use crate::field::{Data, Datasync, DotuErrno, Extension, Field, Names, Qids, Uid};
use crate::{Dialect, Fid, Qid, Stat, Tag};

/// Bytes before a message's fields: `size[4] type[1] tag[2]`.
pub const HEADER: usize = 7;

/// Bytes before the payload of Rread and Rreaddir: the header and `count[4]`.
pub const DATA_HEAD: usize = HEADER + 4;

/// Bytes before the payload of Twrite: the header and `fid[4] offset[8] count[4]`.
pub const WRITE_HEAD: usize = HEADER + 16;

/// The header of every message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The size of the whole message in bytes.
    pub size: u32,
    /// The message type: an even [`Kind`] for a request, one more for its reply.
    pub number: u8,
    /// The tag.
    pub tag: Tag,
}

impl Header {
    /// Decodes the header of a message that has at least [`HEADER`] bytes.
    #[inline]
    pub fn decode(message: &[u8]) -> Result<Header, Malformed> {
        let mut from = Reader::new(message);
        Ok(Header {
            size: from.u32()?,
            number: from.u8()?,
            tag: from.u16().map(Tag)?,
        })
    }

    /// Encodes the header.
    #[inline]
    pub fn encode(self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..4].copy_from_slice(&self.size.to_le_bytes());
        bytes[4] = self.number;
        bytes[5..].copy_from_slice(&self.tag.0.to_le_bytes());
        bytes
    }
}

/// Encodes a Twrite up to its `count` bytes of payload.
pub fn write_head(tag: Tag, fid: Fid, offset: u64, count: u32) -> [u8; WRITE_HEAD] {
    let header = Header {
        size: WRITE_HEAD as u32 + count,
        number: Kind::Write.request(),
        tag,
    };
    let mut bytes = [0; WRITE_HEAD];
    bytes[..7].copy_from_slice(&header.encode());
    bytes[7..11].copy_from_slice(&fid.0.to_le_bytes());
    bytes[11..19].copy_from_slice(&offset.to_le_bytes());
    bytes[19..].copy_from_slice(&count.to_le_bytes());
    bytes
}

/// Encodes an Rread or Rreaddir (`kind`) up to its `count` bytes of payload.
#[inline]
pub fn data_head(kind: Kind, tag: Tag, count: u32) -> [u8; DATA_HEAD] {
    let header = Header {
        size: DATA_HEAD as u32 + count,
        number: kind.reply(),
        tag,
    };
    let mut bytes = [0; DATA_HEAD];
    bytes[..7].copy_from_slice(&header.encode());
    bytes[7..].copy_from_slice(&count.to_le_bytes());
    bytes
}

/// The reason why bytes are not a message of a dialect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// A message type that the dialect does not have.
    Number(u8),
    /// Fields that do not fit the message type.
    Fields(&'static str, Malformed),
    /// A size that differs from the one in the header.
    Frame(Malformed),
}

impl std::fmt::Display for DecodeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            DecodeError::Number(number) => write!(f, "unknown message type {number}"),
            DecodeError::Fields(name, what) => write!(f, "{name}: {what}"),
            DecodeError::Frame(what) => write!(f, "malformed message: {what}"),
        }
    }
}

impl std::error::Error for DecodeError {}

impl From<DecodeError> for Malformed {
    fn from(what: DecodeError) -> Malformed {
        Malformed::new(what.to_string())
    }
}

/// Checks that `message` is as long as its header says, and splits the header off.
fn split(message: &[u8]) -> Result<(Header, Reader<'_>), DecodeError> {
    let header = Header::decode(message).map_err(DecodeError::Frame)?;
    if header.size as usize != message.len() {
        return Err(DecodeError::Frame(Malformed::new(format!(
            "expected {} bytes, got {}",
            header.size,
            message.len()
        ))));
    }
    Ok((header, Reader::new(&message[HEADER..])))
}

impl<'a> Tmessage<'a> {
    /// Decodes a Twrite from its head in `message`. The payload, up to the message's `whole` bytes,
    /// is elsewhere; the decoded data are empty.
    pub fn decode_write(message: &'a [u8], whole: usize) -> Result<(Tag, Self), DecodeError> {
        let header = Header::decode(message).map_err(DecodeError::Frame)?;
        if header.number != Kind::Write.request() || header.size as usize != whole {
            let what = format!("expected a Twrite of {whole} bytes, got {header:?}");
            return Err(DecodeError::Frame(Malformed::new(what)));
        }
        let mut from = Reader::new(&message[HEADER..]);
        let mut fields = || {
            let (fid, offset, count) = (Fid(from.u32()?), from.u64()?, from.u32()?);
            match WRITE_HEAD + count as usize == whole {
                true => Ok((fid, offset)),
                false => Err(Malformed::new(format!(
                    "a payload of {count} bytes in {whole}"
                ))),
            }
        };
        let (fid, offset) =
            fields().map_err(|what| DecodeError::Fields(Kind::Write.name(), what))?;
        let data = Data(&[]);
        Ok((header.tag, Tmessage::Write { fid, offset, data }))
    }
}

macro_rules! messages {
    (
        lifetime $a:lifetime;
        requests {$(
            $(#[$doc:meta])*
            $number:literal $name:ident of $dialects:ident
                ($($tfield:ident: $ttype:ty),*) -> ($($rfield:ident: $rtype:ty),*);
        )*}
        errors {$(
            $(#[$edoc:meta])*
            $enumber:literal $ename:ident of $edialects:ident ($($efield:ident: $etype:ty),*);
        )*}
    ) => {
        /// The message types, each numbered as its request; its reply has one more.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Kind {
            $($(#[$doc])* $name = $number,)*
            $($(#[$edoc])* $ename = $enumber,)*
        }

        impl Kind {
            /// All types.
            pub const ALL: &'static [Kind] = &[$(Kind::$name,)* $(Kind::$ename,)*];

            /// Returns the type of a message number, request or reply.
            pub const fn of(number: u8) -> Option<Kind> {
                Some(match number & !1 {
                    $($number => Kind::$name,)*
                    $($enumber => Kind::$ename,)*
                    _ => return None,
                })
            }

            /// Returns whether a dialect has this type.
            pub const fn is_in(self, dialect: Dialect) -> bool {
                match self {
                    $(Kind::$name => Dialects::$dialects.include(dialect),)*
                    $(Kind::$ename => Dialects::$edialects.include(dialect),)*
                }
            }

            /// Returns the type's name, without the T or R.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Kind::$name => stringify!($name),)*
                    $(Kind::$ename => stringify!($ename),)*
                }
            }
        }

        /// A request, named as in section 5 of Plan 9's manual and diod's `protocol.md`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs)]
        pub enum Tmessage<$a> {
            $($(#[$doc])* $name { $($tfield: $ttype),* },)*
        }

        /// A reply.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs)]
        pub enum Rmessage<$a> {
            $($(#[$doc])* $name { $($rfield: $rtype),* },)*
            $($(#[$edoc])* $ename { $($efield: $etype),* },)*
        }

        impl<$a> Tmessage<$a> {
            /// Returns the message type.
            pub const fn kind(&self) -> Kind {
                match self {
                    $(Tmessage::$name { .. } => Kind::$name,)*
                }
            }

            /// Decodes a whole message.
            pub fn decode(
                dialect: Dialect,
                message: &$a [u8],
            ) -> Result<(Tag, Tmessage<$a>), DecodeError> {
                let (header, mut from) = split(message)?;
                let unknown = || DecodeError::Number(header.number);
                let kind = Kind::of(header.number)
                    .filter(|kind| kind.request() == header.number && kind.is_in(dialect))
                    .ok_or_else(unknown)?;
                let fields = Tmessage::fields(kind, dialect, &mut from)
                    .and_then(|fields| from.end().map(|()| fields))
                    .map_err(|what| DecodeError::Fields(kind.name(), what))?;
                Ok((header.tag, fields.ok_or_else(unknown)?))
            }

            fn fields(
                kind: Kind,
                dialect: Dialect,
                from: &mut Reader<$a>,
            ) -> Result<Option<Tmessage<$a>>, Malformed> {
                Ok(Some(match kind {
                    $(Kind::$name => Tmessage::$name {
                        $($tfield: <$ttype as Field<$a>>::get(from, dialect)?),*
                    },)*
                    $(Kind::$ename => return Ok(None),)*
                }))
            }

            /// Returns the size of the whole message in bytes.
            pub fn size(&self, dialect: Dialect) -> usize {
                match self {
                    $(Tmessage::$name { $($tfield),* } => {
                        HEADER $(+ $tfield.size(dialect))*
                    })*
                }
            }

            /// Encodes the message up to its payload, which it returns.
            pub fn encode_head(&self, dialect: Dialect, tag: Tag, to: &mut impl Put) -> &$a [u8] {
                let size = self.size(dialect) as u32;
                to.put(&Header { size, number: self.kind().request(), tag }.encode());
                match self {
                    $(Tmessage::$name { $($tfield),* } => {
                        $($tfield.put(dialect, to);)*
                        $(if !$tfield.tail().is_empty() { return $tfield.tail(); })*
                    })*
                }
                &[]
            }

            #[cfg(test)]
            fn sample(kind: Kind, from: &mut sample::Entropy<$a>) -> Option<Tmessage<$a>> {
                Some(match kind {
                    $(Kind::$name => Tmessage::$name {
                        $($tfield: <$ttype as sample::Sample<$a>>::sample(from)),*
                    },)*
                    $(Kind::$ename => return None,)*
                })
            }
        }

        impl<$a> Rmessage<$a> {
            /// Returns the message type.
            pub const fn kind(&self) -> Kind {
                match self {
                    $(Rmessage::$name { .. } => Kind::$name,)*
                    $(Rmessage::$ename { .. } => Kind::$ename,)*
                }
            }

            /// Decodes a whole message.
            pub fn decode(
                dialect: Dialect,
                message: &$a [u8],
            ) -> Result<(Tag, Rmessage<$a>), DecodeError> {
                let (header, mut from) = split(message)?;
                let kind = Kind::of(header.number)
                    .filter(|kind| kind.reply() == header.number && kind.is_in(dialect))
                    .ok_or(DecodeError::Number(header.number))?;
                let fields = Rmessage::fields(kind, dialect, &mut from)
                    .and_then(|fields| from.end().map(|()| fields))
                    .map_err(|what| DecodeError::Fields(kind.name(), what))?;
                Ok((header.tag, fields))
            }

            fn fields(
                kind: Kind,
                dialect: Dialect,
                #[allow(unused)]
                from: &mut Reader<$a>,
            ) -> Result<Rmessage<$a>, Malformed> {
                Ok(match kind {
                    $(Kind::$name => Rmessage::$name {
                        $($rfield: <$rtype as Field<$a>>::get(from, dialect)?),*
                    },)*
                    $(Kind::$ename => Rmessage::$ename {
                        $($efield: <$etype as Field<$a>>::get(from, dialect)?),*
                    },)*
                })
            }

            /// Returns the size of the whole message in bytes.
            pub fn size(&self, dialect: Dialect) -> usize {
                match self {
                    $(Rmessage::$name { $($rfield),* } => {
                        HEADER $(+ $rfield.size(dialect))*
                    })*
                    $(Rmessage::$ename { $($efield),* } => {
                        HEADER $(+ $efield.size(dialect))*
                    })*
                }
            }

            /// Encodes the message up to its payload, which it returns.
            pub fn encode_head(&self, dialect: Dialect, tag: Tag, to: &mut impl Put) -> &$a [u8] {
                let size = self.size(dialect) as u32;
                to.put(&Header { size, number: self.kind().reply(), tag }.encode());
                match self {
                    $(Rmessage::$name { $($rfield),* } => {
                        $($rfield.put(dialect, to);)*
                        $(if !$rfield.tail().is_empty() { return $rfield.tail(); })*
                    })*
                    $(Rmessage::$ename { $($efield),* } => {
                        $($efield.put(dialect, to);)*
                    })*
                }
                &[]
            }

            #[cfg(test)]
            #[allow(unused_variables)]
            fn sample(kind: Kind, from: &mut sample::Entropy<$a>) -> Rmessage<$a> {
                match kind {
                    $(Kind::$name => Rmessage::$name {
                        $($rfield: <$rtype as sample::Sample<$a>>::sample(from)),*
                    },)*
                    $(Kind::$ename => Rmessage::$ename {
                        $($efield: <$etype as sample::Sample<$a>>::sample(from)),*
                    },)*
                }
            }
        }
    };
}

/// The dialects that have a message.
#[derive(Clone, Copy)]
enum Dialects {
    /// All dialects.
    All,
    /// 9P2000 and 9P2000.u.
    Old,
    /// 9P2000.L.
    Linux,
}

impl Dialects {
    const fn include(self, dialect: Dialect) -> bool {
        match self {
            Dialects::All => true,
            Dialects::Old => !matches!(dialect, Dialect::Linux),
            Dialects::Linux => matches!(dialect, Dialect::Linux),
        }
    }
}

impl Kind {
    /// Returns the number of the request. Those of Rerror and Rlerror are never sent.
    pub const fn request(self) -> u8 {
        self as u8
    }

    /// Returns the number of the reply.
    pub const fn reply(self) -> u8 {
        self as u8 + 1
    }
}

impl Tmessage<'_> {
    /// Encodes the whole message.
    pub fn encode(&self, dialect: Dialect, tag: Tag, to: &mut impl Put) {
        let payload = self.encode_head(dialect, tag, to);
        to.put(payload);
    }
}

impl Rmessage<'_> {
    /// Encodes the whole message.
    pub fn encode(&self, dialect: Dialect, tag: Tag, to: &mut impl Put) {
        let payload = self.encode_head(dialect, tag, to);
        to.put(payload);
    }
}

messages! {
    lifetime 'a;
    requests {
        /// Returns the statistics of a file system: statfs(2).
        8 Statfs of Linux (fid: Fid)
            -> (kind: u32, bsize: u32, blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64,
                fsid: u64, namelen: u32);
        /// Opens a file.
        12 Lopen of Linux (fid: Fid, flags: u32) -> (qid: Qid, iounit: u32);
        /// Opens a file in a directory and creates it if absent; the fid then refers to the file.
        14 Lcreate of Linux (fid: Fid, name: &'a [u8], flags: u32, mode: u32, gid: u32)
            -> (qid: Qid, iounit: u32);
        /// Makes a symbolic link.
        16 Symlink of Linux (fid: Fid, name: &'a [u8], target: &'a [u8], gid: u32) -> (qid: Qid);
        /// Makes a device, pipe, socket or file.
        18 Mknod of Linux
            (dfid: Fid, name: &'a [u8], mode: u32, major: u32, minor: u32, gid: u32)
            -> (qid: Qid);
        /// Renames a file.
        20 Rename of Linux (fid: Fid, dfid: Fid, name: &'a [u8]) -> ();
        /// Returns the target of a symbolic link.
        22 Readlink of Linux (fid: Fid) -> (target: &'a [u8]);
        /// Returns the attributes of a file.
        24 Getattr of Linux (fid: Fid, mask: u64)
            -> (valid: u64, qid: Qid, mode: u32, uid: u32, gid: u32, nlink: u64, rdev: u64,
                size: u64, blksize: u64, blocks: u64, atime_sec: u64, atime_nsec: u64,
                mtime_sec: u64, mtime_nsec: u64, ctime_sec: u64, ctime_nsec: u64, btime_sec: u64,
                btime_nsec: u64, generation: u64, data_version: u64);
        /// Changes the attributes of a file.
        26 Setattr of Linux
            (fid: Fid, valid: u32, mode: u32, uid: u32, gid: u32, size: u64, atime_sec: u64,
                atime_nsec: u64, mtime_sec: u64, mtime_nsec: u64)
            -> ();
        /// Makes a new fid for reading an extended attribute, or without a name the list of all.
        30 Xattrwalk of Linux (fid: Fid, newfid: Fid, name: &'a [u8]) -> (size: u64);
        /// Turns a fid into one that takes an extended attribute's value, which is set by Tclunk.
        32 Xattrcreate of Linux (fid: Fid, name: &'a [u8], size: u64, flags: u32) -> ();
        /// Returns entries of an open directory.
        40 Readdir of Linux (fid: Fid, offset: u64, count: u32) -> (data: Data<'a>);
        /// Makes an open file durable: fsync(2).
        50 Fsync of Linux (fid: Fid, datasync: Datasync) -> ();
        /// Locks or unlocks a byte range.
        52 Lock of Linux
            (fid: Fid, kind: u8, flags: u32, start: u64, length: u64, proc_id: u32,
                client_id: &'a [u8])
            -> (status: u8);
        /// Finds a conflicting lock of a byte range.
        54 Getlock of Linux
            (fid: Fid, kind: u8, start: u64, length: u64, proc_id: u32, client_id: &'a [u8])
            -> (kind: u8, start: u64, length: u64, proc_id: u32, client_id: &'a [u8]);
        /// Adds a hard link.
        70 Link of Linux (dfid: Fid, fid: Fid, name: &'a [u8]) -> ();
        /// Makes a directory.
        72 Mkdir of Linux (dfid: Fid, name: &'a [u8], mode: u32, gid: u32) -> (qid: Qid);
        /// Renames a file by its directory and name.
        74 Renameat of Linux
            (olddirfid: Fid, oldname: &'a [u8], newdirfid: Fid, newname: &'a [u8])
            -> ();
        /// Removes a name.
        76 Unlinkat of Linux (dirfid: Fid, name: &'a [u8], flags: u32) -> ();
        /// Begins a session: version(5).
        100 Version of All (msize: u32, version: &'a [u8]) -> (msize: u32, version: &'a [u8]);
        /// Begins authentication: attach(5).
        102 Auth of All (afid: Fid, uname: &'a [u8], aname: &'a [u8], n_uname: Uid) -> (aqid: Qid);
        /// Makes a fid for the root of a tree: attach(5).
        104 Attach of All
            (fid: Fid, afid: Fid, uname: &'a [u8], aname: &'a [u8], n_uname: Uid)
            -> (qid: Qid);
        /// Cancels a request: flush(5).
        108 Flush of All (oldtag: Tag) -> ();
        /// Walks names from a fid to a new fid: walk(5).
        110 Walk of All (fid: Fid, newfid: Fid, names: Names<'a>) -> (qids: Qids<'a>);
        /// Opens a file: open(5).
        112 Open of Old (fid: Fid, mode: u8) -> (qid: Qid, iounit: u32);
        /// Creates a file and opens it; the fid then refers to it: open(5).
        114 Create of Old
            (fid: Fid, name: &'a [u8], perm: u32, mode: u8, extension: Extension<'a>)
            -> (qid: Qid, iounit: u32);
        /// Reads from an open file, or an extended attribute's value: read(5).
        116 Read of All (fid: Fid, offset: u64, count: u32) -> (data: Data<'a>);
        /// Writes to an open file: read(5).
        118 Write of All (fid: Fid, offset: u64, data: Data<'a>) -> (count: u32);
        /// Releases a fid: clunk(5).
        120 Clunk of All (fid: Fid) -> ();
        /// Removes a file and releases its fid: remove(5).
        122 Remove of All (fid: Fid) -> ();
        /// Returns the attributes of a file: stat(5).
        124 Stat of Old (fid: Fid) -> (stat: Stat<'a>);
        /// Changes the attributes of a file, including its name: stat(5).
        126 Wstat of Old (fid: Fid, stat: Stat<'a>) -> ();
        /// Passes the descriptor of an open file with the first byte of the reply (`SCM_RIGHTS`,
        /// unix(7)). An extension of barge, valid only after both sides agreed on
        /// [`Dialect::FD_PASSING`]; its number is far from those in use.
        200 Hand of Linux (fid: Fid) -> ();
    }
    errors {
        /// A request failed, in 9P2000.L.
        6 Lerror of Linux (errno: u32);
        /// A request failed: error(5).
        106 Error of Old (text: &'a [u8], errno: DotuErrno);
    }
}

#[cfg(test)]
mod sample;
#[cfg(test)]
mod tests;
