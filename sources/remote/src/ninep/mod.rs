//! 9P: the client half of the protocol joined to a connection.
//!
//! - `pipe` is 9P's side of a pipe, `greet` how a session on one begins, `lasting` a link that comes again when its
//!   server does.
//! - `device` has messages go through the queue of a device.
//! - `handed` is about open files that a server of this host hands over.
//! - `fid` has fids as values, `unpinned` the files that were listed and have none; `fs` attaches; `node`, `names`, `file`, `dir`, `xattr` and `locks`
//!   are the file-system traits on top, and `legacy` what the dialects without `.L` do otherwise.

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
