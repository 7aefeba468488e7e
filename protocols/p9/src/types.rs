//! The names that messages use: tags, fids, qids, dialects.

use std::fmt;

use bitflags::bitflags;

/// A request's name while it is in flight: intro(5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tag(pub u16);

impl Tag {
    /// `NOTAG`: what Tversion bears, and nothing else.
    pub const NONE: Tag = Tag(u16::MAX);
}

/// A client's number for a file it points at: intro(5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fid(pub u32);

impl Fid {
    /// `NOFID`: no fid, as the afid of an attach without authentication.
    pub const NONE: Fid = Fid(u32::MAX);
}

/// A server's name for a file: intro(5). Equal paths are the same file, equal versions the same
/// contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Qid {
    /// What kind of file.
    pub kind: QidType,
    /// Differs after each change.
    pub version: u32,
    /// Unique among the files of a tree, those deleted included.
    pub path: u64,
}

impl Qid {
    /// Bytes on the wire: `type[1] version[4] path[8]`.
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
        /// One opener at a time.
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

/// Which 9P.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// 9P2000, as Plan 9 speaks it.
    Plan9,
    /// 9P2000.u: the same with numeric users and errors, symbolic links and devices.
    Unix,
    /// 9P2000.L: Linux's own operations.
    Linux,
}

impl Dialect {
    /// What a client says in Tversion, and a server in Rversion, if open files may be handed over by this connection: 9P2000.L and
    /// Thand. By version(5) who does not know what stands behind a period answers without it, or `unknown`.
    pub const HANDING: &str = "9P2000.L.hand";

    /// All of them.
    pub const ALL: [Dialect; 3] = [Dialect::Plan9, Dialect::Unix, Dialect::Linux];

    /// What is said of a dialect: [`Dialect::HANDING`] if files may be handed over, too.
    pub(crate) const fn saying(self, hands: bool) -> &'static str {
        match hands {
            true => Dialect::HANDING,
            false => self.version(),
        }
    }

    /// The string of Tversion and Rversion.
    pub const fn version(self) -> &'static str {
        match self {
            Dialect::Plan9 => "9P2000",
            Dialect::Unix => "9P2000.u",
            Dialect::Linux => "9P2000.L",
        }
    }

    /// The best dialect to answer a client's `version` with, by version(5): what follows a period
    /// is an extension that may be left away, and a server may answer with an older number.
    /// Nothing for what is no 9P or older than 9P2000.
    pub fn answering(version: &[u8]) -> Option<Dialect> {
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
        for (asked, answer) in [
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
            assert_eq!(Dialect::answering(asked.as_bytes()), answer, "{asked}");
        }
    }
}
