//! Errors that new users often meet: one line with the cause and the next step.
//!
//! These functions do not decide whether something fails: they examine the host after the failure,
//! and return the error itself if they find no cause.

mod listening;
mod mounting;
mod opening;
mod owner;

pub(crate) use listening::listen_error;
pub(crate) use mounting::{check_mount_point, mount_error};
pub(crate) use opening::open_error;
