//! READDIR, READDIRPLUS.

use wire::Xdr;

use super::done;
use crate::client::{Ask, Failure, Listed, Page, Procedure, Tree};
use crate::rpc::program;
use crate::v3::{self, Entry, ReadDirOk, ReadDirPlusOk, Verifier};

/// Lists a directory; with `PLUS`, entries come with what LOOKUP tells.
pub struct ReadDir<'a, const PLUS: bool> {
    /// Which.
    pub handle: &'a [u8],
    /// Behind which entry.
    pub cookie: u64,
    /// What came with the cookie.
    pub verifier: Verifier,
    /// How many bytes the answer may have.
    pub count: u32,
    /// Of which tree.
    pub tree: Tree,
}

impl<const PLUS: bool> Ask for ReadDir<'_, PLUS> {
    type Answer<'r> = Page<'r>;

    const PROCEDURE: Procedure = Procedure {
        program: program::NFS,
        version: 3,
        number: match PLUS {
            false => v3::Procedure::ReadDir as u32,
            true => v3::Procedure::ReadDirPlus as u32,
        },
    };

    fn put(&self, to: &mut Vec<u8>) {
        self.handle.put(to);
        self.cookie.put(to);
        self.verifier.put(to);
        if PLUS {
            // Of names alone as much as of it all: the second bound is the one that counts.
            self.count.put(to);
        }
        self.count.put(to);
    }

    fn answer<'r>(&self, results: &'r [u8]) -> Result<Page<'r>, Failure> {
        let listed = |entry: Entry<'r>| Listed {
            name: entry.name,
            // Where it is mounted upon, its number is another: its attributes tell.
            id: entry.fileid.max(1),
            cookie: entry.cookie,
            kind: None,
            attr: None,
            handle: None,
        };
        if !PLUS {
            let ok: ReadDirOk<'r> = done(results)?;
            return Ok(Page {
                verifier: ok.verifier,
                entries: ok.entries.0.into_iter().map(listed).collect(),
                eof: ok.eof,
            });
        }
        let ok: ReadDirPlusOk<'r> = done(results)?;
        let entries = ok.entries.0.into_iter().map(|plus| Listed {
            attr: plus
                .attributes
                .map(|attributes| self.tree.of_v3(&attributes)),
            handle: plus.object.map(|handle| handle.bytes().into()),
            ..listed(plus.entry)
        });
        Ok(Page {
            verifier: ok.verifier,
            entries: entries.collect(),
            eof: ok.eof,
        })
    }
}
