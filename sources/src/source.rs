//! SOURCE: what a program opens, in the syntax of `barge`'s command line.

#[cfg(target_os = "linux")]
mod absolute;
#[cfg(target_os = "linux")]
mod images_of_servers;
#[cfg_attr(not(target_os = "linux"), path = "source/stdfs.rs")]
mod local;

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::SystemTime;

use remote::ConnectError;
use vfs::{FileSystem, Time};

use crate::images::Image;
use crate::stores::{object, objects, registry, registry_image};
use crate::{suggest, system};

pub use self::local::Options as LocalOptions;
pub use self::local::options as local_options;

/// The location of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// `PATH`, `dir:PATH`: a directory of this host or, if the path is or leads into a file, an
    /// image as below.
    HostDir(PathBuf),
    /// `image:PATH`: an image of a file system, in a file or a block device.
    Image(Image),
    /// `s3://…`, `gs://…`, `az://…`, `http://…`, `https://…`: an image of a file system that is an
    /// object in a store.
    Object(objects::Url),
    /// `oci://HOST/REPOSITORY…`: an image in an OCI registry.
    Registry(registry::Url),
    /// `mem:`: a tree in memory, initially empty.
    Memory,
    /// `9p://…`, `9p+unix:…`, `9p+vsock:…`, `9p+vsock-uds:…`, `9p+virtio:…`, `nfs://…`,
    /// `nfs+unix:…`, `virtiofs:…`: a tree of another server.
    Remote(Box<remote::Url>),
}

/// The error for a text that is not a [`Source`]: states the expected form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadSource(String);

impl fmt::Display for BadSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadSource {}

impl FromStr for Source {
    type Err = BadSource;

    fn from_str(text: &str) -> Result<Source, BadSource> {
        let bad = |what: &dyn fmt::Display| BadSource(what.to_string());
        match text.split_once(':') {
            Some(("dir", path)) if !path.is_empty() => Ok(Source::HostDir(path.into())),
            Some(("dir", _)) => Err(bad(&"expected dir:PATH")),
            Some(("image", url)) if is_object(url) || is_registry(url) => url.parse(),
            Some(("image", path)) if !path.is_empty() => Ok(Source::Image(Image::parse(path))),
            Some(("image", _)) => Err(bad(&"expected image:PATH")),
            Some(("mem", "")) => Ok(Source::Memory),
            Some(("mem", _)) => Err(bad(&"expected mem: without a path")),
            Some((scheme, _)) if remote::Url::SCHEMES.contains(&scheme) => {
                let url = text.parse().map(|url| Source::Remote(Box::new(url)));
                url.map_err(|error: remote::BadUrl| bad(&error))
            }
            Some(_) if is_object(text) => {
                let url = text.parse().map(Source::Object);
                url.map_err(|error: objects::BadUrl| bad(&error))
            }
            Some(_) if is_registry(text) => {
                let url = text.parse().map(Source::Registry);
                url.map_err(|error: registry::BadUrl| bad(&error))
            }
            Some((scheme, rest)) if is_scheme(text, scheme) && similar_scheme(scheme).is_some() => {
                let close = similar_scheme(scheme).unwrap_or_default();
                // The part after a question mark may be a secret.
                let rest = rest.split('?').next().unwrap_or_default();
                Err(bad(&format_args!(
                    "unknown scheme '{scheme}'; did you mean '{close}:{rest}'?"
                )))
            }
            Some((scheme, _)) if is_scheme(text, scheme) => Err(bad(&format_args!(
                "expected PATH, dir:PATH, image:PATH, mem:, 9p://HOST, 9p+unix:SOCKET, 9p+vsock:[CID:]PORT, 9p+vsock-uds:PATH:PORT, \
                 9p+virtio:SOCKET, nfs://HOST, nfs+unix:SOCKET, virtiofs:SOCKET, s3://BUCKET/KEY, gs://BUCKET/KEY, az://CONTAINER/KEY, \
                 http://HOST/PATH, https://HOST/PATH or oci://HOST/REPOSITORY, \
                 got scheme '{scheme}'"
            ))),
            _ if text.is_empty() => Err(bad(&"expected a path or a URL")),
            _ => Ok(Source::HostDir(text.into())),
        }
    }
}

/// Returns whether the text is a URL rather than a path with a colon in it.
fn is_scheme(text: &str, scheme: &str) -> bool {
    text[scheme.len()..].starts_with("://")
}

