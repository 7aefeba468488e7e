//! Connections that carry a protocol's bytes, without interpreting them.
//!
//! A [`Link`] is one connection as the engine drives it; a [`Listener`] accepts them at an
//! [`Addr`]. [`Outbox`] and [`Frame`] are the two ends of a message in memory: output under
//! construction, and a received message. Deliberately absent: threads, and any knowledge of the
//! messages.

#![forbid(unsafe_code)]

mod accept;
mod addr;
mod datagrams;
mod dial;
pub mod fd_passing;
mod frame;
pub mod fusedev;
mod link;
mod listener;
mod origin;
mod outbox;
mod pages;
mod payloads;
mod poll;
mod reserved_port;
mod ring;
mod vsock;

pub use addr::{Addr, BadAddr};
pub use datagrams::DatagramSocket;
pub use dial::{RECV_INTERVAL, dial, dial_unix};
pub use frame::Frame;
pub use link::{Interest, Link, Ready, StreamLink, pair};
pub use listener::Listener;
pub use origin::caller_of;
pub use outbox::{Meter, Outbox};
pub use pages::Pages;
pub use payloads::Payloads;
pub use poll::Poller;
pub use reserved_port::dial_from_reserved;
pub use ring::{Exchange, Ring};
pub use vfs::Origin;
