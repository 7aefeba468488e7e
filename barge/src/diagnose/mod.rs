//! Errors that new users often meet: one line with the cause and the next step.
//!
//! These functions do not decide whether something fails: they examine the host after the failure,
//! and return the error itself if they find no cause.

#[cfg(target_os = "linux")]
mod listening;
#[cfg(target_os = "linux")]
mod mounting;
mod opening;
#[cfg(target_os = "linux")]
mod owner;

#[cfg(target_os = "linux")]
pub(crate) use listening::listen_error;
#[cfg(target_os = "linux")]
pub(crate) use mounting::{check_mount_point, mount_error};
pub(crate) use opening::open_error;
