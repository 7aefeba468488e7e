//! The identifiers in messages: tags, fids, qids, dialects.

use std::fmt;

use bitflags::bitflags;

/// The identifier of a request in flight: intro(5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tag(pub u16);

impl Tag {
    /// `NOTAG`, the tag of Tversion only.
    pub const NONE: Tag = Tag(u16::MAX);
}

/// A client's handle for a file: intro(5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fid(pub u32);

impl Fid {
    /// `NOFID`: no fid, as the afid of an attach without authentication.
    pub const NONE: Fid = Fid(u32::MAX);
}

/// A server's identifier of a file: intro(5). Equal paths mean the same file, equal versions the
/// same contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Qid {
    /// The type of the file.
    pub kind: QidType,
    /// Changes with each change of the file.
    pub version: u32,
    /// Unique among the files of a tree, including deleted ones.
    pub path: u64,
}

impl Qid {
    /// The size in bytes on the wire: `type[1] version[4] path[8]`.
    pub const SIZE: usize = 13;
}

bitflags! {
    /// The type byte of a qid: stat(5), and 9P2000.u's `QTSYMLINK`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct QidType: u8 {
        /// A directory.
        const DIR = 0x80;
        /// Append only.
        const APPEND = 0x40;
        /// Exclusive use: open once at a time.
        const EXCL = 0x20;
        /// A mount point.
        const MOUNT = 0x10;
        /// An authentication file.
        const AUTH = 0x08;
        /// Not to be backed up.
        const TMP = 0x04;
        /// A symbolic link (9P2000.u, 9P2000.L).
        const SYMLINK = 0x02;
        /// A hard link (9P2000.u).
        const LINK = 0x01;

        const _ = !0;
    }
}

/// A version of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// 9P2000, as in Plan 9.
    Plan9,
    /// 9P2000.u: adds numeric users and errors, symbolic links and devices.
    Unix,
    /// 9P2000.L: Linux's own operations.
    Linux,
}

impl Dialect {
    /// The version string of Tversion and Rversion for 9P2000.L with Thand, if the connection can
    /// pass descriptors of open files. By version(5) a server that does not know the part after a
    /// period answers without it, or with `unknown`.
    pub const FD_PASSING: &str = "9P2000.L.hand";

    /// All dialects.
    pub const ALL: [Dialect; 3] = [Dialect::Plan9, Dialect::Unix, Dialect::Linux];

    /// Returns the version string: [`Dialect::FD_PASSING`] if files can be passed (`hands`).
    pub(crate) const fn version_with(self, hands: bool) -> &'static str {
        match hands {
            true => Dialect::FD_PASSING,
            false => self.version(),
        }
    }

    /// Returns the string of Tversion and Rversion.
    pub const fn version(self) -> &'static str {
        match self {
            Dialect::Plan9 => "9P2000",
            Dialect::Unix => "9P2000.u",
            Dialect::Linux => "9P2000.L",
        }
    }

    /// Returns the best dialect to answer a client's `version` with, by version(5): the part after
    /// a period is an extension that may be dropped, and a server may answer with an older number.
    /// Returns `None` for a string that is not a 9P version or is older than 9P2000.
    pub fn negotiate(version: &[u8]) -> Option<Dialect> {
        let mut parts = version.split(|&byte| byte == b'.');
        let number = parts.next()?.strip_prefix(b"9P")?;
        let is_number = !number.is_empty() && number.iter().all(u8::is_ascii_digit);
        let digits = &number[number.iter().take_while(|&&digit| digit == b'0').count()..];
        if !is_number || (digits.len(), digits) < (4, b"2000") {
            return None;
        }
        Some(match parts.next() {
            Some(b"u") => Dialect::Unix,
            Some(b"L") => Dialect::Linux,
            _ => Dialect::Plan9,
        })
    }
}

impl fmt::Display for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.version())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_answered_with_what_both_know() {
        for (offered, answer) in [
            ("9P2000", Some(Dialect::Plan9)),
            ("9P2000.u", Some(Dialect::Unix)),
            ("9P2000.L", Some(Dialect::Linux)),
            ("9P2000.L.foo", Some(Dialect::Linux)),
            ("9P2000.L.Google.7", Some(Dialect::Linux)),
            ("9P2000.e", Some(Dialect::Plan9)),
            ("9P2025", Some(Dialect::Plan9)),
            ("9P10000.u", Some(Dialect::Unix)),
            ("9P1999", None),
            ("9P02000", Some(Dialect::Plan9)),
            ("9P", None),
            ("9P20x0", None),
            ("9p2000.L", None),
            ("NFS", None),
            ("", None),
        ] {
            assert_eq!(Dialect::negotiate(offered.as_bytes()), answer, "{offered}");
        }
    }
}
