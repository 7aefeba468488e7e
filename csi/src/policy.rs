//! The sources, options and secrets that a volume may have.
//!
//! Attributes of persistent volumes come from administrators, those of inline volumes from authors
//! of pods. Neither may name directories of the host, except beneath `--allow-path`; an inline
//! volume's source must also be at `--allow-inline`. Options and parameters are lists of those that
//! are allowed, so that options of later versions of `barge mount` are refused.

use std::collections::HashMap;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use command::csi::check_account;
use rustix::fs::{Mode, OFlags, ResolveFlags, open, openat2};
use sha2::{Digest, Sha256};
use tonic::Status;

use crate::capabilities::{Usage, bounded};
use crate::paths::relative_to;

/// The attribute that marks an inline volume; the kubelet sets it.
pub const EPHEMERAL: &str = "csi.storage.k8s.io/ephemeral";

/// Attributes that orchestrators add, which have no effect here.
const ORCHESTRATOR_PREFIXES: &[&str] = &["csi.storage.k8s.io/", "storage.kubernetes.io/"];

/// The parameters of a URL by scheme. Those that name files of the host, an endpoint's credentials
/// or a cache are absent.
const REMOTE: &[(&str, &[&str])] = &[
    (
        "9p",
        &[
            "aname", "hard", "inflight", "msize", "retry", "soft", "timeo", "uid", "uname",
            "version", "zerocopy",
        ],
    ),
    (
        "nfs",
        &[
            "gid",
            "hard",
            "inflight",
            "mountport",
            "nodelegations",
            "noreadplus",
            "resvport",
            "retry",
            "rsize",
            "soft",
            "timeo",
            "uid",
            "vers",
            "wsize",
            "xprtsec",
        ],
    ),
    (
        "s3",
        &[
            "aws_endpoint",
            "aws_region",
            "aws_skip_signature",
            "aws_virtual_hosted_style_request",
            "endpoint",
            "region",
            "skip_signature",
            "virtual_hosted_style_request",
        ],
    ),
    ("gs", &["google_skip_signature", "skip_signature"]),
    (
        "az",
        &[
            "account_name",
            "azure_storage_account_name",
            "azure_skip_signature",
            "azure_storage_endpoint",
            "endpoint",
            "skip_signature",
        ],
    ),
    ("http", &[]),
    ("https", &[]),
    ("oci", &["layer"]),
];

/// The schemes of object stores and registries, whose data can be cached on disk.
const OBJECTS: &[&str] = &["s3", "gs", "az", "http", "https", "oci"];

/// Mount options for all volumes: of mount(8), and of `barge mount`.
const OPTIONS: &[&str] = &[
    "atime",
    "async",
    "cache",
    "defaults",
    "diratime",
    "dirsync",
    "exec",
    "gid",
    "hard",
    "lazytime",
    "noatime",
    "nodev",
    "nodiratime",
    "noexec",
    "nosuid",
    "passthrough",
    "relatime",
    "retry",
    "ro",
    "rw",
    "soft",
    "sync",
    "timeo",
    "uid",
];

/// Mount options for volumes of administrators alone: they use memory of the node, or risk data of
/// other clients.
const ADMINISTRATOR_OPTIONS: &[&str] = &["cache_size", "writeback"];

/// The secrets that a volume may have: environment variables of the object stores, none of which
/// names a file.
const SECRETS: &[&str] = &[
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_ACCOUNT_NAME",
    "AZURE_STORAGE_CLIENT_ID",
    "AZURE_STORAGE_CLIENT_SECRET",
    "AZURE_STORAGE_SAS_KEY",
    "AZURE_STORAGE_TENANT_ID",
    "AZURE_STORAGE_TOKEN",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
];

/// Secrets for volumes of administrators alone: the node sends requests with its own credentials to
/// this address.
const ADMINISTRATOR_SECRETS: &[&str] = &["AWS_ENDPOINT_URL"];

/// Prefixes of the environment variables that the plugin passes to mounts of administrators'
/// volumes without secrets: the credentials of the node.
const AMBIENT: &[&str] = &["AWS_", "AZURE_", "DOCKER_CONFIG", "GOOGLE_"];

