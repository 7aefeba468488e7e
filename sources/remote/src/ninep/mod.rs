//! 9P: the client half of the protocol joined to a connection.
//!
//! - `connection` is a connection of 9P, `negotiate` sets up a session on it, `reconnecting` is a
//!   link that reconnects to a restarted server.
//! - `device` sends messages through the virtqueue of a device.
//! - `fd_passing` receives file descriptors from a server on this host.
//! - `fid` holds fids as values, `open` opens them, and `attr` changes attributes; `legacy` has the
//!   requests of the dialects other than 9P2000.L.
//! - `node` is a node, `held_fids` has the nodes' fids and gives idle ones
//!   up, `places` finds nodes by name, and `shared` is the state that all nodes and files share.
//! - `fs` connects, as the `options` say. `fs`, `node_ops`, `names`, `file`, `dir`, `xattr` and
//!   `locks` implement the file-system traits.

mod attr;
mod connection;
#[cfg_attr(not(target_os = "linux"), path = "device/elsewhere.rs")]
mod device;
mod dir;
mod fd_passing;
mod fid;
mod file;
mod fs;
mod held_fids;
mod legacy;
mod locks;
mod names;
mod negotiate;
mod node;
mod node_ops;
mod open;
mod options;
mod places;
mod reconnecting;
mod shared;
mod url;
mod xattr;

pub use self::connection::{Connection, Reply, Ticket};
pub use self::fs::Remote9p;
pub use self::options::Options;
pub use self::reconnecting::{Dial, ReconnectingLink, relay};
pub use self::url::{ServerAddr, Url};
pub use crate::Retry;
