//! Images in object stores and registries, which need Linux: there are none.

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::str::FromStr;
use std::sync::Arc;

use vfs::FileSystem;

pub(crate) use self::url as objects;
pub(crate) use self::url as registry;
pub(crate) use self::url as object;
pub(crate) use self::url as registry_image;

/// The names of the crates `objects` and `registry` that a [`crate::Source`] uses.
pub(crate) mod url {
    use super::*;

    /// The URL of an image on another server: there is none.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Url(Infallible);

    /// The error for any URL.
    #[derive(Debug)]
    pub struct BadUrl(String);

    impl fmt::Display for BadUrl {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "{}: this needs Linux", self.0)
        }
    }

    impl FromStr for Url {
        type Err = BadUrl;

        fn from_str(text: &str) -> Result<Url, BadUrl> {
            Err(BadUrl(text.to_owned()))
        }
    }

    impl fmt::Display for Url {
        fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
            match self.0 {}
        }
    }

    impl Url {
        /// The schemes of object stores.
        pub(crate) const SCHEMES: &[&str] = &["s3", "gs", "az", "http", "https"];

        /// The scheme of registries.
        pub(crate) const SCHEME: &str = "oci";

        pub(crate) fn path(&self) -> &[u8] {
            match self.0 {}
        }

        pub(crate) fn name(&self) -> &str {
            match self.0 {}
        }
    }

    pub(crate) fn open(url: &Url) -> io::Result<Arc<dyn FileSystem>> {
        match url.0 {}
    }

    pub(crate) fn find(url: &Url) -> io::Result<(Arc<dyn FileSystem>, Vec<u8>)> {
        match url.0 {}
    }

    pub(crate) fn expect_whole(url: &Url) -> io::Result<()> {
        match url.0 {}
    }
}