/// The complete sets of credentials of each object store among [`SECRETS`], and the variable
/// without which a store asks the node for its role. [`TENANT`] alone excludes that already; this
/// holds for another version of `barge` as well.
const CREDENTIALS: &[(&str, &[&[&str]])] = &[
    (
        "AWS_SKIP_SIGNATURE",
        &[&["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"]],
    ),
    (
        "AZURE_SKIP_SIGNATURE",
        &[
            &["AZURE_STORAGE_ACCOUNT_KEY"],
            &[
                "AZURE_STORAGE_CLIENT_ID",
                "AZURE_STORAGE_CLIENT_SECRET",
                "AZURE_STORAGE_TENANT_ID",
            ],
            &["AZURE_STORAGE_SAS_KEY"],
            &["AZURE_STORAGE_TOKEN"],
        ],
    ),
    ("GOOGLE_SKIP_SIGNATURE", &[&["GOOGLE_SERVICE_ACCOUNT_KEY"]]),
];

/// The variable that names the tenant whose volume `barge mount` mounts: a pod.
const TENANT: &str = "BARGE_TENANT";

/// The disk cache of all volumes of object stores.
#[derive(Clone, Debug)]
pub struct DiskCache {
    /// The directory.
    pub dir: PathBuf,
    /// The size, as for `cache_dir_size=`, or `None` for the default of `barge mount`.
    pub size: Option<String>,
}

/// The node's policy.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    /// The directories that local sources may be beneath.
    pub allow_paths: Vec<PathBuf>,
    /// The sources of inline volumes: URLs or paths that these may be or be beneath.
    pub allow_inline: Vec<String>,
    /// The disk cache, if any.
    pub cache: Option<DiskCache>,
}

/// The author of a volume's attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Author {
    /// An administrator, of a persistent volume or a storage class.
    Administrator,
    /// The author of a pod, of an inline volume.
    Pod,
}

/// An allowed source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A directory or an image of this host, beneath the directory of `--allow-path`.
    Local {
        /// The allowed directory.
        base: PathBuf,
        /// The path relative to it; empty for the directory itself.
        path: PathBuf,
    },
    /// A URL.
    Remote(String),
    /// `mem:`: a tree in the node's memory.
    Memory,
}

/// The mount of a volume.
#[derive(Clone)]
pub struct MountPlan {
    /// The source.
    pub source: Source,
    /// Mount options of the volume.
    pub options: Vec<String>,
    /// Mount options that the node adds, for its disk cache.
    pub node_options: Vec<String>,
    /// Public key that must have signed the image, PEM.
    pub verify_key: Option<String>,
    /// Environment of `barge mount`.
    pub environment: Vec<(String, OsString)>,
    /// Values that no message may contain.
    pub secrets: Vec<String>,
}

impl Source {
    /// Returns the path of a local source, the URL of a remote one, or `mem:`.
    fn text(&self) -> String {
        match self {
            // Without a slash at the end, whichever allowed directory it is beneath.
            Source::Local { base, path } => {
                let path: PathBuf = base.join(path).components().collect();
                path.display().to_string()
            }
            Source::Remote(url) => url.clone(),
            Source::Memory => "mem:".into(),
        }
    }

    /// Opens a local source. No component may be a symbolic link: a workload that writes beneath an
    /// allowed directory could lead elsewhere with one. Returns `None` for other sources.
    pub fn open_local(&self) -> Result<Option<OwnedFd>, Status> {
        let Source::Local { base, path } = self else {
            return Ok(None);
        };
        let failed = |path: &Path, errno: rustix::io::Errno| {
            let text = format!("{}: {}", path.display(), std::io::Error::from(errno));
            match errno {
                rustix::io::Errno::NOENT => Status::not_found(text),
                rustix::io::Errno::LOOP => Status::permission_denied(format!(
                    "{}: a symbolic link beneath --allow-path",
                    path.display()
                )),
                _ => Status::internal(text),
            }
        };
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let dir = open(base, flags | OFlags::DIRECTORY, Mode::empty());
        let dir = dir.map_err(|errno| failed(base, errno))?;
        if path.as_os_str().is_empty() {
            return Ok(Some(dir));
        }
        let resolve =
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let file = openat2(&dir, path, flags, Mode::empty(), resolve);
        file.map(Some)
            .map_err(|errno| failed(&base.join(path), errno))
    }
}

impl MountPlan {
    /// Returns a digest of the source, options and key, in hexadecimal digits, by which a mount is
    /// recognized as the one that a request asks for. It depends on the request alone, so that a
    /// volume stays the same one after a restart with other arguments.
    pub fn digest(&self) -> String {
        let source = self.source.text();
        let parts = [source.as_str(), self.verify_key.as_deref().unwrap_or("")];
        let options = self.options.iter().map(String::as_str);
        digest(parts.into_iter().chain(options))
    }

    /// Returns short digests of the source, the options and the key.
    pub(crate) fn parts(&self) -> [String; 3] {
        let source = self.source.text();
        let options = self.options.iter().map(String::as_str);
        let whole = [
            digest([source.as_str()]),
            digest(options),
            digest(self.verify_key.as_deref()),
        ];
        whole.map(|digest| digest[..8].to_owned())
    }

