//! Tests of images against the kernel and mkfs.erofs.

mod bed;
mod compare;
mod far;
mod hashes;
mod kernel;
mod mutated;
mod options;
mod readonly;
mod rofs;
mod seeds;
mod tier;
mod tree;
