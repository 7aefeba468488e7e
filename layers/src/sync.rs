//! Locks and threads of the layers that have threads: std's or, for a test of the orders in which they can run, shuttle's.

#[cfg(feature = "shuttle")]
pub(crate) use shuttle::{
    sync::{Condvar, Mutex, MutexGuard, atomic},
    thread,
};
#[cfg(not(feature = "shuttle"))]
pub(crate) use std::{
    sync::{Condvar, Mutex, MutexGuard, atomic},
    thread,
};
