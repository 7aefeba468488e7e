//! The cases of the conformance suite, a file per area. Each is a function on a
//! [`crate::TestContext`] that panics if the file system misbehaves.

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
