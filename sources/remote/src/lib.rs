//! A source: a file system that another server has.
//!
//! [`Remote9p`] is one over 9P: the client half of the protocol ([`p9::client`]) joined to a connection
//! ([`transports::Link`]). Below it, a [`Pipe`] keeps many requests in flight from one thread or from many.
//! [`Url`] says what to connect to.

#![forbid(unsafe_code)]

mod error;
mod ninep;
mod url;

pub use error::ConnectError;
pub use ninep::{Options, Pipe, Remote9p, Reply, Ticket};
pub use url::{BadUrl, Url};
