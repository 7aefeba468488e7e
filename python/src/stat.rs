//! Attributes of files, with the names of `os.stat_result`.

use barge_client::Metadata;
use pyo3::prelude::*;
use vfs::Time;

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
        let attr = metadata.attr();
        Stat {
            st_mode: attr.st_mode(),
            st_ino: attr.id,
            st_dev: attr.device,
            st_nlink: attr.nlink,
            st_uid: attr.uid,
            st_gid: attr.gid,
            st_rdev: rustix::fs::makedev(attr.rdev.major, attr.rdev.minor),
            st_size: attr.size,
            st_blksize: attr.blksize,
            st_blocks: attr.blocks,
            st_atime_ns: nanoseconds(attr.atime),
            st_mtime_ns: nanoseconds(attr.mtime),
            st_ctime_ns: nanoseconds(attr.ctime),
            st_birthtime_ns: attr.btime.map(nanoseconds),
        }
    }
}

fn nanoseconds(time: Time) -> i128 {
    i128::from(time.sec) * 1_000_000_000 + i128::from(time.nsec)
}

fn seconds(nanoseconds: i128) -> f64 {
    nanoseconds as f64 / 1e9
}

/// The time of nanoseconds since 1970. Times beyond 64 bits of seconds become the closest.
pub(crate) fn time(nanoseconds: i128) -> Time {
    let second = 1_000_000_000;
    let sec = nanoseconds.div_euclid(second);
    Time {
        sec: sec.clamp(i64::MIN.into(), i64::MAX.into()) as i64,
        nsec: nanoseconds.rem_euclid(second) as u32,
    }
}
