//! A tar stream: v7, ustar, and the extensions of POSIX (pax) and GNU, with the sparse files of
//! both: type `S` of old GNU archives and the versions 0.0, 0.1 and 1.0 of `GNU.sparse` records
//! (GNU tar's manual, "Storing Sparse Files").
//!
//! Headers are parsed here in sequence: the `tar` crate's reader splits pax records at newlines,
//! which attribute values may contain. Numeric fields are parsed as by GNU tar (`from_header` in
//! src/list.c).
//!
//! Deliberately absent: sparse files of star and Solaris (`SCHILY.realsize`, `SUN.holesdata`) and
//! multi-volume archives, which are rejected.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::sync::Arc;

use sys::positioned::FileExt;
use tar::{EntryType, GnuExtSparseHeader, GnuSparseHeader, Header};
use vfs::{Device, Time};

use crate::TreeLimit;
use crate::contents::FileRanges;
use crate::error::{Error, Result};
use crate::plan::{Attributes, Kind, MAX_DEPTH, NodeId, Plan};

/// Size in bytes of a block: headers and data are padded to multiples.
const BLOCK: u64 = 512;

/// Maximum size in bytes of one header's records, of all global records in effect, of a long name,
/// or of a map of holes. On Linux each attribute value of an inode, and the list of their names,
/// has at most 64 KiB.
const MAX_RECORDS: u64 = 16 << 20;

/// Memory in bytes of a component of a path, without its name.
const COMPONENT: usize = 48;

/// Maximum number of bytes of a path in a message.
const MAX_SHOWN: usize = 1024;

/// Maximum memory of a tree as a multiple of the size of its archive. A member has a header of 512
/// bytes, and its node takes about as much. Records that apply to many members take more.
const MAX_TREE_RATIO: u64 = 4;

/// Memory in bytes that any tree may take: a small archive may have short paths of many directories
/// that it does not list.
const MIN_TREE: u64 = 64 << 20;

/// An archive member.
pub(super) struct Member {
    /// The components of its path, without `.`; none for the root.
    pub(super) path: Vec<Vec<u8>>,
    pub(super) attributes: Attributes,
    pub(super) content: MemberContent,
}

pub(super) enum MemberContent {
    Node(Kind),
    /// A hard link to this path.
    Link(Vec<Vec<u8>>),
}

/// Returns the tree of an uncompressed archive. Directories that it does not list belong to root,
/// with mode 0755. Returns an error if the tree takes more memory than such archives need.
pub fn tar(file: File) -> Result<Plan> {
    let limit = archive_limit(file.metadata()?.len());
    let mut plan = Plan::new(implicit_attributes());
    for member in members(file, &limit)? {
        add(&mut plan, member, &limit)?;
    }
    Ok(plan)
}

/// Returns the limit of the tree of archives of `size` bytes in all, uncompressed.
pub(super) fn archive_limit(size: u64) -> TreeLimit {
    TreeLimit::new(size.saturating_mul(MAX_TREE_RATIO).max(MIN_TREE))
}

/// Returns the attributes of a directory that is not listed.
pub(super) fn implicit_attributes() -> Attributes {
    Attributes {
        mode: 0o755,
        ..Attributes::default()
    }
}

/// Adds a member to the tree, replacing an existing node. Directories that are not listed are
/// within `limit`.
pub(super) fn add(plan: &mut Plan, member: Member, limit: &TreeLimit) -> Result<()> {
    let Member {
        path,
        attributes,
        content: what,
    } = member;
    let failed = |what: &str| Error::with_path(&path.join(&b'/'), what);
    let Some((name, above)) = path.split_last() else {
        return match what {
            MemberContent::Node(Kind::Directory(_)) => {
                plan.set_attributes(NodeId::ROOT, attributes);
                Ok(())
            }
            _ => Err(failed("the root is not a directory")),
        };
    };
    let mut dir = NodeId::ROOT;
    for name in above {
        dir = match plan.lookup(dir, name) {
            Some(there) if matches!(plan.kind(there), Kind::Directory(_)) => there,
            Some(_) => return Err(failed("has a parent that is not a directory")),
            None => {
                let attributes = implicit_attributes();
                limit.take(name.len(), &attributes, None)?;
                plan.add(dir, name, attributes, Kind::empty_directory())
            }
        };
    }
    match what {
        MemberContent::Node(kind) => drop(plan.add(dir, name, attributes, kind)),
        MemberContent::Link(target) => {
            let found = find(plan, &target);
            let node = found
                .ok_or_else(|| failed("is a hard link to a name that is not in the archive"))?;
            if let Kind::Directory(_) = plan.kind(node) {
                return Err(failed("is a hard link to a directory"));
            }
            plan.link(dir, name, node);
        }
    }
    Ok(())
}

