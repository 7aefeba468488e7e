//! Contents of files and targets of links: which form each gets, and its way into the image.

use std::collections::{HashMap, VecDeque};
use std::io::{self, Write};
use std::ops::Range;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};

use ::erofs::write::{BLOCK, Body, Extent, Inode, blocks, inline_room, own_size};
use tempfile::SpooledTempFile;

use super::cut::{SEGMENT, best_chunk, chunks, pieces, with_data};
use super::jobs::{Done, Job, Treatment, job, work};
use super::small::{OfMember, Small};
use super::{Compression, Options};
use crate::contents::Bytes;
use crate::error::{Error, Result};
use crate::plan::{Plan, Visit, path};
use crate::{Contents, Kind, Output, Progress};

/// The most chunks of a file: their map takes 1 GiB, and in the largest ones it has 1 PiB.
const MOST_CHUNKS: u64 = 1 << 28;

/// From this size on, the end of a file that is not compressed has a block of its own, so that all of it can be mapped and sent as it
/// lies there; the block is less than a sixteenth of it.
const LARGE: u64 = 64 << 10;

/// Files up to this size come with their inode, where there is room, even if others are packed: so little is not worth another read.
const TINY: u64 = 256;

/// Ends of files that are kept in memory; beyond that they are in a file.
const TAILS_IN_MEMORY: usize = 32 << 20;

/// A file without data, or where it cannot matter.
const NO_BLOCK: u32 = 0;

/// How a file is stored.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Flat,
    Compressed,
    /// In chunks of so many bytes.
    Chunks(u64),
}

/// A part of a file on its way.
struct Segment {
    /// Index of the file among the visits.
    at: usize,
    contents: Arc<dyn Contents>,
    form: Form,
    range: Range<u64>,
    /// It is the file's last one.
    last: bool,
}

/// What threads are to do, and what they have not done yet.
struct Queue {
    jobs: SyncSender<Job>,
    pending: VecDeque<(Segment, Receiver<io::Result<Done>>)>,
    /// The most that may be pending.
    ahead: usize,
}

/// The inline ends of files.
pub(super) struct Tails {
    pub(super) file: SpooledTempFile,
    len: u64,
    /// By index of the file: where, and how many bytes.
    pub(super) places: HashMap<usize, (u64, usize)>,
}

/// What is stored already, by hash and bytes.
type Stored<T> = HashMap<([u8; 32], u64), T>;

/// All files of a plan.
pub(super) struct Files<'a> {
    plan: &'a Plan,
    visits: &'a [Visit],
    options: &'a Options,
    /// How much of an end can be inline, by index; behind all others that of the packed inode.
    rooms: Vec<usize>,
    /// By index, the packed inode's behind all others.
    bodies: Vec<Option<Body>>,
    tails: Tails,
    /// What the file that is being written has so far.
    extents: Vec<Extent>,
    chunks: Vec<Option<u32>>,
    stored_chunks: Stored<u32>,
    stored_segments: Stored<Vec<Extent>>,
}

