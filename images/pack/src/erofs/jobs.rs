//! Worker threads that read, compress and hash segments.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use parking_lot::Mutex;

use super::Options;
use super::codec::{Codec, CompressedSegment};
use crate::Contents;

/// A segment and its treatment.
pub(super) struct Job {
    pub(super) contents: Arc<dyn Contents>,
    pub(super) range: Range<u64>,
    pub(super) kind: JobKind,
    pub(super) result: SyncSender<io::Result<JobOutput>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum JobKind {
    Read,
    /// Compress, leaving up to this many bytes at the end.
    Compress(usize),
    /// Hash each chunk of this many bytes.
    Hash(u64),
}

/// The result of a job.
pub(super) struct JobOutput {
    /// The bytes of the segment.
    pub(super) bytes: Vec<u8>,
    /// The compressed segment, if the gain is large enough.
    pub(super) compressed: Option<CompressedSegment>,
    /// The hashes of its chunks, or of the whole; empty if not needed.
    pub(super) hashes: Vec<[u8; 32]>,
}

/// Processes jobs until the queue is closed.
pub(super) fn run_worker(options: &Options, jobs: &Mutex<Receiver<Job>>) {
    let mut codec = Codec::new(options.compression, options.cluster);
    loop {
        // The lock is released before the job starts.
        let next = jobs.lock().recv();
        let Ok(job) = next else { return };
        let done = match &mut codec {
            Ok(codec) => process(&job, codec.as_mut(), options.dedupe),
            Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
        };
        // The receiver is gone if another segment failed.
        let _ = job.result.send(done);
    }
}

fn process(job: &Job, codec: Option<&mut Codec>, dedupe: bool) -> io::Result<JobOutput> {
    let mut bytes = vec![0; (job.range.end - job.range.start) as usize];
    job.contents.read(job.range.start, &mut bytes)?;
    let hash = |bytes: &[u8]| *blake3::hash(bytes).as_bytes();
    let hashes = match job.kind {
        JobKind::Hash(chunk) => bytes.chunks(chunk as usize).map(hash).collect(),
        JobKind::Compress(_) if dedupe => vec![hash(&bytes)],
        _ => Vec::new(),
    };
    let packed = match (job.kind, codec) {
        (JobKind::Compress(leave), Some(codec)) => codec.compress(&bytes, leave)?,
        _ => None,
    };
    Ok(JobOutput {
        bytes,
        compressed: packed,
        hashes,
    })
}

/// Returns a job, and the receiver of its result.
pub(super) fn new_job(
    contents: Arc<dyn Contents>,
    range: Range<u64>,
    how: JobKind,
) -> (Job, Receiver<io::Result<JobOutput>>) {
    let (done, result) = sync_channel(1);
    let job = Job {
        contents,
        range,
        kind: how,
        result: done,
    };
    (job, result)
}
