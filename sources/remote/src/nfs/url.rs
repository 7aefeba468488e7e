//! URLs of NFS servers.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use tls::{Connector, TlsFiles};
use transports::Addr;
use vfs::{Errno, FileSystem};

use super::mount::{Mount, mount};
use super::options::Options;
use super::rpc_client::DialResult;
use super::starttls::{TlsSettings, establish_tls};
use crate::url::{BadUrl, decode, host_and_port, id, in_flight};
use crate::{ConnectError, Retry, Timeouts};

/// An NFS server and a path in it: `nfs://HOST[:PORT]/PATH` or `nfs+unix:SOCKET?path=PATH`. After a
/// question mark follow parameters, separated by `&`: `vers=` 3, 4, 4.0, 4.1 or 4.2; `mountport=`;
/// `uid=` and `gid=`, the user and group that all callers act as; `rsize=` and `wsize=`, the most
/// bytes of a message's payload; `inflight=`, `retry=`, `timeo=`, `soft` and `hard` as for 9P
/// ([`crate::ninep::Url`]); `noreadplus`; `nodelegations`; and `resvport`, to connect from a
/// reserved port. `xprtsec=tls` or `mtls` (nfs(5)) secures the connection: `tlsca=` names a file of
/// CA certificates to trust instead of the system's, `tlscert=` and `tlskey=` the client's
/// certificate and key for `mtls`. Percent-encoding is decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// The server's address.
    pub addr: Addr,
    /// The mount options.
    pub options: Options,
    /// The TLS settings, if the connection is to be secured.
    pub tls: Option<TlsSettings>,
    /// The path from the server's root, without slashes at its ends.
    pub path: String,
}

impl Url {
    /// The port that IANA assigned to NFS.
    pub const PORT: u16 = 2049;

    /// Mounts the whole path.
    pub fn connect(&self) -> Result<Arc<dyn FileSystem>, ConnectError> {
        self.mount(true).map(|(tree, _)| tree)
    }

    /// Mounts the tree that the path begins in, and returns the rest of the path, whose last
    /// component need not exist.
    pub fn find(&self) -> Result<(Arc<dyn FileSystem>, String), ConnectError> {
        self.mount(false)
    }

    fn mount(&self, whole: bool) -> Result<(Arc<dyn FileSystem>, String), ConnectError> {
        let addr = self.addr.clone();
        let reserved = self.options.reserved_port;
        let dial = move |at: Option<u16>| match &addr {
            Addr::Tcp { host, port } if reserved => {
                transports::dial_from_reserved(host, at.unwrap_or(*port))
            }
            Addr::Tcp { host, port } => transports::dial(&Addr::Tcp {
                host: host.clone(),
                port: at.unwrap_or(*port),
            }),
            _ => transports::dial(&addr),
        };
        let connector = self.connector()?;
        let version = self.options.version.map_or(4, |(major, _)| major);
        let dial = move |port: Option<u16>| -> DialResult {
            let link = dial(port)?;
            match &connector {
                // Other ports are MOUNT's or the portmapper's, which do not support TLS.
                Some(connector) if port.is_none() => establish_tls(link, connector, version),
                _ => Ok(Box::new(link)),
            }
        };
        mount(&Mount {
            dial: Arc::new(dial),
            path: &self.path,
            require_full_path: whole,
            options: self.options.clone(),
        })
        .map_err(|error| ConnectError::new(error.errno(), format!("{}: {error}", self.addr)))
    }

    fn connector(&self) -> Result<Option<Arc<Connector>>, ConnectError> {
        let (Some(secure), Addr::Tcp { host, .. }) = (&self.tls, &self.addr) else {
            return Ok(None);
        };
        let opened = Connector::open(&secure.files, host, ::nfs::ALPN);
        let opened = opened.map_err(|why| ConnectError::new(Errno::EINVAL, format!("TLS: {why}")));
        opened.map(|connector| Some(Arc::new(connector)))
    }

