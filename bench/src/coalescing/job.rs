//! The fio jobs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use super::limit::Limit;
use crate::workspace::{forget, write_data};

pub(super) struct Job {
    pub(super) name: &'static str,
    /// The value of fio's `--rw`.
    kind: &'static str,
    block: &'static str,
    /// The number of writers, and the files that they write.
    pub(super) writers: Writers,
    /// The speed-up by merging when it was first measured (Linux's 9P client, 2016).
    pub(super) first_measured: f64,
    /// The job runs until it has done everything once: only then does read-ahead data get used.
    pub(super) whole: bool,
}

/// The writers of a job.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Writers {
    One,
    /// Four, each with a file of its own.
    Files,
    /// Four, each in a quarter of the same file.
    Parts,
}

/// All jobs.
pub(super) const JOBS: [Job; 10] = [
    Job::new("write 1M", "write", "1m", 2.60),
    Job::new("read 1M", "read", "1m", 1.95),
    Job::new("write 4K", "write", "4k", 2.32),
    Job::new("read 4K", "read", "4k", 1.70),
    Job::new("random write 1M", "randwrite", "1m", 2.16),
    Job::new("random read 1M", "randread", "1m", 1.21),
    Job::new("random write 4K", "randwrite", "4k", 1.10),
    Job::new("random read 4K", "randread", "4k", 1.56).of_all(),
    // When merging was first measured, all writers shared one buffer: the target for four is the
    // gain of one.
    Job::new("4 files, write 4K", "write", "4k", 2.32).by(Writers::Files),
    Job::new("4 parts, write 4K", "write", "4k", 2.32).by(Writers::Parts),
];

/// The file for reads and random writes.
const DATA: &str = "data";
/// The file for sequential writes.
const OUT: &str = "out";

impl Job {
    const fn new(
        name: &'static str,
        kind: &'static str,
        block: &'static str,
        first_measured: f64,
    ) -> Job {
        Job {
            name,
            kind,
            block,
            writers: Writers::One,
            first_measured,
            whole: false,
        }
    }

    const fn of_all(mut self) -> Job {
        self.whole = true;
        self
    }

    const fn by(mut self, writers: Writers) -> Job {
        self.writers = writers;
        self
    }

    /// Returns the most seconds that the job may take: with one page in each message most jobs
    /// would take minutes.
    pub(super) fn seconds(&self, quick: bool) -> f64 {
        /// Three times the expected time of the slowest.
        const WHOLE: f64 = 10.0;
        match (self.whole, quick) {
            (true, _) => WHOLE,
            (false, true) => 0.2,
            (false, false) => 0.4,
        }
    }

    pub(super) fn is_sequential(&self) -> bool {
        !self.kind.starts_with("rand")
    }

    fn file(&self) -> &'static str {
        if self.kind == "write" { OUT } else { DATA }
    }

    /// Returns the job's files below `dir`.
    fn files(&self, dir: &Path) -> Vec<PathBuf> {
        let file = dir.join(self.file());
        match self.writers {
            Writers::One | Writers::Parts => vec![file],
            Writers::Files => (0..4)
                .map(|at| file.with_extension(at.to_string()))
                .collect(),
        }
    }

    /// Prepares the job's files: removes those to write, creates the one to read.
    pub(super) fn prepare(&self, share: &Path, size: u64) -> Result<(), String> {
        let path = share.join(self.file());
        let told = |error: std::io::Error| format!("{}: {error}", path.display());
        if self.file() == OUT {
            return self
                .files(share)
                .iter()
                .try_for_each(|path| match fs::remove_file(path) {
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(told(error)),
                    _ => Ok(()),
                });
        }
        if fs::metadata(&path).is_ok_and(|data| data.len() == size) {
            return Ok(());
        }
        let file = write_data(&path, size).map_err(told)?;
        file.sync_all().map_err(told)
    }

    /// Creates the job's files in `dir` as they are at its end, of `size` bytes together, and drops
    /// them from the kernel's page cache.
    pub(super) fn lay(&self, dir: &Path, size: u64) -> Result<(), String> {
        let files = self.files(dir);
        files.iter().try_for_each(|path| {
            write_data(path, size / files.len() as u64)
                .and_then(|_| forget(path))
                .map_err(|error| format!("{}: {error}", path.display()))
        })
    }

    /// Drops the job's files from the kernel's page cache, and no others: the mount is new anyway.
    pub(super) fn forget(&self, share: &Path) -> Result<(), String> {
        for path in self.files(share) {
            match forget(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(format!("{}: {error}", path.display()));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns fio's options that distribute the job's data among its writers.
    fn share_out(&self, dir: &Path, size: u64) -> Vec<String> {
        let file = dir.join(self.file());
        let file = file.display();
        let four = [
            "--numjobs=4".to_owned(),
            "--group_reporting".into(),
            format!("--size={}", size / 4),
        ];
        match self.writers {
            Writers::One => vec![format!("--filename={file}"), format!("--size={size}")],
            Writers::Files => {
                let name = format!("--filename_format={file}.$jobnum");
                [&four[..], &[name]].concat()
            }
            Writers::Parts => {
                let part = format!("--offset_increment={}", size / 4);
                [&four[..], &[format!("--filename={file}"), part]].concat()
            }
        }
    }

    /// Runs the job below `dir`; returns MB/s.
    pub(super) fn run(
        &self,
        dir: &Path,
        size: u64,
        limit: Option<&Limit>,
        quick: bool,
    ) -> Result<f64, String> {
        let mut command = match limit {
            Some(limit) => limit.command("fio"),
            None => Command::new("fio"),
        };
        let output = command
            .args([
                "--name=bench",
                "--ioengine=psync",
                "--thread",
                "--invalidate=0",
            ])
            .args(["--end_fsync=1", "--randseed=7", "--output-format=json"])
            .args(self.share_out(dir, size))
            .arg(format!("--runtime={}ms", self.seconds(quick) * 1000.0))
            .args([
                format!("--rw={}", self.kind),
                format!("--bs={}", self.block),
            ])
            .stdin(Stdio::null())
            .output()
            .map_err(|error| format!("fio: {error}"))?;
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr);
            return Err(format!("fio: {}", why.trim()));
        }
        let results: Value = serde_json::from_slice(&output.stdout)
            .map_err(|error| format!("what fio has told: {error}"))?;
        let side = if self.kind.contains("read") {
            "read"
        } else {
            "write"
        };
        let rate = results["jobs"][0][side]["bw_bytes"].as_f64();
        rate.map(|rate| rate / 1e6)
            .ok_or("fio has told no rate".into())
    }
}
