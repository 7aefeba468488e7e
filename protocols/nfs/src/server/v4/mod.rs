//! NFS v4.0, v4.1 and v4.2 (RFC 7530, RFC 8881, RFC 7862).
//!
//! A request is a compound of operations, which `dispatch` runs. The operations are methods of
//! `RequestContext`, in files named after them.

mod access;
mod attr;
mod callback;
mod client_id;
mod compound;
mod copy;
mod create;
mod delegation;
mod directory;
mod dispatch;
mod filehandle;
mod getattr;
pub(super) mod locations;
mod lock;
mod lookup;
mod open;
mod open_file;
mod opnum;
mod owner_seqid;
mod read_plus;
mod read_write;
mod readdir;
pub(super) mod referral;
mod secinfo;
mod security_label;
mod session;
mod setattr;
mod sparse;
pub mod state;
mod stateid;
#[cfg(test)]
mod tests;
mod xattr;

pub(super) use self::dispatch::{MAX_OPERATIONS, MAX_TAG, serve};
pub(super) use self::open_file::ExportTree;
