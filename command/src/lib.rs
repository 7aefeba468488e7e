//! Parts of a command line that the programs `barge` and `barge-bench` share: exit status, logging
//! options, signals, external programs, and the options of `barge bench`.

pub mod bench;
mod exit;
pub mod log;
pub mod signals;
pub mod tools;

pub use exit::{CommandResult, Failure};
