//! The server half over a tree in memory and a network that is a function call: bytes in, bytes
//! out.

mod execute;
mod handover;
mod legacy;
mod linux;
mod net;
mod patience;
mod queue;
mod recovery;
mod robust;
mod session;
