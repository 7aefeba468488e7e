//! virtiofs: the client half of FUSE joined to a driver of the vhost-user device, in user space
//! where a guest's kernel would be.
//!
//! - [`Channel`] carries messages: many in flight, from one thread or many.
//! - `fs` mounts; `node`, `names`, `file`, `dir` and `locks` implement the file-system traits.
//!
//! The server has to check permissions. barge's own does; virtiofsd leaves that to its client's
//! kernel, so a tree exported again from virtiofsd is open to all who may connect.

mod channel;
mod dir;
mod file;
mod fs;
mod locks;
mod names;
mod node;
mod url;

pub use self::channel::{Channel, FuseReply, Options, PendingRequest, ReplySize, RequestBuilder};
pub use self::fs::RemoteFuse;
pub use self::url::Url;
pub use virtqueue::driver::WaitMode;
