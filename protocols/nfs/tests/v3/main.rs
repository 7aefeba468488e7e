//! v3 and what belongs to it, over a tree in memory and a network that is a function call.

// What a failed call tells is as large as what a good one does.
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
mod security;