/// Returns the node at a path.
pub(super) fn find(plan: &Plan, path: &[Vec<u8>]) -> Option<NodeId> {
    path.iter()
        .try_fold(NodeId::ROOT, |dir, name| plan.lookup(dir, name))
}

/// Returns all members of an archive, in order, if they are within `limit`.
pub(super) fn members(file: File, limit: &TreeLimit) -> Result<Vec<Member>> {
    let size = file.metadata()?.len();
    let mut archive = Archive {
        file: Arc::new(file),
        size,
        at: 0,
        global: BTreeMap::new(),
        global_size: 0,
    };
    let mut members = Vec::new();
    while let Some(member) = archive.next()? {
        let size = |path: &[Vec<u8>]| path.iter().map(|name| name.len() + COMPONENT).sum();
        let path: usize = size(&member.path);
        match &member.content {
            MemberContent::Node(kind) => limit.take(path, &member.attributes, Some(kind))?,
            MemberContent::Link(target) => {
                let target: usize = size(target);
                limit.take(path + target, &member.attributes, None)?;
            }
        }
        members.push(member);
    }
    Ok(members)
}

/// Pax records by key.
type Records = BTreeMap<Vec<u8>, Vec<u8>>;

/// Pax records in order of appearance: version 0.0 of `GNU.sparse` repeats keys.
type RecordList = Vec<(Vec<u8>, Vec<u8>)>;

/// Key prefix of extended attributes, which may have empty values.
const XATTR_PREFIX: &[u8] = b"SCHILY.xattr.";

/// Key prefix of GNU tar's sparse file records.
const SPARSE_PREFIX: &[u8] = b"GNU.sparse.";

/// The directory of an incremental archive, with its entries as data (`GNUTYPE_DUMPDIR`).
const DUMPDIR: u8 = b'D';

/// Returns whether a record deletes the earlier ones with its key: its value is empty (POSIX, pax).
fn is_deletion(key: &[u8], value: &[u8]) -> bool {
    value.is_empty() && !key.starts_with(XATTR_PREFIX)
}

/// The records that apply to one member: its own, and the global ones of other keys.
struct MemberRecords<'a> {
    own: Records,
    global: &'a Records,
}

impl<'a> MemberRecords<'a> {
    fn new(own: RecordList, global: &'a Records) -> MemberRecords<'a> {
        let own = own.into_iter().collect();
        MemberRecords { own, global }
    }

    /// Returns the value of a record.
    fn get(&self, key: &[u8]) -> Option<&Vec<u8>> {
        let value = self.own.get(key).or_else(|| self.global.get(key))?;
        (!is_deletion(key, value)).then_some(value)
    }

    /// Returns the extended attributes.
    fn xattrs(&self) -> BTreeMap<Vec<u8>, Vec<u8>> {
        // The records with the prefix follow each other.
        let mut named = BTreeMap::new();
        for records in [self.global, &self.own] {
            for (key, value) in records.range(XATTR_PREFIX.to_vec()..) {
                let Some(name) = key.strip_prefix(XATTR_PREFIX) else {
                    break;
                };
                named.insert(name.to_vec(), value.clone());
            }
        }
        named
    }
}

struct Archive {
    file: Arc<File>,
    size: u64,
    /// Offset of the next header.
    at: u64,
    /// Records that apply to all members from here on.
    global: Records,
    /// The size of their keys and values in bytes.
    global_size: usize,
}

impl Archive {
    fn next(&mut self) -> Result<Option<Member>> {
        let (mut local, mut long_name, mut long_link) = (RecordList::new(), None, None);
        loop {
            let Some(header) = self.header()? else {
                return Ok(None);
            };
            let kind = header.entry_type();
            let extension = kind.is_pax_local_extensions()
                || kind.is_pax_global_extensions()
                || kind.is_gnu_longname()
                || kind.is_gnu_longlink();
            if !extension {
                return self
                    .member(&header, local, (long_name, long_link))
                    .map(Some);
            }
            let bytes = self.read_extension(self.field(&header, SIZE)?)?;
            let text = || {
                let end = bytes.iter().position(|&byte| byte == 0);
                Some(bytes[..end.unwrap_or(bytes.len())].to_vec())
            };
            if kind.is_gnu_longname() {
                long_name = text();
            } else if kind.is_gnu_longlink() {
                long_link = text();
            } else {
                let records = self::parse_records(&bytes)
                    .ok_or_else(|| self.corrupt("malformed pax records"))?;
                if kind.is_pax_global_extensions() {
                    self.add_global(records)?;
                } else {
                    // If there are several before a member, the last one applies.
                    local = records;
                }
            }
        }
    }

