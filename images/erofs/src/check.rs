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
use crate::read::{Contents, Error, Image, Inode, Location, Storage};

/// An error in an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The path within the image; empty for the image as a whole.
    pub path: Vec<u8>,
    /// A description of the error.
    pub message: String,
}

/// The maximum number of findings reported for one image.
pub const MAX_FINDINGS: usize = 100;

/// Statistics of a check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckStats {
    /// Number of inodes.
    pub inodes: u64,
    /// Total size in bytes of all files.
    pub bytes: u64,
}

/// Checks the image in `storage`, and calls `found` for each error.
pub fn check<S: Storage>(storage: &S, found: &mut dyn FnMut(Finding)) -> CheckStats
where
    S::Error: Display,
{
    let image = match Image::open(storage) {
        Ok(image) => image,
        Err(error) => {
            let what = format!("{error}");
            found(Finding {
                path: Vec::new(),
                message: what,
            });
            return CheckStats::default();
        }
    };
    let mut check = Check {
        image: &image,
        storage,
        report: found,
        findings: 0,
        visited: BTreeMap::new(),
        clusters: BTreeSet::new(),
        stats: CheckStats::default(),
    };
    check.run();
    check.stats
}

/// An inode that was visited.
struct VisitedInode {
    /// Number of names found; for a directory, including its `.` and each `..` that refers to it.
    name_count: u32,
    links: u32,
    path: Vec<u8>,
    kind: FileType,
}

struct Check<'a, S> {
    image: &'a Image,
    storage: &'a S,
    report: &'a mut dyn FnMut(Finding),
    findings: usize,
    visited: BTreeMap<u64, VisitedInode>,
    /// Clusters that were decoded: device, offset, and size in bytes encoded and decoded.
    clusters: BTreeSet<(Option<u16>, u64, u32, u32)>,
    stats: CheckStats,
}

impl<S: Storage> Check<'_, S>
where
    S::Error: Display,
{
    fn run(&mut self) {
        if let Some(packed) = self.image.packed()
            && let Err(error) = self.mappings(packed)
        {
            self.report(b"", format!("in the packed inode: {error}"));
        }
        let root = self.image.root;
        let Some(inode) = self.inode(root, b"/") else {
            return;
        };
        if inode.kind != FileType::Directory {
            return self.report(b"/", "the root is not a directory");
        }
        // The root's `..` refers to itself and counts as a name.
        let mut pending = Vec::from([(inode, root, Vec::new())]);
        while let Some((dir, parent, path)) = pending.pop() {
            if self.findings >= MAX_FINDINGS {
                return;
            }
            if let Err(error) = self.directory(&dir, parent, &path, &mut pending) {
                let path: &[u8] = if path.is_empty() { b"/" } else { &path };
                self.report(path, error);
            }
        }
        for met in core::mem::take(&mut self.visited).into_values() {
            if met.name_count != met.links {
                let (has, says) = (met.name_count, met.links);
                self.report(
                    &met.path,
                    format!("has {has} links, but its inode says {says}"),
                );
            }
        }
        // Inodes without names may or may not be counted.
        let special = [self.image.packed(), self.image.metabox()];
        let special = special.iter().flatten().count() as u64;
        let (has, says) = (self.stats.inodes, self.image.inodes);
        if !(has..=has + special).contains(&says) {
            self.report(
                b"",
                format!("has {has} inodes with names, but the superblock says {says}"),
            );
        }
    }

    fn report(&mut self, path: &[u8], what: impl Display) {
        self.findings += 1;
        if self.findings <= MAX_FINDINGS {
            (self.report)(Finding {
                path: path.to_vec(),
                message: format!("{what}"),
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
                    self.report(path, "an entry . or .. with a wrong target");
                }
                continue;
            }
            let path = [path, b"/", entry.name].concat();
            if let Some(child) = self.child(entry.nid, entry.kind, &path, dir.nid)
                && child.kind == FileType::Directory
            {
                pending.push((child, dir.nid, path));
            }
            if self.findings >= MAX_FINDINGS {
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
        if let Some(met) = self.visited.get_mut(&nid) {
            met.name_count = met.name_count.saturating_add(1);
            let (known, first) = (met.kind, met.path.clone());
            if known == FileType::Directory {
                let first = String::from_utf8_lossy(&first).into_owned();
                self.report(path, format!("a directory that is also {first}"));
            } else if known != kind {
                self.report(path, "has another type than its directory entry");
            }
            return None;
        }
        let inode = self.inode(nid, path)?;
        if inode.kind != kind {
            self.report(path, "has another type than its directory entry");
        }
        if inode.kind == FileType::Directory
            && let Some(parent) = self.visited.get_mut(&parent)
        {
            parent.name_count = parent.name_count.saturating_add(1);
        }
        Some(inode)
    }

    /// Checks an inode on its first visit.
    fn inode(&mut self, nid: u64, path: &[u8]) -> Option<Inode> {
        let inode = match self.image.inode(self.storage, nid) {
            Ok(inode) => inode,
            Err(error) => {
                self.report(path, error);
                return None;
            }
        };
        let own = u32::from(inode.kind == FileType::Directory);
        let met = VisitedInode {
            name_count: 1 + own,
            links: inode.links,
            path: path.to_vec(),
            kind: inode.kind,
        };
        self.visited.insert(nid, met);
        self.stats.inodes += 1;
        let done = self.xattrs(&inode).and_then(|()| self.contents(&inode));
        if let Err(error) = done {
            self.report(path, error);
        }
        Some(inode)
    }

    fn xattrs(&self, inode: &Inode) -> Result<(), Error<S::Error>> {
        self.image
            .for_each_xattr(self.storage, inode, &mut |_, value| value().map(|_| true))
    }

    fn contents(&mut self, inode: &Inode) -> Result<(), Error<S::Error>> {
        match inode.kind {
            FileType::File => self.stats.bytes = self.stats.bytes.saturating_add(inode.size),
            FileType::Symlink | FileType::Directory => {}
            _ => return Ok(()),
        }
        self.mappings(&self.image.contents(self.storage, inode)?)
    }

    /// Checks all runs of contents.
    fn mappings(&mut self, contents: &Contents) -> Result<(), Error<S::Error>> {
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
            match run.location {
                Location::Hole => {}
                Location::Encoded(cluster) => {
                    let key = (
                        cluster.device,
                        cluster.offset,
                        cluster.encoded,
                        cluster.decoded,
                    );
                    if self.clusters.insert(key) {
                        cluster.decode(image, storage)?;
                    }
                }
                // The packed inode was checked as a whole.
                Location::Fragment(position) => {
                    let whole = image.packed().map_or(0, Contents::size);
                    let ends = position.checked_add(end - run.start);
                    if ends.is_none_or(|ends| ends > whole) {
                        return Err(Error::Corrupt("a fragment beyond the packed inode"));
                    }
                }
                // If the last byte is readable, so are the others.
                Location::Plain { .. } | Location::Metabox(_) => {
                    image.read(storage, contents, end - 1, &mut [0])?;
                }
            }
            at = end;
        }
        Ok(())
    }
}
