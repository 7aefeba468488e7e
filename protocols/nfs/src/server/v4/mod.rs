//! NFS v4.0, v4.1 and v4.2 (RFC 7530, RFC 8881, RFC 7862).
//!
//! A request is a compound of operations, which `dispatch` runs. The operations are methods of
//! [`RequestContext`](super::RequestContext), in files named after them.

mod attr;
mod callback;
mod client;
mod compound;
mod copy;
mod delegation;
mod dir;
mod dispatch;
mod io;
mod label;
mod lock;
mod make;
mod open;
mod open_file;
mod opnum;
mod place;
mod read_plus;
pub(super) mod referral;
mod set;
mod sparse;
pub mod state;
#[cfg(test)]
mod tests;
mod xattr;

pub(super) use self::dispatch::{MAX_OPERATIONS, MAX_TAG, serve};
pub(super) use self::open_file::ExportTree;
