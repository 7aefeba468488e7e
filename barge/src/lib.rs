//! barge serves file trees over protocols that virtual machines, containers and other hosts can
//! mount.
//!
//! This crate is the program, whose `main` is [`main`]; programs use the crate `barge-client`. On
//! systems other than Linux it has the commands that read and copy files and build images.
//!
//! Exit status: 0 for success, 1 for failure, 2 for invalid usage; `serve --run` exits with that of
//! its command.

#![forbid(unsafe_code)]

#[cfg(target_os = "linux")]
mod arguments;
#[cfg(target_os = "linux")]
mod bench;
#[cfg(target_os = "linux")]
mod cache;
#[cfg(target_os = "linux")]
mod call_log;
#[cfg(target_os = "linux")]
mod child;
#[cfg_attr(not(target_os = "linux"), path = "elsewhere/cli.rs")]
mod cli;
mod commands;
#[cfg(target_os = "linux")]
mod config;
#[cfg_attr(not(target_os = "linux"), path = "elsewhere/confinement.rs")]
mod confinement;
#[cfg(target_os = "linux")]
mod connect;
#[cfg(target_os = "linux")]
mod ctl;
mod diagnose;
#[cfg_attr(not(target_os = "linux"), path = "elsewhere/disk_cache.rs")]
mod disk_cache;
#[cfg(target_os = "linux")]
mod doctor;
mod files;
#[cfg(target_os = "linux")]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(target_os = "linux")]
mod holder;
#[cfg(target_os = "linux")]
mod kept_files;
#[cfg(target_os = "linux")]
mod listen;
mod log;
#[cfg(target_os = "linux")]
mod mount;
#[cfg(all(feature = "otel", target_os = "linux"))]
mod otel;
mod pack;
#[cfg(target_os = "linux")]
mod private_file;
#[cfg(target_os = "linux")]
mod read_trace;
mod record_file;
mod reference;
#[cfg(target_os = "linux")]
mod serve;
#[cfg(target_os = "linux")]
mod service;
#[cfg(target_os = "linux")]
mod source;
#[cfg(target_os = "linux")]
mod stack;
#[cfg(target_os = "linux")]
mod status;
mod version;
#[cfg(target_os = "linux")]
mod watch;

use command::{CommandResult, Failure};
#[cfg(target_os = "linux")]
use command::{background, signals, tools};

pub use crate::cli::main;
