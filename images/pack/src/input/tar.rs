//! A tar stream: ustar, with the extensions of POSIX (pax) and of GNU, sparse files of both.
//!
//! Headers are read here one after the other, at their places: `tar`'s own reader takes records of pax apart at newlines,
//! which values of attributes may have.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use tar::{EntryType, GnuExtSparseHeader, GnuSparseHeader, Header};
use vfs::{Device, Time};

use crate::contents::Parts;
use crate::error::{Error, Result};
use crate::plan::{Attributes, Kind, NodeId, Plan};

/// Bytes that headers and data are multiples of.
const BLOCK: u64 = 512;

/// The most bytes of one header's records, a long name, or a map of holes. An inode's attributes have at most 64 KiB each on
/// Linux; Linux's own list of their names has no more than that.
const MOST_RECORDS: u64 = 16 << 20;

/// What an archive says of a path.
pub(super) struct Member {
    /// Its names, without `.`; none for the root.
    pub(super) path: Vec<Vec<u8>>,
    pub(super) attributes: Attributes,
    pub(super) what: What,
}

pub(super) enum What {
    Node(Kind),
    /// A further name of what is at this path.
    Link(Vec<Vec<u8>>),
}

/// The tree of an archive, which is not compressed. Directories that it does not name are root's, and anybody may look into them.
pub fn tar(file: File) -> Result<Plan> {
    let mut plan = Plan::new(nobodys());
    for member in members(file)? {
        add(&mut plan, member)?;
    }
    Ok(plan)
}

/// What a directory has that nothing was said of.
pub(super) fn nobodys() -> Attributes {
    Attributes {
        mode: 0o755,
        ..Attributes::default()
    }
}

/// Puts a member into the tree, in the place of what is there.
pub(super) fn add(plan: &mut Plan, member: Member) -> Result<()> {
    let Member {
        path,
        attributes,
        what,
    } = member;
    let failed = |what: &str| Error::of(&path.join(&b'/'), what);
    let Some((name, above)) = path.split_last() else {
        return match what {
            What::Node(Kind::Directory(_)) => {
                plan.set_attributes(NodeId::ROOT, attributes);
                Ok(())
            }
            _ => Err(failed("the root is no directory")),
        };
    };
    let mut dir = NodeId::ROOT;
    for name in above {
        dir = match plan.lookup(dir, name) {
            Some(there) if matches!(plan.kind(there), Kind::Directory(_)) => there,
            Some(_) => return Err(failed("is below what is no directory")),
            None => plan.add(dir, name, nobodys(), Kind::empty_directory()),
        };
    }
    match what {
        What::Node(kind) => drop(plan.add(dir, name, attributes, kind)),
        What::Link(target) => {
            let found = find(plan, &target);
            let node = found.ok_or_else(|| failed("is a link to what is not in the archive"))?;
            if let Kind::Directory(_) = plan.kind(node) {
                return Err(failed("is a hard link to a directory"));
            }
            plan.link(dir, name, node);
        }
    }
    Ok(())
}

/// What is at a path.
pub(super) fn find(plan: &Plan, path: &[Vec<u8>]) -> Option<NodeId> {
    path.iter()
        .try_fold(NodeId::ROOT, |dir, name| plan.lookup(dir, name))
}

/// All members of an archive, in its order.
pub(super) fn members(file: File) -> Result<Vec<Member>> {
    let size = file.metadata()?.len();
    let mut archive = Archive {
        file: Arc::new(file),
        size,
        at: 0,
        global: BTreeMap::new(),
    };
    let mut members = Vec::new();
    while let Some(member) = archive.next()? {
        members.push(member);
    }
    Ok(members)
}

/// Records of pax by key.
type Records = BTreeMap<Vec<u8>, Vec<u8>>;

struct Archive {
    file: Arc<File>,
    size: u64,
    /// Where the next header is.
    at: u64,
    /// Records that hold for all members from here on.
    global: Records,
}

