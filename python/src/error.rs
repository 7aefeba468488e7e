//! Errors as `OSError`, whose constructor selects the subclass for the errno.

use std::io;
use std::path::Path;

use pyo3::PyErr;
use pyo3::exceptions::PyOSError;

/// Returns the `OSError` for an error of the library, with the path if the error is about one.
pub(crate) fn os_error(error: io::Error, path: Option<&Path>) -> PyErr {
    let (errno, text) = (barge_client::errno(&error), barge_client::message(&error));
    match path {
        Some(path) => PyOSError::new_err((errno, text, path.as_os_str().to_owned())),
        None => PyOSError::new_err((errno, text)),
    }
}
