//! Lanes and queues, driven by a session whose requests do what their third byte says.

mod fake;
mod handover;
mod lanes;
mod queues;
mod snapshot;
