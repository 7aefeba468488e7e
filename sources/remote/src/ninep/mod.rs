//! 9P: the client half of the protocol joined to a connection.
//!
//! - `pipe` is the pipe of 9P, `greet` sets up a session on it, `lasting` is a link that reconnects
//!   to a restarted server.
//! - `device` sends messages through the virtqueue of a device.
//! - `handed` receives file descriptors from a server on this host.
//! - `fid` holds fids as values, `unpinned` the listed files without a fid; `fs` attaches; `node`,
//!   `names`, `file`, `dir`, `xattr` and `locks` implement the file-system traits, `legacy` for the
//!   dialects other than 9P2000.L.

mod device;
mod dir;
mod fid;
mod file;
mod fs;
mod greet;
mod handed;
mod lasting;
mod legacy;
mod locks;
mod names;
mod node;
mod pipe;
mod unpinned;
mod url;
mod xattr;

pub use self::fs::{Options, Remote9p};
pub use self::lasting::{Dial, LastingLink, relay};
pub use self::pipe::{Pipe, Reply, Ticket};
pub use self::url::{Place, Url};
pub use crate::Retry;
