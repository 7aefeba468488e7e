//! SOURCE[/PATH] on the command line: a tree, and a path in it.

use std::fmt;
use std::str::FromStr;

use sources::{BadSource, Source, Tree};

use crate::Failure;
use crate::diagnose::open_error;
use crate::disk_cache::DiskCacheArgs;

/// A SOURCE[/PATH] argument.
#[derive(Clone, Debug)]
pub(super) struct Operand {
    shown: String,
    source: Source,
}

impl FromStr for Operand {
    type Err = BadSource;

    fn from_str(text: &str) -> Result<Operand, BadSource> {
        let source: Source = text.parse()?;
        let shown = match source.is_remote_image() {
            // Options of the URL may be secrets.
            true => source.to_string(),
            false => text.to_owned(),
        };
        Ok(Operand { shown, source })
    }
}

impl fmt::Display for Operand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl Operand {
    /// Opens the tree. Returns it with the path in it, which is empty for its root. The file need
    /// not exist, but its directory must.
    pub(super) fn open(&self, disk_cache: &DiskCacheArgs) -> Result<(Tree, Vec<u8>), Failure> {
        let found = disk_cache.apply(&self.source).find();
        let failed = |error| Failure::new(format!("{self}: {}", open_error(&self.source, &error)));
        let (fs, path) = found.map_err(failed)?;
        Ok((Tree::new(fs), path))
    }

    /// [`Operand::open`] for commands that show trees: an image is opened as its tree, unless it is
    /// named with `dir:`.
    pub(super) fn open_tree(&self, disk_cache: &DiskCacheArgs) -> Result<(Tree, Vec<u8>), Failure> {
        match self.source.probe_image() {
            Some(source) if !self.shown.starts_with("dir:") => Operand {
                shown: self.shown.clone(),
                source,
            }
            .open(disk_cache),
            _ => self.open(disk_cache),
        }
    }

    pub(super) fn source(&self) -> &Source {
        &self.source
    }

    /// Returns the last name of the path, or `None` if there is none (`.`, `..`, the root of a
    /// source).
    pub(super) fn name(&self) -> Option<Vec<u8>> {
        self.source.name()
    }
}
