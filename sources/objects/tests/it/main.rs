//! Objects on servers that misbehave as real ones do.

mod clouds;
mod disk_cache;
mod environment;
mod faults;
mod redirects;
mod server;
