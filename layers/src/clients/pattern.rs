//! Patterns that match clients by their address.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// A set of clients: `10.0.0.1`, `10.0.0.0/8`, `10.0.0.0/255.0.0.0`, `fd00::/64`, `localhost` or
/// `*`. The order is that of precedence: the pattern that applies first is less.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pattern {
    /// This host: its loopback addresses, and peers without an address, over a Unix socket or a
    /// descriptor.
    Localhost,
    /// The addresses with this prefix length and prefix, all other bits of which are 0. Longer
    /// prefixes come first.
    Net(std::cmp::Reverse<u8>, IpAddr),
    /// All clients.
    All,
}

impl Pattern {
    /// Returns whether it names this host: `localhost`, or loopback addresses alone.
    pub fn names_this_host(&self) -> bool {
        match self {
            Pattern::Localhost => true,
            // All networks beneath 127.0.0.0/8 and ::1/128 are loopback addresses alone.
            Pattern::Net(len, IpAddr::V4(net)) => len.0 >= 8 && net.is_loopback(),
            Pattern::Net(len, IpAddr::V6(net)) => len.0 == 128 && net.is_loopback(),
            Pattern::All => false,
        }
    }

    /// Returns whether a client at `addr` matches.
    pub fn matches(&self, addr: Option<IpAddr>) -> bool {
        match (self, addr) {
            (Pattern::All, _) | (Pattern::Localhost, None) => true,
            (Pattern::Localhost, Some(addr)) => addr.is_loopback(),
            (Pattern::Net(..), None) => false,
            (Pattern::Net(len, net), Some(addr)) => {
                addr.is_ipv4() == net.is_ipv4() && masked(addr, len.0) == *net
            }
        }
    }
}

/// Returns `addr` with all but its first `len` bits cleared.
fn masked(addr: IpAddr, len: u8) -> IpAddr {
    match addr {
        IpAddr::V4(addr) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0);
            IpAddr::V4((u32::from(addr) & mask).into())
        }
        IpAddr::V6(addr) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0);
            IpAddr::V6((u128::from(addr) & mask).into())
        }
    }
}

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Pattern, String> {
        let bad = || {
            format!(
                "expected an address, a network such as 10.0.0.0/8, localhost or *, got '{text}'"
            )
        };
        match text {
            "*" => return Ok(Pattern::All),
            "localhost" => return Ok(Pattern::Localhost),
            _ => {}
        }
        let (addr, len) = match text.split_once('/') {
            Some((addr, len)) => (addr, Some(len)),
            None => (text, None),
        };
        let addr: IpAddr = addr.parse().map_err(|_| bad())?;
        let bits = if addr.is_ipv4() { 32 } else { 128 };
        let len = match len {
            None => bits,
            Some(len) => prefix(len, bits).ok_or_else(bad)?,
        };
        // Clients at IPv4-mapped addresses are matched as IPv4.
        let (addr, len) = match addr.to_canonical() {
            canonical @ IpAddr::V4(_) if bits == 128 && len >= 96 => (canonical, len - 96),
            _ => (addr, len),
        };
        if masked(addr, len) != addr {
            return Err(format!(
                "expected a network, got '{text}' with bits after its prefix; did you mean {}/{len}?",
                masked(addr, len)
            ));
        }
        Ok(Pattern::Net(std::cmp::Reverse(len), addr))
    }
}

/// Parses the length of a prefix, a number or an IPv4 mask.
fn prefix(text: &str, bits: u8) -> Option<u8> {
    if let Ok(len) = text.parse::<u8>() {
        return (len <= bits).then_some(len);
    }
    let mask = u32::from(text.parse::<std::net::Ipv4Addr>().ok()?);
    let is_prefix = mask.leading_ones() + mask.trailing_zeros() >= 32;
    (bits == 32 && is_prefix).then_some(mask.leading_ones() as u8)
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pattern::All => f.write_str("*"),
            Pattern::Localhost => f.write_str("localhost"),
            Pattern::Net(len, addr) => match (len.0, addr) {
                (32, IpAddr::V4(_)) | (128, _) => addr.fmt(f),
                (len, _) => write!(f, "{addr}/{len}"),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has(pattern: &str, addr: &str) -> bool {
        let pattern: Pattern = pattern.parse().expect(pattern);
        pattern.matches(addr.parse().ok())
    }

    #[test]
    fn clients_are_matched_by_their_address() {
        for (pattern, addr, matches) in [
            ("10.0.0.1", "10.0.0.1", true),
            ("10.0.0.1", "10.0.0.2", false),
            ("10.0.0.0/8", "10.255.0.1", true),
            ("10.0.0.0/255.0.0.0", "10.255.0.1", true),
            ("10.0.0.0/8", "11.0.0.1", false),
            ("0.0.0.0/0", "11.0.0.1", true),
            ("0.0.0.0/0", "fd00::1", false),
            ("fd00::/64", "fd00::1", true),
            ("fd00::/64", "fd00:0:0:1::1", false),
            ("::/0", "fd00::1", true),
            ("::/0", "10.0.0.1", false),
            ("::ffff:10.0.0.1", "10.0.0.1", true),
            ("::ffff:10.0.0.0/104", "10.255.0.1", true),
            ("::/0", "none", false),
            ("localhost", "127.0.0.2", true),
            ("localhost", "::1", true),
            ("localhost", "10.0.0.1", false),
            ("localhost", "none", true),
            ("*", "fd00::1", true),
            ("*", "none", true),
        ] {
            assert_eq!(has(pattern, addr), matches, "{pattern} {addr}");
        }
    }

    #[test]
    fn this_host_is_named_by_loopback_addresses_alone() {
        for (pattern, names) in [
            ("localhost", true),
            ("127.0.0.1", true),
            ("127.0.0.0/8", true),
            ("::1", true),
            ("::ffff:127.0.0.1", true),
            ("::ffff:127.0.0.0/104", true),
            ("*", false),
            ("0.0.0.0/0", false),
            ("126.0.0.0/7", false),
            ("::/0", false),
            ("::/127", false),
            ("10.0.0.1", false),
        ] {
            let pattern: Pattern = pattern.parse().expect(pattern);
            assert_eq!(pattern.names_this_host(), names, "{pattern}");
        }
    }

    #[test]
    fn what_is_no_pattern_is_refused_and_what_is_one_is_shown_again() {
        for text in [
            "",
            "host",
            "10.0.0",
            "10.0.0.0/33",
            "10.0.0.1/8",
            "fd00::/129",
            "fd00::1/64",
            "10.0.0.0/255.0.255.0",
            "fd00::/255.0.0.0",
            "10.0.0.0/",
            "[fd00::1]",
            "*.example.org",
            "@group",
        ] {
            let why = text.parse::<Pattern>().expect_err(text);
            assert!(why.contains("expected") && why.contains(text), "{why}");
        }
        for text in [
            "10.0.0.1",
            "10.0.0.0/8",
            "fd00::/64",
            "fd00::1",
            "0.0.0.0/0",
            "localhost",
            "*",
        ] {
            assert_eq!(text.parse::<Pattern>().expect(text).to_string(), text);
        }
    }
}
