//! Clients of other projects.

mod nbd;
mod nfs;
mod ninep;
