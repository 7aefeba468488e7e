//! URLs of virtiofs servers.

use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use vfs::Errno;

use super::channel::Options;
use super::fs::RemoteFuse;
use crate::url::{BadUrl, bytes, decode, in_flight};
use crate::{ConnectError, Timeouts};

/// A virtiofs server such as virtiofsd: `virtiofs:SOCKET`, optionally followed by a path in its
/// tree, and `?` with parameters: `max_write=SIZE`, the most that a request reads or writes;
/// `inflight=SIZE`, the most of one read or write in flight; `soft` and `timeo=TENTHS`, for a
/// server that does not answer ([`Timeouts`]); and `hard`, to wait forever. Percent-encoding is
/// decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    path: PathBuf,
    /// The timeouts for a server that does not answer.
    pub timeouts: Timeouts,
    /// See [`Options`].
    max_write: Option<usize>,
    in_flight: Option<usize>,
}

impl Url {
    pub(crate) fn parse(text: &str, rest: &str) -> Result<Url, BadUrl> {
        Url::read(rest).map_err(|expected| BadUrl::new(text, &expected))
    }

    /// Does [`Url::parse`] with an error that states the expected form.
    fn read(text: &str) -> Result<Url, String> {
        let (socket, query) = text.split_once('?').unwrap_or((text, ""));
        if socket.is_empty() {
            return Err("virtiofs:SOCKET".into());
        }
        let mut url = Url {
            path: decode(socket)?.into(),
            timeouts: Timeouts::default(),
            max_write: None,
            in_flight: None,
        };
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            let value = decode(value)?;
            match name {
                "max_write" => url.max_write = Some(max_write(&value)?),
                "inflight" => url.in_flight = Some(in_flight(&value)?),
                "timeo" => url.timeouts.timeo = Timeouts::timeo(&value)?,
                "soft" if value.is_empty() => url.timeouts.soft = true,
                "hard" if value.is_empty() => url.timeouts.soft = false,
                _ => {
                    return Err(format!(
                        "max_write=, inflight=, timeo=, soft or hard, not '{name}'"
                    ));
                }
            }
        }
        Ok(url)
    }

    /// Mounts the device at the socket.
    pub fn connect(&self) -> Result<Arc<RemoteFuse>, ConnectError> {
        self.mount(&self.path)
    }

    /// Mounts the device at the socket that the path begins with, and returns the rest of the path.
    pub fn find(&self) -> Result<(Arc<RemoteFuse>, String), ConnectError> {
        let is_socket = |path: &&Path| {
            let metadata = std::fs::metadata(path);
            metadata.is_ok_and(|metadata| {
                std::os::unix::fs::FileTypeExt::is_socket(&metadata.file_type())
            })
        };
        let socket = self.path.ancestors().find(is_socket);
        let socket = socket.unwrap_or(&self.path);
        let path = self.path.strip_prefix(socket).unwrap_or(Path::new(""));
        // The conversion is lossless: the path was decoded from text.
        Ok((self.mount(socket)?, path.to_string_lossy().into_owned()))
    }

    fn mount(&self, socket: &Path) -> Result<Arc<RemoteFuse>, ConnectError> {
        let shown = socket.display();
        let stream = UnixStream::connect(socket).map_err(|error| {
            let why = format!("cannot connect to {shown}: {error}");
            ConnectError::new(Errno::from(error), why)
        })?;
        let options = Options {
            timeouts: self.timeouts,
            max_write: self.max_write,
            in_flight: self.in_flight,
            ..Options::default()
        };
        RemoteFuse::mount(stream, options)
            .map_err(|error| ConnectError::new(error.errno(), format!("{shown}: {error}")))
    }

    pub(crate) fn path(&self) -> &[u8] {
        self.path.as_os_str().as_bytes()
    }
}

/// Parses `max_write=`, at least a page as in FUSE.
fn max_write(text: &str) -> Result<usize, String> {
    let size = bytes(text).and_then(|bytes| usize::try_from(bytes).ok());
    let size = size.filter(|&size| size >= 4096);
    size.ok_or_else(|| format!("max_write= with bytes from 4096 on, not '{text}'"))
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "virtiofs:{}", self.path.display())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn parse(rest: &str) -> Result<Url, BadUrl> {
        Url::parse(&format!("virtiofs:{rest}"), rest)
    }

    #[test]
    fn a_socket_is_named_by_its_path() {
        let url = parse("/run/a%20b").expect("good");
        assert_eq!(url.to_string(), "virtiofs:/run/a b");
        assert_eq!(url.path.as_os_str(), "/run/a b");
        assert!(parse("").is_err() && parse("%zz").is_err());
    }

    #[test]
    fn parameters_are_read() {
        let url = parse("/s%3f?max_write=4k&inflight=4096&soft&timeo=15").expect("good");
        assert_eq!(url.path.as_os_str(), "/s?");
        assert_eq!((url.max_write, url.in_flight), (Some(4096), Some(4096)));
        assert!(url.timeouts.soft && url.timeouts.timeo == Duration::from_millis(1500));
        assert!(!parse("/s?soft&hard").expect("good").timeouts.soft);
        for bad in [
            "/s?max_write=4095",
            "/s?inflight=some",
            "/s?soft=1",
            "/s?msize=8192",
            "?soft",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn where_nobody_listens_is_said() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("socket/below");
        let error = parse(&path.display().to_string()).expect("good").find();
        let error = error.map(drop).expect_err("nobody").to_string();
        assert!(error.starts_with("cannot connect to"), "{error}");
    }
}
