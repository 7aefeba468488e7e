//! Tests of hostdir on the host's file systems.
//!
//! Tests that need root or a certain file system are skipped otherwise, with the reason.

mod budget;
mod changes;
mod devices;
mod disk;
mod escapes;
mod files;
mod fixture;

mod handles;
mod leases;
mod locks;
mod mapped;
mod names;
mod patience;
mod users;
