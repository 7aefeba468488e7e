//! Parts of a command line that the programs of this workspace share: exit status, logging options,
//! signals, notifications, children, external programs, and the options of
//! `barge bench`, `barge-agent`, `barge-csi` and `barge-snapshotter`.

pub mod agent;
pub mod background;
pub mod bench;
pub mod child;
pub mod csi;
mod exit;
pub mod log;
pub mod notify;
pub mod signals;
pub mod snapshotter;
pub mod state_dir;
pub mod tools;
mod values;

pub use exit::{CommandResult, Failure};
