//! Contents of files and targets of links: which form each gets, and its way into the image.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::ops::Range;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};

use ::erofs::write::{BLOCK, Body, Inode};

use super::cut::{SEGMENT, best_chunk, chunks, pieces, with_data};
use super::jobs::{Done, Job, Treatment, job, work};
use super::put::{Form, LARGE, NO_BLOCK, Put, Segment, Tails, chunked};
use super::small::{OfMember, Small};
use super::{Compression, Options};
use crate::contents::Bytes;
use crate::error::{Error, Result};
use crate::output::Origin;
use crate::plan::{Plan, Visit, path};
use crate::{Contents, Kind, Output, Progress};

/// The most chunks of a file: their map takes 1 GiB, and in the largest ones it has 1 PiB.
const MOST_CHUNKS: u64 = 1 << 28;

/// Files up to this size come with their inode, where there is room, even if others are packed: so little is not worth another read.
const TINY: u64 = 256;

/// What threads are to do, and what they have not done yet.
struct Queue {
    jobs: SyncSender<Job>,
    pending: VecDeque<(Segment, Receiver<io::Result<Done>>)>,
    /// The most that may be pending.
    ahead: usize,
}

/// All files of a plan.
pub(super) struct Files<'a> {
    plan: &'a Plan,
    visits: &'a [Visit],
    options: &'a Options,
    /// By index, the packed inode's behind all others.
    bodies: Vec<Option<Body>>,
    put: Put<'a>,
    /// Nothing is to be done with contents but to copy them: this thread does it, without a hand-over, as long as they come from files of
    /// this host. What comes from elsewhere threads read ahead.
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
            copies: options.compression == Compression::None
                && !options.dedupe
                && !output.has_hashes(),
        }
    }

    /// Writes all contents, and says what bodies files and links have, and the packed inode, if there is one.
    pub(super) fn write(
        mut self,
        output: &mut Output,
        progress: &dyn Progress,
    ) -> Result<(Vec<Option<Body>>, Option<Body>, Tails)> {
        let threads = self.options.threads.max(1);
        let options = self.options;
        // What is read ahead: enough that no thread waits while this one writes.
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

    /// Has all files read, the small ones together behind the others.
    fn all(
        &mut self,
        mut queue: Queue,
        output: &mut Output,
        progress: &dyn Progress,
    ) -> Result<()> {
        let mut small = Small::default();
        for at in self.order() {
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
                self.bodies[at] = Some(Body::Packed {
                    size: contents.len(),
                    at: small.add(at, &contents),
                });
            } else {
                self.send(at, contents, &mut queue, output, progress)?;
            }
        }
        if !small.is_empty() {
            let at = self.visits.len();
            self.send(at, Arc::new(small), &mut queue, output, progress)?;
        }
        while !queue.pending.is_empty() {
            self.finish_first(&mut queue.pending, output, progress)?;
        }
        Ok(())
    }

    /// Whether a file goes to the other small ones.
    fn is_small(&self, at: usize, contents: &dyn Contents) -> io::Result<bool> {
        let size = contents.len();
        let most = LARGE.min(self.options.cluster.into());
        let least = TINY.min(self.put.rooms[at] as u64);
        Ok(self.options.pack_small
            && !self.options.dedupe
            && self.options.compression != Compression::None
            && matches!(self.plan.kind(self.visits[at].node), Kind::File(_))
            && (least + 1..=most).contains(&size)
            // Holes stay holes.
            && matches!(&contents.data()?[..], [data] if *data == (0..size)))
    }

    /// Has a file read, part by part.
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
                while !queue.pending.is_empty() {
                    self.finish_first(&mut queue.pending, output, progress)?;
                }
                let origin = self.put.copy_plain(&segment, output);
                let origin = origin.map_err(|error| self.failed(at, error))?;
                self.copies = origin != Origin::Memory || self.is_link(at);
                self.finished(&segment, progress);
                continue;
            }
            if queue.pending.len() == queue.ahead {
                self.finish_first(&mut queue.pending, output, progress)?;
            }
            let how = match segment.form {
                Form::Flat => Treatment::Read,
                Form::Compressed => Treatment::Compress,
                Form::Chunks(chunk) => Treatment::Hash(chunk),
            };
            let (job, done) = job(contents.clone(), segment.range.clone(), how);
            if queue.jobs.send(job).is_err() {
                return Err(Error::new("the threads that read files have ended"));
            }
            queue.pending.push_back((segment, done));
        }
        Ok(())
    }

    /// All of them: those that are to come first, then the others.
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

    /// Which form a file gets, and the parts of it that are to be read. One that has none is done.
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
            return Err(io::Error::other(
                "a file of more chunks than are worth a map",
            ));
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
        // One that is inline as a whole.
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

    /// Takes the first result to come, and puts it into the image.
    fn finish_first(
        &mut self,
        pending: &mut VecDeque<(Segment, Receiver<io::Result<Done>>)>,
        output: &mut Output,
        progress: &dyn Progress,
    ) -> Result<()> {
        let Some((segment, done)) = pending.pop_front() else {
            return Ok(());
        };
        let done = done
            .recv()
            .unwrap_or_else(|_| Err(io::Error::other("a thread that reads has ended")));
        let put = done.and_then(|done| self.put.segment(&segment, done, output));
        put.map_err(|error| self.failed(segment.at, error))?;
        self.finished(&segment, progress);
        Ok(())
    }

    /// A segment is in the image.
    fn finished(&mut self, segment: &Segment, progress: &dyn Progress) {
        progress.done(segment.range.end - segment.range.start);
        if segment.last {
            segment.contents.close();
            self.bodies[segment.at] = Some(self.put.body(segment));
        }
    }
}

/// The chunks that equal parts are looked for in, where nobody says: their map is a 16,000th of a file, and it is read in pieces
/// that a disk likes.
const SHARED_CHUNK: u64 = 64 << 10;
