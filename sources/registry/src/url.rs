//! URLs of images in registries.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use objects::{CacheQuery, ImageOptions};
use pack::oci::Digest;

/// Maximum number of characters of a repository's name, as registries accept it.
const MAX_REPOSITORY: usize = 255;

/// Maximum number of characters of a tag (distribution-spec, "Pulling manifests").
const MAX_TAG: usize = 128;

/// The tag if there is neither a tag nor a digest, as for other clients.
const DEFAULT_TAG: &str = "latest";

/// The option that names a directory with the configuration of hosts.
const HOSTS_DIR: &str = "hosts_dir";

/// An image in a registry: `oci://HOST[:PORT]/REPOSITORY[:TAG][@DIGEST][/PATH][?OPTION=VALUE&…]`.
/// A path in the image follows only a tag or digest.
///
/// Options: `layer` is the digest of one layer to open instead of all; `plain_http` is `true` for
/// HTTP instead of HTTPS; `hosts_dir` is the directory with containerd's `hosts.toml` files;
/// `cache_dir` and `cache_dir_size` configure the disk cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    reference: Reference,
    /// Without slashes around it; may be empty.
    path: Box<str>,
    layer: Option<Digest>,
    plain_http: Option<bool>,
    hosts_dir: Option<Box<Path>>,
    image: ImageOptions,
    cosign_keys: Box<[PathBuf]>,
}

/// The name of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// The registry's host, with its port if there is one.
    host: String,
    repository: String,
    tag: Option<String>,
    digest: Option<Digest>,
}

/// The error for a text that is not an image's URL, with the expected syntax.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadUrl(String);

impl fmt::Display for BadUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadUrl {}

impl FromStr for Url {
    type Err = BadUrl;

    fn from_str(text: &str) -> Result<Url, BadUrl> {
        let (name, query) = text.split_once('?').unwrap_or((text, ""));
        let bad = |expected: &dyn fmt::Display| {
            let shown = name.escape_debug();
            BadUrl(format!("bad source '{shown}': expected {expected}"))
        };
        let syntax = || bad(&"oci://HOST[:PORT]/REPOSITORY[:TAG|@DIGEST][/PATH]");
        let rest = name.strip_prefix("oci://").ok_or_else(syntax)?;
        let (host, rest) = rest.split_once('/').ok_or_else(syntax)?;
        // A repository has neither of these, a tag or digest has no slash.
        let end = rest.find([':', '@']).unwrap_or(rest.len());
        let (repository, rest) = rest.split_at(end);
        let (version, path) = rest.split_once('/').unwrap_or((rest, ""));
        let repository = match version {
            "" => repository.trim_end_matches('/'),
            _ => repository,
        };
        let reference = Reference::new(host, repository, version).map_err(|what| bad(&what))?;
        let mut url = Url {
            reference,
            path: path.trim_matches('/').into(),
            layer: None,
            plain_http: None,
            hosts_dir: None,
            image: ImageOptions::default(),
            cosign_keys: Box::default(),
        };
        let mut cache = CacheQuery::default();
        for (name, value) in url::form_urlencoded::parse(query.as_bytes()) {
            match &*name {
                "layer" => {
                    url.layer = Some(value.parse().map_err(|_| {
                        bad(&format_args!(
                            "a digest in layer=, got '{}'",
                            value.escape_debug()
                        ))
                    })?);
                }
                "plain_http" => {
                    url.plain_http = Some(
                        value
                            .parse()
                            .map_err(|_| bad(&"true or false in plain_http="))?,
                    );
                }
                HOSTS_DIR => url.hosts_dir = Some(Path::new(&*value).into()),
                name if cache.take(name, &value).map_err(|what| bad(&what))? => {}
                _ => {
                    let name = name.escape_debug();
                    return Err(bad(&format_args!(
                        "layer, plain_http, hosts_dir, cache_dir or cache_dir_size as options, not '{name}'"
                    )));
                }
            }
        }
        url.image = cache.finish().map_err(|what| bad(&what))?;
        Ok(url)
    }
}

