//! Objects behind servers that do what servers do.

mod clouds;
mod faults;
mod server;
mod tier;
