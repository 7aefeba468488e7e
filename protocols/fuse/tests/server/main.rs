//! The server half over a tree in memory and a queue that is a function call: bytes in, bytes out.

mod dirs;
mod files;
mod incarnations;
mod io_modes;
mod labels;
mod locks;
mod migration;
mod mount;
mod names;
mod net;
mod notify;
mod patience;
mod robust;
