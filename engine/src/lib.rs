//! Drives sessions over links: inline first, offload what would block.
//!
//! A `lane` is a connection with a thread of its own, which receives, answers and sends by itself
//! whatever the source can do without waiting: a cached operation costs no hand-over to another
//! thread. What would wait goes to the `workers`, a bounded pool that all lanes share, and its
//! reply leaves from there. A `request` on its way through them is answered exactly once, however
//! it is cancelled. The [`Engine`] accepts connections, counts them and ends them.
//!
//! It knows no protocol (a [`wire::Session`]), no transport ([`transports::Link`]) and no source.
//!
//! Lock order: a lane's in-flight table, then its output or the workers' queue; the tally of all lanes, and
//! what failed of a lane, last.
//! Nothing waits under any of them, but for a lane that sends while nothing else of it is in flight.

#![forbid(unsafe_code)]

mod datagrams;
mod drive;
mod histogram;
mod input;
mod lane;
mod ledger;
mod look;
mod pace;
mod queue;
mod request;
mod serve;
mod server;
mod share;
mod stats;
mod timeouts;
mod trim;
mod watch;
mod wheel;
mod workers;

pub use histogram::Times;
pub use ledger::{Operation, Operations};
pub use look::{LaneLook, Look};
pub use queue::{Driven, Queues};
pub use server::{Engine, Service, Tuning};
pub use stats::{ConnectionRefusals, Snapshot, Stats};
pub use timeouts::Timeouts;
pub use vfs::memory::{MemoryBudget, Reservation, Use};
