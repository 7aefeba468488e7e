//! Errors as `OSError`, whose constructor selects the subclass for the errno.

use std::io;
use std::path::Path;

use pyo3::PyErr;
use pyo3::exceptions::PyOSError;

/// Returns the `OSError` for an error of the library, with the path if the error is about one.
pub(crate) fn os_error(error: io::Error, path: Option<&Path>) -> PyErr {
    let errno = barge_client::errno(&error);
    let text = match error.raw_os_error() {
        Some(_) if !errno.text().is_empty() => errno.text().to_owned(),
        _ => error.to_string(),
    };
    match path {
        Some(path) => PyOSError::new_err((errno.raw(), text, path.as_os_str().to_owned())),
        None => PyOSError::new_err((errno.raw(), text)),
    }
}
