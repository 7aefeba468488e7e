//! Sources with absolute paths, for other processes and later times.

use std::path::Path;

use remote::{absolute_text, absolute_url};

use super::{BadSource, Source};

impl Source {
    /// Returns `text`, a source, with absolute paths of this host; relative ones begin in the
    /// directory `dir`. All else stays as it is written. Returns an error if `text` is no source,
    /// or has a relative path while `dir` is not UTF-8.
    pub fn absolute(text: &str, dir: &Path) -> Result<String, BadSource> {
        let made = match text.parse()? {
            Source::HostDir(_) => match text.split_once(':') {
                Some(("dir", path)) => absolute_text(path, dir).map(|path| format!("dir:{path}")),
                _ => absolute_text(text, dir),
            },
            Source::Image(_) => {
                let paths = text.strip_prefix("image:").unwrap_or(text);
                absolute_image(paths, dir)
            }
            Source::Object(url) => absolute_url(text, dir, false, |name| url.is_path_option(name)),
            Source::Registry(_) => absolute_url(text, dir, false, registry::Url::is_path_option),
            Source::Memory => Ok(text.to_owned()),
            Source::Remote(_) => remote::Url::absolute(text, dir),
        };
        made.map_err(BadSource)
    }
}

/// Does [`Source::absolute`] with the path of an image and those of its devices.
fn absolute_image(paths: &str, dir: &Path) -> Result<String, String> {
    let (path, devices) = match paths.split_once("?device=") {
        Some((path, devices)) => (path, devices.split("&device=").collect()),
        None => (paths, Vec::new()),
    };
    let mut text = format!("image:{}", absolute_text(path, dir)?);
    for (at, device) in devices.into_iter().enumerate() {
        let sign = if at == 0 { '?' } else { '&' };
        text.push_str(&format!("{sign}device={}", absolute_text(device, dir)?));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_in_a_source_becomes_absolute_and_all_else_stays() {
        let digest = format!("sha256:{}", "0".repeat(64));
        let layer = format!("oci://h/r:t?layer={digest}");
        for (text, whole) in [
            (".", "/d"),
            ("./a", "/d/a"),
            ("a:b", "/d/a:b"),
            ("/a", "/a"),
            ("dir:a?b", "dir:/d/a?b"),
            ("image:a/b", "image:/d/a/b"),
            (
                "image:a?device=b&device=/c",
                "image:/d/a?device=/d/b&device=/c",
            ),
            ("mem:", "mem:"),
            ("9p+unix:s?msize=8192", "9p+unix:/d/s?msize=8192"),
            (
                "nfs://h/x?xprtsec=tls&tlsca=ca&vers=4.1",
                "nfs://h/x?xprtsec=tls&tlsca=/d/ca&vers=4.1",
            ),
            (
                "https://u:p@h/k?cache_dir=a&sig=b%2F",
                "https://u:p@h/k?cache_dir=a&sig=b%2F",
            ),
            (
                "s3://b/k?cache_dir=a&secret_access_key=x&web_identity_token_file=t",
                "s3://b/k?cache_dir=/d/a&secret_access_key=x&web_identity_token_file=/d/t",
            ),
            (
                "gs://b/k?service_account=key",
                "gs://b/k?service_account=/d/key",
            ),
            (
                "image:az://c@account/k?federated_token_file=t",
                "image:az://c@account/k?federated_token_file=/d/t",
            ),
            (
                "oci://h/r?plain_http=true&hosts_dir=a&cache_dir=b&cache_dir_size=1G",
                "oci://h/r?plain_http=true&hosts_dir=/d/a&cache_dir=/d/b&cache_dir_size=1G",
            ),
            (layer.as_str(), layer.as_str()),
        ] {
            let made = Source::absolute(text, Path::new("/d")).expect(text);
            assert_eq!(made, whole);
            let again = Source::absolute(&made, Path::new("/other"));
            assert_eq!(again.as_ref(), Ok(&made));
        }
        assert!(Source::absolute("smb://h/x", Path::new("/d")).is_err());
    }
}
