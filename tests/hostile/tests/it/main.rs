//! Clients that misbehave: see the crate's own words.

#![forbid(unsafe_code)]

mod drain;
mod footprint;
mod frames;
mod limits;
mod names;
mod race;
mod slow;
mod tags;

use hostile::server::{Server, Via};

/// Runs a test against a tree in memory, by Unix socket and by TCP.
fn over_both(test: impl Fn(&Server)) {
    for via in Via::ALL {
        test(&Server::memory(via));
    }
}
