//! The processes of `barge serve`.
//!
//! The first one, the broker, holds the sockets, reads configuration and certificates, queries the
//! user database and handles signals ([`supervisor`]). It starts a process ([`process`]) for each
//! part of the server ([`parts`]), which confines itself ([`confinement`]), opens its sources and
//! serves. That one asks the broker for everything that it cannot reach itself ([`client`],
//! [`message`], [`requests`]). If it crashes, the broker starts it again with the same sockets and
//! the virtiofs devices of its guests ([`kept_devices`]). An [`upgrade`] starts another version of
//! the program ([`successor`]), which continues with the connections of clients ([`connections`]);
//! the first broker stays as a [`parent`], as others know it by its process id.

mod client;
pub(super) mod confinement;
mod connections;
mod kept_devices;
mod message;
mod objects;
pub(crate) mod parent;
mod parts;
mod process;
mod requests;
mod successor;
mod supervisor;
#[cfg(test)]
mod tests;
pub(crate) mod upgrade;

pub(super) use self::client::{BrokerClient, listen_fds};
pub(super) use self::kept_devices::DeviceChannel;
pub(super) use self::parts::Part;
pub(crate) use self::supervisor::channel;
pub(super) use self::supervisor::run;
