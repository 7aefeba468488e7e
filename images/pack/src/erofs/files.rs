//! File contents and link targets: the choice of their form, and their transfer into the image.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use ::erofs::write::{BLOCK, Body, Inode};
use parking_lot::Mutex;

use super::cut::{SEGMENT, best_chunk, chunks, pieces, with_data};
use super::gather::{Gathered, Member, OfMember, alike};
use super::jobs::{Done, Job, Treatment, job, work};
use super::put::{Form, LARGE, NO_BLOCK, Put, Segment, Tails, chunked};
use super::{Compression, Options};
use crate::contents::Bytes;
use crate::error::{Error, Result};
use crate::output::Origin;
use crate::plan::{Plan, Visit, path};
use crate::{Contents, Kind, Output, Progress};

/// Maximum number of chunks of a file: their map takes 1 GiB, and with the largest chunks covers 1
/// PiB.
const MOST_CHUNKS: u64 = 1 << 28;

/// Files of up to this size in bytes are stored inline where there is space, even if other small
/// files are packed: so little is not worth another read.
const TINY: u64 = 256;

/// The job queue of the worker threads, and the jobs in progress.
struct Queue {
    jobs: SyncSender<Job>,
    pending: VecDeque<(Segment, Receiver<io::Result<Done>>)>,
    /// Maximum number of jobs in progress.
    ahead: usize,
}

impl Queue {
    /// Queues a job for a part of a file; returns the receiver of its result.
    fn send(
        &self,
        contents: Arc<dyn Contents>,
        range: Range<u64>,
        how: Treatment,
    ) -> Result<Receiver<io::Result<Done>>> {
        let (job, done) = job(contents, range, how);
        let sent = self.jobs.send(job);
        sent.map_err(|_| Error::new("the threads that read files have ended"))?;
        Ok(done)
    }
}

