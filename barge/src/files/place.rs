//! SOURCE[/PATH] on the command line: a tree, and a path in it.

use std::fmt;
use std::str::FromStr;

use barge_client::tree::Tree;
use barge_client::{BadSource, Source};

use crate::Failure;
use crate::tier::TierArgs;
use crate::trouble::opening;

/// What the command line names.
#[derive(Clone, Debug)]
pub(super) struct Place {
    shown: String,
    source: Source,
}

impl FromStr for Place {
    type Err = BadSource;

    fn from_str(text: &str) -> Result<Place, BadSource> {
        let source: Source = text.parse()?;
        let shown = match &source {
            // Its options may be secrets.
            Source::Object(url) => url.to_string(),
            _ => text.to_owned(),
        };
        Ok(Place { shown, source })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl Place {
    /// Opens the tree it is in, and says where in it: an empty path is the tree's root. What it names need not
    /// exist, the directory it would be in must.
    pub(super) fn open(&self, tier: &TierArgs) -> Result<(Tree, Vec<u8>), Failure> {
        let found = tier.apply(&self.source).find();
        let told = |error| Failure::new(format!("{self}: {}", opening(&self.source, &error)));
        let (fs, path) = found.map_err(told)?;
        Ok((Tree::new(fs), path))
    }

    /// [`Place::open`] for a command that shows trees: the file of an image stands for the tree in
    /// it, unless it is named with `dir:`.
    pub(super) fn open_tree(&self, tier: &TierArgs) -> Result<(Tree, Vec<u8>), Failure> {
        match self.source.bare_image() {
            Some(source) if !self.shown.starts_with("dir:") => Place {
                shown: self.shown.clone(),
                source,
            }
            .open(tier),
            _ => self.open(tier),
        }
    }

    /// The last name of what is shown; nothing if it ends otherwise (`.`, `..`, a source's root).
    pub(super) fn name(&self) -> Option<Vec<u8>> {
        self.source.name()
    }
}