    /// Returns the plan for a volume of a pod: the node's disk cache keeps its data apart from that
    /// of others.
    #[must_use]
    pub(crate) fn of_pod(mut self, volume_id: &str) -> MountPlan {
        self.environment.retain(|(name, _)| name != TENANT);
        let tenant = digest([volume_id]);
        self.environment.push((TENANT.into(), tenant.into()));
        self
    }
}

/// Returns the first half of the SHA-256 digest of the texts, in hexadecimal digits.
pub(crate) fn digest<'a>(texts: impl IntoIterator<Item = &'a str>) -> String {
    let mut hash = Sha256::new();
    for text in texts {
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text);
    }
    hex::encode(&hash.finalize()[..16])
}

impl Policy {
    /// Checks the attributes of a volume against the policy. Returns `INVALID_ARGUMENT` for
    /// malformed and `PERMISSION_DENIED` for forbidden ones.
    pub(crate) fn plan(
        &self,
        author: Author,
        attributes: &HashMap<String, String>,
        secrets: &HashMap<String, String>,
        usage: &Usage,
    ) -> Result<MountPlan, Status> {
        bounded("volume_context", attributes)?;
        bounded("secrets", secrets)?;
        let (mut source, mut sub_dir, mut options, mut verify_key) = (None, None, Vec::new(), None);
        for (name, value) in attributes {
            match name.as_str() {
                "source" => source = Some(value.as_str()),
                "subDir" => sub_dir = Some(value.as_str()),
                "options" => options.extend(value.split(',').map(str::trim).map(str::to_owned)),
                "verifyKey" => verify_key = Some(public_key(value)?),
                name if ORCHESTRATOR_PREFIXES
                    .iter()
                    .any(|prefix| name.starts_with(prefix)) => {}
                name => {
                    let text = format!(
                        "unknown attribute '{}': expected source, subDir, options or verifyKey",
                        name.escape_debug()
                    );
                    return Err(Status::invalid_argument(text));
                }
            }
        }
        let source =
            source.ok_or_else(|| Status::invalid_argument("attribute 'source' is missing"))?;
        let source = match sub_dir {
            Some(path) => joined(source, path)?,
            None => source.to_owned(),
        };
        options.retain(|option| !option.is_empty());
        options.extend(usage.mount_flags.iter().cloned());
        for option in &options {
            check_option(author, option)?;
        }
        if usage.read_only {
            options.push("ro".into());
        }
        let allowed = self.source(author, &source)?;
        let cached = matches!(&allowed, Source::Remote(url) if is_object(url));
        let mut node_options = Vec::new();
        if let (Some(cache), true) = (&self.cache, cached) {
            node_options.push(format!("cache_dir={}", cache.dir.display()));
            let size = cache.size.iter();
            node_options.extend(size.map(|size| format!("cache_dir_size={size}")));
        }
        let environment = environment(author, secrets)?;
        if let Source::Remote(url) = &allowed
            && (author == Author::Pod || !secrets.is_empty())
        {
            check_store(url, &environment, secrets)?;
        }
        Ok(MountPlan {
            source: allowed,
            options,
            node_options,
            verify_key,
            environment,
            secrets: secrets.values().cloned().collect(),
        })
    }

    /// Checks a source against the policy.
    pub fn source(&self, author: Author, text: &str) -> Result<Source, Status> {
        if text.len() > 4096 || text.contains(|c: char| c.is_control()) {
            let text = "source: expected at most 4096 bytes without control characters";
            return Err(Status::invalid_argument(text));
        }
        let source = self.parse(text)?;
        if author == Author::Pod && !self.allow_inline.iter().any(|allowed| is_at(text, allowed)) {
            let text =
                "the source of this inline volume is not allowed: see barge-csi --allow-inline";
            return Err(Status::permission_denied(text));
        }
        Ok(source)
    }

