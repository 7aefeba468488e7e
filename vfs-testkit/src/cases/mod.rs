//! The cases of the conformance suite, a file per area. Each is a function over a
//! [`crate::Bed`] that panics where the file system is wrong.

pub mod attributes;
pub mod create;
pub mod data;
pub mod handles;
pub mod holes;
pub mod limits;
pub mod links;
pub mod locks;
pub mod lookup;
pub mod permissions;
pub mod readdir;
pub mod rename;
pub mod unlink;
pub mod unlinked;
pub mod xattr;
