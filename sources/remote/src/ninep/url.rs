//! URLs of 9P servers.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use p9::Dialect;
use transports::{Addr, Link};
use vfs::Errno;

use super::device;
use super::fs::Remote9p;
use super::options::Options;
use super::reconnecting::ReconnectingLink;
use crate::url::{BadUrl, bytes, decode, host_and_port, id, in_flight};
use crate::{ConnectError, Retry, Timeouts};

/// A 9P server and one of its trees: `9p://HOST[:PORT]/ANAME`, `9p+unix:SOCKET`,
/// `9p+vsock:[CID:]PORT` or `9p+vsock-uds:PATH:PORT` (see [`Addr`]), or `9p+virtio:SOCKET`, a
/// vhost-user device; each with `?` and parameters: `version=`, `msize=`, `uname=`, `uid=`,
/// `aname=`, `zerocopy=on` or `off` ([`Options::zerocopy`]); `inflight=SIZE`, the most payload in
/// flight; `retry=SECONDS`, how long to wait for a lost server ([`Retry`]); `soft` and
/// `timeo=TENTHS`, for one that does not answer ([`Timeouts`]); and `hard`, which removes both
/// limits. Percent-encoding is decoded.
///
/// With `aname=`, the path of the URL is a path within that tree; else the whole path is the
/// `aname`, which barge's own server accepts for both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// The server's address.
    pub addr: ServerAddr,
    /// The options of the session.
    pub options: Options,
    /// A path within the tree, without slashes at its ends; empty for the root.
    pub path: String,
    /// The retry limit after a lost connection. Only 9P2000.L sessions can be resumed.
    pub retry: Retry,
}

/// The address of a 9P server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerAddr {
    /// The remote peer of a connection.
    Addr(Addr),
    /// A vhost-user device: the path of its socket, on which this process is the front end.
    Device(PathBuf),
}

/// Formats the part of a URL after `9p+`.
impl fmt::Display for ServerAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServerAddr::Addr(addr) => addr.fmt(f),
            ServerAddr::Device(socket) => write!(f, "virtio:{}", socket.display()),
        }
    }
}

impl Url {
    /// The port that IANA assigned to 9P.
    pub const PORT: u16 = 564;

    /// The smallest msize to offer: less would leave no useful payload.
    const MIN_MSIZE: u32 = 4096;

    /// The largest msize to offer: each message is received into a buffer of this size.
    const MAX_MSIZE: u32 = 64 << 20;

    /// Connects and attaches to the `aname`, without walking [`Url::path`].
    pub fn connect(&self) -> Result<Arc<Remote9p>, ConnectError> {
        let failed = |error: io::Error| {
            let why = format!("cannot connect to {}: {error}", self.addr);
            ConnectError::new(Errno::from(error), why)
        };
        let on_this_host = matches!(self.addr, ServerAddr::Addr(Addr::Unix(_)));
        let options = Options {
            fd_passing: self.options.fd_passing && on_this_host,
            ..self.options.clone()
        };
        match &self.addr {
            ServerAddr::Addr(addr) if self.retry == Retry::For(Duration::ZERO) => {
                let link = transports::dial(addr).map_err(failed)?;
                Remote9p::connect(link, options)
            }
            ServerAddr::Addr(_) => Remote9p::connect(self.dial().map_err(failed)?, options),
            ServerAddr::Device(socket) => {
                let link = device::dial(socket, options.msize).map_err(failed)?;
                Remote9p::connect(link, options)
            }
        }
    }

    /// Connects with a link that reconnects when it is lost. Returns `EOPNOTSUPP` for a device.
    pub fn dial(&self) -> io::Result<ReconnectingLink> {
        let ServerAddr::Addr(addr) = self.addr.clone() else {
            return Err(Errno::EOPNOTSUPP.into());
        };
        let dial = move || -> io::Result<Box<dyn Link>> { Ok(Box::new(transports::dial(&addr)?)) };
        let timeo = self.options.timeouts.timeo;
        Ok(ReconnectingLink::new(dial()?, Box::new(dial), self.retry)?.with_timeo(timeo))
    }

    /// Connects to the tree that the `aname` begins with, and returns the rest of the path, whose
    /// last component need not exist. Servers other than barge's attach only to whole trees, so the
    /// longest prefix that the server accepts is used.
    pub fn find(&self) -> Result<(Arc<Remote9p>, String), ConnectError> {
        let mut url = self.clone();
        let mut refused = None;
        loop {
            match url.connect() {
                Ok(tree) => return Ok((tree, url.path)),
                Err(error) if !error.is_of_attach() => return Err(error),
                Err(error) => {
                    let refused = refused.get_or_insert(error);
                    let aname = url.options.aname.trim_end_matches('/');
                    let Some((before, last)) = aname.rsplit_once('/') else {
                        return Err(refused.clone());
                    };
                    let path = url.path.trim_matches('/');
                    url.path = format!("{last}/{path}").trim_matches('/').to_owned();
                    url.options.aname = before.to_owned();
                }
            }
        }
    }

