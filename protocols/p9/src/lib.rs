//! 9P2000, 9P2000.u and 9P2000.L: messages, the server half and the client half.
//!
//! - [`message`] has the table of all messages, from which their types, decoding and encoding are
//!   generated.
//! - [`server`] answers requests from any [`vfs::Export`].
//! - [`client`] encodes requests and checks replies, which it never trusts.
//! - [`recovery`] continues a session on a new connection after the old one is lost.
//!
//! Deliberately absent: sockets, threads and clocks. The transport drives a [`wire::Session`].
//!
//! Sources: Plan 9's manual, section 5 (intro(5), stat(5), walk(5), …); the 9P2000.u draft of Van
//! Hensbergen; diod's `protocol.md` for 9P2000.L; Linux `include/net/9p/9p.h`, `net/9p`, `fs/9p`.

#![forbid(unsafe_code)]

pub mod client;
mod compact_name;
mod field;
pub mod message;
pub mod numbers;
pub mod recovery;
pub mod server;
pub mod stat;
mod types;

pub use compact_name::CompactName;
pub use field::{Data, Datasync, DotuErrno, Extension, Names, Qids, Uid};
pub use message::{DecodeError, Kind, Rmessage, Tmessage};
pub use stat::Stat;
pub use types::{Dialect, Fid, Qid, QidType, Tag};
