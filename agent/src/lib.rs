//! The agent in a guest: it repeats changes of a mounted share that were made elsewhere, so that
//! the guest's kernel raises inotify(7) events for them.
//!
//! [`protocol`] has the messages of its channel to the server, [`mount`] the operations on a mount,
//! [`session`] the conversation about one mount.

#![forbid(unsafe_code)]

pub mod mount;
pub mod protocol;
pub mod session;
