//! Verification of a whole image: reads everything that a reader could request, i.e. every inode
//! with a name, its attributes, the map of its contents, and the decoded clusters.
//!
//! Every part is read once, even if several inodes share it, and broken parts are skipped, so the
//! check always terminates; memory use is proportional to the number of inodes with names.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Display;

use crate::layout::FileType;
use crate::read::{Contents, Error, Image, Inode, Storage, What};

/// An error in an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The path within the image; empty for the image as a whole.
    pub path: Vec<u8>,
    /// A description of the error.
    pub what: String,
}

/// The maximum number of findings reported for one image.
pub const MOST_FINDINGS: usize = 100;

/// Statistics of a check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Looked {
    /// Number of inodes.
    pub inodes: u64,
    /// Total size in bytes of all files.
    pub bytes: u64,
}

/// Checks the image in `storage`, and calls `found` for each error.
pub fn check<S: Storage>(storage: &S, found: &mut dyn FnMut(Finding)) -> Looked
where
    S::Error: Display,
{
    let image = match Image::open(storage) {
        Ok(image) => image,
        Err(error) => {
            let what = format!("{error}");
            found(Finding {
                path: Vec::new(),
                what,
            });
            return Looked::default();
        }
    };
    let mut check = Check {
        image: &image,
        storage,
        found,
        findings: 0,
        met: BTreeMap::new(),
        clusters: BTreeSet::new(),
        looked: Looked::default(),
    };
    check.all();
    check.looked
}

/// An inode that was visited.
struct Met {
    /// Number of names found; for a directory, including its `.` and each `..` that refers to it.
    names: u32,
    links: u32,
    path: Vec<u8>,
    kind: FileType,
}

struct Check<'a, S> {
    image: &'a Image,
    storage: &'a S,
    found: &'a mut dyn FnMut(Finding),
    findings: usize,
    met: BTreeMap<u64, Met>,
    /// Clusters that were decoded: device, offset, and size in bytes encoded and decoded.
    clusters: BTreeSet<(Option<u16>, u64, u32, u32)>,
    looked: Looked,
}

