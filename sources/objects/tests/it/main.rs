//! Objects on servers that misbehave as real ones do.

mod clouds;
mod faults;
mod server;
mod tier;
