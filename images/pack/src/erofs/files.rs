//! File contents and link targets: the choice of their form, and their transfer into the image.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use ::erofs::write::{BLOCK, Body, Inode};
use parking_lot::Mutex;

use super::fragments::{Fragment, FragmentError, Fragments, possible_duplicates};
use super::jobs::{Job, JobKind, JobOutput, new_job, run_worker};
use super::split::{SEGMENT_SIZE, best_chunk, chunk_count, data_chunks, split_range};
use super::writer::{
    ContentsWriter, FileLayout, LARGE_FILE, NO_BLOCK, Segment, Tails, chunked_body,
};
use super::{Compression, Options};
use crate::contents::Bytes;
use crate::error::{Error, Result, display_path};
use crate::output::Origin;
use crate::plan::{Plan, Visit, visit_path};
use crate::{Contents, Kind, Output, Progress};

/// Maximum number of chunks of a file: their map takes 1 GiB, and with the largest chunks covers 1
/// PiB.
const MAX_CHUNKS: u64 = 1 << 28;

/// Files of up to this size in bytes are stored inline where there is space, even if other small
/// files are packed: so little is not worth another read.
const TINY_FILE: u64 = 256;

/// The job queue of the worker threads, and the jobs in progress.
struct Queue {
    jobs: SyncSender<Job>,
    pending: VecDeque<(Segment, Receiver<io::Result<JobOutput>>)>,
    /// Maximum number of jobs in progress.
    max_pending: usize,
}

impl Queue {
    /// Queues a job for a part of a file; returns the receiver of its result.
    fn send(
        &self,
        contents: Arc<dyn Contents>,
        range: Range<u64>,
        how: JobKind,
    ) -> Result<Receiver<io::Result<JobOutput>>> {
        let (job, done) = new_job(contents, range, how);
        let sent = self.jobs.send(job);
        sent.map_err(|_| Error::new("the threads that read files have ended"))?;
        Ok(done)
    }
}

fn receive(done: &Receiver<io::Result<JobOutput>>) -> io::Result<JobOutput> {
    let ended = |_| Err(io::Error::other("a reading thread has ended"));
    done.recv().unwrap_or_else(ended)
}

/// All files of a plan.
pub(super) struct Files<'a> {
    plan: &'a Plan,
    visits: &'a [Visit],
    options: &'a Options,
    /// By index; that of the packed inode is last.
    bodies: Vec<Option<Body>>,
    writer: ContentsWriter<'a>,
    /// Parts to pack, in the order of visits.
    fragments: Vec<Fragment>,
    /// Contents are only copied, without processing: this thread copies them directly, as long as
    /// they come from local files. Other contents are read ahead by the worker threads.
    direct_copy: bool,
}

