//! Tests of images against the kernel and mkfs.erofs.

mod bed;
mod compare;
mod disk_cache;
mod hashes;
mod kernel;
mod mutated;
mod options;
mod readonly;
mod remote;
mod rofs;
mod seeds;
mod tree;