    fn parse(&self, text: &str) -> Result<Source, Status> {
        if text == "mem:" {
            return Ok(Source::Memory);
        }
        if let Some((scheme, rest)) = text.split_once("://")
            && let Some((_, parameters)) = REMOTE.iter().find(|(name, _)| *name == scheme)
        {
            if rest.starts_with('/') || rest.is_empty() || rest.contains([' ', '\\', '#']) {
                let text = format!("source: expected {scheme}://HOST/PATH or the like");
                return Err(Status::invalid_argument(text));
            }
            // Servers of HTTP get the whole query.
            if !scheme.starts_with("http") {
                check_parameters(rest, parameters)?;
            }
            return Ok(Source::Remote(text.into()));
        }
        let path = Path::new(local_path(text));
        if !path.is_absolute() {
            let schemes: Vec<&str> = REMOTE.iter().map(|(name, _)| *name).collect();
            let text = format!(
                "source: expected an absolute path, dir:PATH, image:PATH, mem: or a URL ({})",
                schemes.join(", ")
            );
            return Err(Status::invalid_argument(text));
        }
        let beneath = self.allow_paths.iter().find_map(|base| {
            let relative = relative_to(path, base)?;
            Some((base.clone(), relative.to_owned()))
        });
        match beneath {
            Some((base, path)) => Ok(Source::Local { base, path }),
            None => Err(Status::permission_denied(
                "the source is a path of the host that is not allowed: see barge-csi --allow-path",
            )),
        }
    }
}

/// Returns the path of a local source.
fn local_path(text: &str) -> &str {
    let path = text.strip_prefix("dir:").or(text.strip_prefix("image:"));
    path.unwrap_or(text)
}

fn is_object(url: &str) -> bool {
    let scheme = url.split_once("://").map(|(scheme, _)| scheme);
    scheme.is_some_and(|scheme| OBJECTS.contains(&scheme))
}

/// Returns the source of a directory beneath another source, or `INVALID_ARGUMENT` if it cannot
/// have directories or the path is not one.
pub fn joined(source: &str, sub_dir: &str) -> Result<String, Status> {
    crate::paths::sub_dir(sub_dir)?;
    if source == "mem:" || is_object(source) {
        let text = "subDir: expected a source that is a directory or a server of 9P or NFS";
        return Err(Status::invalid_argument(text));
    }
    let (path, query) = source.split_at(source.find('?').unwrap_or(source.len()));
    // URLs are percent-decoded; sub_dir() excludes their other special characters.
    let sub_dir = match source.contains("://") {
        true => sub_dir.replace(' ', "%20"),
        false => sub_dir.into(),
    };
    Ok(format!("{}/{sub_dir}{query}", path.trim_end_matches('/')))
}

/// Checks that an object store accepts the variables, and that they lead to no other server. The
/// error has no value of a secret.
fn check_store(
    url: &str,
    environment: &[(String, OsString)],
    secrets: &HashMap<String, String>,
) -> Result<(), Status> {
    let source = url.parse::<sources::Source>();
    let source = source.map_err(|bad| Status::invalid_argument(bad.to_string()))?;
    let variables = environment.iter();
    let variables = variables.map(|(name, value)| (name.into(), value.clone()));
    source.check_environment(variables).map_err(|error| {
        let text = error.to_string();
        let shows = |value: &String| !value.is_empty() && text.contains(value.as_str());
        if secrets.values().any(shows) {
            return Status::invalid_argument("secrets: the object store does not accept them");
        }
        Status::invalid_argument(format!("secrets: {text}"))
    })
}

/// Returns whether a source is `allowed` or beneath it, component by component. The source of an
/// inline volume has a plain path: no empty, `.` or `..` component and no percent-encoding, and no
/// parameters, except those of HTTP.
fn is_at(text: &str, allowed: &str) -> bool {
    if check_account(allowed).is_err() {
        return false;
    }
    let (text, allowed) = (local_path(text), local_path(allowed));
    let (path, query) = text.split_at(text.find('?').unwrap_or(text.len()));
    if !query.is_empty() && !path.starts_with("http://") && !path.starts_with("https://") {
        return false;
    }
    let after_scheme = path.split_once("://").map_or(path, |(_, rest)| rest);
    let after_root = after_scheme.strip_prefix('/').unwrap_or(after_scheme);
    let plain = |part: &str| !matches!(part, "" | "." | "..") && !part.contains('%');
    if path != "mem:" && !after_root.split('/').all(plain) {
        return false;
    }
    match path.strip_prefix(allowed.trim_end_matches('/')) {
        Some(rest) => rest.is_empty() || rest.starts_with('/'),
        None => false,
    }
}

/// Checks the parameters after the question mark of a URL.
fn check_parameters(rest: &str, allowed: &[&str]) -> Result<(), Status> {
    let Some((_, query)) = rest.split_once('?') else {
        return Ok(());
    };
    for parameter in query.split('&') {
        let name = parameter.split('=').next().unwrap_or_default();
        if !allowed.contains(&name) {
            let text = format!(
                "source: parameter '{}' is not allowed in a volume",
                name.escape_debug()
            );
            return Err(Status::permission_denied(text));
        }
    }
    Ok(())
}

