//! Images against those who know them: the kernel, mkfs.erofs.

mod bed;
mod compare;
mod kernel;
mod options;
mod readonly;
mod tree;
