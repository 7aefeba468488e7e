//! virtiofs: the client half of FUSE joined to the driver of a vhost-user device, as a guest's kernel would be
//! to it, but in user space.
//!
//! - [`Channel`] moves messages: many in flight, from one thread or many.
//! - `fs` mounts; `node`, `names`, `file`, `dir` and `locks` are the file-system traits on top.
//!
//! Who may do what is the server's to check. barge's own does; virtiofsd leaves that to its client's kernel, so
//! what is served on from it is open to all who may connect.

mod channel;
mod dir;
mod file;
mod fs;
mod locks;
mod names;
mod node;
mod url;

pub use self::channel::{Answer, Channel, Draft, Flight, Options, Room};
pub use self::fs::RemoteFuse;
pub use self::url::Url;
pub use virtqueue::driver::WaitMode;