    /// Applies records to all members from here on. Later ones replace those with the same key.
    fn add_global(&mut self, records: RecordList) -> Result<()> {
        for (key, value) in records {
            if let Some(old) = self.global.remove(&key) {
                self.global_size -= key.len() + old.len();
            }
            if !is_deletion(&key, &value) {
                self.global_size += key.len() + value.len();
                self.global.insert(key, value);
            }
        }
        match self.global_size as u64 > MAX_RECORDS {
            true => Err(self.corrupt("global records of more than 16 MiB")),
            false => Ok(()),
        }
    }

    /// Parses an unsigned field of a header.
    fn field(&self, header: &Header, (name, field): Field) -> Result<u64> {
        let number = parse_number(&header.as_bytes()[field]);
        let number = number.and_then(|number| number.try_into().ok());
        number.ok_or_else(|| self.corrupt(format!("a malformed {name} in a header")))
    }

    /// Reads the next header; returns nothing at the end.
    fn header(&mut self) -> Result<Option<Header>> {
        if self.at >= self.size {
            return Ok(None);
        }
        let mut header = Header::new_old();
        self.read(self.at, header.as_mut_bytes())?;
        if header.as_bytes().iter().all(|&byte| byte == 0) {
            return Ok(None);
        }
        if !has_valid_checksum(header.as_bytes()) {
            return Err(self.corrupt("the checksum of a header is wrong"));
        }
        self.at += BLOCK;
        Ok(Some(header))
    }

    /// Reads the data of an extension, and skips it.
    fn read_extension(&mut self, size: u64) -> Result<Vec<u8>> {
        if size > MAX_RECORDS {
            return Err(self.corrupt("records of more than 16 MiB"));
        }
        let mut bytes = vec![0; size as usize];
        self.read(self.at, &mut bytes)?;
        self.at += size.next_multiple_of(BLOCK);
        Ok(bytes)
    }