impl Archive {
    fn next(&mut self) -> Result<Option<Member>> {
        let (mut records, mut long_name, mut long_link) = (self.global.clone(), None, None);
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
                    .member(&header, &records, long_name, long_link)
                    .map(Some);
            }
            let size = header.entry_size().map_err(|error| self.broken(error))?;
            let bytes = self.take(size)?;
            let text = || {
                let end = bytes.iter().position(|&byte| byte == 0);
                Some(bytes[..end.unwrap_or(bytes.len())].to_vec())
            };
            if kind.is_gnu_longname() {
                long_name = text();
            } else if kind.is_gnu_longlink() {
                long_link = text();
            } else {
                let told =
                    self::records(&bytes).ok_or_else(|| self.broken("broken records of pax"))?;
                if kind.is_pax_global_extensions() {
                    self.global.extend(told.clone());
                }
                records.extend(told);
            }
        }
    }

    /// The next header, nothing at the end.
    fn header(&mut self) -> Result<Option<Header>> {
        if self.at >= self.size {
            return Ok(None);
        }
        let mut header = Header::new_old();
        self.read(self.at, header.as_mut_bytes())?;
        if header.as_bytes().iter().all(|&byte| byte == 0) {
            return Ok(None);
        }
        let bytes = header.as_bytes();
        // The checksum's own eight bytes count as spaces.
        let sum = |bytes: &[u8]| bytes.iter().map(|&byte| u32::from(byte)).sum::<u32>();
        let real = sum(&bytes[..148]) + 8 * u32::from(b' ') + sum(&bytes[156..]);
        match header.cksum() {
            Ok(told) if told == real => {}
            _ => return Err(self.broken("the checksum of a header is wrong")),
        }
        self.at += BLOCK;
        Ok(Some(header))
    }

    /// The data of an extension, and goes behind it.
    fn take(&mut self, size: u64) -> Result<Vec<u8>> {
        if size > MOST_RECORDS {
            return Err(self.broken("records of more than 16 MiB"));
        }
        let mut bytes = vec![0; size as usize];
        self.read(self.at, &mut bytes)?;
        self.at += size.next_multiple_of(BLOCK);
        Ok(bytes)
    }

    fn read(&self, at: u64, bytes: &mut [u8]) -> Result<()> {
        let read = self.file.read_exact_at(bytes, at);
        read.map_err(|_| self.broken("the archive ends in the middle"))
    }

    fn broken(&self, what: impl std::fmt::Display) -> Error {
        Error::new(format!("{what} (at byte {} of the archive)", self.at))
    }

    fn member(
        &mut self,
        header: &Header,
        records: &Records,
        long_name: Option<Vec<u8>>,
        long_link: Option<Vec<u8>>,
    ) -> Result<Member> {
        let record = |key: &str| records.get(key.as_bytes());
        let number = |key: &str| Some(str::from_utf8(record(key)?).ok()?.parse::<u64>().ok());
        let told = |key: &str, field: std::io::Result<u64>| match number(key) {
            Some(told) => told.ok_or_else(|| self.broken(format!("a broken record '{key}'"))),
            None => field.map_err(|error| self.broken(error)),
        };
        let size = told("size", header.entry_size())?;
        let (uid, gid) = (told("uid", header.uid())?, told("gid", header.gid())?);
        let name = record("GNU.sparse.name").or(record("path")).cloned();
        let name = name
            .or(long_name)
            .unwrap_or_else(|| header.path_bytes().into_owned());
        let path = path(&name).ok_or_else(|| Error::of(&name, "a path that leads upwards"))?;
        let attributes = Attributes {
            mode: header.mode().map_err(|error| self.broken(error))? & 0o7777,
            uid: uid
                .try_into()
                .map_err(|_| self.broken("a user beyond 32 bits"))?,
            gid: gid
                .try_into()
                .map_err(|_| self.broken("a group beyond 32 bits"))?,
            mtime: mtime(header, record("mtime")).ok_or_else(|| self.broken("a broken time"))?,
            xattrs: xattrs(records),
        };
        let target = || {
            let target = record("linkpath").cloned().or(long_link);
            target.unwrap_or_else(|| header.link_name_bytes().unwrap_or_default().into_owned())
        };
        let device = || Device {
            major: header.device_major().ok().flatten().unwrap_or_default(),
            minor: header.device_minor().ok().flatten().unwrap_or_default(),
        };
        let kind = header.entry_type();
        let is_file = matches!(
            kind,
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse
        );
        let what = match kind {
            // The oldest archives tell a directory by the slash behind it.
            EntryType::Regular if name.ends_with(b"/") => What::Node(Kind::empty_directory()),
            EntryType::GNUSparse => What::Node(Kind::File(Arc::new(self.gnu_sparse(header)?))),
            EntryType::Regular | EntryType::Continuous => {
                let parts = match record("GNU.sparse.major").map(|major| &major[..]) {
                    Some(b"1") => self.pax_sparse(size, number("GNU.sparse.realsize").flatten())?,
                    _ => self.whole(size)?,
                };
                What::Node(Kind::File(Arc::new(parts)))
            }
            EntryType::Link => {
                let target = target();
                let path = self::path(&target);
                What::Link(path.ok_or_else(|| Error::of(&target, "a path that leads upwards"))?)
            }
            EntryType::Symlink => What::Node(Kind::Symlink(target())),
            EntryType::Directory => What::Node(Kind::empty_directory()),
            EntryType::Fifo => What::Node(Kind::Fifo),
            EntryType::Char => What::Node(Kind::CharDevice(device())),
            EntryType::Block => What::Node(Kind::BlockDevice(device())),
            other => {
                let what = format!("a member of unknown kind '{}'", other.as_byte() as char);
                return Err(Error::of(&name, what));
            }
        };
        // What is no file has no data, whatever its size says.
        if is_file {
            // A map of GNU's is in front of what the size counts.
            let padded = size.checked_next_multiple_of(BLOCK).unwrap_or(u64::MAX);
            self.at = self.at.saturating_add(padded);
        }
        Ok(Member {
            path,
            attributes,
            what,
        })
    }

    fn whole(&self, size: u64) -> Result<Parts> {
        self.parts(size, self.at, [(0, size)])
    }

    /// A file of `len` bytes whose parts (offset and length) lie one behind the other from `place`.
    fn parts(
        &self,
        len: u64,
        mut place: u64,
        map: impl IntoIterator<Item = (u64, u64)>,
    ) -> Result<Parts> {
        let mut parts = Vec::new();
        let mut end = 0;
        for (offset, bytes) in map {
            let after = offset.checked_add(bytes).filter(|&after| after <= len);
            let behind = place
                .checked_add(bytes)
                .filter(|&behind| behind <= self.size);
            let (Some(after), Some(behind), true) = (after, behind, offset >= end) else {
                return Err(
                    self.broken("the archive ends in a file, or its map of holes is broken")
                );
            };
            if bytes > 0 {
                parts.push((offset, place, bytes));
            }
            (end, place) = (after, behind);
        }
        Ok(Parts {
            file: self.file.clone(),
            len,
            parts,
        })
    }

    /// GNU's own kind of sparse files: the map is in the header, and in blocks behind it.
    fn gnu_sparse(&mut self, header: &Header) -> Result<Parts> {
        let broken = "a sparse file without a map";
        let gnu = header.as_gnu().ok_or_else(|| self.broken(broken))?;
        let len = gnu.real_size().map_err(|error| self.broken(error))?;
        let mut map = Vec::new();
        let entries = |map: &mut Vec<(u64, u64)>, entries: &[GnuSparseHeader]| {
            for entry in entries.iter().filter(|entry| !entry.is_empty()) {
                map.push((entry.offset().ok()?, entry.length().ok()?));
            }
            Some(())
        };
        entries(&mut map, &gnu.sparse).ok_or_else(|| self.broken(broken))?;
        let mut more = gnu.is_extended();
        while more {
            let mut block = GnuExtSparseHeader::new();
            self.read(self.at, block.as_mut_bytes())?;
            self.at += BLOCK;
            entries(&mut map, block.sparse()).ok_or_else(|| self.broken(broken))?;
            more = block.is_extended();
        }
        self.parts(len, self.at, map)
    }

    /// The kind of pax 1.0: the map is decimal numbers, one a line, in front of the data.
    fn pax_sparse(&mut self, size: u64, len: Option<u64>) -> Result<Parts> {
        let broken = || self.broken("a sparse file with a broken map");
        let len = len.ok_or_else(broken)?;
        let (mut numbers, mut line, mut read) = (Vec::<u64>::new(), Vec::new(), 0);
        while numbers
            .first()
            .is_none_or(|&count| numbers.len() as u64 <= count.saturating_mul(2))
        {
            if read >= size.min(MOST_RECORDS) {
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
        self.parts(len, self.at + read, map.map(|pair| (pair[0], pair[1])))
    }
}

/// The names of a path; nothing if it has `..`, or a name that no file can have.
fn path(text: &[u8]) -> Option<Vec<Vec<u8>>> {
    let names = text.split(|&byte| byte == b'/');
    names
        .filter(|name| !name.is_empty() && name != b".")
        .map(|name| vfs::Name::new(name).ok().map(|_| name.to_vec()))
        .collect()
}

/// Each record is its own length in decimal, a space, key, `=`, value and a newline.
fn records(mut bytes: &[u8]) -> Option<Records> {
    let mut records = Records::new();
    while !bytes.is_empty() {
        let space = bytes.iter().position(|&byte| byte == b' ')?;
        let len: usize = str::from_utf8(&bytes[..space]).ok()?.parse().ok()?;
        let record = bytes.get(space + 1..len)?.strip_suffix(b"\n")?;
        let equals = record.iter().position(|&byte| byte == b'=')?;
        records.insert(record[..equals].to_vec(), record[equals + 1..].to_vec());
        bytes = &bytes[len..];
    }
    Some(records)
}

fn xattrs(records: &Records) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let named = records.iter().filter_map(|(key, value)| {
        let name = key.strip_prefix(b"SCHILY.xattr.")?;
        Some((name.to_vec(), value.clone()))
    });
    named.collect()
}

fn mtime(header: &Header, record: Option<&Vec<u8>>) -> Option<Time> {
    let Some(record) = record else {
        let sec = header.mtime().ok()?.try_into().ok()?;
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
    // The fraction goes away from zero, nanoseconds never do.
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
        let records = records(bytes).expect("two records");
        assert_eq!(xattrs(&records)[&b"user.a"[..]], b"1\n2\n=3");
        let time = mtime(&Header::new_old(), records.get(&b"mtime"[..]));
        let want = Time {
            sec: -2,
            nsec: 750_000_000,
        };
        assert_eq!(time, Some(want));
        for len in 1..bytes.len() {
            if len != 30 {
                assert_eq!(super::records(&bytes[..len]), None, "{len} bytes");
            }
        }
    }

    #[test]
    fn paths_do_not_lead_out() {
        let names =
            |names: &[&str]| Some(names.iter().map(|name| name.as_bytes().to_vec()).collect());
        assert_eq!(path(b"./a//b/"), names(&["a", "b"]));
        assert_eq!(path(b"/"), names(&[]));
        assert_eq!(path(b"a/../b"), None);
    }
}
