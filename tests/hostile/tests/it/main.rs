//! Tests with misbehaving clients; see the crate's documentation.

#![forbid(unsafe_code)]

mod call;
mod drain;
mod footprint;
mod frames;
mod handles;
mod limits;
mod monitor;
mod names;
mod nfs_tables;
mod race;
mod rings;
mod secure;
mod slow;
mod tags;

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use hostile::server::{Server, Transport};
use remote::virtiofs::{Options, RemoteFuse, WaitMode};
use transports::Addr;

/// Runs a test against a tree in memory, over a Unix socket and over TCP.
fn over_both(test: impl Fn(&Server)) {
    for via in Transport::ALL {
        test(&Server::memory(via));
    }
}

/// Connects to a server's Unix socket.
fn socket(addr: &Addr) -> UnixStream {
    let Addr::Unix(path) = addr else {
        panic!("{addr} is no Unix socket");
    };
    UnixStream::connect(path).expect("connected")
}

/// Connects a well-behaved driver to a virtiofs device.
fn mounted(addr: &Addr) -> Arc<RemoteFuse> {
    let options = Options {
        queues: 2,
        depth: 16,
        waiting: WaitMode::Adaptive(Duration::ZERO),
        ..Options::default()
    };
    RemoteFuse::mount(socket(addr), options).expect("mounted")
}
