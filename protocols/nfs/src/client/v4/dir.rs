//! READDIR.

use wire::Xdr;

use super::attr::{ENTRY, PUTFH};
use super::compound::{Operations, Ops, Results};
use crate::client::{DirPage, Failure, ListedEntry, Tree};
use crate::v4::Verifier;
use crate::v4::attr::{Attributes, Bitmap, FileType, number as n};
use crate::v4::op::{self, Op};

/// A READDIR.
pub struct ReadDir<'a> {
    /// The directory's handle.
    pub handle: &'a [u8],
    /// The cookie of the entry to continue after.
    pub cookie: u64,
    /// The verifier that was returned with the cookie.
    pub verifier: Verifier,
    /// The maximum length of the results in bytes.
    pub count: u32,
    /// Whether to request the attributes and handles of the entries.
    pub plus: bool,
    /// The tree that the directory belongs to.
    pub tree: Tree,
}

impl Operations for ReadDir<'_> {
    type Answer<'r> = DirPage<'r>;

    const CACHE_THIS: bool = false;

    fn put(&self, to: &mut Ops<'_>) {
        let names = Bitmap::of(&[n::TYPE, n::FSID, n::FILEID, n::RDATTR_ERROR]);
        to.op(&Op::Putfh(self.handle)).op(&Op::Readdir(op::Readdir {
            cookie: self.cookie,
            verifier: self.verifier,
            // The same limit for names alone: only the second one is to have an effect.
            dir_count: self.count,
            max_count: self.count,
            attributes: if self.plus { ENTRY } else { names },
        }));
    }

    fn answer<'r>(&self, from: &mut Results<'r>) -> Result<DirPage<'r>, Failure> {
        const READDIR: u32 = 26;
        from.take::<()>(PUTFH)?;
        let from = from.open(READDIR)?;
        let verifier = Verifier::get(from)?;
        let mut entries = Vec::new();
        while bool::get(from)? {
            let cookie = u64::get(from)?;
            let name = <&[u8]>::get(from)?;
            let attributes = Attributes::get(from)?;
            let attr = match self.plus && attributes.read_error.unwrap_or(0) == 0 {
                true => Some(self.tree.of_v4(&attributes)?),
                false => None,
            };
            entries.push(ListedEntry {
                name,
                id: self.tree.id_in(&attributes),
                cookie,
                kind: attributes.kind.and_then(FileType::kind),
                attr,
                handle: attributes.handle.map(Into::into),
            });
        }
        let eof = bool::get(from)?;
        Ok(DirPage {
            verifier,
            entries,
            eof,
        })
    }
}
