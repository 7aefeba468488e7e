//! Connections that carry a protocol's bytes, without interpreting them.
//!
//! A [`Link`] is one connection as the engine drives it; a [`Listener`] accepts them at an
//! [`Addr`]. [`Outbox`] and [`Frame`] are the two ends of a message in memory: output under
//! construction, and a received message. Deliberately absent: threads, and any knowledge of the
//! messages.
//!
//! On other systems than Linux there are connections to TCP servers only (`tcp`).

#![forbid(unsafe_code)]

#[cfg(target_os = "linux")]
mod accept;
mod addr;
#[cfg(target_os = "linux")]
mod datagrams;
#[cfg_attr(not(target_os = "linux"), path = "tcp/dial.rs")]
mod dial;
#[cfg_attr(not(target_os = "linux"), path = "tcp/event.rs")]
mod event;
#[cfg(target_os = "linux")]
pub mod fd_passing;
#[cfg(target_os = "linux")]
mod frame;
#[cfg(target_os = "linux")]
pub mod fusedev;
mod link;
#[cfg(target_os = "linux")]
mod listener;
#[cfg(target_os = "linux")]
mod origin;
#[cfg(target_os = "linux")]
mod outbox;
#[cfg_attr(not(target_os = "linux"), path = "tcp/pages.rs")]
mod pages;
mod payloads;
mod poll;
#[cfg(target_os = "linux")]
mod reserved_port;
#[cfg(target_os = "linux")]
mod ring;
#[cfg_attr(not(target_os = "linux"), path = "tcp/link.rs")]
mod stream_link;
#[cfg(target_os = "linux")]
mod vsock;

#[cfg(target_os = "linux")]
mod linux {
    pub use crate::datagrams::DatagramSocket;
    pub use crate::dial::dial_unix;
    pub use crate::frame::Frame;
    pub use crate::listener::Listener;
    pub use crate::origin::caller_of;
    pub use crate::outbox::{Meter, Outbox};
    pub use crate::ring::{Exchange, Ring};
    pub use crate::stream_link::pair;
}

pub use addr::{Addr, BadAddr};
pub use dial::{RECV_INTERVAL, dial, dial_from_reserved};
pub use event::Event;
pub use link::{Interest, Link, Ready};
#[cfg(target_os = "linux")]
pub use linux::*;
pub use pages::Pages;
pub use payloads::Payloads;
pub use poll::Poller;
pub use stream_link::StreamLink;
pub use vfs::Origin;
