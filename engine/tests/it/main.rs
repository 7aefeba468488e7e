//! Lanes and queues, driven by a session whose requests do as their first byte says.

mod fake;
mod lanes;
mod look;
mod queues;