    fn parse(text: &str) -> Result<Url, String> {
        let (location, query) = text.split_once('?').unwrap_or((text, ""));
        let mut url = Url {
            addr: Addr::Fd(0),
            options: Options::default(),
            tls: None,
            path: String::new(),
        };
        if let Some(rest) = location.strip_prefix("nfs://") {
            let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
            let whole = || "nfs://HOST[:PORT]/PATH, an IPv6 address in brackets".to_owned();
            url.addr = host_and_port(host, Url::PORT)
                .map_err(|expected| expected.unwrap_or_else(whole))?;
            url.path = decode(path)?;
        } else if let Some(socket) = location
            .strip_prefix("nfs+unix:")
            .filter(|at| !at.is_empty())
        {
            url.addr = Addr::Unix(decode(socket)?.into());
        } else {
            return Err("nfs://HOST[:PORT]/PATH or nfs+unix:SOCKET".into());
        }
        let (mut uid, mut gid) = (None, None);
        let (mut security, mut files) = (String::new(), TlsFiles::default());
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            let value = decode(value)?;
            match name {
                "vers" => url.options.version = Some(version(&value)?),
                "mountport" => url.options.mount_port = Some(port(&value)?),
                "rsize" => url.options.sizes.0 = Some(size("rsize", &value)?),
                "wsize" => url.options.sizes.1 = Some(size("wsize", &value)?),
                "inflight" => url.options.in_flight = Some(in_flight(&value)?),
                "uid" => uid = Some(id("uid", &value)?),
                "gid" => gid = Some(id("gid", &value)?),
                "noreadplus" => url.options.no_read_plus = true,
                "nodelegations" => url.options.no_delegations = true,
                "resvport" => url.options.reserved_port = true,
                "retry" => url.options.retry = Retry::seconds(&value)?,
                "timeo" => url.options.timeouts.timeo = Timeouts::timeo(&value)?,
                "soft" if value.is_empty() => url.options.timeouts.soft = true,
                "hard" if value.is_empty() => {
                    url.options.retry = Retry::Forever;
                    url.options.timeouts.soft = false;
                }
                "path" => url.path = value,
                "xprtsec" => security = value,
                "tlsca" => files.ca = Some(value.into()),
                "tlscert" => files.cert = Some(value.into()),
                "tlskey" => files.key = Some(value.into()),
                _ => {
                    return Err(format!(
                        "vers=, mountport=, uid=, gid=, rsize=, wsize=, inflight=, retry=, timeo=, soft, hard, noreadplus, nodelegations, resvport, xprtsec=, tlsca=, tlscert=, tlskey= or path=, not '{name}'"
                    ));
                }
            }
        }
        url.tls = TlsSettings::parse(&security, files)?;
        if url.tls.is_some() && !matches!(url.addr, Addr::Tcp { .. }) {
            return Err("nfs://HOST with xprtsec=, as certificates name hosts".into());
        }
        url.options.act_as = match (uid, gid) {
            (None, None) => None,
            (uid, gid) => Some((uid.unwrap_or(0), gid.or(uid).unwrap_or(0))),
        };
        url.path = url.path.trim_matches('/').to_owned();
        Ok(url)
    }
}

fn version(text: &str) -> Result<(u32, u32), String> {
    Ok(match text {
        "3" => (3, 0),
        "4.0" => (4, 0),
        "4.1" => (4, 1),
        "4" | "4.2" => (4, 2),
        _ => return Err(format!("vers=3, 4, 4.0, 4.1 or 4.2, not '{text}'")),
    })
}

fn port(text: &str) -> Result<u16, String> {
    match text.parse() {
        Ok(port) if port > 0 => Ok(port),
        _ => Err(format!("mountport= from 1 to 65535, not '{text}'")),
    }
}

/// Parses `rsize=` or `wsize=`, at least 1024 bytes as in nfs(5).
fn size(name: &str, text: &str) -> Result<u32, String> {
    let size = text.parse().ok().filter(|&size| size >= 1024);
    size.ok_or_else(|| format!("{name}= with bytes from 1024 on, not '{text}'"))
}