    fn read(&self, at: u64, bytes: &mut [u8]) -> Result<()> {
        let read = self.file.read_exact_at(bytes, at);
        read.map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => self.corrupt("the archive is truncated"),
            _ => error.into(),
        })
    }

    fn corrupt(&self, what: impl std::fmt::Display) -> Error {
        Error::new(format!("{what} (at byte {} of the archive)", self.at))
    }

    fn member(
        &mut self,
        header: &Header,
        local: RecordList,
        (long_name, long_link): (Option<Vec<u8>>, Option<Vec<u8>>),
    ) -> Result<Member> {
        let sparse = Sparse::parse(&local);
        let records = MemberRecords::new(local, &self.global);
        let record = |key: &str| records.get(key.as_bytes());
        let number = |key: &str| Some(str::from_utf8(record(key)?).ok()?.parse::<u64>().ok());
        let field_value = |key: &str, field: Field| match number(key) {
            Some(value) => value.ok_or_else(|| self.corrupt(format!("a malformed record '{key}'"))),
            None => self.field(header, field),
        };
        let size = field_value("size", SIZE)?;
        let (uid, gid) = (field_value("uid", UID)?, field_value("gid", GID)?);
        let name = record("GNU.sparse.name").or(record("path")).cloned();
        let name = name
            .or(long_name)
            .unwrap_or_else(|| header.path_bytes().into_owned());
        let path = parse_path(&name)
            .ok_or_else(|| Error::with_path(&name, "a path that leads outside the tree"))?;
        if path.len() > MAX_DEPTH {
            let what = format!("more than {MAX_DEPTH} nested directories");
            return Err(Error::with_path(&name[..name.len().min(MAX_SHOWN)], what));
        }
        let sparse = sparse.map_err(|what| Error::with_path(&name, what))?;
        for key in ["SCHILY.realsize", "SUN.holesdata"] {
            if record(key).is_some() {
                return Err(Error::with_path(
                    &name,
                    format!("a sparse file in the format of '{key}', not GNU.sparse"),
                ));
            }
        }
        let attributes = Attributes {
            mode: (self.field(header, MODE)? & 0o7777) as u32,
            uid: uid
                .try_into()
                .map_err(|_| self.corrupt("a user beyond 32 bits"))?,
            gid: gid
                .try_into()
                .map_err(|_| self.corrupt("a group beyond 32 bits"))?,
            mtime: mtime(header, record("mtime"))
                .ok_or_else(|| self.corrupt("a malformed time"))?,
            xattrs: records.xattrs(),
        };
        let target = || {
            let target = record("linkpath").cloned().or(long_link);
            target.unwrap_or_else(|| header.link_name_bytes().unwrap_or_default().into_owned())
        };
        let device = || -> Result<Device> {
            let part = |field| {
                let number = self.field(header, field)?.try_into();
                number.map_err(|_| self.corrupt("a device beyond 32 bits"))
            };
            let (major, minor) = (part(MAJOR)?, part(MINOR)?);
            Ok(Device { major, minor })
        };
        let kind = header.entry_type();
        let has_data = match kind {
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => true,
            other => other.as_byte() == DUMPDIR,
        };
        if sparse.is_some() && !matches!(kind, EntryType::Regular | EntryType::Continuous) {
            return Err(Error::with_path(
                &name,
                "is marked sparse, but is not a file",
            ));
        }
        let what = match kind {
            // The oldest archives mark a directory with a trailing slash.
            EntryType::Regular if name.ends_with(b"/") => {
                MemberContent::Node(Kind::empty_directory())
            }
            EntryType::GNUSparse => {
                MemberContent::Node(Kind::File(Arc::new(self.gnu_sparse(header, size)?)))
            }
            EntryType::Regular | EntryType::Continuous => {
                let parts = match sparse {
                    None => self.file_ranges(size, (self.at, size), [(0, size)])?,
                    Some(Sparse::InRecords { len, map }) => {
                        self.file_ranges(len, (self.at, size), map)?
                    }
                    Some(Sparse::BeforeData { len }) => self.pax_sparse(size, len)?,
                };
                MemberContent::Node(Kind::File(Arc::new(parts)))
            }
            EntryType::Link => {
                let target = target();
                let path = self::parse_path(&target);
                MemberContent::Link(path.ok_or_else(|| {
                    Error::with_path(&target, "a path that leads outside the tree")
                })?)
            }
            EntryType::Symlink => MemberContent::Node(Kind::Symlink(target())),
            EntryType::Directory => MemberContent::Node(Kind::empty_directory()),
            EntryType::Fifo => MemberContent::Node(Kind::Fifo),
            EntryType::Char => MemberContent::Node(Kind::CharDevice(device()?)),
            EntryType::Block => MemberContent::Node(Kind::BlockDevice(device()?)),
            other if other.as_byte() == DUMPDIR => MemberContent::Node(Kind::empty_directory()),
            other => {
                let what = format!("a member of unknown type '{}'", other.as_byte() as char);
                return Err(Error::with_path(&name, what));
            }
        };
        // Other members have no data, whatever their size, except directories with a list of
        // entries.
        if has_data {
            // A GNU sparse map precedes the data counted by the size.
            let padded = size.checked_next_multiple_of(BLOCK).unwrap_or(u64::MAX);
            self.at = self.at.saturating_add(padded);
        }
        Ok(Member {
            path,
            attributes,
            content: what,
        })
    }

    /// Returns a file of `len` bytes whose parts (offset and length) are contiguous in the `size`
    /// bytes from `position`.
    fn file_ranges(
        &self,
        len: u64,
        (mut position, size): (u64, u64),
        map: impl IntoIterator<Item = (u64, u64)>,
    ) -> Result<FileRanges> {
        let limit = position
            .checked_add(size)
            .filter(|&limit| limit <= self.size)
            .ok_or_else(|| self.corrupt("the archive is truncated within a file"))?;
        let mut parts = Vec::new();
        let mut end = 0;
        for (offset, bytes) in map {
            let after = offset.checked_add(bytes).filter(|&after| after <= len);
            let behind = position
                .checked_add(bytes)
                .filter(|&behind| behind <= limit);
            let (Some(after), Some(behind), true) = (after, behind, offset >= end) else {
                return Err(self.corrupt("a sparse file with a malformed map"));
            };
            if bytes > 0 {
                parts.push((offset, position, bytes));
            }
            (end, position) = (after, behind);
        }
        Ok(FileRanges {
            file: self.file.clone(),
            len,
            ranges: parts,
        })
    }

    /// Parses an old GNU sparse file: the map is in the header, and in blocks after it.
    fn gnu_sparse(&mut self, header: &Header, size: u64) -> Result<FileRanges> {
        let broken = "a sparse file without a map";
        let gnu = header.as_gnu().ok_or_else(|| self.corrupt(broken))?;
        let len = self.field(header, REAL_SIZE)?;
        let mut map = Vec::new();
        let entries = |map: &mut Vec<(u64, u64)>, entries: &[GnuSparseHeader]| {
            for entry in entries.iter().filter(|entry| !entry.is_empty()) {
                let unsigned = |field: &[u8]| parse_number(field)?.try_into().ok();
                map.push((unsigned(&entry.offset)?, unsigned(&entry.numbytes)?));
            }
            Some(())
        };
        entries(&mut map, &gnu.sparse).ok_or_else(|| self.corrupt(broken))?;
        let mut more = gnu.is_extended();
        let start = self.at;
        while more {
            let mut block = GnuExtSparseHeader::new();
            self.read(self.at, block.as_mut_bytes())?;
            self.at += BLOCK;
            if self.at - start > MAX_RECORDS {
                return Err(self.corrupt("a map of holes of more than 16 MiB"));
            }
            entries(&mut map, block.sparse()).ok_or_else(|| self.corrupt(broken))?;
            more = block.is_extended();
        }
        self.file_ranges(len, (self.at, size), map)
    }

    /// Parses a pax 1.0 sparse file: the map is decimal numbers, one a line, before the data.
    fn pax_sparse(&self, size: u64, len: u64) -> Result<FileRanges> {
        let broken = || self.corrupt("a sparse file with a malformed map");
        let (mut numbers, mut line, mut read) = (Vec::<u64>::new(), Vec::new(), 0);
        while numbers
            .first()
            .is_none_or(|&count| numbers.len() as u64 <= count.saturating_mul(2))
        {
            if read >= size.min(MAX_RECORDS) {
                return Err(broken());
            }
            let mut block = [0; BLOCK as usize];
            self.read(self.at + read, &mut block)?;
            read += BLOCK;
            for byte in block {
                if byte == b'\n' {
                    let text = str::from_utf8(&line).map_err(|_| broken())?;
                    numbers.push(text.parse().map_err(|_| broken())?);
                    line.clear();
                } else if byte != 0 {
                    line.push(byte);
                }
            }
        }
        let count = usize::try_from(numbers[0]).map_err(|_| broken())?;
        let map = numbers[1..=2 * count].chunks_exact(2);
        let data = (self.at + read, size.saturating_sub(read));
        self.file_ranges(len, data, map.map(|pair| (pair[0], pair[1])))
    }
}

