//! What people stumble over at first: the cause of an error and the next step, in the one line that it gets.
//!
//! Nothing here decides whether something fails: it looks around after the fact, and tells the error as it came where it knows no better.

mod listening;
mod mounting;
mod opening;
mod owner;

pub(crate) use listening::listening;
pub(crate) use mounting::{mount_point, mounting};
pub(crate) use opening::opening;
