//! Open files.

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use sources::Tree;
use vfs::{AttrMask, Errno, Mode, Name, OpenFlags, SetAttr};
use wire::payload::{SlicePayload, SliceSink, VecSink};

use crate::ticket::CallPool;
use crate::{Metadata, Ticket};

/// Options for opening a file, as [`std::fs::OpenOptions`].
#[derive(Clone, Debug)]
pub struct OpenOptions {
    flags: OpenFlags,
    create: bool,
    mode: u32,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        OpenOptions::new()
    }
}

impl OpenOptions {
    /// The umask for new files. The process's own umask cannot be read without changing it.
    pub(crate) const UMASK: u32 = 0o022;

    /// Creates options with all flags unset.
    pub fn new() -> OpenOptions {
        OpenOptions {
            flags: OpenFlags::empty(),
            create: false,
            mode: 0o666,
        }
    }

    /// Opens for reading.
    pub fn read(&mut self, yes: bool) -> &mut OpenOptions {
        self.set(OpenFlags::READ, yes)
    }

    /// Opens for writing.
    pub fn write(&mut self, yes: bool) -> &mut OpenOptions {
        self.set(OpenFlags::WRITE, yes)
    }

    /// Opens for writing, each write at the end of the file.
    pub fn append(&mut self, yes: bool) -> &mut OpenOptions {
        self.set(OpenFlags::WRITE | OpenFlags::APPEND, yes)
    }

    /// Truncates the file.
    pub fn truncate(&mut self, yes: bool) -> &mut OpenOptions {
        self.set(OpenFlags::TRUNC, yes)
    }

    /// Creates the file if it does not exist.
    pub fn create(&mut self, yes: bool) -> &mut OpenOptions {
        self.create = yes;
        self
    }

    /// Creates the file, which must not exist.
    pub fn create_new(&mut self, yes: bool) -> &mut OpenOptions {
        self.create = yes;
        self.set(OpenFlags::EXCL, yes)
    }

    /// Makes each write durable.
    pub fn sync(&mut self, yes: bool) -> &mut OpenOptions {
        self.set(OpenFlags::SYNC, yes)
    }

    /// Sets the permission bits of a new file, `0o666` by default. Write permission of group and
    /// others is removed and, in a directory of this host, that of the process's umask.
    pub fn mode(&mut self, mode: u32) -> &mut OpenOptions {
        self.mode = mode;
        self
    }

    fn set(&mut self, flag: OpenFlags, yes: bool) -> &mut OpenOptions {
        self.flags.set(flag, yes);
        self
    }

    pub(crate) fn open(&self, tree: &Tree, path: &[u8]) -> vfs::Result<Arc<dyn vfs::File>> {
        let found = match tree.resolve(path, true) {
            Err(Errno::ENOENT) if self.create => None,
            Ok(_) if self.create && self.flags.contains(OpenFlags::EXCL) => {
                return Err(Errno::EEXIST);
            }
            found => Some(found?),
        };
        match found {
            Some(entry) => tree.with(|cx| entry.node.open(cx, self.flags - OpenFlags::EXCL)),
            None => {
                let (dir, name) = tree.parent_of(path)?;
                let mode = Mode {
                    bits: self.mode & 0o7777,
                    umask: OpenOptions::UMASK,
                };
                let name = Name::new(&name)?;
                let made = tree.with(|cx| dir.node.create(cx, name, self.flags, mode));
                made.map(|(_, file)| file)
            }
        }
    }
}

/// An open file. [`Read`], [`Write`] and [`Seek`] share one position, also for `&File`; `read_at`,
/// `write_at` and tickets do not use it. Dropping it closes it ([`File::finish`]).
pub struct File {
    tree: Tree,
    file: Arc<dyn vfs::File>,
    position: Mutex<u64>,
    calls: Arc<CallPool>,
}

impl File {
    pub(crate) fn new(tree: Tree, file: Arc<dyn vfs::File>, calls: &Arc<CallPool>) -> File {
        File {
            tree,
            file,
            position: Mutex::new(0),
            calls: calls.clone(),
        }
    }