/// Returns whether a header's checksum is correct, which alone identifies a v7 header: it has no
/// magic number.
pub(super) fn has_valid_checksum(header: &[u8; BLOCK as usize]) -> bool {
    // The checksum field counts as eight spaces. Some systems sum signed bytes.
    let sum = |value: fn(u8) -> i64| {
        let others = header[..148].iter().chain(&header[156..]);
        8 * i64::from(b' ') + others.map(|&byte| value(byte)).sum::<i64>()
    };
    let sums = [sum(i64::from), sum(|byte| byte.cast_signed().into())];
    parse_number(&header[148..156]).is_some_and(|stored| sums.contains(&stored))
}

/// Splits a path into components; returns nothing if it contains `..` or an invalid name.
fn parse_path(text: &[u8]) -> Option<Vec<Vec<u8>>> {
    let names = text.split(|&byte| byte == b'/');
    names
        .filter(|name| !name.is_empty() && name != b".")
        .map(|name| vfs::Name::new(name).ok().map(|_| name.to_vec()))
        .collect()
}

/// A header field: its name and range (tar(5)).
type Field = (&'static str, std::ops::Range<usize>);

const MODE: Field = ("mode", 100..108);
const UID: Field = ("uid", 108..116);
const GID: Field = ("gid", 116..124);
const SIZE: Field = ("size", 124..136);
const MTIME: Field = ("mtime", 136..148);
const MAJOR: Field = ("devmajor", 329..337);
const MINOR: Field = ("devminor", 337..345);
const REAL_SIZE: Field = ("realsize", 483..495);

/// Parses a number: octal digits surrounded by spaces or NULs, or a marker bit and the number in
/// base 256. An empty field is 0.
fn parse_number(field: &[u8]) -> Option<i64> {
    match field {
        // GNU's extension: two's complement, marked by the first bit.
        [first, rest @ ..] if first & 0x80 != 0 => {
            let sign = if first & 0x40 != 0 { -1 } else { 0 };
            let start = (sign << 7) | i64::from(first & 0x7f);
            rest.iter().try_fold(start, |number, &byte| {
                Some(number.checked_mul(256)? | i64::from(byte))
            })
        }
        _ => {
            let blank = |byte: &u8| *byte == 0 || byte.is_ascii_whitespace();
            let start = field.iter().position(|byte| !blank(byte));
            let digits = &field[start.unwrap_or(field.len())..];
            let end = digits.iter().position(blank).unwrap_or(digits.len());
            digits[..end].iter().try_fold(0_i64, |number, &byte| {
                let digit = byte.checked_sub(b'0').filter(|&digit| digit < 8)?;
                number.checked_mul(8)?.checked_add(digit.into())
            })
        }
    }
}

/// The location of a sparse file's map, according to its pax records.
#[derive(Debug, PartialEq)]
enum Sparse {
    /// In the records: 0.0, which repeats a pair of keys for each part, and 0.1, with one value for
    /// all.
    InRecords { len: u64, map: Vec<(u64, u64)> },
    /// Before the data: 1.0.
    BeforeData { len: u64 },
}

impl Sparse {
    /// Parses the records of a sparse file: `None` if there are none, an error text if one is
    /// broken or their format is unknown.
    fn parse(records: &RecordList) -> std::result::Result<Option<Sparse>, String> {
        let broken = |key: &str| format!("a malformed record 'GNU.sparse.{key}'");
        let parse = |key: &str, value: &[u8]| {
            let text = str::from_utf8(value).ok();
            text.and_then(|text| text.parse::<u64>().ok())
                .ok_or_else(|| broken(key))
        };
        let (mut major, mut minor, mut count, mut len) = (None, None, None, None);
        let (mut map, mut is_sparse, mut has_list) = (Vec::new(), false, false);
        let mut offset = None;
        for (key, value) in records {
            let Some(key) = key.strip_prefix(SPARSE_PREFIX) else {
                continue;
            };
            let key = String::from_utf8_lossy(key);
            is_sparse = true;
            match &*key {
                "name" => {}
                "major" => major = Some(parse(&key, value)?),
                "minor" => minor = Some(parse(&key, value)?),
                "size" | "realsize" => len = Some(parse(&key, value)?),
                "numblocks" => count = Some(parse(&key, value)?),
                "offset" if offset.is_none() => offset = Some(parse(&key, value)?),
                "numbytes" => {
                    let at = offset.take().ok_or_else(|| broken(&key))?;
                    map.push((at, parse(&key, value)?));
                    has_list = true;
                }
                "map" => {
                    let numbers = value.split(|&byte| byte == b',');
                    let numbers = numbers.map(|number| parse(&key, number));
                    let numbers = numbers.collect::<std::result::Result<Vec<_>, _>>()?;
                    let (pairs, []) = numbers.as_chunks() else {
                        return Err(broken(&key));
                    };
                    map = pairs.iter().map(|&[at, bytes]| (at, bytes)).collect();
                    has_list = true;
                }
                _ => return Err(broken(&key)),
            }
        }
        if !is_sparse {
            return Ok(None);
        }
        let len = len.ok_or("a sparse file without a size")?;
        match (major.unwrap_or(0), minor.unwrap_or(0)) {
            (1, 0) if !has_list => Ok(Some(Sparse::BeforeData { len })),
            (0, 0 | 1) if (has_list || count == Some(0)) && offset.is_none() => {
                match count.is_none_or(|count| count == map.len() as u64) {
                    true => Ok(Some(Sparse::InRecords { len, map })),
                    false => Err(broken("numblocks")),
                }
            }
            (0, 0 | 1) => Err("a sparse file without a map".to_owned()),
            (major, minor) => Err(format!("a sparse file of unknown version {major}.{minor}")),
        }
    }
}

/// Parses records of their own length in decimal, a space, key, `=`, value and a newline.
fn parse_records(mut bytes: &[u8]) -> Option<RecordList> {
    let mut records = RecordList::new();
    while !bytes.is_empty() {
        let space = bytes.iter().position(|&byte| byte == b' ')?;
        let len: usize = str::from_utf8(&bytes[..space]).ok()?.parse().ok()?;
        let record = bytes.get(space + 1..len)?.strip_suffix(b"\n")?;
        let equals = record.iter().position(|&byte| byte == b'=')?;
        records.push((record[..equals].to_vec(), record[equals + 1..].to_vec()));
        bytes = &bytes[len..];
    }
    Some(records)
}

fn mtime(header: &Header, record: Option<&Vec<u8>>) -> Option<Time> {
    let Some(record) = record else {
        let sec = parse_number(&header.as_bytes()[MTIME.1])?;
        return Some(Time { sec, nsec: 0 });
    };
    let text = str::from_utf8(record).ok()?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let sec: i64 = whole.parse().ok()?;
    let digits = fraction.bytes().chain(std::iter::repeat(b'0')).take(9);
    let nsec = digits.into_iter().try_fold(0_u32, |number, digit| {
        digit
            .is_ascii_digit()
            .then(|| number * 10 + u32::from(digit - b'0'))
    })?;
    // The fraction has the sign of the number; nanoseconds are never negative.
    Some(match text.starts_with('-') && nsec > 0 {
        true => Time {
            sec: sec.checked_sub(1)?,
            nsec: 1_000_000_000 - nsec,
        },
        false => Time { sec, nsec },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_may_have_newlines_in_them() {
        let bytes = b"30 SCHILY.xattr.user.a=1\n2\n=3\n19 mtime=-1.250000\n";
        let (own, global) = (
            super::parse_records(bytes).expect("two records"),
            Records::new(),
        );
        let records = MemberRecords::new(own, &global);
        assert_eq!(records.xattrs()[&b"user.a"[..]], b"1\n2\n=3");
        let time = mtime(&Header::new_old(), records.get(b"mtime"));
        let want = Time {
            sec: -2,
            nsec: 750_000_000,
        };
        assert_eq!(time, Some(want));
        for len in 1..bytes.len() {
            if len != 30 {
                assert_eq!(super::parse_records(&bytes[..len]), None, "{len} bytes");
            }
        }
    }

    #[test]
    fn paths_do_not_lead_out() {
        let names =
            |names: &[&str]| Some(names.iter().map(|name| name.as_bytes().to_vec()).collect());
        assert_eq!(parse_path(b"./a//b/"), names(&["a", "b"]));
        assert_eq!(parse_path(b"/"), names(&[]));
        assert_eq!(parse_path(b"a/../b"), None);
    }
}
