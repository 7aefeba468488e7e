//! Virtqueues in a guest's memory, as [`transports::Ring`]s that an engine drives.
//!
//! A [`Device`] is the back end of one vhost-user connection: a virtual machine monitor sends
//! descriptors of the guest's memory and of events over a Unix socket, and the queues are in that
//! memory. `vhost_user` serves the monitor's messages, `queue` is a queue, `chain` a request and
//! its reply in guest memory, `memory` the guest's memory, `mem_table` a message about it,
//! `dirty_log` the pages that the device wrote during a migration, `state_transfer` the device's
//! state in one. A [`driver::Driver`] is the front end: it sends requests to the queues of a
//! device, without a virtual machine.
//!
//! Guest memory is shared and changes while it is accessed. It never becomes a `&[u8]`: data that
//! is interpreted is copied once, and payloads are transferred between guest memory and files
//! without being interpreted. This is one of the crates that may be unsafe, for that reason, and to
//! replace the connection of a handler.
//!
//! A device can be suspended, and resumed in another process with the same connection: see
//! [`SuspendedDevice`]. With a [`DeviceKeeper`] it also continues after `kill -9` of its process.
//!
//! Deliberately absent: any knowledge of the requests' meaning, and threads, except the one that
//! transfers a device's state.
//!
//! Sources: the vhost-user protocol (QEMU, `docs/interop/vhost-user.rst`), virtio 1.3 (split
//! virtqueues 2.7, file system device 5.11).

mod chain;
mod dirty_log;
pub mod driver;
mod features;
mod in_flight;
mod mem_table;
mod memory;
mod queue;
mod state_transfer;
mod vhost_user;

pub use state_transfer::DeviceState;
pub use vhost_user::{
    Device, DeviceConfig, DeviceKeeper, JoinRing, RunEnd, ServeRing, SuspendedDevice,
};
