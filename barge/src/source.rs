//! Where trees come from: SOURCE on the command line.

use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use barge_client::source::now;
use hostdir::HostDir;
use layers::{Overlay, ReadOnly, stack};
use rustix::fs::{FlockOperation, flock};
use vfs::{Errno, FileSystem};

use crate::Failure;
use crate::trouble::opening;

/// What a SOURCE argument names.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// What any program can open
    Tree(barge_client::Source),
    /// `refer:/PATH@HOST+HOST…`: another NFS server's, whom clients are sent to
    Referral { path: String, hosts: Vec<String> },
}

/// `NAME=SOURCE`, or a SOURCE alone.
#[derive(Clone, Debug)]
pub(crate) struct Named {
    pub(crate) name: Option<String>,
    pub(crate) source: Source,
}

impl FromStr for Source {
    type Err = String;

    fn from_str(text: &str) -> Result<Source, String> {
        match text.strip_prefix("refer:") {
            Some(place) => referral(place).ok_or_else(|| {
                format!("expected refer:/PATH@HOST or refer:/PATH@HOST+HOST, got '{text}'")
            }),
            None => text
                .parse()
                .map(Source::Tree)
                .map_err(|bad: barge_client::BadSource| bad.to_string()),
        }
    }
}

/// As exports(5) has it behind `refer=`.
fn referral(text: &str) -> Option<Source> {
    let (path, hosts) = text.rsplit_once('@')?;
    let hosts: Vec<String> = hosts.split('+').map(str::to_owned).collect();
    let good = path.starts_with('/') && !hosts.iter().any(String::is_empty);
    good.then(|| Source::Referral {
        path: path.into(),
        hosts,
    })
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Tree(tree) => tree.fmt(f),
            Source::Referral { path, hosts } => write!(f, "refer:{path}@{}", hosts.join("+")),
        }
    }
}

/// Whether `text` is one word, as names of sources are.
pub(crate) fn is_name(text: &str) -> bool {
    let is_of_name = |c: char| c.is_alphanumeric() || "._-".contains(c);
    !text.is_empty() && text.chars().all(is_of_name)
}

impl FromStr for Named {
    type Err = String;

    fn from_str(text: &str) -> Result<Named, String> {
        // Anything else before an equals sign is part of a path or URL.
        match text.split_once('=') {
            Some((name, source)) if is_name(name) => Ok(Named {
                name: Some(name.into()),
                source: source.parse()?,
            }),
            _ => Ok(Named {
                name: None,
                source: text.parse()?,
            }),
        }
    }
}

impl Source {
    /// The same, but it has to be an image, and signed with one of `keys`, if there are any.
    pub(crate) fn signed(self, keys: &[PathBuf]) -> Result<Source, Failure> {
        if keys.is_empty() {
            return Ok(self);
        }
        let signed = match &self {
            Source::Tree(tree) => tree.signed(keys),
            Source::Referral { .. } => None,
        };
        signed
            .map(Source::Tree)
            .ok_or_else(|| Failure::usage(format!("--verify-key: expected an image, got {self}")))
    }

    /// Opens it; `hostdir` says how, if it is a directory of this host.
    pub(crate) fn open(&self, hostdir: hostdir::Options) -> Result<Arc<dyn FileSystem>, Failure> {
        match self {
            Source::Tree(tree) => tree
                .open(hostdir)
                .map_err(|error| Failure::new(format!("{self}: {}", opening(tree, &error)))),
            // What is shown in its place to those who cannot be sent.
            Source::Referral { .. } => Ok(stack(memory::Memory::new(Arc::new(now)), ReadOnly)),
        }
    }
}

/// `fs` below what the directory `dir` has; `hostdir` says how that is opened. It is this process's alone, until that ends.
pub(crate) fn overlaid(
    fs: Arc<dyn FileSystem>,
    dir: &Path,
    hostdir: hostdir::Options,
) -> Result<Arc<dyn FileSystem>, Failure> {
    let failed = |why: &dyn fmt::Display| Failure::new(format!("{}: {why}", dir.display()));
    let own = File::open(dir).map_err(|error| failed(&error))?;
    flock(&own, FlockOperation::NonBlockingLockExclusive)
        .map_err(|_| failed(&"another process has it as its overlay"))?;
    // Closing it would give the lock back.
    std::mem::forget(own);
    let over = HostDir::open(dir, hostdir).map_err(|error| failed(&error))?;
    // It creates directories for clients, and a thread that does has no umask any more.
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
            let named: Named = text.parse().expect(text);
            assert_eq!(
                (named.name, named.source.to_string()),
                (None, shown.to_owned())
            );
        }
        let named: Named = "data=/srv/x=y".parse().expect("a named source");
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
                text.parse::<Named>().expect_err(text).contains("expected"),
                "{text}"
            );
        }
    }
}
