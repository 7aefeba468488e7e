//! URLs of virtiofs servers, which need Linux.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;

use vfs::FileSystem;

use crate::url::BadUrl;
use crate::{ConnectError, Timeouts};

/// A virtiofs server: there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// The timeouts for a server that does not answer.
    pub timeouts: Timeouts,
    none: Infallible,
}

impl Url {
    pub(crate) fn parse(text: &str, _: &str) -> Result<Url, BadUrl> {
        Err(BadUrl::needs_linux(text))
    }

    pub(crate) fn connect(&self) -> Result<Arc<dyn FileSystem>, ConnectError> {
        match self.none {}
    }

    pub(crate) fn find(&self) -> Result<(Arc<dyn FileSystem>, String), ConnectError> {
        match self.none {}
    }

    pub(crate) fn path(&self) -> &[u8] {
        match self.none {}
    }
}

impl fmt::Display for Url {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.none {}
    }
}
