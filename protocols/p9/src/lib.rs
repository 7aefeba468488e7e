//! 9P2000, 9P2000.u and 9P2000.L: messages, and both halves of the protocol.
//!
//! - [`message`] has the table of all messages, from which come their types, decoding and encoding.
//! - [`server`] answers them over any [`vfs::Export`].
//! - [`client`] asks, and never trusts the answers.
//! - [`recovery`] is what either needs to go on when the connection is lost.
//!
//! What it lacks on purpose: sockets, threads, clocks. Whoever moves the bytes drives a
//! [`wire::Session`].
//!
//! Sources: Plan 9's manual, section 5 (intro(5), stat(5), walk(5), …); the 9P2000.u draft of Van
//! Hensbergen; diod's `protocol.md` for 9P2000.L; Linux `include/net/9p/9p.h`, `net/9p`, `fs/9p`.

#![forbid(unsafe_code)]

pub mod client;
mod field;
pub mod message;
pub mod numbers;
pub mod recovery;
pub mod server;
pub mod stat;
mod types;

pub use field::{Data, Datasync, DotuErrno, Extension, Names, Qids, Uid};
pub use message::{Kind, Rmessage, Tmessage, Undecodable};
pub use stat::Stat;
pub use types::{Dialect, Fid, Qid, QidType, Tag};
