//! hostdir against the host it runs on.
//!
//! What needs root or a file system of some kind is skipped elsewhere, with the reason.

mod bed;
mod budget;
mod devices;
mod disk;
mod escapes;
mod files;
mod handles;
mod leases;
mod locks;
mod mapped;
mod names;
mod patience;
mod users;
