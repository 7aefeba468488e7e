//! What every implementation of the file-system traits is tested with.
//!
//! - The conformance suite: [`conformance!`] makes one test per case of [`cases`], each over a
//!   fresh [`Subject`] of the source, layer or client half under test. Error numbers are checked as
//!   Linux gives them. A [`Profile`] says what to expect where file systems may differ.
//! - [`Script`]: a file system that answers what a test told it to, and notes who asked what.
//! - [`Room`] and [`Bytes`]: the two ends of reads and writes, in memory; [`Message`] and [`Room`] those
//!   of what a [`wire::Session`] serves, which [`session`] drives in place of an engine.
//!
//! Every operation of the suite is tried at each [`vfs::Patience`] until it does not answer
//! `WOULD_BLOCK`, so that one that did something before saying so is found out.
//!
//! What it lacks on purpose: any file system of its own, and system calls.
//!
//! Lock order: a [`Script`] takes one mutex at a time and calls nobody while it holds it.

#![forbid(unsafe_code)]

pub mod bed;
pub mod cases;
mod exhaust;
pub mod payload;
pub mod script;
mod seen;
pub mod session;
mod suite;

pub use bed::{Bed, Opened, Profile, Seen, Subject, clock, run};
pub use exhaust::exhaust;
pub use payload::{Bytes, Message, Room};
pub use script::{Answer, Called, Gate, Script};
pub use seen::Kept;
