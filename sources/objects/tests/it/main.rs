//! Objects on servers that misbehave as real ones do.

mod clouds;
mod disk_cache;
mod faults;
mod server;
