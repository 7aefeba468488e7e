//! The two processes of `barge serve`.
//!
//! The first one, the broker, holds the sockets, reads configuration and certificates, queries the
//! user database and handles signals ([`process`]). It starts the second one, which confines itself
//! ([`confinement`]), opens the sources and serves. That one asks the broker for everything that it
//! cannot reach itself ([`client`], [`message`], [`requests`]). If it crashes, the broker starts it
//! again with the same sockets.

mod client;
pub(super) mod confinement;
mod message;
mod process;
mod requests;

pub(super) use self::client::{Broker, listen_fds};
pub(super) use self::process::run;