fn received(done: &Receiver<io::Result<Done>>) -> io::Result<Done> {
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
    put: Put<'a>,
    /// Parts to pack, in the order of visits.
    members: Vec<Member>,
    /// Contents are only copied, without processing: this thread copies them directly, as long as
    /// they come from local files. Other contents are read ahead by the worker threads.
    copies: bool,
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
            put: Put::new(inodes, options, output),
            members: Vec::new(),
            copies: options.compression == Compression::None
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
                scope.spawn(move || work(options, &queue));
            }
            let queue = Queue {
                jobs,
                ahead,
                pending: VecDeque::new(),
            };
            self.all(queue, output, progress)
        })?;
        let packed = self.bodies.pop().flatten();
        Ok((self.bodies, packed, self.put.into_tails()))
    }

    /// Processes all files, the packed parts after the others.
    fn all(
        &mut self,
        mut queue: Queue,
        output: &mut Output,
        progress: &dyn Progress,
    ) -> Result<()> {
        let order = self.order();
        for &at in &order {
            let contents = match self.plan.kind(self.visits[at].node) {
                Kind::File(contents) => contents.clone(),
                Kind::Symlink(target) if target.len() <= self.put.rooms[at] => {
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
            if is_small.map_err(|error| self.failed(at, error))? {
                let size = contents.len();
                // The offset is known after all files.
                self.bodies[at] = Some(Body::Packed { size, at: 0 });
                self.members.push(Member {
                    at,
                    contents,
                    range: 0..size,
                });
            } else {
                self.send(at, contents, &mut queue, output, progress)?;
            }
        }
        self.finish_all(&mut queue, output, progress)?;
        let gathered = self.gather(&order, &mut queue, progress)?;
        if !gathered.is_empty() {
            let at = self.visits.len();
            self.send(at, Arc::new(gathered), &mut queue, output, progress)?;
        }
        self.finish_all(&mut queue, output, progress)
    }

    /// Concatenates the parts to pack in tree order, and stores their offsets in the files' bodies.
    fn gather(
        &mut self,
        order: &[usize],
        queue: &mut Queue,
        progress: &dyn Progress,
    ) -> Result<Gathered> {
        let mut ranks = vec![0; order.len()];
        for (rank, &at) in order.iter().enumerate() {
            ranks[at] = rank;
        }
        let mut members = std::mem::take(&mut self.members);
        members.sort_by_key(|member| ranks[member.at]);
        let hashes = self.hashes(&members, queue)?;
        let all: u64 = members.iter().map(Member::len).sum();
        let files: Vec<usize> = members.iter().map(|member| member.at).collect();
        let (gathered, places) = Gathered::of(members, &hashes);
        progress.done(all - gathered.len());
        for (file, place) in files.into_iter().zip(places) {
            match &mut self.bodies[file] {
                Some(Body::Packed { at, .. } | Body::Compressed { end: Some(at), .. }) => {
                    *at = place;
                }
                _ => unreachable!("nothing else is packed"),
            }
        }
        Ok(gathered)
    }

    /// Returns the hashes of the parts that may be equal, by index.
    fn hashes(&self, members: &[Member], queue: &mut Queue) -> Result<HashMap<usize, [u8; 32]>> {
        let mut hashes = HashMap::new();
        let mut pending = VecDeque::new();
        let mut finish = |(number, done): (usize, Receiver<_>)| {
            let at = members[number].at;
            let done: Done = received(&done).map_err(|error| self.failed(at, error))?;
            members[number].contents.close();
            hashes.extend(done.hashes.into_iter().map(|hash| (number, hash)));
            Ok::<(), Error>(())
        };
        for number in alike(members) {
            if pending.len() == queue.ahead
                && let Some(first) = pending.pop_front()
            {
                finish(first)?;
            }
            let member = &members[number];
            let how = Treatment::Hash(member.len());
            let done = queue.send(member.contents.clone(), member.range.clone(), how)?;
            pending.push_back((number, done));
        }
        pending.into_iter().try_for_each(finish)?;
        Ok(hashes)
    }

    /// Returns whether a file is to be packed with the other small ones.
    fn is_small(&self, at: usize, contents: &dyn Contents) -> io::Result<bool> {
        let size = contents.len();
        let least = TINY.min(self.put.rooms[at] as u64);
        Ok(self.options.pack_small
            && self.options.compression != Compression::None
            && matches!(self.plan.kind(self.visits[at].node), Kind::File(_))
            && (least + 1..=self.most_packed()).contains(&size)
            // Sparse files are not packed.
            && matches!(&contents.data()?[..], [data] if *data == (0..size)))
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
        let segments = self.cut(at, &contents, progress);
        for segment in segments.map_err(|error| self.failed(at, error))? {
            if self.copies && segment.form == Form::Flat {
                self.finish_all(queue, output, progress)?;
                let origin = self.put.copy_plain(&segment, output);
                let origin = origin.map_err(|error| self.failed(at, error))?;
                self.copies = origin != Origin::Memory || self.is_link(at);
                self.finished(&segment, progress);
                continue;
            }
            if queue.pending.len() == queue.ahead {
                self.finish_first(&mut queue.pending, output, progress)?;
            }
            let done = queue.send(contents.clone(), segment.range.clone(), self.how(&segment))?;
            queue.pending.push_back((segment, done));
        }
        Ok(())
    }

    fn how(&self, segment: &Segment) -> Treatment {
        // Tails of files go to the packed inode, except its own.
        let leaves = self.options.pack_small && segment.last && segment.at < self.visits.len();
        match segment.form {
            Form::Compressed if leaves => Treatment::Compress(self.most_packed() as usize),
            Form::Compressed => Treatment::Compress(0),
            Form::Chunks(chunk) if self.options.dedupe => Treatment::Hash(chunk),
            Form::Flat | Form::Chunks(_) => Treatment::Read,
        }
    }

    /// Returns the maximum number of bytes of a file that are packed.
    fn most_packed(&self) -> u64 {
        LARGE.min(self.options.cluster.into())
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

    fn failed(&self, at: usize, error: io::Error) -> Error {
        let member = error.get_ref().and_then(|inner| inner.downcast_ref());
        let at = member.map_or(at, |member: &OfMember| member.at);
        Error::of(&path(self.visits, at), error)
    }

    /// Chooses the form of a file, and returns the parts to read. A file without any is finished.
    fn cut(
        &mut self,
        at: usize,
        contents: &Arc<dyn Contents>,
        progress: &dyn Progress,
    ) -> io::Result<Vec<Segment>> {
        let size = contents.len();
        let data = contents.data()?;
        let (form, ranges) = match self.is_link(at) {
            false => self.form(at, size, &data),
            true => (Form::Flat, pieces(0..size, SEGMENT)),
        };
        if let Form::Chunks(chunk) = form
            && size.div_ceil(chunk) > MOST_CHUNKS
        {
            return Err(io::Error::other("a file with too many chunks"));
        }
        if ranges.is_empty() {
            contents.close();
            self.bodies[at] = Some(match form {
                Form::Chunks(chunk) => chunked(size, chunk, vec![None; chunks(size, chunk)]),
                _ => Body::Flat {
                    size,
                    block: NO_BLOCK,
                    inline: false,
                },
            });
        }
        let read: u64 = ranges.iter().map(|range| range.end - range.start).sum();
        progress.done(size - read);
        let count = ranges.len();
        let segment = |(number, range)| Segment {
            at,
            contents: contents.clone(),
            form,
            range,
            last: number + 1 == count,
        };
        Ok(ranges.into_iter().enumerate().map(segment).collect())
    }

    fn is_link(&self, at: usize) -> bool {
        let visit = self.visits.get(at);
        visit.is_some_and(|visit| matches!(self.plan.kind(visit.node), Kind::Symlink(_)))
    }

    fn form(&self, at: usize, size: u64, data: &[Range<u64>]) -> (Form, Vec<Range<u64>>) {
        let sparse = data.iter().map(|data| data.end - data.start).sum::<u64>() < size;
        // The file is inline as a whole.
        let tiny = size < BLOCK && size <= self.put.rooms[at] as u64;
        let chunk = match (self.options.chunk, self.options.dedupe) {
            (Some(chunk), _) => Some(chunk),
            (None, true) => Some(SHARED_CHUNK),
            (None, false) => None,
        };
        if sparse && !tiny {
            let chunk = self.options.chunk.unwrap_or_else(|| best_chunk(size, data));
            return (Form::Chunks(chunk), with_data(size, chunk, data));
        }
        let whole = 0..size;
        if tiny {
            (Form::Flat, pieces(whole, SEGMENT))
        } else if self.options.compression != Compression::None {
            (Form::Compressed, pieces(whole, SEGMENT))
        } else if let Some(chunk) = chunk {
            (Form::Chunks(chunk), pieces(whole, chunk.max(SEGMENT)))
        } else {
            (Form::Flat, pieces(whole, SEGMENT))
        }
    }

    /// Waits for the oldest job, and puts its result into the image.
    fn finish_first(
        &mut self,
        pending: &mut VecDeque<(Segment, Receiver<io::Result<Done>>)>,
        output: &mut Output,
        progress: &dyn Progress,
    ) -> Result<()> {
        let Some((segment, done)) = pending.pop_front() else {
            return Ok(());
        };
        let done = received(&done);
        let put = done.and_then(|done| self.put.segment(&segment, done, output));
        put.map_err(|error| self.failed(segment.at, error))?;
        self.finished(&segment, progress);
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
    fn finished(&mut self, segment: &Segment, progress: &dyn Progress) {
        let mut done = segment.range.end - segment.range.start;
        if segment.last {
            segment.contents.close();
            let (body, left) = self.put.body(segment);
            self.bodies[segment.at] = Some(body);
            if left > 0 {
                done -= left;
                let end = segment.range.end;
                self.members.push(Member {
                    at: segment.at,
                    contents: segment.contents.clone(),
                    range: end - left..end,
                });
            }
        }
        progress.done(done);
    }
}

/// Default chunk size in bytes for deduplication: the map takes 1/16,000 of a file, and reads are
/// large enough for disks.
const SHARED_CHUNK: u64 = 64 << 10;
