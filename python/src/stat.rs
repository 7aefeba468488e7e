//! Attributes of files, with the names of `os.stat_result`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use barge_client::Metadata;
use pyo3::prelude::*;

/// Attributes of a file, with the names of os.stat_result.
#[pyclass(frozen, get_all, module = "barge")]
#[derive(Clone)]
pub(crate) struct Stat {
    st_mode: u32,
    st_ino: u64,
    st_dev: u64,
    st_nlink: u32,
    st_uid: u32,
    st_gid: u32,
    st_rdev: u64,
    st_size: u64,
    st_blksize: u32,
    st_blocks: u64,
    st_atime_ns: i128,
    st_mtime_ns: i128,
    st_ctime_ns: i128,
    /// The creation time, or None if the source has none.
    st_birthtime_ns: Option<i128>,
}

#[pymethods]
impl Stat {
    #[getter]
    fn st_atime(&self) -> f64 {
        seconds(self.st_atime_ns)
    }

    #[getter]
    fn st_mtime(&self) -> f64 {
        seconds(self.st_mtime_ns)
    }

    #[getter]
    fn st_ctime(&self) -> f64 {
        seconds(self.st_ctime_ns)
    }

    /// The creation time in seconds, or None if the source has none.
    #[getter]
    fn st_birthtime(&self) -> Option<f64> {
        self.st_birthtime_ns.map(seconds)
    }

    fn __repr__(&self) -> String {
        format!(
            "barge.Stat(st_mode={:#o}, st_ino={}, st_size={}, st_mtime_ns={})",
            self.st_mode, self.st_ino, self.st_size, self.st_mtime_ns
        )
    }
}

impl Stat {
    pub(crate) fn new(metadata: &Metadata) -> Stat {
        let (major, minor) = metadata.rdev();
        Stat {
            st_mode: metadata.st_mode(),
            st_ino: metadata.ino(),
            st_dev: metadata.dev(),
            st_nlink: metadata.nlink(),
            st_uid: metadata.uid(),
            st_gid: metadata.gid(),
            st_rdev: rustix::fs::makedev(major, minor),
            st_size: metadata.len(),
            st_blksize: metadata.blksize(),
            st_blocks: metadata.blocks(),
            st_atime_ns: nanoseconds(metadata.accessed()),
            st_mtime_ns: nanoseconds(metadata.modified()),
            st_ctime_ns: nanoseconds(metadata.changed()),
            st_birthtime_ns: metadata.created().map(nanoseconds),
        }
    }
}

fn nanoseconds(time: SystemTime) -> i128 {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => after.as_nanos() as i128,
        Err(before) => -(before.duration().as_nanos() as i128),
    }
}

fn seconds(nanoseconds: i128) -> f64 {
    nanoseconds as f64 / 1e9
}

/// The time of nanoseconds since 1970. A time that the system cannot represent becomes 1970.
pub(crate) fn time(nanoseconds: i128) -> SystemTime {
    const SECOND: u128 = 1_000_000_000;
    let distance = nanoseconds.unsigned_abs();
    let seconds = u64::try_from(distance / SECOND).unwrap_or(u64::MAX);
    let distance = Duration::new(seconds, (distance % SECOND) as u32);
    let time = match nanoseconds {
        0.. => UNIX_EPOCH.checked_add(distance),
        _ => UNIX_EPOCH.checked_sub(distance),
    };
    time.unwrap_or(UNIX_EPOCH)
}