impl Reference {
    /// Checks the parts; `version` is empty, or begins with `:` or `@`. The error says what was
    /// expected.
    fn new(host: &str, repository: &str, version: &str) -> Result<Reference, &'static str> {
        if !is_host(host) {
            return Err("the host of a registry, optionally with a port");
        }
        if repository.len() > MAX_REPOSITORY || !repository.split('/').all(is_component) {
            return Err("a repository of lower-case letters, digits, '.', '_', '-' and '/'");
        }
        let (tag, digest) = version
            .split_once('@')
            .map_or((version, None), |(tag, digest)| (tag, Some(digest)));
        let tag = match tag {
            "" => None,
            tag => Some(tag.strip_prefix(':').unwrap_or_default()),
        };
        if tag.is_some_and(|tag| !is_tag(tag)) {
            return Err("a tag of up to 128 letters, digits, '.', '_' and '-'");
        }
        let digest = digest.map(str::parse).transpose();
        let digest = digest.map_err(|_| "a digest such as sha256:…, complete and in lower case")?;
        Ok(Reference {
            host: host.into(),
            repository: repository.into(),
            tag: tag.map(str::to_owned),
            digest,
        })
    }

    /// Returns the registry's host, with its port if there is one.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Returns the repository.
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// Returns the digest of the manifest or index, if the reference has one.
    pub fn digest(&self) -> Option<&Digest> {
        self.digest.as_ref()
    }

    /// Returns the tag; a digest takes precedence over it.
    pub fn tag(&self) -> &str {
        self.tag.as_deref().unwrap_or(DEFAULT_TAG)
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.host, self.repository)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        match &self.digest {
            Some(digest) => write!(f, "@{digest}"),
            None => Ok(()),
        }
    }
}

/// Omits the options, except for the layer.
impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "oci://{}", self.reference)?;
        if !self.path.is_empty() {
            write!(f, "/{}", self.path)?;
        }
        match &self.layer {
            Some(layer) => write!(f, "?layer={layer}"),
            None => Ok(()),
        }
    }
}

impl Url {
    /// The scheme of these URLs.
    pub const SCHEME: &str = "oci";

    /// Returns whether the value of the option `name` is a path of this host.
    pub fn is_path_option(name: &str) -> bool {
        name == HOSTS_DIR || name == CacheQuery::DIR
    }

    /// Returns the name of the image.
    pub fn reference(&self) -> &Reference {
        &self.reference
    }

    /// Returns the path in the image, without slashes around it; empty for the root.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Returns the last component of the path, or that of the repository.
    pub fn name(&self) -> &str {
        let path = match &*self.path {
            "" => &self.reference.repository,
            path => path,
        };
        path.rsplit('/').next().unwrap_or_default()
    }

    /// Returns the digest of the layer to open, if only one is.
    pub fn layer(&self) -> Option<&Digest> {
        self.layer.as_ref()
    }

    /// Returns whether the URL demands HTTP, or HTTPS.
    pub fn plain_http(&self) -> Option<bool> {
        self.plain_http
    }

    /// Returns the directory with the configuration of hosts, if it is not the usual one.
    pub fn hosts_dir(&self) -> Option<&Path> {
        self.hosts_dir.as_deref()
    }

    /// Returns the options of the image.
    pub fn image(&self) -> &ImageOptions {
        &self.image
    }

    /// Requires a signature of cosign by one of these keys, which are PEM files, on the manifest or
    /// index that the reference names.
    pub fn require_cosign_signature(&mut self, keys: &[PathBuf]) {
        self.cosign_keys = keys.into();
    }

    /// Returns the keys of which one must have signed the manifest or index with cosign, if any.
    pub fn cosign_keys(&self) -> &[PathBuf] {
        &self.cosign_keys
    }

    /// Replaces the tag by the digest of what it names.
    pub(crate) fn set_digest(&mut self, digest: Digest) {
        self.reference.digest = Some(digest);
    }

    /// Returns the options of the image, to change them.
    pub fn image_mut(&mut self) -> &mut ImageOptions {
        &mut self.image
    }
}

/// Returns whether `text` is a host name, an IPv4 address or a bracketed IPv6 address, optionally
/// with a port.
fn is_host(text: &str) -> bool {
    let (name, port) = match text.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((address, "")) => (Err(address), None),
            Some((address, port)) => match port.strip_prefix(':') {
                Some(port) => (Err(address), Some(port)),
                None => return false,
            },
            None => return false,
        },
        None => match text.split_once(':') {
            Some((name, port)) => (Ok(name), Some(port)),
            None => (Ok(text), None),
        },
    };
    let valid = match name {
        Ok(name) => {
            let label = |label: &str| {
                let inner = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
                let edge = !label.starts_with('-') && !label.ends_with('-');
                !label.is_empty() && label.len() <= 63 && edge && label.bytes().all(inner)
            };
            name.len() <= 253 && name.split('.').all(label)
        }
        Err(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
    };
    // u16 also parses a plus sign.
    let number = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    valid && port.is_none_or(|port| number(port) && port.parse::<u16>().is_ok())
}

