//! Where trees come from: SOURCE on the command line.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use layers::{ReadOnly, stack};
use rustix::process::{getgid, getuid};
use vfs::{FileSystem, Time};

use crate::Failure;

/// What a SOURCE argument names.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// `PATH`, `dir:PATH`
    HostDir(PathBuf),
    /// `mem:`
    Memory,
    /// `9p://…`, `9p+unix:…`, `9p+vsock:…`, `9p+vsock-uds:…`, `nfs://…`, `nfs+unix:…`, `virtiofs:…`
    Remote(remote::Url),
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
        match text.split_once(':') {
            Some(("dir", path)) if !path.is_empty() => Ok(Source::HostDir(path.into())),
            Some(("dir", _)) => Err("expected dir:PATH".into()),
            Some(("mem", "")) => Ok(Source::Memory),
            Some(("refer", place)) => referral(place).ok_or_else(|| {
                format!("expected refer:/PATH@HOST or refer:/PATH@HOST+HOST, got '{text}'")
            }),
            Some(("mem", _)) => Err("expected mem: and nothing behind it".into()),
            Some((scheme, _)) if remote::Url::SCHEMES.contains(&scheme) => text
                .parse()
                .map(Source::Remote)
                .map_err(|error| format!("{error}")),
            Some((scheme, _)) if is_scheme(text, scheme) => Err(format!(
                "expected PATH, dir:PATH, mem:, 9p://HOST, 9p+unix:SOCKET, 9p+vsock:[CID:]PORT, 9p+vsock-uds:PATH:PORT, \
                 nfs://HOST, nfs+unix:SOCKET or virtiofs:SOCKET, \
                 got scheme '{scheme}'"
            )),
            _ if text.is_empty() => Err("expected a path or a URL".into()),
            _ => Ok(Source::HostDir(text.into())),
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

/// Whether the text is a URL rather than a path with a colon in it.
fn is_scheme(text: &str, scheme: &str) -> bool {
    let known = ["image", "s3", "http", "https"];
    known.contains(&scheme) || text[scheme.len()..].starts_with("://")
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::HostDir(path) => path.display().fmt(f),
            Source::Memory => f.write_str("mem:"),
            Source::Remote(url) => url.fmt(f),
            Source::Referral { path, hosts } => write!(f, "refer:{path}@{}", hosts.join("+")),
        }
    }
}

impl FromStr for Named {
    type Err = String;

    fn from_str(text: &str) -> Result<Named, String> {
        // A name is one word; anything else before an equals sign is part of a path or URL.
        let is_name = |name: &str| {
            !name.is_empty()
                && name
                    .chars()
                    .all(|c| c.is_alphanumeric() || "._-".contains(c))
        };
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
    /// Opens it; `hostdir` says how, if it is a directory of this host.
    pub(crate) fn open(&self, hostdir: hostdir::Options) -> Result<Arc<dyn FileSystem>, Failure> {
        let failed = |error: &dyn fmt::Display| Failure::new(format!("{self}: {error}"));
        match self {
            Source::HostDir(path) => {
                let tree = hostdir::HostDir::open(path, hostdir).map_err(|error| failed(&error))?;
                for limit in tree.limits() {
                    tracing::info!("{self}: {limit}");
                }
                Ok(tree)
            }
            // It is whoever's who runs this.
            Source::Memory => Ok(memory::Memory::with(
                Arc::new(now),
                memory::Options {
                    uid: getuid().as_raw(),
                    gid: getgid().as_raw(),
                    ..Default::default()
                },
            )),
            Source::Remote(url) => url.open().map_err(|error| failed(&error)),
            // What is shown in its place to those who cannot be sent.
            Source::Referral { .. } => Ok(stack(memory::Memory::new(Arc::new(now)), ReadOnly)),
        }
    }
}

/// The moment, by this machine's clock.
pub(crate) fn now() -> Time {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Time {
        sec: since.as_secs() as i64,
        nsec: since.subsec_nanos(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_a_path_unless_it_says_otherwise() {
        for (text, shown) in [
            ("/srv", "/srv"),
            ("dir:/srv", "/srv"),
            ("a:b", "a:b"),
            ("./x=y", "./x=y"),
            ("mem:", "mem:"),
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
            "",
            "dir:",
            "mem:x",
            "ftp://h/x",
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
