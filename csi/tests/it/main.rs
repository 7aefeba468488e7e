//! The program `barge-csi`, through its socket.

mod clients;
mod controller;
mod daemon;
mod node;
mod objects;
