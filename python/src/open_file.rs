//! An open file: what a descriptor is to `os`.

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use rustix::io::Errno;

use crate::error::os_error;
use crate::owned::Owned;
use crate::stat::Stat;

/// An open file with a position. pread and pwrite do not use the position.
#[pyclass(frozen, module = "barge._barge")]
pub(crate) struct OpenFile {
    file: Owned<Arc<barge_client::File>>,
}

#[pymethods]
impl OpenFile {
    /// Whether close() was called.
    #[getter]
    fn closed(&self) -> bool {
        self.file.is_closed()
    }

    /// Closes the file, and raises errors of earlier writes that were not reported yet.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.file.close(py, |file| file.finish())
    }

    /// Reads up to size bytes at the position; fewer only at the end of the file.
    fn read<'py>(&self, py: Python<'py>, size: usize) -> PyResult<Bound<'py, PyBytes>> {
        self.receive(py, size, |mut file, buffer| {
            fill(buffer, |rest, _| file.read(rest))
        })
    }

    /// Reads up to size bytes at offset; fewer only at the end of the file.
    fn pread<'py>(
        &self,
        py: Python<'py>,
        size: usize,
        offset: u64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        self.receive(py, size, |file, buffer| {
            fill(buffer, |rest, done| {
                file.read_at(rest, offset + done as u64)
            })
        })
    }

    /// Writes all data at the position, or at the end if the file is open for appending.
    fn write(&self, py: Python<'_>, data: &[u8]) -> PyResult<usize> {
        self.with(py, |mut file| file.write_all(data))?;
        Ok(data.len())
    }

    /// Writes all data at offset.
    fn pwrite(&self, py: Python<'_>, data: &[u8], offset: u64) -> PyResult<usize> {
        self.with(py, |file| file.write_all_at(data, offset))?;
        Ok(data.len())
    }

    /// Sets the position relative to the start (whence 0), itself (1) or the end (2), and returns
    /// it.
    #[pyo3(signature = (offset, whence = 0))]
    fn seek(&self, py: Python<'_>, offset: i64, whence: u8) -> PyResult<u64> {
        let to = match whence {
            0 => SeekFrom::Start(u64::try_from(offset).map_err(|_| {
                os_error(
                    io::Error::from_raw_os_error(Errno::INVAL.raw_os_error()),
                    None,
                )
            })?),
            1 => SeekFrom::Current(offset),
            2 => SeekFrom::End(offset),
            _ => {
                return Err(PyValueError::new_err(format!(
                    "expected whence 0, 1 or 2, got {whence}"
                )));
            }
        };
        self.with(py, |mut file| file.seek(to))
    }

    /// Returns the attributes of the file.
    fn stat(&self, py: Python<'_>) -> PyResult<Stat> {
        self.with(py, |file| Ok(Stat::new(&file.metadata()?)))
    }

    /// Truncates the file, or extends it by a hole.
    fn truncate(&self, py: Python<'_>, length: u64) -> PyResult<()> {
        self.with(py, |file| file.set_len(length))
    }

    /// Makes written data durable.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, barge_client::File::sync_all)
    }
}

impl OpenFile {
    pub(crate) fn new(file: barge_client::File) -> OpenFile {
        OpenFile {
            file: Owned::new(Arc::new(file)),
        }
    }

    fn with<R: Send>(
        &self,
        py: Python<'_>,
        operation: impl FnOnce(&barge_client::File) -> io::Result<R> + Send,
    ) -> PyResult<R> {
        let done = self.file.with(py, |file| operation(file))?;
        done.map_err(|error| os_error(error, None))
    }

    /// Reads into a new object of `size` bytes, which is cut to those that `read` returned.
    fn receive<'py>(
        &self,
        py: Python<'py>,
        size: usize,
        read: impl FnOnce(&barge_client::File, &mut [u8]) -> io::Result<usize> + Send,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let mut got = 0;
        let data = PyBytes::new_with(py, size, |buffer| {
            got = self.with(py, |file| read(file, buffer))?;
            Ok(())
        })?;
        match got == size {
            true => Ok(data),
            false => Ok(PyBytes::new(py, &data.as_bytes()[..got])),
        }
    }
}

/// Calls `read` with the rest of the buffer, and the bytes before it, until the buffer is full or
/// the file ends. Returns the number of bytes.
fn fill(
    buffer: &mut [u8],
    mut read: impl FnMut(&mut [u8], usize) -> io::Result<usize>,
) -> io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match read(&mut buffer[done..], done)? {
            0 => break,
            more => done += more,
        }
    }
    Ok(done)
}
