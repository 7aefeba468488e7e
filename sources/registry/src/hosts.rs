//! The hosts of a registry: itself and its mirrors, in containerd's `hosts.toml`
//! (`docs/hosts.md`), below `/etc/containerd/certs.d`.
//!
//! Supported are `server` and tables `host` with `capabilities`, `ca`, `client`, `skip_verify`,
//! `header` and `override_path`. Other keys are ignored, as by containerd.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};
use url::Url;

use objects::{parse_url, read_bounded};

/// The directory of containerd's configuration.
pub const DEFAULT_DIR: &str = "/etc/containerd/certs.d";

/// Maximum size in bytes of a file.
const MAX_FILE: u64 = 1 << 20;

/// Maximum number of hosts of one registry.
const MAX_HOSTS: usize = 64;

/// A host that serves a registry's repositories.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// The URL below which its repositories are, without a trailing slash; by default it ends in
    /// `/v2`.
    pub base: Url,
    /// Whether it serves what a digest names.
    pub pull: bool,
    /// Whether its tags are those of the registry.
    pub resolve: bool,
    /// Whether its certificate is not verified.
    pub skip_verify: bool,
    /// PEM files with further certificate authorities.
    pub ca: Vec<PathBuf>,
    /// PEM files with a certificate of this client and its key, which may be one file.
    pub client: Vec<(PathBuf, Option<PathBuf>)>,
    /// Headers of each request.
    pub headers: Vec<(String, String)>,
    /// Whether it is the registry itself rather than a mirror.
    pub is_origin: bool,
}

impl Host {
    /// Returns the host with the registry's own name: HTTP for addresses of this host with a port
    /// other than 443, or else HTTPS. `plain_http` overrides that.
    pub fn origin(registry: &str, plain_http: Option<bool>) -> Option<Host> {
        let base = Url::parse(&format!("https://{registry}/v2")).ok()?;
        let local = match base.host()? {
            url::Host::Domain(name) => name == "localhost",
            url::Host::Ipv4(address) => IpAddr::from(address).is_loopback(),
            url::Host::Ipv6(address) => IpAddr::from(address).is_loopback(),
        };
        let base = match plain_http.unwrap_or(local && base.port().is_some()) {
            true => Url::parse(&format!("http://{registry}/v2")).ok()?,
            false => base,
        };
        Some(Host {
            is_origin: true,
            ..Host::new(base)
        })
    }

    fn new(base: Url) -> Host {
        Host {
            base,
            pull: true,
            resolve: true,
            skip_verify: false,
            ca: Vec::new(),
            client: Vec::new(),
            headers: Vec::new(),
            is_origin: false,
        }
    }