/// Formats the URL, without percent-encoding.
impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.addr {
            Addr::Tcp { host, port } if host.contains(':') => write!(f, "nfs://[{host}]:{port}")?,
            Addr::Tcp { host, port } => write!(f, "nfs://{host}:{port}")?,
            other => write!(f, "nfs+{other}")?,
        }
        match &self.addr {
            Addr::Tcp { .. } => write!(f, "/{}", self.path),
            _ if self.path.is_empty() => Ok(()),
            _ => write!(f, "?path={}", self.path),
        }
    }
}

impl FromStr for Url {
    type Err = BadUrl;

    fn from_str(text: &str) -> Result<Url, BadUrl> {
        Url::parse(text).map_err(|expected| BadUrl::new(text, &expected))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn url(text: &str) -> Url {
        text.parse().expect(text)
    }

    #[test]
    fn places_and_parameters_are_read() {
        let plain = url("nfs://host");
        let host = "host".into();
        assert_eq!(plain.addr, Addr::Tcp { host, port: 2049 });
        assert_eq!(
            (plain.path.as_str(), plain.options),
            ("", Options::default())
        );
        let full = url(
            "nfs://h:20490/a%20b/c/?vers=3&mountport=20491&uid=7&noreadplus&nodelegations&resvport&soft&timeo=30&retry=5&rsize=4096&inflight=64k",
        );
        let want = Options {
            version: Some((3, 0)),
            mount_port: Some(20491),
            act_as: Some((7, 7)),
            no_read_plus: true,
            no_delegations: true,
            reserved_port: true,
            timeouts: Timeouts {
                timeo: Duration::from_secs(3),
                soft: true,
            },
            retry: Retry::For(Duration::from_secs(5)),
            sizes: (Some(4096), None),
            uncommitted: None,
            in_flight: Some(65536),
            client_owner: None,
            hidden_log: None,
        };
        assert_eq!((full.path.as_str(), full.options), ("a b/c", want));
        assert_eq!(url("nfs://h/?vers=4.1").options.version, Some((4, 1)));
        let secure = url("nfs://h/?xprtsec=mtls&tlsca=/a&tlscert=/c&tlskey=/k").tls;
        let files = TlsFiles {
            ca: Some("/a".into()),
            cert: Some("/c".into()),
            key: Some("/k".into()),
        };
        assert_eq!(secure, Some(TlsSettings { files }));
        assert_eq!(url("nfs://h/?xprtsec=none").tls, None);
        let socket = url("nfs+unix:/run/s?path=/x/y");
        assert_eq!(socket.addr, Addr::Unix("/run/s".into()));
        assert_eq!(socket.path, "x/y");
    }

    #[test]
    fn a_url_is_shown_as_it_would_be_given() {
        for (text, shown) in [
            ("nfs://host", "nfs://host:2049/"),
            ("nfs://[::1]:1/a/b/?vers=3", "nfs://[::1]:1/a/b"),
            ("nfs+unix:/run/s", "nfs+unix:/run/s"),
            ("nfs+unix:/run/s?path=/a", "nfs+unix:/run/s?path=a"),
        ] {
            assert_eq!(url(text).to_string(), shown);
        }
    }

    #[test]
    fn what_is_no_url_says_what_was_expected() {
        for (text, expected) in [
            ("nfs:host", "nfs://HOST"),
            ("nfs:///srv", "nfs://HOST"),
            ("nfs://h:0/", "a port"),
            ("nfs+unix:", "nfs+unix:SOCKET"),
            ("nfs://h/%zz", "hexadecimal"),
            ("nfs://h/?vers=2", "vers=3"),
            ("nfs://h/?uid=me", "uid="),
            ("nfs://h/?mountport=x", "mountport="),
            ("nfs://h/?soft=1", "not 'soft'"),
            ("nfs://h/?timeo=x", "timeo="),
            ("nfs://h/?wsize=1", "wsize="),
            ("nfs://h/?xprtsec=ssl", "xprtsec=none, tls or mtls"),
            ("nfs://h/?xprtsec=mtls", "tlscert= and tlskey="),
            ("nfs://h/?tlsca=/ca", "xprtsec="),
            ("nfs+unix:/s?xprtsec=tls", "nfs://HOST"),
        ] {
            let error = text.parse::<Url>().expect_err(text).to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
