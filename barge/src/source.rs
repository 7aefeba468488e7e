//! SOURCE on the command line.

use std::cell::RefCell;
use std::fmt;
use std::fs::File;
use std::io;
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

/// The scheme of referrals.
const REFERRAL: &str = "refer:";

/// The source that is served if none is given: the current directory.
pub(crate) const DEFAULT_SOURCE: &str = ".";

/// The text of a source as an administrator wrote it, with all parameters, which may be secrets.
///
/// Configurations, requests and other processes get it, to parse it again. It is never shown, and
/// so has no `Display`; [`Source::shown`] is for people, and cannot become such a text.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Written(String);

impl Written {
    /// Parses a source.
    pub(crate) fn parse(text: &str) -> Result<(Written, Source), String> {
        Ok((Written(text.to_owned()), text.parse()?))
    }

    /// Returns the text for a parser.
    pub(crate) fn for_parser(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Written")
    }
}

/// The argument `NAME=SOURCE`, or a SOURCE without a name.
#[derive(Clone, Debug)]
pub(crate) struct SourceArg {
    pub(crate) name: Option<String>,
    /// The source as it was written, and parsed.
    pub(crate) source: (Written, Source),
}

/// A source, and its name if it has one.
#[derive(Clone, Debug)]
pub(crate) struct NamedSource {
    pub(crate) name: Option<String>,
    pub(crate) source: Source,
}

impl FromStr for Source {
    type Err = String;

    fn from_str(text: &str) -> Result<Source, String> {
        match text.strip_prefix(REFERRAL) {
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

/// A source as people see it, in logs, listings and errors: without parameters.
pub(crate) struct Shown<'a>(&'a Source);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Source::Tree(tree) => tree.fmt(f),
            Source::Referral(location) => write!(f, "{REFERRAL}{location}"),
        }
    }
}

/// Returns whether `text` is valid as the name of a source: letters, digits, `.`, `_` and `-`.
pub(crate) fn is_name(text: &str) -> bool {
    let is_of_name = |c: char| c.is_alphanumeric() || "._-".contains(c);
    !text.is_empty() && text.chars().all(is_of_name)
}

impl FromStr for SourceArg {
    type Err = String;

    fn from_str(text: &str) -> Result<SourceArg, String> {
        let (name, text) = SourceArg::split(text);
        Ok(SourceArg {
            name: name.map(str::to_owned),
            source: Written::parse(text)?,
        })
    }
}

impl SourceArg {
    /// Returns `text`, such an argument, with absolute paths of this host: relative ones begin in
    /// the directory `dir`.
    pub(crate) fn absolute(text: &str, dir: &Path) -> Result<String, String> {
        let (name, text) = SourceArg::split(text);
        let source = Source::absolute(text, dir)?;
        Ok(name.map_or_else(|| source.clone(), |name| format!("{name}={source}")))
    }

    /// Splits `text` into the name, if there is one, and the source.
    pub(crate) fn split(text: &str) -> (Option<&str>, &str) {
        // An equals sign after any other text is part of a path or URL.
        match text.split_once('=') {
            Some((name, source)) if is_name(name) => (Some(name), source),
            _ => (None, text),
        }
    }
}

impl Source {
    /// Does [`sources::Source::absolute`]; a referral has no paths of this host.
    pub(crate) fn absolute(text: &str, dir: &Path) -> Result<String, String> {
        match text.starts_with(REFERRAL) {
            true => Ok(text.to_owned()),
            false => sources::Source::absolute(text, dir).map_err(|bad| bad.to_string()),
        }
    }

    /// Returns the source as people see it.
    pub(crate) fn shown(&self) -> Shown<'_> {
        Shown(self)
    }

    /// Returns the source with a signature by one of `keys` required, if there are any. Returns an
    /// error unless it is an image.
    pub(crate) fn require_signature(self, keys: &[PathBuf]) -> Result<Source, Failure> {
        if keys.is_empty() {
            return Ok(self);
        }
        let signed = self.tree().and_then(|tree| tree.require_signature(keys));
        signed.map(Source::Tree).ok_or_else(|| {
            Failure::usage(format!(
                "--verify-key: expected an image, got {}",
                self.shown()
            ))
        })
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
            Failure::usage(format!("--cosign-key: {expected}, got {}", self.shown()))
        })
    }

    /// Returns the same source, whose paths of this host are those that `here` returns for them.
    pub(crate) fn moved(&self, here: impl Fn(&Path) -> PathBuf) -> Source {
        match self {
            Source::Tree(tree) => Source::Tree(tree.moved(here)),
            Source::Referral(location) => Source::Referral(location.clone()),
        }
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

    /// Returns the paths of this host in the source as it was written, without looking at them.
    pub(crate) fn written_paths(&self) -> Vec<PathBuf> {
        let paths = RefCell::new(Vec::new());
        self.moved(|path| {
            paths.borrow_mut().push(path.to_owned());
            path.to_owned()
        });
        paths.into_inner()
    }

    /// Returns an error if a path of this host that the source consists of does not exist.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        for path in self.host_paths() {
            path.metadata().map_err(|error| self.failed(&error))?;
        }
        Ok(())
    }

    /// Returns the failure to open the source. Its message may have the names beside a path, which
    /// a confined process does not see.
    pub(crate) fn failed(&self, error: &io::Error) -> Failure {
        let why = self.tree().map(|tree| open_error(tree, error));
        let why = why.unwrap_or_else(|| error.to_string());
        Failure::new(format!("{}: {why}", self.shown()))
    }

    /// Opens the source. `hostdir` has the options for a directory of this host.
    pub(crate) fn open(&self, hostdir: hostdir::Options) -> Result<Arc<dyn FileSystem>, Failure> {
        self.open_at(self, hostdir)
    }

    /// Opens the source by the paths of `here`, the same source as this process reaches it.
    pub(crate) fn open_at(
        &self,
        here: &Source,
        hostdir: hostdir::Options,
    ) -> Result<Arc<dyn FileSystem>, Failure> {
        match here {
            Source::Tree(tree) => tree.open(hostdir).map_err(|error| self.failed(&error)),
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
    let shown = hostdir.shown_path.as_deref().unwrap_or(dir).to_owned();
    let failed = |why: &dyn fmt::Display| Failure::new(format!("{}: {why}", shown.display()));
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
            let arg: SourceArg = text.parse().expect(text);
            assert_eq!(
                (arg.name, arg.source.1.shown().to_string()),
                (None, shown.to_owned())
            );
        }
        let arg: SourceArg = "data=/srv/x=y".parse().expect("a named source");
        assert_eq!(arg.name.as_deref(), Some("data"));
        assert_eq!(arg.source.1.shown().to_string(), "/srv/x=y");
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
                text.parse::<SourceArg>()
                    .expect_err(text)
                    .contains("expected"),
                "{text}"
            );
        }
    }
}
