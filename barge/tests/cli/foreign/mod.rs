//! Clients that are not ours.

mod nbd;
mod nfs;
mod ninep;
