//! What to connect to, as a URL.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use vfs::FileSystem;

use crate::{ConnectError, ninep, virtiofs};

/// A server and one of its trees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Url {
    /// `9p://…`, `9p+unix:…`
    Ninep(ninep::Url),
    /// `virtiofs:…`
    Virtiofs(virtiofs::Url),
}

/// A text that is no URL: says what was expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadUrl(String);

impl BadUrl {
    pub(crate) fn new(text: &str, expected: &str) -> BadUrl {
        BadUrl(format!("bad source '{text}': expected {expected}"))
    }
}

impl fmt::Display for BadUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadUrl {}

impl Url {
    /// What URLs begin with, before a colon.
    pub const SCHEMES: &[&str] = &["9p", "9p+unix", "virtiofs"];

    /// Connects to what is named as a whole.
    pub fn open(&self) -> Result<Arc<dyn FileSystem>, ConnectError> {
        Ok(match self {
            Url::Ninep(url) => url.connect()?,
            Url::Virtiofs(url) => url.connect()?,
        })
    }

    /// Connects to the tree that what is named begins with, and says what path in it is left: its end may
    /// not exist yet.
    pub fn find(&self) -> Result<(Arc<dyn FileSystem>, String), ConnectError> {
        match self {
            Url::Ninep(url) => {
                let (tree, path) = url.find()?;
                Ok((tree, path))
            }
            Url::Virtiofs(url) => {
                let (tree, path) = url.find()?;
                Ok((tree, path))
            }
        }
    }

    /// The path that ends in the name of what is named.
    pub fn path(&self) -> &[u8] {
        match self {
            Url::Ninep(url) if url.path.is_empty() => url.options.aname.as_bytes(),
            Url::Ninep(url) => url.path.as_bytes(),
            Url::Virtiofs(url) => url.path(),
        }
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Url::Ninep(url) => url.fmt(f),
            Url::Virtiofs(url) => url.fmt(f),
        }
    }
}

impl FromStr for Url {
    type Err = BadUrl;

    fn from_str(text: &str) -> Result<Url, BadUrl> {
        match text.strip_prefix("virtiofs:") {
            Some(socket) => virtiofs::Url::parse(text, socket).map(Url::Virtiofs),
            None => text.parse().map(Url::Ninep),
        }
    }
}

/// Replaces each `%` and two hexadecimal digits by their byte.
pub(crate) fn decode(text: &str) -> Result<String, String> {
    let bad = || format!("two hexadecimal digits behind '%' that make UTF-8, in '{text}'");
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
