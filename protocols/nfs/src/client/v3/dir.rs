//! READDIR, READDIRPLUS.

use wire::Xdr;

use super::{decode, nfs_procedure};
use crate::client::{CallArguments, ClientCall, DirPage, Failure, ListedEntry, Procedure, Tree};
use crate::v3::{self, Entry, ReadDirOk, ReadDirPlusOk, Verifier};

/// A READDIR; with `PLUS`, a READDIRPLUS, which returns the entries' attributes and handles.
pub struct ReadDir<'a, const PLUS: bool> {
    /// The directory's handle.
    pub handle: &'a [u8],
    /// The cookie of the entry to continue after.
    pub cookie: u64,
    /// The verifier that was returned with the cookie.
    pub verifier: Verifier,
    /// The maximum length of the results in bytes.
    pub count: u32,
    /// The tree that the directory belongs to.
    pub tree: Tree,
}

impl<const PLUS: bool> CallArguments for ReadDir<'_, PLUS> {
    fn procedure(&self) -> Procedure {
        nfs_procedure(match PLUS {
            false => v3::Procedure::ReadDir as u32,
            true => v3::Procedure::ReadDirPlus as u32,
        })
    }

    fn put(&self, to: &mut Vec<u8>) {
        self.handle.put(to);
        self.cookie.put(to);
        self.verifier.put(to);
        if PLUS {
            // The same limit for names alone: only the second one is to have an effect.
            self.count.put(to);
        }
        self.count.put(to);
    }
}

impl<const PLUS: bool> ClientCall for ReadDir<'_, PLUS> {
    type Answer<'r> = DirPage<'r>;

    fn answer<'r>(&self, results: &'r [u8]) -> Result<DirPage<'r>, Failure> {
        let listed = |entry: Entry<'r>| ListedEntry {
            name: entry.name,
            // The file id of an entry that is a mount point differs from the one in its attributes.
            id: entry.fileid.max(1),
            cookie: entry.cookie,
            kind: None,
            attr: None,
            handle: None,
        };
        if !PLUS {
            let ok: ReadDirOk<'r> = decode(results)?;
            return Ok(DirPage {
                verifier: ok.verifier,
                entries: ok.entries.0.into_iter().map(listed).collect(),
                eof: ok.eof,
            });
        }
        let ok: ReadDirPlusOk<'r> = decode(results)?;
        let entries = ok.entries.0.into_iter().map(|plus| ListedEntry {
            attr: plus
                .attributes
                .map(|attributes| self.tree.of_v3(&attributes)),
            handle: plus.object.map(|handle| handle.bytes().into()),
            ..listed(plus.entry)
        });
        Ok(DirPage {
            verifier: ok.verifier,
            entries: entries.collect(),
            eof: ok.eof,
        })
    }
}
