//! The program `barge-csi`, through its socket.

mod controller;
mod daemon;
mod node;
mod objects;
