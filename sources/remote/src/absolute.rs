//! Texts with absolute paths, whose meaning does not depend on the current directory of the process
//! that parses them.
//!
//! Texts are changed rather than formatted from what was parsed: no parameter can be lost.

use std::path::{Path, PathBuf};

use crate::Url;
use crate::url::decode;

/// Returns `path` from the directory `dir`, which is absolute. Absolute paths stay as they are.
pub fn absolute_path(path: &Path, dir: &Path) -> PathBuf {
    let below = path.strip_prefix(".").unwrap_or(path);
    match below.as_os_str().is_empty() {
        true => dir.to_owned(),
        false => dir.join(below),
    }
}

/// Does [`absolute_path`] with text. Returns an error if `path` is relative and `dir` is not UTF-8.
pub fn absolute_text(path: &str, dir: &Path) -> Result<String, String> {
    let whole = absolute_path(Path::new(path), dir);
    whole.into_os_string().into_string().map_err(|_| {
        format!("expected an absolute path, as the current directory is no UTF-8, got '{path}'")
    })
}

/// Does [`absolute_text`] with a part of a URL, which is percent-encoded.
fn absolute_part(part: &str, dir: &Path) -> Result<String, String> {
    let is_absolute = decode(part).is_ok_and(|path| path.starts_with('/'));
    if part.is_empty() || is_absolute {
        return Ok(part.to_owned());
    }
    let dir = encode(&absolute_text(".", dir)?);
    absolute_text(part, Path::new(&dir))
}

/// Returns the URL `text` with absolute paths of this host: `is_path` says whether the part before
/// its parameters is one, and `is_path_parameter` whether the value of the parameter with this name
/// is. The paths are percent-encoded. Relative ones begin in the directory `dir`.
pub fn absolute_url(
    text: &str,
    dir: &Path,
    is_path: bool,
    is_path_parameter: impl Fn(&str) -> bool,
) -> Result<String, String> {
    let (place, query) = match text.split_once('?') {
        Some((place, query)) => (place, Some(query)),
        None => (text, None),
    };
    let mut whole = match place.split_once(':') {
        Some((scheme, path)) if is_path => format!("{scheme}:{}", absolute_part(path, dir)?),
        _ => place.to_owned(),
    };
    for (at, parameter) in query.iter().flat_map(|query| query.split('&')).enumerate() {
        whole.push(if at == 0 { '?' } else { '&' });
        match parameter.split_once('=') {
            Some((name, path)) if is_path_parameter(name) => {
                whole.push_str(&format!("{name}={}", absolute_part(path, dir)?));
            }
            _ => whole.push_str(parameter),
        }
    }
    Ok(whole)
}

/// The schemes of URLs that begin with a path of this host.
const PATH_SCHEMES: &[&str] = &[
    "9p+unix",
    "9p+vsock-uds",
    "9p+virtio",
    "nfs+unix",
    "virtiofs",
];

/// The parameters whose values are paths of this host.
const PATH_PARAMETERS: &[&str] = &["tlsca", "tlscert", "tlskey"];

impl Url {
    /// Returns `text`, a URL, with absolute paths of this host: relative ones begin in the
    /// directory `dir`. Returns an error if there is one and `dir` is not UTF-8.
    pub fn absolute(text: &str, dir: &Path) -> Result<String, String> {
        let (scheme, path) = text.split_once(':').unwrap_or_default();
        // A name of an abstract socket (unix(7)) is no path.
        let is_path = PATH_SCHEMES.contains(&scheme) && !path.starts_with('@');
        absolute_url(text, dir, is_path, |name| PATH_PARAMETERS.contains(&name))
    }
}

/// Encodes text for any part of a URL.
fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'/' | b'-' | b'.' | b'_' | b'~' => encoded.push(byte.into()),
            byte if byte.is_ascii_alphanumeric() => encoded.push(byte.into()),
            byte => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn relative_paths_begin_in_the_directory() {
        for (path, whole) in [
            ("a", "/d/a"),
            ("./a", "/d/a"),
            (".", "/d"),
            ("../a", "/d/../a"),
            ("/a", "/a"),
        ] {
            assert_eq!(absolute_text(path, Path::new("/d")).expect(path), whole);
        }
        let other = Path::new(OsStr::from_bytes(b"/\xff"));
        assert!(absolute_text("a", other).is_err() && absolute_text("/a", other).is_ok());
    }

    #[test]
    fn every_path_in_a_url_becomes_absolute_and_all_else_stays() {
        for (text, whole) in [
            ("9p://h/a?msize=8192&aname=b", "9p://h/a?msize=8192&aname=b"),
            ("9p+unix:s?aname=b", "9p+unix:/d%20%3F/s?aname=b"),
            ("9p+unix:./a%20b", "9p+unix:/d%20%3F/a%20b"),
            ("9p+unix:%2Fs", "9p+unix:%2Fs"),
            ("9p+unix:@s", "9p+unix:@s"),
            ("9p+vsock:3:1", "9p+vsock:3:1"),
            ("9p+vsock-uds:s:1?soft", "9p+vsock-uds:/d%20%3F/s:1?soft"),
            ("9p+virtio:s", "9p+virtio:/d%20%3F/s"),
            ("nfs+unix:s?path=a", "nfs+unix:/d%20%3F/s?path=a"),
            (
                "nfs://h/a?xprtsec=mtls&tlsca=a&tlscert=./c&tlskey=/k&uid=1",
                "nfs://h/a?xprtsec=mtls&tlsca=/d%20%3F/a&tlscert=/d%20%3F/c&tlskey=/k&uid=1",
            ),
            (
                "virtiofs:s?soft&timeo=1",
                "virtiofs:/d%20%3F/s?soft&timeo=1",
            ),
        ] {
            let made = Url::absolute(text, Path::new("/d ?")).expect(text);
            assert_eq!(made, whole);
            assert_eq!(Url::absolute(&made, Path::new("/other")), Ok(made.clone()));
            made.parse::<Url>().expect("a URL");
        }
    }
}