/// Returns the known scheme that is most similar to a mistyped one, if any is.
fn similar_scheme(scheme: &str) -> Option<&'static str> {
    suggest(
        scheme,
        [
            remote::Url::SCHEMES,
            objects::Url::SCHEMES,
            &[registry::Url::SCHEME],
        ]
        .concat(),
    )
}

/// Returns whether the text is the URL of an object.
fn is_object(text: &str) -> bool {
    let scheme = text.split_once("://").map(|(scheme, _)| scheme);
    scheme.is_some_and(|scheme| objects::Url::SCHEMES.contains(&scheme))
}

/// Returns whether the text is the URL of an image in a registry.
fn is_registry(text: &str) -> bool {
    let scheme = text.split_once("://").map(|(scheme, _)| scheme);
    scheme == Some(registry::Url::SCHEME)
}

/// Shows the source to people. Parameters, which may be secrets, are omitted: other processes need
/// the text that was parsed.
impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::HostDir(path) => path.display().fmt(f),
            Source::Image(image) => image.fmt(f),
            Source::Object(url) => url.fmt(f),
            Source::Registry(url) => url.fmt(f),
            Source::Memory => f.write_str("mem:"),
            Source::Remote(url) => url.fmt(f),
        }
    }
}

impl Source {
    /// Opens the whole path or URL; `local` applies to directories of this host. Errors have a
    /// message of one line, and the closest kind.
    pub fn open(&self, local: LocalOptions) -> io::Result<Arc<dyn FileSystem>> {
        match self {
            Source::HostDir(path) => {
                if let Some(image) = Image::locate(path) {
                    return image.open();
                }
                local::open(path, local)
            }
            Source::Image(image) => image.open(),
            Source::Object(url) => object::open(url),
            Source::Registry(url) => registry_image::open(url),
            // Owned by the user who runs this program.
            Source::Memory => {
                let (uid, gid) = local::owner();
                let options = memory::Options {
                    uid,
                    gid,
                    ..Default::default()
                };
                Ok(memory::Memory::with_options(Arc::new(now), options))
            }
            Source::Remote(url) => url.open().map_err(connect_error),
        }
    }

    /// Opens the tree that contains the path or URL, and returns the path within the tree, which is
    /// empty for its root. The file need not exist, but its directory must.
    pub fn find(&self) -> io::Result<(Arc<dyn FileSystem>, Vec<u8>)> {
        let local = local_options();
        match self {
            Source::HostDir(path) => {
                if let Some(image) = Image::enclosing(path) {
                    return image.find();
                }
                let (dir, name) = split(path)?;
                Ok((Source::HostDir(dir).open(local)?, name))
            }
            Source::Image(image) => image.find(),
            Source::Object(url) => object::find(url),
            Source::Registry(url) => registry_image::find(url),
            Source::Remote(url) => {
                let (tree, path) = url.find().map_err(connect_error)?;
                Ok((tree, path.into_bytes()))
            }
            Source::Memory => Ok((self.open(local)?, Vec::new())),
        }
    }

    /// Returns an error if the URL of an image in a registry leads into the image.
    pub fn expect_whole(&self) -> io::Result<()> {
        match self {
            Source::Registry(url) => registry_image::expect_whole(url),
            _ => Ok(()),
        }
    }

    /// Returns whether the source is an image, on this host or another server.
    pub fn is_image(&self) -> bool {
        self.image().is_some() || self.is_remote_image()
    }

    /// Returns whether the source is an image on another server: in an object store or a registry.
    pub fn is_remote_image(&self) -> bool {
        matches!(self, Source::Object(_) | Source::Registry(_))
    }

    /// The image in a file, if the path is one or leads into one.
    pub fn image(&self) -> Option<Image> {
        match self {
            Source::HostDir(path) => Image::locate(path),
            Source::Image(image) => Some(image.clone()),
            Source::Object(_) | Source::Registry(_) | Source::Memory | Source::Remote(_) => None,
        }
    }

    /// Whether the source takes a connection to a server.
    pub fn connects(&self) -> bool {
        match self {
            Source::HostDir(_) | Source::Image(_) | Source::Memory => false,
            Source::Object(_) | Source::Registry(_) | Source::Remote(_) => true,
        }
    }

    /// The paths of this host that the source consists of, whether or not they exist, or `None` if
    /// it takes a connection to a server. Looks whether a path leads into a file, which takes as
    /// long as its file system hangs.
    pub fn host_paths(&self) -> Option<Vec<PathBuf>> {
        match self {
            Source::HostDir(path) => Some(match Image::locate(path) {
                Some(image) => image.host_paths(),
                None => vec![path.clone()],
            }),
            Source::Image(image) => Some(image.host_paths()),
            Source::Memory => Some(Vec::new()),
            Source::Object(_) | Source::Registry(_) | Source::Remote(_) => None,
        }
    }

