//! What virtiofs server to connect to, as a URL.

use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use vfs::Errno;

use super::channel::Options;
use super::fs::RemoteFuse;
use crate::url::{BadUrl, decode};
use crate::{ConnectError, Silence};

/// A virtiofs server, as virtiofsd is one: `virtiofs:SOCKET`, behind which a path in its tree may stand. `%`
/// and two hexadecimal digits stand for a byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    place: PathBuf,
    /// What is done when it does not answer.
    pub silence: Silence,
}

impl Url {
    pub(crate) fn parse(text: &str, place: &str) -> Result<Url, BadUrl> {
        let bad = |expected: &str| BadUrl::new(text, expected);
        let place = decode(place).map_err(|expected| bad(&expected))?;
        match place.is_empty() {
            false => Ok(Url {
                place: place.into(),
                silence: Silence::default(),
            }),
            true => Err(bad("virtiofs:SOCKET")),
        }
    }

    /// Mounts what listens at the socket.
    pub fn connect(&self) -> Result<Arc<RemoteFuse>, ConnectError> {
        mount(&self.place, self.silence)
    }

    /// Mounts what listens at the beginning of the path, and says what is left of it.
    pub fn find(&self) -> Result<(Arc<RemoteFuse>, String), ConnectError> {
        let is_socket = |path: &&Path| {
            let metadata = std::fs::metadata(path);
            metadata.is_ok_and(|metadata| {
                std::os::unix::fs::FileTypeExt::is_socket(&metadata.file_type())
            })
        };
        let socket = self.place.ancestors().find(is_socket);
        let socket = socket.unwrap_or(&self.place);
        let path = self.place.strip_prefix(socket).unwrap_or(Path::new(""));
        // It was decoded from text.
        Ok((
            mount(socket, self.silence)?,
            path.to_string_lossy().into_owned(),
        ))
    }

    pub(crate) fn path(&self) -> &[u8] {
        self.place.as_os_str().as_bytes()
    }
}

fn mount(socket: &Path, silence: Silence) -> Result<Arc<RemoteFuse>, ConnectError> {
    let shown = socket.display();
    let stream = UnixStream::connect(socket).map_err(|error| {
        let why = format!("cannot connect to {shown}: {error}");
        ConnectError::new(Errno::from(error), why)
    })?;
    let options = Options {
        silence,
        ..Options::default()
    };
    RemoteFuse::mount(stream, options)
        .map_err(|error| ConnectError::new(error.errno(), format!("{shown}: {error}")))
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "virtiofs:{}", self.place.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(place: &str) -> Result<Url, BadUrl> {
        Url::parse(&format!("virtiofs:{place}"), place)
    }

    #[test]
    fn a_socket_is_named_by_its_path() {
        let url = parse("/run/a%20b").expect("good");
        assert_eq!(url.to_string(), "virtiofs:/run/a b");
        assert_eq!(url.place.as_os_str(), "/run/a b");
        assert!(parse("").is_err() && parse("%zz").is_err());
    }

    #[test]
    fn where_nobody_listens_is_said() {
        let dir = tempfile::tempdir().expect("a directory");
        let place = dir.path().join("socket/below");
        let error = parse(&place.display().to_string()).expect("good").find();
        let error = error.map(drop).expect_err("nobody").to_string();
        assert!(error.starts_with("cannot connect to"), "{error}");
    }
}
