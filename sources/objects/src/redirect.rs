//! Redirects, and the addresses that requests may lead to: one policy for `https://`, object stores
//! and registries.
//!
//! A redirect never leads from HTTPS to HTTP, loses the credentials if it leads to another server,
//! and is one of [`MAX_REDIRECTS`] at most. For a [tenant](crate::Environment::tenant) it leads
//! neither to this host nor to its link or a metadata service, by address or by name.

use std::error::Error;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};

use reqwest::StatusCode;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::header::{HeaderMap, HeaderName, LOCATION};
use url::{Host, Origin, Url};

/// Maximum number of redirects of a request.
const MAX_REDIRECTS: usize = 10;

/// The headers of a request that another server gets. All others may be credentials.
const PUBLIC_HEADERS: &[&str] = &["accept", "if-match", "if-none-match", "range", "user-agent"];

/// A request that is not sent, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused(&'static str);

impl Refused {
    pub(crate) const ELSEWHERE: Refused =
        Refused("refused: the request is for another server than the store");
    pub(crate) const NO_URL: Refused = Refused("redirected to a text that is no URL");
    /// The end of a request that was never meant to be sent.
    pub(crate) const REHEARSED: Refused = Refused("not sent");
    const INTERNAL: Refused =
        Refused("refused: the server leads to an address of this host or of its link");
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl Error for Refused {}

/// The server that a client's requests are for, and whether requests to others are restricted.
#[derive(Clone, Debug)]
pub struct Destination {
    origin: Origin,
    is_tenant: bool,
}

impl Destination {
    /// Returns the server of `url`. Requests to others are restricted for a tenant.
    pub fn new(url: &Url, is_tenant: bool) -> Destination {
        Destination {
            origin: url.origin(),
            is_tenant,
        }
    }

    /// Returns whether `url` is a restricted server's: a client with [`Resolver::guarded`] has to
    /// send the request. Returns an error if the address is not allowed at all.
    pub fn is_restricted(&self, url: &Url) -> Result<bool, Refused> {
        if !self.is_tenant || url.origin() == self.origin {
            return Ok(false);
        }
        let address = match url.host() {
            Some(Host::Ipv4(address)) => Some(IpAddr::V4(address)),
            Some(Host::Ipv6(address)) => Some(IpAddr::V6(address)),
            _ => None,
        };
        if address.is_some_and(is_internal) {
            return Err(Refused::INTERNAL);
        }
        Ok(true)
    }
}

/// The redirects of one request.
pub struct Redirects {
    at: Url,
    followed: usize,
}

impl Redirects {
    /// Starts with the URL of the request.
    pub fn new(at: Url) -> Redirects {
        Redirects { at, followed: 0 }
    }

    /// Returns the URL that a response leads to, if it redirects, and removes credentials from the
    /// headers of the request if that is another server's.
    pub fn next(
        &mut self,
        status: StatusCode,
        response: &HeaderMap,
        request: &mut HeaderMap,
    ) -> Result<Option<Url>, Refused> {
        if !matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308) {
            return Ok(None);
        }
        // A store that names no location has not redirected: its error says more.
        let Some(location) = response.get(LOCATION) else {
            return Ok(None);
        };
        let next = location
            .to_str()
            .ok()
            .filter(|location| !has_encoded_host(location))
            .and_then(|location| self.at.join(location).ok());
        let next = next.ok_or(Refused::NO_URL)?;
        if !matches!(next.scheme(), "http" | "https") || !next.has_host() {
            return Err(Refused("redirected to a URL of another scheme"));
        }
        if self.at.scheme() == "https" && next.scheme() != "https" {
            return Err(Refused("redirected from HTTPS to HTTP"));
        }
        if self.followed == MAX_REDIRECTS {
            return Err(Refused("redirected too often"));
        }
        self.followed += 1;
        if next.origin() != self.at.origin() {
            let names: Vec<HeaderName> = request.keys().cloned().collect();
            for name in names {
                if !PUBLIC_HEADERS.contains(&name.as_str()) {
                    request.remove(name);
                }
            }
        }
        self.at = next.clone();
        Ok(Some(next))
    }
}