    /// The same source, whose paths of this host are those that `here` returns for them.
    pub fn moved(&self, here: impl Fn(&Path) -> PathBuf) -> Source {
        match self {
            Source::HostDir(path) => Source::HostDir(here(path)),
            Source::Image(image) => Source::Image(image.moved(here)),
            other => other.clone(),
        }
    }

    /// The image, if the path is that of a bare image file, as for programs that show trees; `None`
    /// otherwise, also for paths that lead into images.
    pub fn probe_image(&self) -> Option<Source> {
        match self {
            Source::HostDir(path) => Image::probe(path).map(Source::Image),
            _ => None,
        }
    }

    /// The last component of the path, or `None` if that is not a name (`.`, `..`, a source's
    /// root).
    pub fn name(&self) -> Option<Vec<u8>> {
        let local = |path: &'_ Path| system::tree_path(path).into_owned();
        let path = match self {
            Source::HostDir(path) => local(path),
            Source::Image(image) => local(image.path()),
            Source::Object(url) => url.path().to_vec(),
            Source::Registry(url) => url.name().as_bytes().to_vec(),
            Source::Memory => Vec::new(),
            Source::Remote(url) => url.path().to_vec(),
        };
        let name = path
            .split(|&byte| byte == b'/')
            .rfind(|name| !name.is_empty())?;
        vfs::Name::new(name).ok()?;
        Some(name.to_vec())
    }
}

fn connect_error(error: ConnectError) -> io::Error {
    io::Error::new(io::Error::from(error.errno()).kind(), error)
}

/// Splits `path` into an existing directory of this host and a name in it, which is empty if `path`
/// is that directory. Symbolic links are followed except at the end.
fn split(path: &Path) -> io::Result<(PathBuf, Vec<u8>)> {
    // With a trailing slash, a link to a directory counts as that directory.
    let whole = system::tree_path(path).ends_with(b"/");
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
            Ok((fs::canonicalize(dir)?, name.as_encoded_bytes().to_vec()))
        }
        (Err(error), None) => Err(error),
        (Ok(_), None) => Ok((path.to_owned(), Vec::new())),
    }
}

/// The current time of the system clock.
pub fn now() -> Time {
    SystemTime::now().into()
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
            ("s3://b/d/image?region=x", Some("image")),
            ("oci://h/a/image:tag", Some("image")),
            ("oci://h/a/image:tag/etc/x?plain_http=true", Some("x")),
        ] {
            let source: Source = text.parse().expect(text);
            assert_eq!(source.name().as_deref(), name.map(str::as_bytes), "{text}");
        }
    }

    #[test]
    fn a_source_is_a_path_unless_it_says_otherwise() {
        for (text, shown) in [
            ("/srv", "/srv"),
            ("dir:/srv", "/srv"),
            ("a:b", "a:b"),
            ("./x=y", "./x=y"),
            ("mem:", "mem:"),
            ("image:/a.erofs/usr", "image:/a.erofs/usr"),
            ("image:a?device=b&device=c", "image:a?device=b&device=c"),
            ("image:s3://b/k", "s3://b/k"),
            ("https://h/k?signature=x", "https://h/k"),
            ("gs:k", "gs:k"),
            ("oci://h:1/a/b:t/x?plain_http=true", "oci://h:1/a/b:t/x"),
            ("image:oci://h/a", "oci://h/a"),
        ] {
            let source: Source = text.parse().expect(text);
            assert_eq!(source.to_string(), shown);
        }
        for text in [
            "",
            "dir:",
            "image:",
            "mem:x",
            "ftp://h/x",
            "s3://b",
            "oci://h",
        ] {
            let bad = text.parse::<Source>().expect_err(text).to_string();
            assert!(bad.contains("expected"), "{bad}");
        }
        for (text, close) in [
            ("nsf://h/x", "did you mean 'nfs://h/x'?"),
            ("9P://h", "did you mean '9p://h'?"),
            ("htps://h/x", "did you mean 'https://h/x'?"),
            ("htps://h/x?sig=y", "did you mean 'https://h/x'?"),
            ("virtio-fs://s", "did you mean 'virtiofs://s'?"),
            ("oic://h/x", "did you mean 'oci://h/x'?"),
            ("smb://h/x", "got scheme 'smb'"),
        ] {
            let bad = text.parse::<Source>().expect_err(text).to_string();
            assert!(bad.ends_with(close), "{bad}");
        }
    }
}
