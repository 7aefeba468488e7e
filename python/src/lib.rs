//! The extension module `barge._barge`: `barge-client` for Python, in the conventions of `os`.
//!
//! Each call that may block releases the interpreter's lock. An object serves only the process that
//! opened it: a process that forked gets `EBADF`, and leaves the connections to its parent.
//!
//! Deliberately absent: buffers of callers, which the limited API has from Python 3.11 on. Data is
//! received into the `bytes` object that a call returns.
//!
//! Lock order: the lock of `Owned` is taken with the interpreter's lock held, and released
//! before the latter is. Fork, which holds the interpreter's lock, finds it free.

mod client;
mod error;
mod open_file;
mod owned;
mod stat;

use pyo3::pymodule;

/// The native part of `barge`.
#[pymodule]
mod _barge {
    #[pymodule_export]
    use super::client::{Client, DirEntry};
    #[pymodule_export]
    use super::open_file::OpenFile;
    #[pymodule_export]
    use super::stat::Stat;
}