/// Returns whether `text` is a component of a repository's name: runs of lower-case letters and
/// digits, separated by `.`, `_`, `__` or dashes.
fn is_component(text: &str) -> bool {
    let run = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let ends = text.bytes().next().is_some_and(run) && text.bytes().next_back().is_some_and(run);
    let separators = text.split(|c: char| c.is_ascii() && run(c as u8));
    ends && separators
        .into_iter()
        .all(|part| matches!(part, "" | "." | "_" | "__") || part.bytes().all(|byte| byte == b'-'))
}

fn is_tag(text: &str) -> bool {
    let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let all = |byte: u8| word(byte) || byte == b'.' || byte == b'-';
    text.len() <= MAX_TAG && text.bytes().next().is_some_and(word) && text.bytes().all(all)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DIGEST: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn a_reference_has_a_host_a_repository_and_a_version() {
        for (text, host, repository, tag, path) in [
            ("oci://h/r", "h", "r", "latest", ""),
            ("oci://h/r/", "h", "r", "latest", ""),
            ("oci://h/r:t", "h", "r", "t", ""),
            ("oci://h/r:t/", "h", "r", "t", ""),
            (
                "oci://localhost:5000/a/b__c.d-e--f:V_1.2-3/usr/bin",
                "localhost:5000",
                "a/b__c.d-e--f",
                "V_1.2-3",
                "usr/bin",
            ),
            (
                "oci://[::1]:5000/r:t/a:b@c",
                "[::1]:5000",
                "r",
                "t",
                "a:b@c",
            ),
            ("oci://[::1]/r", "[::1]", "r", "latest", ""),
            ("oci://ghcr.io/org/image:1", "ghcr.io", "org/image", "1", ""),
        ] {
            let url: Url = text.parse().expect(text);
            let reference = url.reference();
            assert_eq!(reference.host(), host, "{text}");
            assert_eq!(reference.repository(), repository);
            assert_eq!((reference.tag(), reference.digest()), (tag, None));
            assert_eq!(url.path(), path);
        }
        for version in [format!("@{DIGEST}"), format!(":tag@{DIGEST}")] {
            let text = format!("oci://h:1/r{version}/etc/passwd?layer={DIGEST}&plain_http=true");
            let url: Url = text.parse().expect("a URL");
            let digest: Digest = DIGEST.parse().expect("a digest");
            assert_eq!(url.reference().digest(), Some(&digest));
            assert_eq!((url.path(), url.name()), ("etc/passwd", "passwd"));
            assert_eq!((url.layer(), url.plain_http()), (Some(&digest), Some(true)));
            let shown = format!("oci://h:1/r{version}/etc/passwd?layer={DIGEST}");
            assert_eq!(url.to_string(), shown);
        }
        let url: Url = "oci://h/a/b:t".parse().expect("a URL");
        assert_eq!(url.name(), "b");
    }

    #[test]
    fn what_is_no_reference_says_what_was_expected() {
        let long = format!("oci://h/{}", "a".repeat(256));
        let tag = format!("oci://h/r:{}", "t".repeat(129));
        for text in [
            "oci://",
            "oci://h",
            "oci://h/",
            "oci:///r",
            "oci:h/r",
            "oci://user@h/r",
            "oci://h:99999/r",
            "oci://h:+1/r",
            "oci://-h/r",
            "oci://[::1/r",
            "oci://[::1]x/r",
            "oci://[h]/r",
            "oci://h/R",
            "oci://h/a//b",
            "oci://h/../b",
            "oci://h/a..b",
            "oci://h/a___b",
            "oci://h/-a",
            "oci://h/r:",
            "oci://h/r:-t",
            "oci://h/r:t:u",
            "oci://h/r@sha256:1234",
            "oci://h/r@",
            "oci://h/r?layer=x",
            "oci://h/r?plain_http=1",
            "oci://h/r?colour=red",
            "oci://h/r?cache_dir_size=1G",
            &long,
            &tag,
        ] {
            let bad = text.parse::<Url>().expect_err(text).to_string();
            assert!(bad.contains("expected"), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_url_that_shows_as_itself_or_none(text in "oci://[a-z0-9.:\\[\\]-]{0,12}/[a-z/_.-]{0,12}[:@a-zA-Z0-9/.é-]{0,20}") {
            if let Ok(url) = text.parse::<Url>() {
                prop_assert_eq!(&url.to_string().parse::<Url>().expect("a URL"), &url);
                prop_assert!(!url.reference().repository().contains(".."));
            }
        }
    }
}