/// Checks a mount option.
fn check_option(author: Author, option: &str) -> Result<(), Status> {
    let name = option.split('=').next().unwrap_or_default();
    let plain = |c: char| c.is_ascii_alphanumeric() || "_=.-".contains(c);
    let known = OPTIONS.contains(&name)
        || author == Author::Administrator && ADMINISTRATOR_OPTIONS.contains(&name);
    if known && option.chars().all(plain) {
        return Ok(());
    }
    let text = format!(
        "mount option '{}' is not allowed in a volume",
        option.escape_debug()
    );
    Err(Status::permission_denied(text))
}

/// Checks a public key: PEM text, not the path of a file.
fn public_key(text: &str) -> Result<String, Status> {
    match text.trim_start().starts_with("-----BEGIN PUBLIC KEY-----") {
        true => Ok(text.to_owned()),
        false => Err(Status::invalid_argument(
            "verifyKey: expected a public key in PEM (-----BEGIN PUBLIC KEY-----)",
        )),
    }
}

/// Returns the environment of a mount: its secrets, or else the node's credentials for volumes of
/// administrators. A pod's volume without credentials sends anonymous requests, not requests with
/// the role of the node. Errors name a secret's key, never its value.
fn environment(
    author: Author,
    secrets: &HashMap<String, String>,
) -> Result<Vec<(String, OsString)>, Status> {
    let mut environment = Vec::new();
    for (name, value) in secrets {
        let known = SECRETS.contains(&name.as_str())
            || author == Author::Administrator && ADMINISTRATOR_SECRETS.contains(&name.as_str());
        if !known {
            let text = format!(
                "secret '{}' is not allowed: expected one of {}",
                name.escape_debug(),
                SECRETS.join(", ")
            );
            return Err(Status::invalid_argument(text));
        }
        if value.contains('\0') {
            let text = format!("secret '{name}' contains NUL");
            return Err(Status::invalid_argument(text));
        }
        environment.push((name.clone(), value.into()));
    }
    if author == Author::Pod {
        // Registries get no login of the node's users.
        environment.push(("DOCKER_CONFIG".into(), "/nonexistent".into()));
        environment.push((TENANT.into(), "pod".into()));
        for (skip, sets) in CREDENTIALS {
            let complete = |set: &&[&str]| set.iter().all(|name| secrets.contains_key(*name));
            if !sets.iter().any(complete) {
                environment.push(((*skip).to_owned(), "true".into()));
            }
        }
    }
    if secrets.is_empty() && author == Author::Administrator {
        let ambient = std::env::vars_os().filter_map(|(name, value)| {
            let name = name.into_string().ok()?;
            let ours = AMBIENT.iter().any(|prefix| name.starts_with(prefix));
            ours.then_some((name, value))
        });
        environment.extend(ambient);
    }
    Ok(environment)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::Code;

    fn policy() -> Policy {
        Policy {
            allow_paths: vec!["/srv/volumes".into()],
            allow_inline: vec![
                "s3://public".into(),
                "https://images.example/tools/".into(),
                "/srv/volumes/inline".into(),
            ],
            cache: None,
        }
    }

    fn map(entries: &[(&str, &str)]) -> HashMap<String, String> {
        let owned = |(name, value): &(&str, &str)| (name.to_string(), value.to_string());
        entries.iter().map(owned).collect()
    }

    fn plan(author: Author, attributes: &[(&str, &str)]) -> Result<MountPlan, Code> {
        let none = HashMap::new();
        let usage = Usage::default();
        let plan = policy().plan(author, &map(attributes), &none, &usage);
        plan.map_err(|status| status.code())
    }

    fn code(author: Author, source: &str) -> Code {
        let source = policy().source(author, source);
        source.map_or_else(|status| status.code(), |_| Code::Ok)
    }

    #[test]
    fn an_administrator_uses_servers_and_allowed_paths() {
        for source in [
            "s3://bucket/image.erofs",
            "s3://bucket/image.erofs?region=eu-1&endpoint=http://minio:9000",
            "https://host/image.erofs?X-Amz-Signature=x",
            "oci://registry.example/tools:1",
            "nfs://server/export?vers=4.2",
            "9p://server:564/tree",
            "mem:",
            "/srv/volumes",
            "dir:/srv/volumes/a",
            "image:/srv/volumes/a.erofs",
        ] {
            assert_eq!(code(Author::Administrator, source), Code::Ok, "{source}");
        }
        for source in [
            "/",
            "/etc",
            "/srv/volumes2",
            "/srv/volumes/../../etc",
            "dir:/etc",
            "image:/dev/sda",
            "image:/srv/volumes/a?device=/../../../dev/sda",
            "s3://b/k?cache_dir=/etc",
            "s3://b/k?secret_access_key=x",
            "s3://b/k?region=x&web_identity_token_file=/etc/shadow",
            "s3://b/k?%63ache_dir=/etc",
            "oci://registry.example/tools?hosts_dir=/etc",
            "nfs://server/e?tlskey=/etc/key",
        ] {
            assert_eq!(
                code(Author::Administrator, source),
                Code::PermissionDenied,
                "{source}"
            );
        }
        for source in [
            "",
            "relative",
            "dir:relative",
            "dir:",
            "image:s3://b/k",
            "9p+unix:/run/socket",
            "virtiofs:/run/socket",
            "refer:/x@host",
            "file:///etc",
            "S3://bucket/key",
            "s3:///key",
            "https://host/a b",
            "https://host\\@other/",
            "--overlay",
            "/srv/volumes/\n",
        ] {
            assert_eq!(
                code(Author::Administrator, source),
                Code::InvalidArgument,
                "{source:?}"
            );
        }
    }

    #[test]
    fn a_pod_uses_only_sources_that_the_node_allows() {
        for source in [
            "s3://public/image.erofs",
            "https://images.example/tools/a.erofs?signature=x",
            "/srv/volumes/inline",
            "dir:/srv/volumes/inline/a",
        ] {
            assert_eq!(code(Author::Pod, source), Code::Ok, "{source}");
        }
        for source in [
            "s3://private/image.erofs",
            "s3://public-not/image.erofs",
            "s3://public/../private/image.erofs",
            "s3://public/image.erofs?endpoint=http://169.254.169.254",
            "s3://public/%2e%2e/private",
            "https://images.example/tools/../secret",
            "https://images.example/tools/%2E%2E/secret",
            "https://images.example/tools//a",
            "https://images.example@evil.example/tools/a",
            "https://images.example/toolsmith",
            "http://images.example/tools/a",
            "/srv/volumes/other",
            "/srv/volumes/inline/../other",
            "/etc",
            "mem:",
            "9p://server/",
        ] {
            assert_eq!(
                code(Author::Pod, source),
                Code::PermissionDenied,
                "{source}"
            );
        }
        let nothing = Policy::default();
        for source in ["s3://public/image.erofs", "/", "/etc", "mem:", ""] {
            assert!(nothing.source(Author::Pod, source).is_err(), "{source}");
        }
    }

    #[test]
    fn options_are_those_of_the_list() {
        let source = ("source", "s3://public/image.erofs");
        let good = "ro, noexec,uid=1000,cache=always,timeo=20,";
        for author in [Author::Pod, Author::Administrator] {
            let plan = plan(author, &[source, ("options", good)]).expect("good");
            assert_eq!(
                plan.options,
                ["ro", "noexec", "uid=1000", "cache=always", "timeo=20"]
            );
        }
        for bad in [
            "suid",
            "dev",
            "cache_dir=/etc",
            "http=127.0.0.1:80",
            "sandbox=none",
            "seccomp=none",
            "remount",
            "fsname=x",
            "uid=1 0",
            "overlay=/x",
            "x-systemd.automount",
            "ro\nsuid",
            "allow_other",
        ] {
            for author in [Author::Pod, Author::Administrator] {
                let refused = plan(author, &[source, ("options", bad)]).err();
                assert_eq!(refused, Some(Code::PermissionDenied), "{bad:?}");
            }
        }
        let memory = [source, ("options", "cache_size=4G")];
        assert!(plan(Author::Administrator, &memory).is_ok());
        assert_eq!(
            plan(Author::Pod, &memory).err(),
            Some(Code::PermissionDenied)
        );
    }

    #[test]
    fn the_digest_of_a_plan_depends_on_the_request_alone() {
        let digest = |policy: &Policy, attributes: &[(&str, &str)]| {
            let (none, usage) = (HashMap::new(), Usage::default());
            let plan = policy.plan(Author::Administrator, &map(attributes), &none, &usage);
            plan.expect("good").digest()
        };
        let cached = |size: Option<&str>| Policy {
            cache: Some(DiskCache {
                dir: "/var/cache/volumes".into(),
                size: size.map(str::to_owned),
            }),
            ..policy()
        };
        let object = [("source", "s3://public/image.erofs"), ("options", "noexec")];
        let one = digest(&policy(), &object);
        for policy in [cached(None), cached(Some("1G")), cached(Some("2G"))] {
            let (none, usage) = (HashMap::new(), Usage::default());
            let plan = policy.plan(Author::Administrator, &map(&object), &none, &usage);
            assert!(!plan.expect("good").node_options.is_empty());
            assert_eq!(digest(&policy, &object), one);
        }
        let local = [("source", "/srv/volumes/a/b")];
        let two = digest(&policy(), &local);
        for allowed in ["/srv", "/srv/volumes/a", "/srv/volumes/a/b"] {
            let policy = Policy {
                allow_paths: vec![allowed.into()],
                ..policy()
            };
            assert_eq!(digest(&policy, &local), two, "{allowed}");
        }
        let others = [
            digest(&policy(), &object[..1]),
            digest(&policy(), &[object[0], ("options", "ro")]),
            digest(&policy(), &[("source", "s3://public/other"), object[1]]),
            digest(&policy(), &[("source", "mem:"), object[1]]),
            digest(&policy(), &[("source", "/srv/volumes/a")]),
        ];
        let all: std::collections::HashSet<_> = others.iter().chain([&one, &two]).collect();
        assert_eq!(all.len(), 7);
        // Mounts of an earlier version of the plugin are recognized by these digits.
        assert_eq!(one, "0b51f95218daad19f8586f00824a547d");
    }

    #[test]
    fn attributes_are_known_and_bounded() {
        let source = ("source", "s3://public/image.erofs");
        let long = "x".repeat(20_000);
        for bad in [
            &[][..],
            &[("source", "")],
            &[source, ("verifyKey", "/etc/key.pem")],
            &[source, ("colour", "red")],
            &[source, ("subDir", "a")],
            &[("source", "/srv/volumes"), ("subDir", "../x")],
            &[source, ("options", &long)],
        ] {
            let refused = plan(Author::Administrator, bad).err();
            assert_eq!(refused, Some(Code::InvalidArgument), "{bad:?}");
        }
        let info = [source, ("csi.storage.k8s.io/pod.name", "p")];
        assert!(plan(Author::Pod, &info).is_ok());
    }

    #[test]
    fn secrets_are_environment_and_no_file_of_the_host() {
        let attributes = map(&[("source", "s3://public/image.erofs")]);
        let usage = Usage::default();
        let plan = |author, secrets: &[(&str, &str)]| {
            policy().plan(author, &attributes, &map(secrets), &usage)
        };
        let keys = [
            ("AWS_ACCESS_KEY_ID", "id"),
            ("AWS_SECRET_ACCESS_KEY", "hush"),
        ];
        let names = |author, secrets: &[(&str, &str)]| {
            let mut found = plan(author, secrets).expect("good").environment;
            found.sort();
            let found = found.into_iter().map(|(name, _)| name);
            found.collect::<Vec<_>>()
        };
        let administrator = plan(Author::Administrator, &keys)
            .expect("good")
            .environment;
        assert_eq!(administrator.len(), 2);
        let hush = ("AWS_SECRET_ACCESS_KEY".to_owned(), OsString::from("hush"));
        assert!(administrator.contains(&hush));
        // A pod's volume has neither role nor login of the node.
        let skip =
            "AZURE_SKIP_SIGNATURE BARGE_TENANT DOCKER_CONFIG GOOGLE_SKIP_SIGNATURE".split(' ');
        let with_keys = keys.iter().map(|(name, _)| *name).chain(skip.clone());
        assert_eq!(names(Author::Pod, &keys), with_keys.collect::<Vec<_>>());
        let without = std::iter::once("AWS_SKIP_SIGNATURE").chain(skip);
        assert_eq!(names(Author::Pod, &[]), without.collect::<Vec<_>>());
        for (name, value) in [
            ("AWS_WEB_IDENTITY_TOKEN_FILE", "/etc/hush"),
            ("GOOGLE_APPLICATION_CREDENTIALS", "/etc/hush"),
            ("LD_PRELOAD", "/hush"),
            ("PATH", "/hush"),
            ("AWS_ENDPOINT_URL", "http://hush"),
            ("AWS_SESSION_TOKEN", "hush\0"),
        ] {
            let refused = plan(Author::Pod, &[(name, value)]).err().expect(name);
            assert_eq!(refused.code(), Code::InvalidArgument, "{name}");
            assert!(!refused.message().contains("hush"), "{refused}");
        }
        let endpoint = [("AWS_ENDPOINT_URL", "http://minio:9000")];
        assert!(plan(Author::Administrator, &endpoint).is_ok());
    }

    #[test]
    fn a_container_is_allowed_with_its_account_only() {
        let allowed = |entry: &str| Policy {
            allow_inline: vec![entry.into()],
            ..Policy::default()
        };
        for entry in [
            "az://c",
            "az://c/dir",
            "az://",
            "az://c@",
            "az://@a",
            "az://c@/a",
        ] {
            let hint = check_account(entry).expect_err(entry);
            assert!(hint.contains("az://CONTAINER@ACCOUNT"), "{hint}");
            for source in ["az://c/k", "az://c@mine/k", "az://c@mine/dir/k"] {
                let refused = allowed(entry).source(Author::Pod, source);
                refused.expect_err(source);
            }
        }
        check_account("az://c@theirs").expect("good");
        let policy = allowed("az://c@theirs");
        policy
            .source(Author::Pod, "az://c@theirs/k")
            .expect("allowed");
        for source in [
            "az://c/k",
            "az://c@mine/k",
            "az://c@theirs2/k",
            "az://c@theirs@mine/k",
            "az://c@theirs.mine/k",
            "az://c@theirs/k?account_name=mine",
        ] {
            policy.source(Author::Pod, source).expect_err(source);
        }
    }

    #[test]
    fn a_secret_of_a_pod_that_leads_elsewhere_is_refused() {
        let policy = Policy {
            allow_inline: vec!["s3://b".into(), "gs://b".into(), "az://c@theirs".into()],
            ..Policy::default()
        };
        let plan = |source: &str, secrets: &[(&str, &str)]| {
            let attributes = map(&[("source", source)]);
            let usage = Usage::default();
            policy.plan(Author::Pod, &attributes, &map(secrets), &usage)
        };
        let key = "{\"private_key\": \"hush\", \"private_key_id\": \"hush\", \"client_email\": \
                   \"hush\", \"gcs_base_url\": \"http://hush.example\"}";
        for (source, secrets) in [
            ("s3://b/k", &[("AWS_REGION", "@hush.example/#")][..]),
            ("s3://b/k", &[("AWS_ACCESS_KEY_ID", "hush")]),
            ("s3://b/k", &[("AWS_SECRET_ACCESS_KEY", "hush")]),
            ("s3://b/k", &[("AWS_SESSION_TOKEN", "hush")]),
            ("gs://b/k", &[("GOOGLE_SERVICE_ACCOUNT_KEY", key)]),
            ("gs://b/k", &[("GOOGLE_SERVICE_ACCOUNT_KEY", "hush")]),
            (
                "az://c@theirs/k",
                &[("AZURE_STORAGE_CLIENT_SECRET", "hush")],
            ),
            ("az://c@theirs/k", &[("AZURE_STORAGE_CLIENT_ID", "hush")]),
            ("az://c@theirs/k", &[("AZURE_STORAGE_TENANT_ID", "hush")]),
            (
                "az://c@theirs/k",
                &[("AZURE_STORAGE_ACCOUNT_KEY", "hush\n")],
            ),
        ] {
            let refused = plan(source, secrets).err().expect(source);
            assert_eq!(refused.code(), Code::InvalidArgument, "{secrets:?}");
            assert!(!refused.message().contains("hush"), "{refused}");
        }
        // The account in the URL is the one that counts.
        let other = [("AZURE_STORAGE_ACCOUNT_NAME", "mine")];
        plan("az://c@theirs/k", &other).map(drop).expect("good");
    }

    #[test]
    fn a_subdirectory_is_part_of_the_source() {
        for (source, sub_dir, whole) in [
            ("/srv", "a", "/srv/a"),
            ("dir:/srv/", "a/b", "dir:/srv/a/b"),
            ("nfs://h/e?vers=3", "a b", "nfs://h/e/a%20b?vers=3"),
            ("9p://h", "a", "9p://h/a"),
        ] {
            assert_eq!(joined(source, sub_dir).expect("good"), whole);
        }
        for (source, sub_dir) in [("mem:", "a"), ("s3://b/k", "a"), ("/srv", "../a")] {
            assert!(joined(source, sub_dir).is_err(), "{source}");
        }
    }

    #[test]
    fn a_symbolic_link_beneath_an_allowed_path_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(dir.path().join("real")).expect("made");
        std::os::unix::fs::symlink("/etc", dir.path().join("link")).expect("made");
        let policy = Policy {
            allow_paths: vec![dir.path().to_owned()],
            ..Policy::default()
        };
        let open = |name: &str| {
            let path = dir.path().join(name).display().to_string();
            let source = policy
                .source(Author::Administrator, &path)
                .expect("allowed");
            source
                .open_local()
                .map(drop)
                .map_err(|status| status.code())
        };
        assert_eq!(open("real"), Ok(()));
        assert_eq!(open("link"), Err(Code::PermissionDenied));
        assert_eq!(open("link/passwd"), Err(Code::PermissionDenied));
        assert_eq!(open("missing"), Err(Code::NotFound));
    }
}