    fn parse(text: &str) -> Result<Url, String> {
        let (location, query) = match text.split_once('?') {
            Some((location, query)) => (location, query),
            None => (text, ""),
        };
        let mut url = Url {
            addr: ServerAddr::Addr(Addr::Fd(0)),
            options: Options::default(),
            path: String::new(),
            retry: Retry::default(),
        };
        if let Some(rest) = location.strip_prefix("9p://") {
            let (host, path) = match rest.find('/') {
                Some(at) => (&rest[..at], &rest[at..]),
                None => (rest, ""),
            };
            let whole = || "9p://HOST[:PORT]/ANAME, an IPv6 address in brackets".to_owned();
            let addr = host_and_port(host, Url::PORT)
                .map_err(|expected| expected.unwrap_or_else(whole))?;
            url.addr = ServerAddr::Addr(addr);
            url.path = decode(path)?;
        } else if let Some(socket) = location.strip_prefix("9p+unix:") {
            if socket.is_empty() {
                return Err("9p+unix:SOCKET".into());
            }
            url.addr = ServerAddr::Addr(Addr::Unix(decode(socket)?.into()));
        } else if let Some(socket) = location.strip_prefix("9p+virtio:") {
            if socket.is_empty() {
                return Err("9p+virtio:SOCKET".into());
            }
            url.addr = ServerAddr::Device(decode(socket)?.into());
        } else if let Some(vsock) = location
            .strip_prefix("9p+")
            .filter(|at| at.starts_with("vsock"))
        {
            let expected = |_| "9p+vsock:[CID:]PORT or 9p+vsock-uds:PATH:PORT".to_owned();
            url.addr = ServerAddr::Addr(decode(vsock)?.parse().map_err(expected)?);
        } else {
            return Err(
                "9p://HOST[:PORT]/ANAME, 9p+unix:SOCKET, 9p+vsock:[CID:]PORT, 9p+vsock-uds:PATH:PORT or 9p+virtio:SOCKET"
                    .into(),
            );
        }
        let mut aname = None;
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            let value = decode(value)?;
            match name {
                "version" => url.options.version = version(&value)?,
                "msize" => url.options.msize = msize(&value)?,
                "uname" => url.options.uname = value,
                "uid" => url.options.uid = Some(id("uid", &value)?),
                "aname" => aname = Some(value),
                "inflight" => url.options.in_flight = Some(in_flight(&value)?),
                "zerocopy" => url.options.zerocopy = switch(&value)?,
                "retry" => url.retry = Retry::seconds(&value)?,
                "timeo" => url.options.timeouts.timeo = Timeouts::timeo(&value)?,
                "soft" if value.is_empty() => url.options.timeouts.soft = true,
                "hard" if value.is_empty() => {
                    url.retry = Retry::Forever;
                    url.options.timeouts.soft = false;
                }
                _ => {
                    return Err(format!(
                        "version=, msize=, uname=, uid=, aname=, zerocopy=, inflight=, retry=, timeo=, soft or hard, not '{name}'"
                    ));
                }
            }
        }
        match aname {
            Some(aname) => url.options.aname = aname,
            None if url.path.trim_matches('/').is_empty() => {}
            None => url.options.aname = std::mem::take(&mut url.path),
        }
        url.path = url.path.trim_matches('/').to_owned();
        Ok(url)
    }
}

/// Formats the URL, without percent-encoding.
impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tcp = match &self.addr {
            ServerAddr::Addr(Addr::Tcp { host, port }) => Some((host, port)),
            _ => None,
        };
        match tcp {
            Some((host, port)) if host.contains(':') => write!(f, "9p://[{host}]:{port}")?,
            Some((host, port)) => write!(f, "9p://{host}:{port}")?,
            None => write!(f, "9p+{}", self.addr)?,
        }
        match (tcp, self.path.as_str()) {
            (Some(_), "") => {
                let slash = if self.options.aname.starts_with('/') {
                    ""
                } else {
                    "/"
                };
                write!(f, "{slash}{}", self.options.aname)
            }
            (Some(_), path) => write!(f, "/{path}?aname={}", self.options.aname),
            _ if self.options.aname.is_empty() => Ok(()),
            _ => write!(f, "?aname={}", self.options.aname),
        }
    }
}

impl FromStr for Url {
    type Err = BadUrl;

    fn from_str(text: &str) -> Result<Url, BadUrl> {
        Url::parse(text).map_err(|expected| BadUrl::new(text, &expected))
    }
}

fn version(text: &str) -> Result<Dialect, String> {
    let known = Dialect::ALL.into_iter();
    known
        .clone()
        .find(|dialect| dialect.version().eq_ignore_ascii_case(text))
        .ok_or_else(|| {
            let known: Vec<_> = known.map(Dialect::version).collect();
            format!("version={}, not '{text}'", known.join(", "))
        })
}

fn msize(text: &str) -> Result<u32, String> {
    let msize = bytes(text).and_then(|bytes| u32::try_from(bytes).ok());
    let range = Url::MIN_MSIZE..=Url::MAX_MSIZE;
    msize.filter(|msize| range.contains(msize)).ok_or_else(|| {
        let (least, most) = range.into_inner();
        format!("msize= from {least} to {most}, not '{text}'")
    })
}

