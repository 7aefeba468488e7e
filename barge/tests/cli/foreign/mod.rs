//! Clients that are not ours.

mod nfs;
mod ninep;
