//! NFS, over a barge server in the same process, and over Ganesha.

mod conformance;
mod delegations;
mod direct;
mod dropped;
mod ganesha;
mod landing;
mod listing;
pub(crate) mod net;
mod pages;
mod removed;
mod restart;
mod secure;
mod sparse;
