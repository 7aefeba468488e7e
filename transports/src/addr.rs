use std::fmt;
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::str::FromStr;

/// Where a connection is made or awaited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Addr {
    /// `tcp:HOST:PORT`; an IPv6 address stands in brackets.
    Tcp {
        /// A name or address.
        host: String,
        /// A port; 0 lets the system choose one.
        port: u16,
    },
    /// `unix:PATH`; `@NAME` is a name without a file (unix(7), abstract).
    Unix(PathBuf),
    /// `fd:N`: an inherited descriptor: one connection, or a socket that listens.
    Fd(RawFd),
}

/// A text that is no address: says what was expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadAddr(String);

impl fmt::Display for BadAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadAddr {}

impl FromStr for Addr {
    type Err = BadAddr;

    fn from_str(text: &str) -> Result<Addr, BadAddr> {
        let bad = |expected: &str| BadAddr(format!("bad address '{text}': expected {expected}"));
        match text.split_once(':') {
            Some(("tcp", rest)) => {
                let (host, port) = rest.rsplit_once(':').ok_or_else(|| bad("tcp:HOST:PORT"))?;
                let port = port.parse().map_err(|_| bad("a port from 0 to 65535"))?;
                let host = match host.strip_prefix('[').map(|host| host.strip_suffix(']')) {
                    Some(bracketed) => bracketed.ok_or_else(|| bad("tcp:[ADDRESS]:PORT"))?,
                    None if host.contains(':') => return Err(bad("tcp:[ADDRESS]:PORT")),
                    None => host,
                };
                if host.is_empty() {
                    return Err(bad("tcp:HOST:PORT"));
                }
                Ok(Addr::Tcp {
                    host: host.to_owned(),
                    port,
                })
            }
            Some(("unix", path)) if !path.is_empty() => Ok(Addr::Unix(path.into())),
            Some(("fd", number)) => match number.parse() {
                Ok(fd) if fd >= 0 => Ok(Addr::Fd(fd)),
                _ => Err(bad("fd:N with the number of an inherited descriptor")),
            },
            _ => Err(bad("tcp:HOST:PORT, unix:PATH or fd:N")),
        }
    }
}

impl fmt::Display for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Addr::Tcp { host, port } if host.contains(':') => write!(f, "tcp:[{host}]:{port}"),
            Addr::Tcp { host, port } => write!(f, "tcp:{host}:{port}"),
            Addr::Unix(path) => write!(f, "unix:{}", path.display()),
            Addr::Fd(fd) => write!(f, "fd:{fd}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_read_back_as_written() {
        for text in [
            "tcp:127.0.0.1:5640",
            "tcp:[::1]:564",
            "tcp:host:0",
            "unix:/run/s",
            "unix:@n",
            "fd:3",
        ] {
            assert_eq!(
                text.parse::<Addr>().map(|addr| addr.to_string()).as_deref(),
                Ok(text)
            );
        }
    }

    #[test]
    fn what_is_no_address_says_what_was_expected() {
        for (text, expected) in [
            ("tcp:5640", "tcp:HOST:PORT"),
            ("tcp::5640", "tcp:HOST:PORT"),
            ("tcp:h:70000", "a port"),
            ("tcp:::1:5640", "tcp:[ADDRESS]:PORT"),
            ("unix:", "unix:PATH"),
            ("fd:-1", "fd:N"),
            ("udp:h:1", "tcp:HOST:PORT, unix:PATH or fd:N"),
            ("", "tcp:HOST:PORT, unix:PATH or fd:N"),
        ] {
            let error = text.parse::<Addr>().expect_err(text).to_string();
            assert!(
                error.contains(expected) && error.contains(&format!("'{text}'")),
                "{error}"
            );
        }
    }
}
