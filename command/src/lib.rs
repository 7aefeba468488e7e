//! Parts of a command line that the programs of this workspace share: exit status, logging options,
//! standard error and output, signals, notifications, children, external programs, and the options
//! of `barge bench`, `barge-agent`, `barge-csi` and `barge-snapshotter`.

pub mod agent;
#[cfg(target_os = "linux")]
pub mod background;
pub mod bench;
#[cfg(target_os = "linux")]
pub mod child;
pub mod csi;
mod exit;
pub mod log;
#[cfg(target_os = "linux")]
pub mod notify;
#[cfg(target_os = "linux")]
pub mod signals;
pub mod snapshotter;
#[cfg(target_os = "linux")]
pub mod state_dir;
pub mod stderr;
pub mod text;
pub mod tools;
mod values;

pub use exit::{CommandResult, Failure, announce, print};
