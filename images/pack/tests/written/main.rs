//! Tests of written images with other readers: Linux, fsck.erofs, barge's own.

mod erofs;
mod inputs;
mod large;
mod mutated;
mod trees;
