//! SOURCE on the command line.

use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use hostdir::HostDir;
use layers::{Overlay, ReadOnly, stack};
use rustix::fs::{FlockOperation, flock};
use sources::now;
use vfs::{BadLocation, Errno, FileSystem, Location};

use crate::diagnose::open_error;
use crate::{Failure, confinement};

/// The value of a SOURCE argument.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// A tree that the client library can open.
    Tree(sources::Source),
    /// `refer:/PATH@HOST+HOST…`: an NFSv4 referral to another server.
    Referral(Location),
}

/// The source that is served if none is given: the current directory.
pub(crate) const DEFAULT_SOURCE: &str = ".";

/// `NAME=SOURCE`, or a SOURCE without a name.
#[derive(Clone, Debug)]
pub(crate) struct NamedSource {
    pub(crate) name: Option<String>,
    pub(crate) source: Source,
}

impl FromStr for Source {
    type Err = String;

    fn from_str(text: &str) -> Result<Source, String> {
        match text.strip_prefix("refer:") {
            Some(location) => location
                .parse()
                .map(Source::Referral)
                .map_err(|BadLocation| {
                    format!("expected refer:/PATH@HOST or refer:/PATH@HOST+HOST, got '{text}'")
                }),
            None => text
                .parse()
                .map(Source::Tree)
                .map_err(|bad: sources::BadSource| bad.to_string()),
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Tree(tree) => tree.fmt(f),
            Source::Referral(location) => write!(f, "refer:{location}"),
        }
    }
}

/// Returns whether `text` is valid as the name of a source: letters, digits, `.`, `_` and `-`.
pub(crate) fn is_name(text: &str) -> bool {
    let is_of_name = |c: char| c.is_alphanumeric() || "._-".contains(c);
    !text.is_empty() && text.chars().all(is_of_name)
}

impl FromStr for NamedSource {
    type Err = String;

    fn from_str(text: &str) -> Result<NamedSource, String> {
        // An equals sign after any other text is part of a path or URL.
        match text.split_once('=') {
            Some((name, source)) if is_name(name) => Ok(NamedSource {
                name: Some(name.into()),
                source: source.parse()?,
            }),
            _ => Ok(NamedSource {
                name: None,
                source: text.parse()?,
            }),
        }
    }
}

impl Source {
    /// Returns the source with a signature by one of `keys` required, if there are any. Returns an
    /// error unless it is an image.
    pub(crate) fn require_signature(self, keys: &[PathBuf]) -> Result<Source, Failure> {
        if keys.is_empty() {
            return Ok(self);
        }
        let signed = self.tree().and_then(|tree| tree.require_signature(keys));
        signed
            .map(Source::Tree)
            .ok_or_else(|| Failure::usage(format!("--verify-key: expected an image, got {self}")))
    }

    /// Returns the source with a signature of cosign by one of `keys` required, if there are any.
    /// Returns an error unless it is an image in a registry.
    pub(crate) fn require_cosign_signature(self, keys: &[PathBuf]) -> Result<Source, Failure> {
        if keys.is_empty() {
            return Ok(self);
        }
        let signed = self
            .tree()
            .and_then(|tree| tree.require_cosign_signature(keys));
        signed.map(Source::Tree).ok_or_else(|| {
            let expected = "expected an image in a registry";
            Failure::usage(format!("--cosign-key: {expected}, got {self}"))
        })
    }

    /// Returns the tree, unless the source is a referral.
    pub(crate) fn tree(&self) -> Option<&sources::Source> {
        match self {
            Source::Tree(tree) => Some(tree),
            Source::Referral(_) => None,
        }
    }

    /// Returns whether the source is on another server.
    pub(crate) fn connects(&self) -> bool {
        self.tree().is_some_and(confinement::connects)
    }

    /// Returns the paths of this host that the source consists of, whether or not they exist.
    pub(crate) fn host_paths(&self) -> Vec<PathBuf> {
        let paths = self.tree().and_then(sources::Source::host_paths);
        paths.unwrap_or_default()
    }

    /// Returns an error if a path of this host that the source consists of does not exist. Its
    /// message may have the names beside it, which a confined process does not see.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        let Some(tree) = self.tree() else {
            return Ok(());
        };
        for path in self.host_paths() {
            path.metadata()
                .map_err(|error| Failure::new(format!("{self}: {}", open_error(tree, &error))))?;
        }
        Ok(())
    }

    /// Opens the source. `hostdir` has the options for a directory of this host.
    pub(crate) fn open(&self, hostdir: hostdir::Options) -> Result<Arc<dyn FileSystem>, Failure> {
        match self {
            Source::Tree(tree) => tree
                .open(hostdir)
                .map_err(|error| Failure::new(format!("{self}: {}", open_error(tree, &error)))),
            // The tree for clients without referrals: an empty directory.
            Source::Referral(_) => Ok(stack(memory::Memory::new(Arc::new(now)), ReadOnly)),
        }
    }
}

/// Returns a writable overlay of `fs` whose changes are stored in the directory `dir`, which is
/// opened with the options `hostdir`. The directory is locked for this process until it exits.
pub(crate) fn open_overlay(
    fs: Arc<dyn FileSystem>,
    dir: &Path,
    hostdir: hostdir::Options,
) -> Result<Arc<dyn FileSystem>, Failure> {
    let failed = |why: &dyn fmt::Display| Failure::new(format!("{}: {why}", dir.display()));
    let own = File::open(dir).map_err(|error| failed(&error))?;
    flock(&own, FlockOperation::NonBlockingLockExclusive)
        .map_err(|_| failed(&"another process uses it as an overlay"))?;
    // Closing it would release the lock.
    std::mem::forget(own);
    let over = HostDir::open(dir, hostdir).map_err(|error| failed(&error))?;
    // The overlay creates directories for clients, and a thread that does so loses its umask.
    let made = std::thread::scope(|scope| scope.spawn(|| Overlay::new(fs, over)).join());
    match made.map_err(|_| failed(&"a thread panicked"))? {
        Ok(overlay) => Ok(overlay),
        Err(Errno::EOPNOTSUPP) => Err(failed(
            &"expected a file system with extended attributes, got one without",
        )),
        Err(errno) => Err(failed(&errno)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_may_have_a_name() {
        for (text, shown) in [
            ("./x=y", "./x=y"),
            ("refer:/a/b@h1+10.0.0.1", "refer:/a/b@h1+10.0.0.1"),
        ] {
            let named: NamedSource = text.parse().expect(text);
            assert_eq!(
                (named.name, named.source.to_string()),
                (None, shown.to_owned())
            );
        }
        let named: NamedSource = "data=/srv/x=y".parse().expect("a named source");
        assert_eq!(named.name.as_deref(), Some("data"));
        assert_eq!(named.source.to_string(), "/srv/x=y");
    }

    #[test]
    fn what_is_no_source_says_what_was_expected() {
        for text in [
            "name=mem:x",
            "refer:a@h",
            "refer:/a",
            "refer:/a@",
            "refer:/a@h+",
        ] {
            assert!(
                text.parse::<NamedSource>()
                    .expect_err(text)
                    .contains("expected"),
                "{text}"
            );
        }
    }
}
