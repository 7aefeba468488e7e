//! Paths on other servers.

use std::fmt;
use std::str::FromStr;

/// Servers that have a file system at the same path: `/PATH@HOST[+HOST…]`, as in `refer=` and
/// `replicas=` of exports(5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// The path on these servers, which begins with a slash.
    pub path: String,
    /// The servers' host names or addresses, in order of preference; at least one.
    pub hosts: Vec<String>,
}

/// The error of a text that is no location.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadLocation;

impl FromStr for Location {
    type Err = BadLocation;

    fn from_str(text: &str) -> Result<Location, BadLocation> {
        let (path, hosts) = text.rsplit_once('@').ok_or(BadLocation)?;
        let hosts: Vec<String> = hosts.split('+').map(str::to_owned).collect();
        match path.starts_with('/') && !hosts.iter().any(String::is_empty) {
            true => Ok(Location {
                path: path.into(),
                hosts,
            }),
            false => Err(BadLocation),
        }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.path, self.hosts.join("+"))
    }
}
