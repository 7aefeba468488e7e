//! URLs of servers and their trees.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use transports::Addr;
use vfs::FileSystem;

use crate::{ClientOwner, ConnectError, Retry, Timeouts, nfs, ninep, virtiofs};

/// A server and one of its trees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Url {
    /// `9p://…`, `9p+unix:…`, `9p+vsock:…`, `9p+vsock-uds:…`, `9p+virtio:…`
    Ninep(ninep::Url),
    /// `nfs://…`, `nfs+unix:…`
    Nfs(nfs::Url),
    /// `virtiofs:…`
    Virtiofs(virtiofs::Url),
}

/// The error for a text that is not a URL: states the expected form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadUrl(String);

impl BadUrl {
    pub(crate) fn new(text: &str, expected: &str) -> BadUrl {
        BadUrl(format!("bad source '{text}': expected {expected}"))
    }

    /// Creates the error for a source that only Linux has.
    pub(crate) fn needs_linux(text: &str) -> BadUrl {
        BadUrl(format!("{text}: this needs Linux"))
    }
}

impl fmt::Display for BadUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadUrl {}

/// Parses a number of bytes, with an optional unit (`k`, `m`, `g` for KiB, MiB, GiB).
pub fn bytes(text: &str) -> Option<u64> {
    let (digits, unit) = match text.as_bytes().last()? {
        b'k' | b'K' => (&text[..text.len() - 1], 1 << 10),
        b'm' | b'M' => (&text[..text.len() - 1], 1 << 20),
        b'g' | b'G' => (&text[..text.len() - 1], 1 << 30),
        _ => (text, 1),
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

/// Parses the value of `inflight=` in bytes. The error states the expected form.
pub(crate) fn in_flight(text: &str) -> Result<usize, String> {
    let bytes = bytes(text).and_then(|bytes| usize::try_from(bytes).ok());
    bytes.ok_or_else(|| format!("inflight= with a number of bytes, not '{text}'"))
}

/// Parses a user or group ID, the value of the option `name`. The error, also for the reserved ID
/// `u32::MAX`, states the expected form.
pub fn id(name: &str, text: &str) -> Result<u32, String> {
    let id = text.parse().ok().filter(|&id| id != u32::MAX);
    id.ok_or_else(|| format!("{name}= with a number, not '{text}'"))
}

impl Url {
    /// The schemes, which precede the first colon.
    pub const SCHEMES: &[&str] = &[
        "9p",
        "9p+unix",
        "9p+vsock",
        "9p+vsock-uds",
        "9p+virtio",
        "nfs",
        "nfs+unix",
        "virtiofs",
    ];

    /// Connects to the whole path.
    pub fn open(&self) -> Result<Arc<dyn FileSystem>, ConnectError> {
        Ok(match self {
            Url::Ninep(url) => url.connect()?,
            Url::Nfs(url) => url.connect()?,
            Url::Virtiofs(url) => url.connect()?,
        })
    }

    /// Connects to the tree that the path begins in, and returns the rest of the path, whose last
    /// component need not exist.
    pub fn find(&self) -> Result<(Arc<dyn FileSystem>, String), ConnectError> {
        match self {
            Url::Ninep(url) => {
                let (tree, path) = url.find()?;
                Ok((tree, path))
            }
            Url::Nfs(url) => url.find(),
            Url::Virtiofs(url) => {
                let (tree, path) = url.find()?;
                Ok((tree, path))
            }
        }
    }

    /// The timeouts for a server that does not answer.
    pub fn timeouts(&mut self) -> &mut Timeouts {
        match self {
            Url::Ninep(url) => &mut url.options.timeouts,
            Url::Nfs(url) => &mut url.options.timeouts,
            Url::Virtiofs(url) => &mut url.timeouts,
        }
    }

    /// The limit of written data that are kept until the server has made them durable, in bytes, or
    /// `None` for protocols that keep none.
    pub fn uncommitted(&mut self) -> Option<&mut Option<usize>> {
        match self {
            Url::Nfs(url) => Some(&mut url.options.uncommitted),
            Url::Ninep(_) | Url::Virtiofs(_) => None,
        }
    }

    /// The switch that requests open file descriptors from the server ([`vfs::File::backing`]), or
    /// `None` where none can be passed, as from another host.
    pub fn fd_passing(&mut self) -> Option<&mut bool> {
        match self {
            Url::Ninep(url) if matches!(url.addr, ninep::ServerAddr::Addr(Addr::Unix(_))) => {
                Some(&mut url.options.fd_passing)
            }
            _ => None,
        }
    }

    /// The name of the client, or `None` for protocols whose connections are clients of their own.
    /// Sources that are open at the same time must not have the same one.
    pub fn client_owner(&mut self) -> Option<&mut Option<ClientOwner>> {
        match self {
            Url::Ninep(url) => Some(&mut url.options.client_owner),
            Url::Nfs(url) => Some(&mut url.options.client_owner),
            Url::Virtiofs(_) => None,
        }
    }

    /// The retry limit after a lost connection, or `None` for protocols that do not reconnect.
    pub fn retry(&mut self) -> Option<&mut Retry> {
        match self {
            Url::Ninep(url) => Some(&mut url.retry),
            Url::Nfs(url) => Some(&mut url.options.retry),
            Url::Virtiofs(_) => None,
        }
    }

    /// The path on the server, whose last component is the name of the source.
    pub fn path(&self) -> &[u8] {
        match self {
            Url::Ninep(url) if url.path.is_empty() => url.options.aname.as_bytes(),
            Url::Ninep(url) => url.path.as_bytes(),
            Url::Nfs(url) => url.path.as_bytes(),
            Url::Virtiofs(url) => url.path(),
        }
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Url::Ninep(url) => url.fmt(f),
            Url::Nfs(url) => url.fmt(f),
            Url::Virtiofs(url) => url.fmt(f),
        }
    }
}

impl FromStr for Url {
    type Err = BadUrl;

    fn from_str(text: &str) -> Result<Url, BadUrl> {
        let scheme = text.split_once(':').map_or("", |(scheme, _)| scheme);
        if cfg!(not(target_os = "linux")) && scheme.contains('+') {
            return Err(BadUrl::needs_linux(text));
        }
        if let Some(socket) = text.strip_prefix("virtiofs:") {
            return virtiofs::Url::parse(text, socket).map(Url::Virtiofs);
        }
        match text.starts_with("nfs:") || text.starts_with("nfs+") {
            true => text.parse().map(Url::Nfs),
            false => text.parse().map(Url::Ninep),
        }
    }
}

/// Parses a host and a port, `usual` if the text has none. The error states the port that was
/// expected, or is `None` if the text is malformed before the port.
pub(crate) fn host_and_port(text: &str, usual: u16) -> Result<Addr, Option<String>> {
    let bad = || None;
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']').ok_or_else(bad)?;
            match rest.strip_prefix(':') {
                Some(port) => (host, Some(port)),
                None if rest.is_empty() => (host, None),
                None => return Err(bad()),
            }
        }
        None => match text.split_once(':') {
            Some((_, port)) if port.contains(':') => return Err(bad()),
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    if host.is_empty() {
        return Err(bad());
    }
    let port = match port {
        None => usual,
        Some(port) => match port.parse() {
            Ok(port) if port > 0 => port,
            _ => return Err(Some(format!("a port from 1 to 65535, not '{port}'"))),
        },
    };
    let host = host.to_owned();
    Ok(Addr::Tcp { host, port })
}

/// Decodes percent-encoding.
pub(crate) fn decode(text: &str) -> Result<String, String> {
    let bad = || format!("two hexadecimal digits after '%' that form UTF-8, in '{text}'");
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, behind)) = rest.split_first() {
        rest = behind;
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let (digits, behind) = rest.split_at_checked(2).ok_or_else(bad)?;
        let digit = |digit: u8| char::from(digit).to_digit(16).ok_or_else(bad);
        bytes.push((digit(digits[0])? * 16 + digit(digits[1])?) as u8);
        rest = behind;
    }
    String::from_utf8(bytes).map_err(|_| bad())
}