/// Returns whether a reference names a host with percent-encoding, which may stand for characters
/// that the parser of URLs has no tables for.
fn has_encoded_host(location: &str) -> bool {
    let end = location
        .find(['/', '\\', '?', '#'])
        .unwrap_or(location.len());
    let rest = match location[..end].find(':') {
        Some(colon) => &location[colon + 1..],
        None if location.starts_with("//") || location.starts_with("\\\\") => location,
        None => return false,
    };
    let authority = rest.trim_start_matches(['/', '\\']);
    let authority = authority.split(['/', '\\', '?', '#']).next();
    let host = authority.and_then(|authority| authority.rsplit('@').next());
    host.is_some_and(|host| host.contains('%'))
}

/// Returns whether an address is one of this host, of its link or of a metadata service, also in
/// the forms of IPv6 that stand for one of IPv4.
pub fn is_internal(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_internal_v4(address),
        IpAddr::V6(address) => is_internal_v6(address),
    }
}

fn is_internal_v4(address: Ipv4Addr) -> bool {
    // Azure's, Alibaba's and Oracle's services for machines, outside of the link-local network.
    const SERVICES: [Ipv4Addr; 3] = [
        Ipv4Addr::new(168, 63, 129, 16),
        Ipv4Addr::new(100, 100, 100, 200),
        Ipv4Addr::new(192, 0, 0, 192),
    ];
    address.is_loopback()
        || address.is_link_local()
        || address.is_broadcast()
        || address.is_multicast()
        // Linux takes 0.0.0.0 for itself; the network has no other hosts.
        || address.octets()[0] == 0
        || SERVICES.contains(&address)
}

fn is_internal_v6(address: Ipv6Addr) -> bool {
    let parts = address.segments();
    let v4 = |high: u16, low: u16| Ipv4Addr::from((u32::from(high) << 16) | u32::from(low));
    let embedded = match parts {
        // IPv4-mapped and -compatible, translated (RFC 6052), and 6to4.
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low] => Some(v4(high, low)),
        [0, 0, 0, 0, 0xffff, 0, high, low] => Some(v4(high, low)),
        [0x64, 0xff9b, .., high, low] => Some(v4(high, low)),
        [0x2002, high, low, ..] => Some(v4(high, low)),
        _ => None,
    };
    address.is_loopback()
        || address.is_unspecified()
        || address.is_multicast()
        || parts[0] & 0xffc0 == 0xfe80
        // The metadata services of AWS and of Google.
        || parts[..2] == [0xfd00, 0x0ec2]
        || parts[..2] == [0xfd20, 0x00ce]
        || embedded.is_some_and(is_internal_v4)
}

/// Resolves names of servers.
#[derive(Clone, Copy, Debug)]
pub struct Resolver {
    is_guarded: bool,
}

impl Resolver {
    /// Returns a resolver that begins with a random one of a name's addresses.
    pub fn spreading() -> Resolver {
        Resolver { is_guarded: false }
    }

    /// Returns a resolver that also refuses names with an [internal](is_internal) address.
    pub fn guarded() -> Resolver {
        Resolver { is_guarded: true }
    }