fn switch(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(format!("zerocopy=on or off, not '{text}'")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        text.parse().expect(text)
    }

    fn tcp(host: &str, port: u16) -> ServerAddr {
        let host = host.into();
        ServerAddr::Addr(Addr::Tcp { host, port })
    }

    #[test]
    fn places_and_parameters_are_read() {
        let plain = url("9p://host");
        assert_eq!((plain.addr, plain.path.as_str()), (tcp("host", 564), ""));
        assert_eq!(plain.options, Options::default());

        let named = url("9p://10.0.0.1:5640/srv/a%20b/");
        assert_eq!(named.addr, tcp("10.0.0.1", 5640));
        assert_eq!(named.options.aname, "/srv/a b/");
        assert_eq!(named.path, "");

        let within = url("9p://[::1]:564/dir/file?aname=/srv");
        assert_eq!(within.addr, tcp("::1", 564));
        assert_eq!(within.options.aname, "/srv");
        assert_eq!(within.path, "dir/file");

        let socket = url(
            "9p+unix:/run/s?version=9p2000.u&msize=64k&uname=glenda&uid=7&zerocopy=off&inflight=1m",
        );
        assert_eq!(socket.addr, ServerAddr::Addr(Addr::Unix("/run/s".into())));
        let expected = Options {
            aname: String::new(),
            uname: "glenda".into(),
            uid: Some(7),
            msize: 65536,
            version: Dialect::Unix,
            zerocopy: false,
            in_flight: Some(1 << 20),
            timeouts: Timeouts::default(),
            fd_passing: false,
            client_owner: None,
        };
        assert_eq!(socket.options, expected);
        assert_eq!(url("9p://h/?aname=").options.aname, "");
        assert_eq!(url("9p://h/").retry, Retry::default());
        assert_eq!(url("9p://h/?hard").retry, Retry::Forever);
        let some = Retry::For(Duration::from_secs(5));
        assert_eq!(url("9p://h/?retry=5").retry, some);
        let soft = Timeouts {
            timeo: Duration::from_millis(1500),
            soft: true,
        };
        assert_eq!(url("9p://h/?soft&timeo=15").options.timeouts, soft);
    }

    #[test]
    fn a_url_is_shown_as_it_would_be_given() {
        for (text, shown) in [
            ("9p://host", "9p://host:564/"),
            ("9p://[::1]:5640/srv", "9p://[::1]:5640/srv"),
            ("9p://h:1/a/b?aname=/srv", "9p://h:1/a/b?aname=/srv"),
            ("9p+unix:/run/s", "9p+unix:/run/s"),
            ("9p+unix:/run/s?aname=x&uid=0", "9p+unix:/run/s?aname=x"),
            ("9p+vsock:5640", "9p+vsock:5640"),
            ("9p+vsock:3:5640?aname=x", "9p+vsock:3:5640?aname=x"),
            ("9p+virtio:/run/s?aname=x", "9p+virtio:/run/s?aname=x"),
            ("9p+vsock-uds:/run/a%20b:1", "9p+vsock-uds:/run/a b:1"),
        ] {
            assert_eq!(url(text).to_string(), shown);
        }
    }

    #[test]
    fn what_is_no_url_says_what_was_expected() {
        for (text, expected) in [
            ("9p:host", "9p://HOST"),
            ("9p:///srv", "9p://HOST"),
            ("9p://::1/", "in brackets"),
            ("9p://[::1/", "in brackets"),
            ("9p://[::1]x/", "in brackets"),
            ("9p://h:0/", "a port"),
            ("9p://h:564x/", "a port"),
            ("9p+unix:", "9p+unix:SOCKET"),
            ("9p+virtio:", "9p+virtio:SOCKET"),
            ("9p+vsock:x", "9p+vsock:[CID:]PORT"),
            ("9p+vsock-uds:/run/s", "9p+vsock-uds:PATH:PORT"),
            ("9p+fd:3", "9p+vsock:[CID:]PORT"),
            ("9p://h/%2", "hexadecimal"),
            ("9p://h/%zz", "hexadecimal"),
            ("9p://h/%ff", "UTF-8"),
            ("9p://h/?version=9p3000", "version=9P2000"),
            ("9p://h/?msize=100", "msize= from 4096"),
            ("9p://h/?msize=9999m", "msize= from 4096"),
            ("9p://h/?uid=me", "uid="),
            ("9p://h/?zerocopy=no", "zerocopy="),
            ("9p://h/?retry=ever", "retry="),
            ("9p://h/?hard=1", "not 'hard'"),
            ("9p://h/?timeo=0", "timeo="),
            ("9p://h/?port=7", "not 'port'"),
            ("nfs://h/", "9p://HOST"),
        ] {
            let error = text.parse::<Url>().expect_err(text).to_string();
            assert!(
                error.contains(expected) && error.contains(&format!("'{text}'")),
                "{error}"
            );
        }
    }
}
