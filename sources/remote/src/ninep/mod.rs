//! 9P: the client half of the protocol joined to a connection.
//!
//! - `connection` is a connection of 9P, `negotiate` sets up a session on it, `reconnecting` is a
//!   link that reconnects to a restarted server.
//! - `device` sends messages through the virtqueue of a device.
//! - `fd_passing` receives file descriptors from a server on this host.
//! - `fid` holds fids as values, `unpinned` the listed files without a fid; `fs` attaches; `node`,
//!   `names`, `file`, `dir`, `xattr` and `locks` implement the file-system traits, `legacy` for the
//!   dialects other than 9P2000.L.

mod connection;
mod device;
mod dir;
mod fd_passing;
mod fid;
mod file;
mod fs;
mod legacy;
mod locks;
mod names;
mod negotiate;
mod node;
mod reconnecting;
mod unpinned;
mod url;
mod xattr;

pub use self::connection::{Connection, Reply, Ticket};
pub use self::fs::{Options, Remote9p};
pub use self::reconnecting::{Dial, ReconnectingLink, relay};
pub use self::url::{ServerAddr, Url};
pub use crate::Retry;
