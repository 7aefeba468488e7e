//! NFS v3 and its companion protocols, over a tree in memory and a network that consists of
//! function calls.

// The error of a failed call is as large as the results of a successful one.
#![allow(clippy::result_large_err)]

mod acls;
mod data;
mod dirs;
mod exports;
mod locks;
mod make;
mod messages;
mod mount;
mod names;
mod net;
mod nodes;
mod portmap;
mod robust;
mod rquota;
mod security;