    /// Reads the hosts of `registry` from the configuration in `dir`, in the order in which they
    /// are to be used. The last one is the registry, unless `server` names another one.
    pub fn read(dir: &Path, registry: &str, plain_http: Option<bool>) -> io::Result<Vec<Host>> {
        let origin = Host::origin(registry, plain_http);
        let origin = origin.ok_or(io::ErrorKind::InvalidInput)?;
        // containerd also finds names without colons, for other systems.
        let portable = registry
            .rsplit_once(':')
            .filter(|(_, port)| !port.contains(']'))
            .map(|(host, port)| format!("{host}_{port}_"));
        let names = portable
            .into_iter()
            .chain([registry.to_owned(), "_default".to_owned()]);
        for name in names {
            let dir = dir.join(name);
            let path = dir.join("hosts.toml");
            let failed = |error: &dyn std::fmt::Display| {
                let line = format!("{}: {error}", path.display());
                io::Error::new(io::ErrorKind::InvalidData, line)
            };
            let text = match read_bounded(&path, MAX_FILE) {
                Ok(text) => text,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            let text = String::from_utf8(text).map_err(|error| failed(&error))?;
            let hosts = Host::parse(&text, &dir, &origin);
            return hosts.map_err(|error| failed(&error));
        }
        Ok(vec![origin])
    }

    /// Parses a file, in which relative paths start from `dir`. `origin` is the registry itself.
    pub fn parse(text: &str, dir: &Path, origin: &Host) -> Result<Vec<Host>, String> {
        let table = DeTable::parse(text).map_err(|error| error.message().to_owned())?;
        let table = table.get_ref();
        let mut hosts = Vec::new();
        if let Some(all) = table.get("host") {
            let all = all.get_ref().as_table();
            let all = all.ok_or("host: expected tables [host.\"URL\"]")?;
            // The order in the file is that of use.
            let mut all: Vec<_> = all.iter().collect();
            all.sort_by_key(|(name, _)| name.span().start);
            if all.len() > MAX_HOSTS {
                return Err(format!(
                    "expected at most {MAX_HOSTS} hosts, got {}",
                    all.len()
                ));
            }
            for (name, settings) in all {
                let settings = settings.get_ref().as_table();
                let settings = settings.ok_or("host: expected tables [host.\"URL\"]")?;
                hosts.push(Host::from_table(name.get_ref(), settings, dir)?);
            }
        }
        // The top level has the same settings, for the server.
        let server = match table.get("server") {
            Some(server) => text_of("server", server)?,
            None => "",
        };
        let mut server = match server {
            "" => Host {
                base: origin.base.clone(),
                ..Host::from_table(origin.base.as_str(), table, dir)?
            },
            server => Host::from_table(server, table, dir)?,
        };
        server.is_origin = true;
        hosts.push(server);
        Ok(hosts)
    }

    fn from_table(name: &str, table: &DeTable<'_>, dir: &Path) -> Result<Host, String> {
        let flag = |key: &str| match table.get(key) {
            Some(value) => match value.get_ref() {
                DeValue::Boolean(flag) => Ok(*flag),
                _ => Err(format!("{key}: expected true or false")),
            },
            None => Ok(false),
        };
        let base = base_url(name, flag("override_path")?)
            .ok_or_else(|| format!("expected the URL of a host, got '{}'", name.escape_debug()))?;
        let mut host = Host::new(base);
        host.skip_verify = flag("skip_verify")?;
        if let Some(value) = table.get("capabilities") {
            (host.pull, host.resolve) = (false, false);
            for capability in texts_of("capabilities", value)? {
                match capability {
                    "pull" => host.pull = true,
                    "resolve" => host.resolve = true,
                    // Not for readers.
                    "push" | "referrers" => {}
                    other => {
                        let other = other.escape_debug();
                        return Err(format!(
                            "capabilities: expected pull, resolve or push, got '{other}'"
                        ));
                    }
                }
            }
        }
        if let Some(value) = table.get("ca") {
            let files = texts_of("ca", value)?;
            host.ca = files.into_iter().map(|file| dir.join(file)).collect();
        }
        if let Some(value) = table.get("client") {
            host.client = match value.get_ref() {
                DeValue::Array(pairs) if pairs.iter().any(|pair| pair.get_ref().is_array()) => {
                    pairs
                        .iter()
                        .map(|pair| match texts_of("client", pair)?[..] {
                            [both] => Ok((dir.join(both), None)),
                            [certificate, ""] => Ok((dir.join(certificate), None)),
                            [certificate, key] => Ok((dir.join(certificate), Some(dir.join(key)))),
                            _ => {
                                Err("client: expected pairs of a certificate and a key".to_owned())
                            }
                        })
                        .collect::<Result<_, _>>()?
                }
                _ => {
                    let files = texts_of("client", value)?;
                    files
                        .into_iter()
                        .map(|file| (dir.join(file), None))
                        .collect()
                }
            };
        }
        if let Some(value) = table.get("header") {
            let headers = value.get_ref().as_table();
            for (name, value) in headers.ok_or("header: expected a table")?.iter() {
                for value in texts_of("header", value)? {
                    let name = name.get_ref().clone().into_owned();
                    host.headers.push((name, value.to_owned()));
                }
            }
        }
        Ok(host)
    }
}

/// Returns the URL below which a host has its repositories.
fn base_url(name: &str, override_path: bool) -> Option<Url> {
    let text = match name.contains("://") {
        true => name.to_owned(),
        false => format!("https://{name}"),
    };
    let mut base = parse_url(&text)?;
    let clean = base.query().is_none() && base.fragment().is_none() && base.username().is_empty();
    if !matches!(base.scheme(), "http" | "https") || !base.has_host() || !clean {
        return None;
    }
    let mut path = base.path().trim_end_matches('/').to_owned();
    if !override_path && !path.ends_with("/v2") {
        path.push_str("/v2");
    }
    base.set_path(&path);
    Some(base)
}

fn text_of<'a>(key: &str, value: &'a Spanned<DeValue<'_>>) -> Result<&'a str, String> {
    let text = value.get_ref().as_str();
    text.ok_or_else(|| format!("{key}: expected a string"))
}

/// Returns one string, or a list of them.
fn texts_of<'a>(key: &str, value: &'a Spanned<DeValue<'_>>) -> Result<Vec<&'a str>, String> {
    match value.get_ref() {
        DeValue::Array(list) => list.iter().map(|value| text_of(key, value)).collect(),
        _ => Ok(vec![text_of(key, value)?]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Vec<Host>, String> {
        let origin = Host::origin("registry.example:5000", None).expect("a host");
        Host::parse(text, Path::new("/certs"), &origin)
    }

    #[test]
    fn addresses_of_this_host_are_reached_without_tls() {
        for (registry, plain_http, base) in [
            ("ghcr.io", None, "https://ghcr.io/v2"),
            ("ghcr.io:5000", None, "https://ghcr.io:5000/v2"),
            ("ghcr.io:5000", Some(true), "http://ghcr.io:5000/v2"),
            ("localhost:5000", None, "http://localhost:5000/v2"),
            ("127.0.0.2:80", None, "http://127.0.0.2/v2"),
            ("[::1]:5000", None, "http://[::1]:5000/v2"),
            ("localhost", None, "https://localhost/v2"),
            ("localhost:443", None, "https://localhost/v2"),
            ("localhost:5000", Some(false), "https://localhost:5000/v2"),
            (
                "127.0.0.1.example:5000",
                None,
                "https://127.0.0.1.example:5000/v2",
            ),
        ] {
            let host = Host::origin(registry, plain_http).expect(registry);
            assert_eq!(host.base.as_str(), base, "{registry}");
        }
    }

    #[test]
    fn mirrors_come_first_in_the_order_of_the_file() {
        let hosts = parse(
            r#"
            server = "https://origin.example"
            ca = "origin.pem"

            [host."https://z.example/path"]
            capabilities = ["pull"]
            skip_verify = true
            client = [["c.pem", "k.pem"], ["both.pem"]]

            [host."http://a.example:81/v2/"]
            capabilities = ["pull", "resolve", "push"]
            ca = ["/abs/a.pem", "b.pem"]
            client = "c.pem"
            dial_timeout = "1s"
            [host."http://a.example:81/v2/".header]
            x-one = "1"
            x-two = ["2", "3"]

            [host."bare.example/project"]
            override_path = true
            "#,
        );
        let hosts = hosts.expect("hosts");
        let bases: Vec<_> = hosts.iter().map(|host| host.base.as_str()).collect();
        let expected = [
            "https://z.example/path/v2",
            "http://a.example:81/v2",
            "https://bare.example/project",
            "https://origin.example/v2",
        ];
        assert_eq!(bases, expected);
        let [z, a, bare, origin] = &hosts[..] else {
            panic!("{hosts:?}");
        };
        assert_eq!((z.pull, z.resolve, z.skip_verify), (true, false, true));
        let file = |name: &str| Path::new("/certs").join(name);
        let pair = (file("c.pem"), Some(file("k.pem")));
        assert_eq!(z.client, [pair, (file("both.pem"), None)]);
        assert_eq!((a.pull, a.resolve), (true, true));
        assert_eq!(a.ca, [PathBuf::from("/abs/a.pem"), file("b.pem")]);
        assert_eq!(a.client, [(file("c.pem"), None)]);
        assert_eq!(a.headers.len(), 3);
        assert_eq!((bare.pull, bare.resolve), (true, true));
        assert_eq!(
            (&origin.ca[..], origin.is_origin),
            (&[file("origin.pem")][..], true)
        );
        let hosts = parse("[host.'http://m']").expect("hosts");
        let bases: Vec<_> = hosts.iter().map(|host| host.base.as_str()).collect();
        assert_eq!(bases, ["http://m/v2", "https://registry.example:5000/v2"]);
    }

    #[test]
    fn what_is_no_configuration_says_what_was_expected() {
        let many: String = (0..65)
            .map(|at| format!("[host.'http://h{at}']\n"))
            .collect();
        for text in [
            "server = 1",
            "server = 'ftp://h'",
            "server = 'https://user@h'",
            "host = 1",
            "[host]\nx = 1",
            "[host.'https://h?x']",
            "[host.'httO\u{24d}']",
            "[host.'https://O%C9']",
            "[host.'https:///O%C9']",
            "[host.'https://h']\ncapabilities = ['fly']",
            "[host.'https://h']\ncapabilities = 1",
            "[host.'https://h']\nskip_verify = 'yes'",
            "[host.'https://h']\nclient = [['a', 'b', 'c']]",
            "[host.'https://h']\nheader = 'x'",
            &many,
        ] {
            let bad = parse(text).expect_err(text);
            assert!(bad.contains("expected"), "{text}: {bad}");
        }
        assert!(parse("[host").is_err());
    }

    #[test]
    fn the_directory_is_named_after_the_registry() {
        let dir = tempfile::tempdir().expect("a directory");
        let read = |registry: &str| {
            let hosts = Host::read(dir.path(), registry, None).expect("hosts");
            hosts[0].base.host_str().unwrap_or_default().to_owned()
        };
        assert_eq!(read("r:5000"), "r");
        for name in ["_default", "r:5000", "r_5000_"] {
            std::fs::create_dir(dir.path().join(name)).expect("made");
            let host = name.replace([':', '_'], "-");
            let text = format!("[host.'https://m{host}m']");
            std::fs::write(dir.path().join(name).join("hosts.toml"), text).expect("written");
            assert_eq!(read("r:5000"), format!("m{host}m"));
        }
        assert_eq!(read("r:5001"), "m-defaultm");
        std::fs::write(dir.path().join("_default/hosts.toml"), "x").expect("written");
        let error = Host::read(dir.path(), "r:5001", None).expect_err("invalid");
        assert!(error.to_string().contains("_default/hosts.toml"), "{error}");
    }
}