    /// Reads at `offset`, and returns the number of bytes, which is 0 only at the end of the file.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let len = buffer.len();
        let mut sink = SliceSink::new(buffer);
        Ok(self
            .tree
            .with(|cx| self.file.read(cx, offset, len, &mut sink))?)
    }

    /// Writes at `offset`, or at the end if the file is open for appending, and returns the number
    /// of bytes.
    pub fn write_at(&self, data: &[u8], offset: u64) -> io::Result<usize> {
        Ok(write(&self.tree, &*self.file, data, offset)?)
    }

    /// Writes all of `data`.
    pub fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        let mut written = 0;
        while written < data.len() {
            match self.write_at(&data[written..], offset + written as u64)? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                more => written += more,
            }
        }
        Ok(())
    }

    /// Begins to read up to `len` bytes at `offset`.
    pub fn submit_read(&self, offset: u64, len: usize) -> Ticket<Vec<u8>> {
        let (tree, file) = (self.tree.clone(), self.file.clone());
        self.calls.submit(move || {
            let mut sink = VecSink::new(len);
            tree.with(|cx| file.read(cx, offset, len, &mut sink))?;
            Ok(sink.into_bytes())
        })
    }

    /// Begins to write at `offset`; the result is the number of bytes.
    pub fn submit_write(&self, offset: u64, data: Vec<u8>) -> Ticket<usize> {
        let (tree, file) = (self.tree.clone(), self.file.clone());
        self.calls
            .submit(move || Ok(write(&tree, &*file, &data, offset)?))
    }

    /// Begins to make written data durable, except that of writes in flight.
    pub fn submit_sync(&self) -> Ticket<()> {
        let (tree, file) = (self.tree.clone(), self.file.clone());
        self.calls
            .submit(move || Ok(tree.with(|cx| file.fsync(cx, false))?))
    }

    /// Returns the file's attributes.
    pub fn metadata(&self) -> io::Result<Metadata> {
        let want = AttrMask::STAT | AttrMask::BTIME | AttrMask::GENERATION;
        Ok(Metadata::new(
            self.tree.with(|cx| self.file.attr(cx, want))?,
        ))
    }

    /// Truncates the file, or extends it by a hole.
    pub fn set_len(&self, len: u64) -> io::Result<()> {
        let set = SetAttr {
            size: Some(len),
            ..SetAttr::default()
        };
        self.tree.with(|cx| self.file.setattr(cx, &set))?;
        Ok(())
    }

    /// Makes content and attributes durable.
    pub fn sync_all(&self) -> io::Result<()> {
        Ok(self.tree.with(|cx| self.file.fsync(cx, false))?)
    }

    /// Makes content durable.
    pub fn sync_data(&self) -> io::Result<()> {
        Ok(self.tree.with(|cx| self.file.fsync(cx, true))?)
    }

    /// Returns an error of an earlier write that was not reported yet, as close(2) does; dropping a
    /// file ignores it. The file stays open.
    pub fn finish(&self) -> io::Result<()> {
        Ok(self.tree.with(|cx| self.file.flush(cx))?)
    }

    fn position(&self) -> MutexGuard<'_, u64> {
        self.position.lock()
    }
}

fn write(tree: &Tree, file: &dyn vfs::File, data: &[u8], offset: u64) -> vfs::Result<usize> {
    let mut payload = SlicePayload::new(data);
    tree.with(|cx| file.write(cx, offset, &mut payload))
}

impl Read for &File {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut position = self.position();
        let got = self.read_at(buffer, *position)?;
        *position += got as u64;
        Ok(got)
    }
}

impl Write for &File {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let mut position = self.position();
        let written = self.write_at(data, *position)?;
        *position += written as u64;
        Ok(written)
    }

    /// Does nothing, as writes are not buffered.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for &File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let mut position = self.position();
        let to = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::Current(by) => position.checked_add_signed(by),
            SeekFrom::End(by) => {
                let metadata = self.metadata()?;
                if !metadata.is_file() {
                    return Err(Errno::ESPIPE.into());
                }
                metadata.len().checked_add_signed(by)
            }
        };
        *position = to.ok_or(Errno::EINVAL)?;
        Ok(*position)
    }
}

impl Read for File {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        (&*self).read(buffer)
    }
}

impl Write for File {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        (&*self).write(data)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        (&*self).seek(to)
    }
}
