//! The fio jobs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use super::memory_limit::MemoryLimit;
use crate::workspace::{drop_cache, write_data};

pub(super) struct Job {
    pub(super) name: &'static str,
    /// The value of fio's `--rw`.
    rw: &'static str,
    block_size: &'static str,
    /// The number of writers, and the files that they write.
    pub(super) writers: Writers,
    /// The speed-up by merging when it was first measured (Linux's 9P client, 2016).
    pub(super) published_speedup: f64,
    /// The job runs until it has done everything once: only then does read-ahead data get used.
    pub(super) runs_to_end: bool,
}

/// The writers of a job.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Writers {
    One,
    /// Four, each with a file of its own.
    SeparateFiles,
    /// Four, each in a quarter of the same file.
    SharedFile,
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
    Job::new("random read 4K", "randread", "4k", 1.56).run_to_end(),
    // When merging was first measured, all writers shared one buffer: the target for four is the
    // gain of one.
    Job::new("4 files, write 4K", "write", "4k", 2.32).with_writers(Writers::SeparateFiles),
    Job::new("4 parts, write 4K", "write", "4k", 2.32).with_writers(Writers::SharedFile),
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
            rw: kind,
            block_size: block,
            writers: Writers::One,
            published_speedup: first_measured,
            runs_to_end: false,
        }
    }

    const fn run_to_end(mut self) -> Job {
        self.runs_to_end = true;
        self
    }

    const fn with_writers(mut self, writers: Writers) -> Job {
        self.writers = writers;
        self
    }

    /// Returns the most seconds that the job may take: with one page in each message most jobs
    /// would take minutes.
    pub(super) fn seconds(&self, quick: bool) -> f64 {
        /// Three times the expected time of the slowest.
        const TO_END: f64 = 10.0;
        match (self.runs_to_end, quick) {
            (true, _) => TO_END,
            (false, true) => 0.2,
            (false, false) => 0.4,
        }
    }

    pub(super) fn is_sequential(&self) -> bool {
        !self.rw.starts_with("rand")
    }

    fn file(&self) -> &'static str {
        if self.rw == "write" { OUT } else { DATA }
    }

    /// Returns the job's files below `dir`.
    fn files(&self, dir: &Path) -> Vec<PathBuf> {
        let file = dir.join(self.file());
        match self.writers {
            Writers::One | Writers::SharedFile => vec![file],
            Writers::SeparateFiles => (0..4)
                .map(|at| file.with_extension(at.to_string()))
                .collect(),
        }
    }

    /// Prepares the job's files: removes those to write, creates the one to read.
    pub(super) fn prepare(&self, share: &Path, size: u64) -> Result<(), String> {
        let path = share.join(self.file());
        let describe = |error: std::io::Error| format!("{}: {error}", path.display());
        if self.file() == OUT {
            return self
                .files(share)
                .iter()
                .try_for_each(|path| match fs::remove_file(path) {
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                        Err(describe(error))
                    }
                    _ => Ok(()),
                });
        }
        if fs::metadata(&path).is_ok_and(|data| data.len() == size) {
            return Ok(());
        }
        let file = write_data(&path, size).map_err(describe)?;
        file.sync_all().map_err(describe)
    }

    /// Creates the job's files in `dir` as they are at its end, of `size` bytes together, and drops
    /// them from the kernel's page cache.
    pub(super) fn create_files(&self, dir: &Path, size: u64) -> Result<(), String> {
        let files = self.files(dir);
        files.iter().try_for_each(|path| {
            write_data(path, size / files.len() as u64)
                .and_then(|_| drop_cache(path))
                .map_err(|error| format!("{}: {error}", path.display()))
        })
    }

    /// Drops the job's files from the kernel's page cache, and no others: the mount is new anyway.
    pub(super) fn drop_cache(&self, share: &Path) -> Result<(), String> {
        for path in self.files(share) {
            match drop_cache(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(format!("{}: {error}", path.display()));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns fio's options that distribute the job's data among its writers.
    fn distribution_options(&self, dir: &Path, size: u64) -> Vec<String> {
        let file = dir.join(self.file());
        let file = file.display();
        let four = [
            "--numjobs=4".to_owned(),
            "--group_reporting".into(),
            format!("--size={}", size / 4),
        ];
        match self.writers {
            Writers::One => vec![format!("--filename={file}"), format!("--size={size}")],
            Writers::SeparateFiles => {
                let name = format!("--filename_format={file}.$jobnum");
                [&four[..], &[name]].concat()
            }
            Writers::SharedFile => {
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
        limit: Option<&MemoryLimit>,
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
            .args(self.distribution_options(dir, size))
            .arg(format!("--runtime={}ms", self.seconds(quick) * 1000.0))
            .args([
                format!("--rw={}", self.rw),
                format!("--bs={}", self.block_size),
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
        let side = if self.rw.contains("read") {
            "read"
        } else {
            "write"
        };
        let rate = results["jobs"][0][side]["bw_bytes"].as_f64();
        rate.map(|rate| rate / 1e6)
            .ok_or("fio has told no rate".into())
    }
}
