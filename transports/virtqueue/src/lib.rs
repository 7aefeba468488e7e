//! Virtqueues in a guest's memory, as [`transports::Ring`]s that an engine drives.
//!
//! A [`Device`] is the back-end of one vhost-user connection: a virtual machine monitor sends
//! descriptors of the guest's memory and of events over a Unix socket, and the queues lie in that
//! memory. `control` speaks to the monitor, `queue` is a queue, `chain` a request and its reply
//! where they lie, `memory` the guest's memory, `mem_table` a message about it. A
//! [`driver::Driver`] is the other end: it puts requests into the queues of a device, without a
//! virtual machine.
//!
//! Guest memory is shared and changes while it is looked at. It never becomes a `&[u8]`: what has to be
//! understood is copied once, and payloads go between it and files without being looked at. This is one of the
//! rooms that may be unsafe, for that reason alone.
//!
//! What it lacks on purpose: any idea of what the requests mean, and threads.
//!
//! Sources: the vhost-user protocol (QEMU, `docs/interop/vhost-user.rst`), virtio 1.3 (split virtqueues 2.7, file
//! system device 5.11).

mod chain;
mod control;
pub mod driver;
mod features;
mod mem_table;
mod memory;
mod queue;

pub use control::{Config, Device, Drive, Stop};