impl<'a> Files<'a> {
    pub(super) fn new(
        plan: &'a Plan,
        visits: &'a [Visit],
        inodes: &[Inode],
        options: &'a Options,
        output: &Output,
    ) -> io::Result<Files<'a>> {
        let room = |inode: &Inode| inline_room(own_size(&inode.xattrs));
        Ok(Files {
            plan,
            visits,
            options,
            rooms: inodes.iter().map(room).chain([0]).collect(),
            bodies: vec![None; visits.len() + 1],
            tails: Tails {
                file: tempfile::spooled_tempfile_in(TAILS_IN_MEMORY, output.directory()),
                len: 0,
                places: HashMap::new(),
            },
            extents: Vec::new(),
            chunks: Vec::new(),
            stored_chunks: HashMap::new(),
            stored_segments: HashMap::new(),
        })
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
        Ok((self.bodies, packed, self.tails))
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
                Kind::Symlink(target) if target.len() <= self.rooms[at] => {
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
        let least = TINY.min(self.rooms[at] as u64);
        Ok(self.options.pack_small
            && !self.options.dedupe
            && self.options.compression != Compression::None
            && matches!(self.plan.kind(self.visits[at].node), Kind::File(_))
            && (least + 1..=most).contains(&size)
            // Holes stay holes.
            && contents.data()? == [0..size])
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
        let link = (self.visits.get(at))
            .is_some_and(|visit| matches!(self.plan.kind(visit.node), Kind::Symlink(_)));
        let (form, ranges) = match link {
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

    fn form(&self, at: usize, size: u64, data: &[Range<u64>]) -> (Form, Vec<Range<u64>>) {
        let sparse = data.iter().map(|data| data.end - data.start).sum::<u64>() < size;
        // One that is inline as a whole.
        let tiny = size < BLOCK && size <= self.rooms[at] as u64;
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
        let put = done.and_then(|done| self.segment(&segment, done, output));
        put.map_err(|error| self.failed(segment.at, error))?;
        progress.done(segment.range.end - segment.range.start);
        if segment.last {
            segment.contents.close();
            self.bodies[segment.at] = Some(self.body(&segment));
        }
        Ok(())
    }

    fn segment(&mut self, segment: &Segment, done: Done, output: &mut Output) -> io::Result<()> {
        match segment.form {
            Form::Chunks(chunk) => self.put_chunks(segment, chunk, &done, output),
            Form::Compressed => self.put_compressed(segment, &done, output),
            Form::Flat => self.put_plain(segment, &done.bytes, output),
        }
    }

    /// Appends bytes as they are, the file's end inline where it can be.
    fn put_plain(
        &mut self,
        segment: &Segment,
        bytes: &[u8],
        output: &mut Output,
    ) -> io::Result<()> {
        let size = segment.range.end;
        let tail = (size % BLOCK) as usize;
        let inline = segment.last
            && tail > 0
            && tail <= self.rooms[segment.at]
            && size < LARGE
            && !(self.options.dedupe && segment.form == Form::Compressed);
        let (whole, end) = bytes.split_at(if inline {
            bytes.len() - tail
        } else {
            bytes.len()
        });
        let block = match whole.is_empty() {
            true => NO_BLOCK,
            false => next_block(output)?,
        };
        output.append(whole)?;
        output.pad(BLOCK)?;
        if inline {
            self.tails.file.write_all(end)?;
            self.tails.places.insert(segment.at, (self.tails.len, tail));
            self.tails.len += tail as u64;
        }
        let extent = Extent {
            start: segment.range.start,
            len: bytes.len() as u64,
            block,
            packed: None,
        };
        self.extend([extent]);
        Ok(())
    }

    fn put_compressed(
        &mut self,
        segment: &Segment,
        done: &Done,
        output: &mut Output,
    ) -> io::Result<()> {
        let start = segment.range.start;
        let key = done
            .hashes
            .first()
            .map(|&hash| (hash, done.bytes.len() as u64));
        if let Some(stored) = key.and_then(|key| self.stored_segments.get(&key)) {
            let stored = stored.clone();
            let moved = stored.into_iter().map(|extent| Extent {
                start: start + extent.start,
                ..extent
            });
            self.extend(moved);
            return Ok(());
        }
        let first = next_block(output)?;
        let mut extents = Vec::new();
        match &done.packed {
            None => {
                self.put_plain(segment, &done.bytes, output)?;
                extents.push(Extent {
                    start: 0,
                    len: done.bytes.len() as u64,
                    block: first,
                    packed: None,
                });
            }
            Some(packed) => {
                output.append(&packed.blocks)?;
                let (mut at, mut block) = (0, first);
                for piece in &packed.pieces {
                    extents.push(Extent {
                        start: at,
                        len: piece.len,
                        block,
                        packed: piece.packed,
                    });
                    at += piece.len;
                    block += piece.packed.map_or(blocks(piece.len) as u32, u32::from);
                }
                let moved: Vec<Extent> = (extents.iter())
                    .map(|extent| Extent {
                        start: start + extent.start,
                        ..*extent
                    })
                    .collect();
                self.extend(moved);
            }
        }
        if let Some(key) = key {
            self.stored_segments.insert(key, extents);
        }
        Ok(())
    }

    /// Adds extents to the file; those that are not compressed and follow each other are one.
    fn extend(&mut self, extents: impl IntoIterator<Item = Extent>) {
        for extent in extents {
            match self.extents.last_mut() {
                Some(last)
                    if (last.packed, extent.packed) == (None, None)
                        && last.len.is_multiple_of(BLOCK)
                        && u64::from(last.block) + last.len / BLOCK == u64::from(extent.block) =>
                {
                    last.len += extent.len;
                }
                _ => self.extents.push(extent),
            }
        }
    }

    fn put_chunks(
        &mut self,
        segment: &Segment,
        chunk: u64,
        done: &Done,
        output: &mut Output,
    ) -> io::Result<()> {
        if self.chunks.is_empty() {
            self.chunks = vec![None; chunks(segment.contents.len(), chunk)];
        }
        let first = (segment.range.start / chunk) as usize;
        for (number, bytes) in done.bytes.chunks(chunk as usize).enumerate() {
            let key = done
                .hashes
                .get(number)
                .map(|&hash| (hash, bytes.len() as u64));
            let stored = key.and_then(|key| self.stored_chunks.get(&key)).copied();
            let block = match stored {
                Some(block) => block,
                None => {
                    let block = next_block(output)?;
                    output.append(bytes)?;
                    output.pad(BLOCK)?;
                    if let Some(key) = key {
                        self.stored_chunks.insert(key, block);
                    }
                    block
                }
            };
            self.chunks[first + number] = Some(block);
        }
        Ok(())
    }

    /// What the file has whose last segment has been put.
    fn body(&mut self, segment: &Segment) -> Body {
        let size = segment.contents.len();
        let extents = std::mem::take(&mut self.extents);
        if let Form::Chunks(chunk) = segment.form {
            return chunked(size, chunk, std::mem::take(&mut self.chunks));
        }
        match (&extents[..], self.options.compression.algorithm()) {
            // Nothing of it is compressed: it needs no index.
            ([extent], _) if extent.packed.is_none() => Body::Flat {
                size,
                block: extent.block,
                inline: self.tails.places.contains_key(&segment.at),
            },
            (_, Some(algorithm)) => Body::Compressed {
                size,
                algorithm,
                extents,
            },
            _ => unreachable!("what is not compressed is in one piece"),
        }
    }
}

/// The chunks that equal parts are looked for in, where nobody says: their map is a 16,000th of a file, and it is read in pieces
/// that a disk likes.
const SHARED_CHUNK: u64 = 64 << 10;

fn chunked(size: u64, chunk: u64, blocks: Vec<Option<u32>>) -> Body {
    Body::Chunks {
        size,
        block_bits: (chunk / BLOCK).ilog2() as u8,
        blocks,
    }
}

fn next_block(output: &Output) -> io::Result<u32> {
    let block = output.position() / BLOCK;
    u32::try_from(block).map_err(|_| io::Error::other("the image would have more than 16 TiB"))
}