    fn addresses(self, name: &str) -> Result<Vec<SocketAddr>, Box<dyn Error + Send + Sync>> {
        let mut addresses: Vec<_> = (name, 0).to_socket_addrs()?.collect();
        if self.is_guarded && addresses.iter().any(|address| is_internal(address.ip())) {
            return Err(Refused::INTERNAL.into());
        }
        if !addresses.is_empty() {
            let random = RandomState::new().hash_one(0) as usize;
            let count = addresses.len();
            addresses.rotate_left(random % count);
        }
        Ok(addresses)
    }
}

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let resolver = *self;
        Box::pin(async move {
            let resolve = move || resolver.addresses(name.as_str());
            let addresses = tokio::task::spawn_blocking(resolve).await??;
            Ok(Box::new(addresses.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use reqwest::header::{AUTHORIZATION, HeaderValue};

    use super::*;

    fn url(text: &str) -> Url {
        Url::parse(text).expect("a URL")
    }

    fn location(to: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(LOCATION, to.parse().expect("a value"));
        headers
    }

    /// Follows one redirect, and returns the URL and the names of the headers that are left.
    fn follow(from: &str, to: &str) -> Result<(String, Vec<String>), Refused> {
        let mut request = HeaderMap::new();
        for name in ["range", "authorization", "cookie", "x-amz-security-token"] {
            request.insert(name, HeaderValue::from_static("v"));
        }
        request.insert("x-of-hosts-toml", HeaderValue::from_static("v"));
        let mut redirects = Redirects::new(url(from));
        let next = redirects.next(StatusCode::FOUND, &location(to), &mut request)?;
        let mut names: Vec<_> = request.keys().map(|name| name.to_string()).collect();
        names.sort();
        Ok((next.expect("redirected").into(), names))
    }

    #[test]
    fn a_redirect_never_leads_from_https_to_http() {
        for to in [
            "http://a.example/x",
            "http://b.example/",
            "ftp://a.example/",
        ] {
            follow("https://a.example/", to).expect_err(to);
        }
        let (to, _) = follow("https://a.example/d/x", "y%20?z=//a%20").expect("followed");
        assert_eq!(to, "https://a.example/d/y%20?z=//a%20");
        follow("http://a.example/", "https://a.example/").expect("followed");
    }

    #[test]
    fn another_server_gets_no_credentials() {
        let all = 5;
        for (to, left) in [
            ("/other", all),
            ("https://a.example/other", all),
            ("https://b.example/", 1),
            ("https://a.example:8443/", 1),
            ("//b.example/x", 1),
        ] {
            let (_, names) = follow("https://a.example/", to).expect(to);
            assert_eq!(names.len(), left, "{to}: {names:?}");
            assert!(names.contains(&"range".to_owned()));
        }
        // Not even after a way back.
        let mut request = HeaderMap::new();
        request.insert(AUTHORIZATION, HeaderValue::from_static("v"));
        let mut redirects = Redirects::new(url("https://a.example/"));
        for to in ["https://b.example/", "https://a.example/"] {
            let next = redirects.next(StatusCode::FOUND, &location(to), &mut request);
            next.expect("followed");
        }
        assert!(request.is_empty());
    }

    #[test]
    fn redirects_end() {
        let mut redirects = Redirects::new(url("https://a.example/"));
        let mut request = HeaderMap::new();
        let mut next = || redirects.next(StatusCode::FOUND, &location("/x"), &mut request);
        for _ in 0..MAX_REDIRECTS {
            next().expect("followed");
        }
        next().expect_err("too many");
    }

    #[test]
    fn a_tenant_is_never_led_to_this_host() {
        let of = |tenant| Destination::new(&url("http://127.0.0.1:5000/"), tenant);
        for text in [
            "http://127.0.0.1/",
            "http://127.0.0.1:10250/",
            "http://127.1/",
            "http://2130706433/",
            "http://0x7f.0.0.1/",
            "http://0.0.0.0/",
            "http://169.254.169.254/latest/meta-data",
            "http://169.254.170.2/",
            "http://168.63.129.16/",
            "http://100.100.100.200/",
            "http://[::1]/",
            "http://[::]/",
            "http://[fe80::1]/",
            "http://[fd00:ec2::254]/",
            "http://[fd20:ce::254]/",
            "http://[::ffff:127.0.0.1]/",
            "http://[::ffff:a9fe:a9fe]/",
            "http://[64:ff9b::169.254.169.254]/",
            "http://[2002:a9fe:a9fe::]/",
        ] {
            of(true).is_restricted(&url(text)).expect_err(text);
            assert_eq!(of(false).is_restricted(&url(text)), Ok(false));
        }
        // The server that the node allows is its own decision.
        let own = url("http://127.0.0.1:5000/other");
        assert_eq!(of(true).is_restricted(&own), Ok(false));
        assert_eq!(of(true).is_restricted(&url("http://192.0.2.1/")), Ok(true));
        let name = url("http://localhost/");
        assert_eq!(of(true).is_restricted(&name), Ok(true));
        Resolver::guarded()
            .addresses("localhost")
            .expect_err("refused");
        Resolver::spreading()
            .addresses("localhost")
            .expect("resolved");
    }
}
