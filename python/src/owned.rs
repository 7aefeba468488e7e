//! Values of the process that opened them.

use std::io;

use parking_lot::Mutex;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use rustix::io::Errno;

use crate::error::os_error;

/// A value that can be closed. In a process that forked it is neither used nor dropped: the threads
/// that it relies on exist in the parent alone, and both processes share the connection.
pub(crate) struct Owned<T: Send> {
    process: u32,
    value: Mutex<Option<T>>,
}

impl<T: Clone + Send> Owned<T> {
    pub(crate) fn new(value: T) -> Owned<T> {
        Owned {
            process: std::process::id(),
            value: Mutex::new(Some(value)),
        }
    }

    /// Runs `operation` without the interpreter's lock. Raises `ValueError` if the value is closed,
    /// and `OSError` with `EBADF` after a fork.
    pub(crate) fn with<R: Send>(
        &self,
        py: Python<'_>,
        operation: impl FnOnce(&T) -> io::Result<R> + Send,
    ) -> PyResult<io::Result<R>> {
        let value = self.get()?;
        Ok(py.detach(move || operation(&value)))
    }

    fn get(&self) -> PyResult<T> {
        if self.is_forked() {
            let what = "opened before fork, by another process";
            return Err(PyErr::new::<pyo3::exceptions::PyOSError, _>((
                Errno::BADF.raw_os_error(),
                what,
            )));
        }
        let value = self.value.lock().clone();
        value.ok_or_else(|| PyValueError::new_err("I/O operation on a closed object"))
    }
}

impl<T: Send> Owned<T> {
    pub(crate) fn is_closed(&self) -> bool {
        self.value.lock().is_none()
    }

    /// Closes the value after `last`, which is not called if it was closed before or is another
    /// process's.
    pub(crate) fn close(
        &self,
        py: Python<'_>,
        last: impl FnOnce(&T) -> io::Result<()> + Send,
    ) -> PyResult<()> {
        let Some(value) = self.take() else {
            return Ok(());
        };
        py.detach(move || last(&value))
            .map_err(|error| os_error(error, None))
    }

    fn take(&self) -> Option<T> {
        let value = self.value.lock().take()?;
        if self.is_forked() {
            std::mem::forget(value);
            return None;
        }
        Some(value)
    }

    fn is_forked(&self) -> bool {
        self.process != std::process::id()
    }
}

impl<T: Send> Drop for Owned<T> {
    fn drop(&mut self) {
        if let Some(value) = self.take() {
            let mut value = Some(value);
            // The end of a connection may wait for its server.
            Python::try_attach(|py| py.detach(|| drop(value.take())));
        }
    }
}
