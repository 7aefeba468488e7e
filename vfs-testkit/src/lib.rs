//! Test tools for every implementation of the file-system traits.
//!
//! - The conformance suite: [`conformance!`] makes one test per case of [`cases`], each on a fresh
//!   [`TestSubject`] of the source, layer or client half under test. Error numbers are those of
//!   Linux. A [`Profile`] states the expectations where file systems differ.
//! - [`Script`]: a file system that returns scripted answers, and records its calls.
//! - [`ReplyBuffer`] and [`TestPayload`]: sinks and payloads for reads and writes, in memory;
//!   [`Message`] and [`ReplyBuffer`] serve as request and reply of a [`wire::Session`], which
//!   [`session`] drives in place of an engine.
//! - [`Lasting`]: a tree that several servers in turn serve, as if it outlived the process.
//! - [`wait_until`] and [`SetOnDrop`], with which a test that fails ends.
//! - [`write_program`] and [`copy_program`], for programs that a test executes.
//! - [`ControlGroup`] and [`count_under_locks`], for tests of whole programs and of mounts.
//!
//! Every operation of the suite is tried at each [`vfs::Patience`] until it does not return
//! `WOULD_BLOCK`, which detects operations that have an effect before they return it.
//!
//! Deliberately absent: a file system of its own, and system calls that std lacks.
//!
//! Lock order: a [`Script`] takes one mutex at a time and makes no calls while it holds it.

#![forbid(unsafe_code)]

pub mod cases;
pub mod context;
mod control_group;
mod lasting;
mod lock_counter;
pub mod payload;
mod program;
pub mod script;
pub mod session;
mod suite;
mod test_node;
mod waiting;
mod walk;

pub use context::{Profile, TestContext, TestFile, TestNode, TestSubject, clock, run};
pub use control_group::ControlGroup;
pub use lasting::Lasting;
pub use lock_counter::count_under_locks;
pub use payload::{Message, ReplyBuffer, TestPayload};
pub use program::{copy_program, write_program};
pub use script::{Answer, Latch, RecordedCall, Script};
pub use test_node::ListedEntry;
pub use waiting::{SetOnDrop, wait_until};
pub use walk::walk_all;
