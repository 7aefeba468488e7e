//! Objects behind servers that do what servers do.

mod faults;
mod server;
mod tier;