impl<'a> Files<'a> {
    pub(super) fn new(
        plan: &'a Plan,
        visits: &'a [Visit],
        inodes: &[Inode],
        options: &'a Options,
        output: &Output,
    ) -> Files<'a> {
        Files {
            plan,
            visits,
            options,
            bodies: vec![None; visits.len() + 1],
            writer: ContentsWriter::new(inodes, options, output),
            fragments: Vec::new(),
            direct_copy: options.compression == Compression::None
                && !options.dedupe
                && !output.has_hashes(),
        }
    }

    /// Writes all contents, and returns the bodies of files and links, and of the packed inode, if
    /// there is one.
    pub(super) fn write(
        mut self,
        output: &mut Output,
        progress: &dyn Progress,
    ) -> Result<(Vec<Option<Body>>, Option<Body>, Tails)> {
        let threads = self.options.threads.max(1);
        let options = self.options;
        // Enough read-ahead that no thread waits while this one writes.
        let ahead = threads * 4;
        std::thread::scope(|scope| {
            let (jobs, queue) = sync_channel(ahead);
            let queue = Arc::new(Mutex::new(queue));
            for _ in 0..threads {
                let queue = queue.clone();
                scope.spawn(move || run_worker(options, &queue));
            }
            let queue = Queue {
                jobs,
                max_pending: ahead,
                pending: VecDeque::new(),
            };
            self.process_all(queue, output, progress)
        })?;
        let packed = self.bodies.pop().flatten();
        Ok((self.bodies, packed, self.writer.into_tails()))
    }

    /// Processes all files, the packed parts after the others.
    fn process_all(
        &mut self,
        mut queue: Queue,
        output: &mut Output,
        progress: &dyn Progress,
    ) -> Result<()> {
        let order = self.order();
        for &at in &order {
            let contents = match self.plan.kind(self.visits[at].node) {
                Kind::File(contents) => contents.clone(),
                Kind::Symlink(target) if target.len() <= self.writer.inline_limits[at] => {
                    self.bodies[at] = Some(Body::Flat {
                        size: target.len() as u64,
                        block: NO_BLOCK,
                        inline: true,
                    });
                    continue;
                }
                Kind::Symlink(target) => Arc::new(Bytes(target.clone())),
                _ => continue,
            };
            let is_small = self.is_small(at, &*contents);
            if is_small.map_err(|error| self.error(at, error))? {
                let size = contents.len();
                // The offset is known after all files.
                self.bodies[at] = Some(Body::Fragment { size, offset: 0 });
                self.fragments.push(Fragment {
                    at,
                    contents,
                    range: 0..size,
                });
            } else {
                self.send(at, contents, &mut queue, output, progress)?;
            }
        }
        self.finish_all(&mut queue, output, progress)?;
        let gathered = self.concatenate_fragments(&order, &mut queue, progress)?;
        if !gathered.is_empty() {
            let at = self.visits.len();
            self.send(at, Arc::new(gathered), &mut queue, output, progress)?;
        }
        self.finish_all(&mut queue, output, progress)
    }

    /// Concatenates the parts to pack in tree order, and stores their offsets in the files' bodies.
    fn concatenate_fragments(
        &mut self,
        order: &[usize],
        queue: &mut Queue,
        progress: &dyn Progress,
    ) -> Result<Fragments> {
        let mut ranks = vec![0; order.len()];
        for (rank, &at) in order.iter().enumerate() {
            ranks[at] = rank;
        }
        let mut members = std::mem::take(&mut self.fragments);
        members.sort_by_key(|member| ranks[member.at]);
        let hashes = self.fragment_hashes(&members, queue)?;
        let all: u64 = members.iter().map(Fragment::len).sum();
        let files: Vec<usize> = members.iter().map(|member| member.at).collect();
        let (gathered, offsets) = Fragments::of(members, &hashes);
        progress.advance(all - gathered.len());
        for (file, offset) in files.into_iter().zip(offsets) {
            match &mut self.bodies[file] {
                Some(
                    Body::Fragment { offset: at, .. }
                    | Body::Compressed {
                        fragment: Some(at), ..
                    },
                ) => {
                    *at = offset;
                }
                _ => unreachable!("nothing else is packed"),
            }
        }
        Ok(gathered)
    }

    /// Returns the hashes of the parts that may be equal, by index.
    fn fragment_hashes(
        &self,
        members: &[Fragment],
        queue: &mut Queue,
    ) -> Result<HashMap<usize, [u8; 32]>> {
        let mut hashes = HashMap::new();
        let mut pending = VecDeque::new();
        let mut finish = |(number, done): (usize, Receiver<_>)| {
            let at = members[number].at;
            let done: JobOutput = receive(&done).map_err(|error| self.error(at, error))?;
            members[number].contents.close();
            hashes.extend(done.hashes.into_iter().map(|hash| (number, hash)));
            Ok::<(), Error>(())
        };
        for number in possible_duplicates(members) {
            if pending.len() == queue.max_pending
                && let Some(first) = pending.pop_front()
            {
                finish(first)?;
            }
            let member = &members[number];
            let how = JobKind::Hash(member.len());
            let done = queue.send(member.contents.clone(), member.range.clone(), how)?;
            pending.push_back((number, done));
        }
        pending.into_iter().try_for_each(finish)?;
        Ok(hashes)
    }

    /// Returns whether a file is to be packed with the other small ones.
    fn is_small(&self, at: usize, contents: &dyn Contents) -> io::Result<bool> {
        let size = contents.len();
        let least = TINY_FILE.min(self.writer.inline_limits[at] as u64);
        Ok(self.options.pack_small
            && self.options.compression != Compression::None
            && matches!(self.plan.kind(self.visits[at].node), Kind::File(_))
            && (least + 1..=self.max_fragment()).contains(&size)
            // Sparse files are not packed.
            && matches!(&contents.data_ranges()?[..], [data] if *data == (0..size)))
    }

    /// Sends the parts of a file to the worker threads.
    fn send(
        &mut self,
        at: usize,
        contents: Arc<dyn Contents>,
        queue: &mut Queue,
        output: &mut Output,
        progress: &dyn Progress,
    ) -> Result<()> {
        let segments = self.split(at, &contents, progress);
        for segment in segments.map_err(|error| self.error(at, error))? {
            if self.direct_copy && segment.layout == FileLayout::Flat {
                self.finish_all(queue, output, progress)?;
                let origin = self.writer.copy_plain(&segment, output);
                let origin = origin.map_err(|error| self.error(at, error))?;
                self.direct_copy = origin != Origin::Memory || self.is_link(at);
                self.finish_segment(&segment, progress);
                continue;
            }
            if queue.pending.len() == queue.max_pending {
                self.finish_first(&mut queue.pending, output, progress)?;
            }
            let done = queue.send(
                contents.clone(),
                segment.range.clone(),
                self.job_kind(&segment),
            )?;
            queue.pending.push_back((segment, done));
        }
        Ok(())
    }

    fn job_kind(&self, segment: &Segment) -> JobKind {
        // Tails of files go to the packed inode, except its own.
        let leaves = self.options.pack_small && segment.last && segment.at < self.visits.len();
        match segment.layout {
            FileLayout::Compressed if leaves => JobKind::Compress(self.max_fragment() as usize),
            FileLayout::Compressed => JobKind::Compress(0),
            FileLayout::Chunks(chunk) if self.options.dedupe => JobKind::Hash(chunk),
            FileLayout::Flat | FileLayout::Chunks(_) => JobKind::Read,
        }
    }

    /// Returns the maximum number of bytes of a file that are packed.
    fn max_fragment(&self) -> u64 {
        LARGE_FILE.min(self.options.cluster.into())
    }

    /// Returns the indexes of all visits: first those to place first, then the others.
    fn order(&self) -> Vec<usize> {
        let numbers: HashMap<_, _> = (self.visits.iter().enumerate())
            .map(|(at, visit)| (visit.node, at))
            .collect();
        let mut taken = vec![false; self.visits.len()];
        let first = self.options.first.iter();
        let mut order: Vec<usize> = first
            .filter_map(|node| numbers.get(node).copied())
            .collect();
        order.retain(|at| !std::mem::replace(&mut taken[*at], true));
        order.extend((0..taken.len()).filter(|at| !taken[*at]));
        order
    }

    fn error(&self, at: usize, error: io::Error) -> Error {
        let member = error.get_ref().and_then(|inner| inner.downcast_ref());
        let at = member.map_or(at, |member: &FragmentError| member.at);
        Error::from(error).of(display_path(&visit_path(self.visits, at)))
    }

    /// Chooses the form of a file, and returns the parts to read. A file without any is finished.
    fn split(
        &mut self,
        at: usize,
        contents: &Arc<dyn Contents>,
        progress: &dyn Progress,
    ) -> io::Result<Vec<Segment>> {
        let size = contents.len();
        let data = contents.data_ranges()?;
        let (form, ranges) = match self.is_link(at) {
            false => self.choose_layout(at, size, &data),
            true => (FileLayout::Flat, split_range(0..size, SEGMENT_SIZE)),
        };
        if let FileLayout::Chunks(chunk) = form
            && size.div_ceil(chunk) > MAX_CHUNKS
        {
            return Err(io::Error::other("a file with too many chunks"));
        }
        if ranges.is_empty() {
            contents.close();
            self.bodies[at] = Some(match form {
                FileLayout::Chunks(chunk) => {
                    chunked_body(size, chunk, vec![None; chunk_count(size, chunk)])
                }
                _ => Body::Flat {
                    size,
                    block: NO_BLOCK,
                    inline: false,
                },
            });
        }
        let read: u64 = ranges.iter().map(|range| range.end - range.start).sum();
        progress.advance(size - read);
        let count = ranges.len();
        let segment = |(number, range)| Segment {
            at,
            contents: contents.clone(),
            layout: form,
            range,
            last: number + 1 == count,
        };
        Ok(ranges.into_iter().enumerate().map(segment).collect())
    }

    fn is_link(&self, at: usize) -> bool {
        let visit = self.visits.get(at);
        visit.is_some_and(|visit| matches!(self.plan.kind(visit.node), Kind::Symlink(_)))
    }

    fn choose_layout(
        &self,
        at: usize,
        size: u64,
        data: &[Range<u64>],
    ) -> (FileLayout, Vec<Range<u64>>) {
        let sparse = data.iter().map(|data| data.end - data.start).sum::<u64>() < size;
        // The file is inline as a whole.
        let tiny = size < BLOCK && size <= self.writer.inline_limits[at] as u64;
        let chunk = match (self.options.chunk, self.options.dedupe) {
            (Some(chunk), _) => Some(chunk),
            (None, true) => Some(DEDUPE_CHUNK),
            (None, false) => None,
        };
        if sparse && !tiny {
            let chunk = self.options.chunk.unwrap_or_else(|| best_chunk(size, data));
            return (FileLayout::Chunks(chunk), data_chunks(size, chunk, data));
        }
        let whole = 0..size;
        if tiny {
            (FileLayout::Flat, split_range(whole, SEGMENT_SIZE))
        } else if self.options.compression != Compression::None {
            (FileLayout::Compressed, split_range(whole, SEGMENT_SIZE))
        } else if let Some(chunk) = chunk {
            (
                FileLayout::Chunks(chunk),
                split_range(whole, chunk.max(SEGMENT_SIZE)),
            )
        } else {
            (FileLayout::Flat, split_range(whole, SEGMENT_SIZE))
        }
    }

    /// Waits for the oldest job, and puts its result into the image.
    fn finish_first(
        &mut self,
        pending: &mut VecDeque<(Segment, Receiver<io::Result<JobOutput>>)>,
        output: &mut Output,
        progress: &dyn Progress,
    ) -> Result<()> {
        let Some((segment, done)) = pending.pop_front() else {
            return Ok(());
        };
        let done = receive(&done);
        let put = done.and_then(|done| self.writer.write_segment(&segment, done, output));
        put.map_err(|error| self.error(segment.at, error))?;
        self.finish_segment(&segment, progress);
        Ok(())
    }

    fn finish_all(
        &mut self,
        queue: &mut Queue,
        output: &mut Output,
        progress: &dyn Progress,
    ) -> Result<()> {
        while !queue.pending.is_empty() {
            self.finish_first(&mut queue.pending, output, progress)?;
        }
        Ok(())
    }

    /// Finishes a segment that is in the image, except for the part to pack.
    fn finish_segment(&mut self, segment: &Segment, progress: &dyn Progress) {
        let mut done = segment.range.end - segment.range.start;
        if segment.last {
            segment.contents.close();
            let (body, left) = self.writer.take_body(segment);
            self.bodies[segment.at] = Some(body);
            if left > 0 {
                done -= left;
                let end = segment.range.end;
                self.fragments.push(Fragment {
                    at: segment.at,
                    contents: segment.contents.clone(),
                    range: end - left..end,
                });
            }
        }
        progress.advance(done);
    }
}

/// Default chunk size in bytes for deduplication: the map takes 1/16,000 of a file, and reads are
/// large enough for disks.
const DEDUPE_CHUNK: u64 = 64 << 10;
