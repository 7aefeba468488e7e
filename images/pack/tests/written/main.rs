//! Images that were written, as others see them: Linux, fsck.erofs, barge's own reader.

mod erofs;
mod inputs;
mod large;
mod mutated;
mod trees;
