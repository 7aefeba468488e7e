//! SOURCE[/PATH] on the command line: a tree, and a path in it.

use std::fmt;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use vfs::{Call, Caller, Cx, FileSystem, Groups};

use super::walk::Tree;
use crate::Failure;
use crate::source::Source;

/// What the command line names.
#[derive(Clone, Debug)]
pub(super) struct Place {
    shown: String,
    source: Source,
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Place, String> {
        Ok(Place {
            shown: text.to_owned(),
            source: text.parse()?,
        })
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
    pub(super) fn open(&self) -> Result<(Tree, Vec<u8>), Failure> {
        let failed = |error: &dyn fmt::Display| Failure::new(format!("{self}: {error}"));
        let (fs, path): (Arc<dyn FileSystem>, Vec<u8>) = match &self.source {
            Source::HostDir(path) => {
                let (dir, name) = split(path).map_err(|error| failed(&error))?;
                let dir = Source::HostDir(dir);
                (dir.open(hostdir::Options::default())?, name)
            }
            Source::Remote(url) => {
                let (tree, path) = url.find().map_err(|error| failed(&error))?;
                (tree, path.into_bytes())
            }
            Source::Referral { .. } => {
                return Err(failed(&"only a server refers its clients"));
            }
            other => (other.open(hostdir::Options::default())?, Vec::new()),
        };
        Ok((Tree::new(fs), path))
    }

    /// The last name of what is shown; nothing if it ends otherwise (`.`, `..`, a source's root).
    pub(super) fn name(&self) -> Option<Vec<u8>> {
        let shown = match &self.source {
            Source::HostDir(path) => path.as_os_str().as_bytes(),
            Source::Memory | Source::Referral { .. } => b"",
            Source::Remote(url) => url.path(),
        };
        let name = shown
            .split(|&byte| byte == b'/')
            .rfind(|name| !name.is_empty())?;
        vfs::Name::new(name).ok()?;
        Some(name.to_vec())
    }
}

/// A directory of this host that exists, and the name in it, if `path` is not that directory itself. Links on the
/// way are followed, a link at the end is not.
fn split(path: &Path) -> std::io::Result<(PathBuf, Vec<u8>)> {
    // With a slash behind it, a link to a directory is that directory.
    let whole = path.as_os_str().as_bytes().ends_with(b"/");
    let is_dir = match whole {
        true => fs::metadata(path),
        false => fs::symlink_metadata(path),
    };
    match (is_dir, path.file_name()) {
        (Ok(metadata), _) if metadata.is_dir() => Ok((path.to_owned(), Vec::new())),
        (_, Some(name)) => {
            let dir = match path.parent() {
                Some(dir) if !dir.as_os_str().is_empty() => dir,
                _ => Path::new("."),
            };
            Ok((fs::canonicalize(dir)?, name.as_bytes().to_vec()))
        }
        (Err(error), None) => Err(error),
        (Ok(_), None) => Ok((path.to_owned(), Vec::new())),
    }
}

/// Who this process is, to a file system.
pub(super) fn myself() -> Caller {
    let groups = rustix::process::getgroups().unwrap_or_default();
    Caller {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        groups: Groups::Known(groups.into_iter().map(|gid| gid.as_raw()).collect()),
    }
}

/// Runs `operation` on behalf of this process, for as long as it takes.
pub(super) fn with_cx<T>(caller: &Caller, operation: impl FnOnce(&Cx<'_>) -> T) -> T {
    let call = Call::detached();
    operation(&Cx::new(caller, &call))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_split_at_what_exists() {
        let dir = tempfile::tempdir().expect("a directory");
        let base = fs::canonicalize(dir.path()).expect("a path");
        fs::create_dir(base.join("sub")).expect("made");
        std::os::unix::fs::symlink("sub", base.join("link")).expect("made");
        let slash = PathBuf::from(format!("{}/link/", base.display()));
        for (path, expected) in [
            (base.join("sub"), (base.join("sub"), &b""[..])),
            (base.join("sub/new"), (base.join("sub"), b"new")),
            (base.join("link"), (base.clone(), b"link")),
            (base.join("link/new"), (base.join("sub"), b"new")),
            (slash.clone(), (slash, b"")),
        ] {
            let (dir, name) = split(&path).expect("split");
            assert_eq!((dir, &name[..]), expected, "{}", path.display());
        }
        assert!(split(&base.join("none/new")).is_err());
    }

    #[test]
    fn the_last_name_is_what_is_copied_to() {
        for (text, name) in [
            ("/a/b/", Some("b")),
            ("file", Some("file")),
            (".", None),
            ("a/..", None),
            ("/", None),
            ("mem:", None),
            ("9p://h/srv/x", Some("x")),
            ("9p://h/", None),
            ("9p://h/d/f?aname=/srv", Some("f")),
            ("nfs://h/srv/x?vers=3", Some("x")),
            ("nfs://h", None),
        ] {
            let place: Place = text.parse().expect(text);
            assert_eq!(place.name().as_deref(), name.map(str::as_bytes), "{text}");
        }
    }
}
