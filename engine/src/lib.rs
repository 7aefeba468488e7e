//! Drives sessions over links: serves requests inline first, and offloads those that would block.
//!
//! A `lane` is a connection with its own thread, which receives, serves and sends everything that
//! the source can do without blocking: a cached operation needs no switch to another thread.
//! Requests that would block go to the `workers`, a bounded pool that all lanes share, which also
//! send their replies. A `request` among them is answered exactly once, however it is cancelled.
//! The [`Engine`] accepts connections, counts them and closes them.
//!
//! It depends on no protocol (a [`wire::Session`]), transport ([`transports::Link`]) or source.
//!
//! Lock order: a lane's in-flight table, then its output or the workers' queue; the tally of all
//! lanes, a lane's table of errors, and those of the log of slow requests, last. No thread blocks
//! while it holds one of them, except a lane that sends while nothing else of it is in flight.

#![forbid(unsafe_code)]

mod connection_limits;
mod consumer_lock;
mod datagrams;
mod handover;
mod in_flight;
mod inline_budget;
mod input;
mod interrupts;
mod kick_watcher;
mod lane;
mod lane_thread;
mod listeners;
mod operation_stats;
mod queue;
mod request;
mod serve;
mod server;
mod slow_log;
mod snapshot;
mod stats;
mod stop_signal;
mod timeouts;
#[cfg(feature = "traces")]
mod traces;
mod trim;
mod tuning;
mod workers;

pub use connection_limits::ConnectionRefusals;
pub use handover::{FrozenConnection, SuspendedConnection};
pub use operation_stats::{Operation, Operations};
pub use queue::{QueueThread, Queues};
pub use server::{Engine, Service};
pub use slow_log::SlowRequests;
pub use snapshot::{ConnectionStatus, EngineStatus, LaneStatus};
pub use stats::Totals;
pub use stop_signal::StopSignal;
pub use timeouts::Timeouts;
#[cfg(feature = "traces")]
pub use traces::{RequestTrace, TraceOptions, TraceQueue};
pub use tuning::Tuning;
pub use vfs::memory::{MemoryBudget, Purpose, Reservation};