impl<S: Storage> Check<'_, S>
where
    S::Error: Display,
{
    fn all(&mut self) {
        if let Some(packed) = self.image.packed()
            && let Err(error) = self.runs(packed)
        {
            self.tell(b"", format!("in the packed inode: {error}"));
        }
        let root = self.image.root;
        let Some(inode) = self.inode(root, b"/") else {
            return;
        };
        if inode.kind != FileType::Directory {
            return self.tell(b"/", "the root is not a directory");
        }
        // The root's `..` refers to itself and counts as a name.
        let mut pending = Vec::from([(inode, root, Vec::new())]);
        while let Some((dir, parent, path)) = pending.pop() {
            if self.findings >= MOST_FINDINGS {
                return;
            }
            if let Err(error) = self.directory(&dir, parent, &path, &mut pending) {
                let path: &[u8] = if path.is_empty() { b"/" } else { &path };
                self.tell(path, error);
            }
        }
        for met in core::mem::take(&mut self.met).into_values() {
            if met.names != met.links {
                let (has, says) = (met.names, met.links);
                self.tell(
                    &met.path,
                    format!("has {has} links, but its inode says {says}"),
                );
            }
        }
        // Inodes without names may or may not be counted.
        let special = [self.image.packed(), self.image.metabox()];
        let special = special.iter().flatten().count() as u64;
        let (has, says) = (self.looked.inodes, self.image.inodes);
        if !(has..=has + special).contains(&says) {
            self.tell(
                b"",
                format!("has {has} inodes with names, but the superblock says {says}"),
            );
        }
    }

    fn tell(&mut self, path: &[u8], what: impl Display) {
        self.findings += 1;
        if self.findings <= MOST_FINDINGS {
            (self.found)(Finding {
                path: path.to_vec(),
                what: format!("{what}"),
            });
        }
    }

    fn directory(
        &mut self,
        dir: &Inode,
        parent: u64,
        path: &[u8],
        pending: &mut Vec<(Inode, u64, Vec<u8>)>,
    ) -> Result<(), Error<S::Error>> {
        let (image, storage) = (self.image, self.storage);
        let contents = image.contents(storage, dir)?;
        let mut entries = image.entries(storage, &contents, 0);
        let (mut before, mut dots) = (Vec::new(), 0);
        while let Some((entry, _)) = entries.next_entry()? {
            // Unsorted entries could repeat endlessly.
            if entry.name <= &before[..] {
                return Err(Error::Corrupt("names out of order"));
            }
            before = entry.name.to_vec();
            let own = match entry.name {
                b"." => Some(dir.nid),
                b".." => Some(parent),
                _ => None,
            };
            if let Some(own) = own {
                dots += 1;
                if entry.nid != own || entry.kind != FileType::Directory {
                    self.tell(path, "an entry . or .. with a wrong target");
                }
                continue;
            }
            let path = [path, b"/", entry.name].concat();
            if let Some(child) = self.child(entry.nid, entry.kind, &path, dir.nid)
                && child.kind == FileType::Directory
            {
                pending.push((child, dir.nid, path));
            }
            if self.findings >= MOST_FINDINGS {
                return Ok(());
            }
        }
        match dots {
            2 => Ok(()),
            _ => Err(Error::Corrupt("a directory without . or ..")),
        }
    }

    /// Checks the inode of an entry; returns it on the first visit.
    fn child(&mut self, nid: u64, kind: FileType, path: &[u8], parent: u64) -> Option<Inode> {
        if let Some(met) = self.met.get_mut(&nid) {
            met.names = met.names.saturating_add(1);
            let (known, first) = (met.kind, met.path.clone());
            if known == FileType::Directory {
                let first = String::from_utf8_lossy(&first).into_owned();
                self.tell(path, format!("a directory that is also {first}"));
            } else if known != kind {
                self.tell(path, "has another type than its directory entry");
            }
            return None;
        }
        let inode = self.inode(nid, path)?;
        if inode.kind != kind {
            self.tell(path, "has another type than its directory entry");
        }
        if inode.kind == FileType::Directory
            && let Some(parent) = self.met.get_mut(&parent)
        {
            parent.names = parent.names.saturating_add(1);
        }
        Some(inode)
    }

    /// Checks an inode on its first visit.
    fn inode(&mut self, nid: u64, path: &[u8]) -> Option<Inode> {
        let inode = match self.image.inode(self.storage, nid) {
            Ok(inode) => inode,
            Err(error) => {
                self.tell(path, error);
                return None;
            }
        };
        let own = u32::from(inode.kind == FileType::Directory);
        let met = Met {
            names: 1 + own,
            links: inode.links,
            path: path.to_vec(),
            kind: inode.kind,
        };
        self.met.insert(nid, met);
        self.looked.inodes += 1;
        let done = self.xattrs(&inode).and_then(|()| self.contents(&inode));
        if let Err(error) = done {
            self.tell(path, error);
        }
        Some(inode)
    }

    fn xattrs(&self, inode: &Inode) -> Result<(), Error<S::Error>> {
        self.image
            .each_xattr(self.storage, inode, &mut |_, value| value().map(|_| true))
    }

    fn contents(&mut self, inode: &Inode) -> Result<(), Error<S::Error>> {
        match inode.kind {
            FileType::File => self.looked.bytes = self.looked.bytes.saturating_add(inode.size),
            FileType::Symlink | FileType::Directory => {}
            _ => return Ok(()),
        }
        self.runs(&self.image.contents(self.storage, inode)?)
    }

    /// Checks all runs of contents.
    fn runs(&mut self, contents: &Contents) -> Result<(), Error<S::Error>> {
        let (image, storage) = (self.image, self.storage);
        let mut at = 0;
        while at < contents.size() {
            let run = image.map(storage, contents, at)?;
            let end = run.start.saturating_add(run.len).min(contents.size());
            if end <= at {
                return Err(Error::Corrupt(
                    "a mapping of contents that does not advance",
                ));
            }
            match run.what {
                What::Hole => {}
                What::Encoded(cluster) => {
                    let key = (
                        cluster.device,
                        cluster.place,
                        cluster.encoded,
                        cluster.decoded,
                    );
                    if self.clusters.insert(key) {
                        cluster.decode(image, storage)?;
                    }
                }
                // The packed inode was checked as a whole.
                What::Packed(place) => {
                    let whole = image.packed().map_or(0, Contents::size);
                    let ends = place.checked_add(end - run.start);
                    if ends.is_none_or(|ends| ends > whole) {
                        return Err(Error::Corrupt("a fragment beyond the packed inode"));
                    }
                }
                // If the last byte is readable, so are the others.
                What::Stored { .. } | What::Metabox(_) => {
                    image.read(storage, contents, end - 1, &mut [0])?;
                }
            }
            at = end;
        }
        Ok(())
    }
}
