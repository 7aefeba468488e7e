//! An open file or directory.

use std::any::Any;
use std::ffi::OsString;
use std::fs::{self, File as StdFile};
use std::io::{ErrorKind, Write};
use std::sync::Arc;

use parking_lot::Mutex;
use sys::positioned::FileExt;
use vfs::{
    AllocateMode, Attr, AttrMask, BreakCallback, CopyMode, Cx, DirEntry, DirSink, Entry, Errno,
    Extent, File, Kind, Lease, LeaseKind, OpenFlags, Payload, ReaddirMode, Result, SetAttr, Sink,
    Whence,
};

use crate::node::{self, StdNode};
use crate::operations::set;

/// Bytes per read into a sink that lends no memory.
const READ_SIZE: usize = 128 << 10;

/// An open node.
pub(crate) struct OpenFile {
    node: Arc<StdNode>,
    /// The system's file; a directory has none.
    file: Option<StdFile>,
    flags: OpenFlags,
    /// The entries of a directory, as they were when it was last read from its start. A cookie is
    /// the number of an entry, from 1 on.
    listing: Mutex<Vec<(OsString, Kind)>>,
}

impl OpenFile {
    pub(crate) fn new(node: Arc<StdNode>, file: Option<StdFile>, flags: OpenFlags) -> OpenFile {
        OpenFile {
            node,
            file,
            flags,
            listing: Mutex::default(),
        }
    }

    fn reads(&self) -> bool {
        self.flags.intersects(OpenFlags::READ | OpenFlags::EXEC)
    }

    /// Returns the file, if it is one that is open for reading.
    fn readable(&self) -> Result<&StdFile> {
        match &self.file {
            _ if !self.reads() => Err(Errno::EBADF),
            None => Err(Errno::EISDIR),
            Some(file) => Ok(file),
        }
    }

    /// Returns the file, if it is open for writing.
    fn writable(&self) -> Result<&StdFile> {
        match &self.file {
            Some(file) if self.flags.contains(OpenFlags::WRITE) => Ok(file),
            _ => Err(Errno::EBADF),
        }
    }

    fn appends(&self) -> bool {
        self.flags.contains(OpenFlags::APPEND)
    }

    fn size(&self) -> Result<u64> {
        let file = self.file.as_ref().ok_or(Errno::EINVAL)?;
        Ok(file.metadata()?.len())
    }

    fn list(&self) -> Result<Vec<(OsString, Kind)>> {
        let (path, _) = self.node.checked()?;
        let entry = |entry: std::io::Result<fs::DirEntry>| -> Result<_> {
            let entry = entry?;
            Ok((entry.file_name(), node::kind(entry.file_type()?)))
        };
        fs::read_dir(path)?.map(entry).collect()
    }
}

impl File for OpenFile {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn attr(&self, _cx: &Cx<'_>, _want: AttrMask) -> Result<Attr> {
        match &self.file {
            Some(file) => Ok(self.node.attr_of(&file.metadata()?)),
            None => Ok(self.node.checked()?.1),
        }
    }

    fn setattr(&self, cx: &Cx<'_>, change: &SetAttr) -> Result<Attr> {
        if change.size.is_some() && self.writable().is_err() {
            return Err(Errno::EINVAL);
        }
        let (path, attr) = self.node.checked()?;
        // Windows lets a file that was opened for appending get no other size.
        let file = self.writable().ok().filter(|_| !self.appends());
        set(&path, &attr, change, file)?;
        self.attr(cx, AttrMask::STAT)
    }

    fn read(&self, cx: &Cx<'_>, offset: u64, len: usize, sink: &mut dyn Sink) -> Result<usize> {
        let file = self.readable()?;
        cx.check_may_block()?;
        let mut done = 0;
        let mut buffer = Vec::new();
        while done < len {
            let at = offset + done as u64;
            let read = match sink.lend(len - done, &mut |memory| read_at(file, memory, at)) {
                Some(read) => read,
                None => {
                    buffer.resize(READ_SIZE.min(len - done), 0);
                    let read = read_at(file, &mut buffer, at);
                    sink.bytes(&buffer[..read.unwrap_or(0)]);
                    read
                }
            };
            match read {
                Ok(0) => break,
                Ok(read) => done += read,
                // Bytes before the error are valid; the next read returns it.
                Err(_) if done > 0 => break,
                Err(errno) => return Err(errno),
            }
        }
        Ok(done)
    }

    fn write(&self, cx: &Cx<'_>, offset: u64, data: &mut dyn Payload) -> Result<usize> {
        let file = self.writable()?;
        cx.check_may_block()?;
        if self.appends() {
            return append(file, data);
        }
        let mut at = offset;
        let written = data.bytes(&mut |piece| {
            if at
                .checked_add(piece.len() as u64)
                .is_none_or(|end| end > i64::MAX as u64)
            {
                return Err(Errno::EFBIG);
            }
            file.write_all_at(piece, at)?;
            at += piece.len() as u64;
            Ok(())
        });
        match at > offset {
            true => Ok((at - offset) as usize),
            false => written.map(|()| 0),
        }
    }

    fn readdir(
        &self,
        _cx: &Cx<'_>,
        cookie: u64,
        plus: ReaddirMode,
        sink: &mut dyn DirSink,
    ) -> Result<()> {
        if self.node.kind != Kind::Directory {
            return Err(Errno::ENOTDIR);
        }
        if !self.reads() {
            return Err(Errno::EBADF);
        }
        let mut listing = self.listing.lock();
        if cookie == 0 {
            *listing = self.list()?;
        }
        let first = usize::try_from(cookie).unwrap_or(usize::MAX);
        for (at, (name, kind)) in listing.iter().enumerate().skip(first) {
            let path = self.node.path.join(name);
            let id = node::number(&path);
            let entry = match plus {
                ReaddirMode::Names => None,
                ReaddirMode::Entries => match StdNode::find(&self.node.root, path) {
                    Ok((node, attr)) => Some(Entry {
                        node: Arc::new(node),
                        attr,
                    }),
                    // It was removed meanwhile.
                    Err(Errno::ENOENT) => continue,
                    Err(_) => None,
                },
            };
            let entry = DirEntry {
                name: name.as_encoded_bytes(),
                id,
                kind: Some(*kind),
                cookie: at as u64 + 1,
                entry,
            };
            if !sink.entry(entry) {
                break;
            }
        }
        Ok(())
    }

    fn fsync(&self, _cx: &Cx<'_>, datasync: bool) -> Result<()> {
        match &self.file {
            Some(file) if datasync => Ok(file.sync_data()?),
            Some(file) => Ok(file.sync_all()?),
            None => Ok(()),
        }
    }

    fn flush(&self, _cx: &Cx<'_>) -> Result<()> {
        Ok(())
    }

    fn allocate(&self, _: &Cx<'_>, _: AllocateMode, _: u64, _: u64) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Everything before the end of file counts as data.
    fn seek(&self, _cx: &Cx<'_>, offset: u64, what: Whence) -> Result<u64> {
        let size = self.size()?;
        match what {
            _ if offset >= size => Err(Errno::ENXIO),
            Whence::Data => Ok(offset),
            Whence::Hole => Ok(size),
        }
    }

    fn extents(
        &self,
        _cx: &Cx<'_>,
        offset: u64,
        len: u64,
        each: &mut dyn FnMut(Extent) -> bool,
    ) -> Result<()> {
        let end = offset.saturating_add(len).min(self.size()?);
        if offset < end {
            each(Extent {
                offset,
                len: end - offset,
                hole: false,
            });
        }
        Ok(())
    }

    fn copy(&self, _: &Cx<'_>, _: u64, _: &dyn File, _: u64, _: u64, _: CopyMode) -> Result<u64> {
        Err(Errno::EOPNOTSUPP)
    }

    fn lease(&self, _: &Cx<'_>, _: LeaseKind, _: &BreakCallback) -> Result<Box<dyn Lease>> {
        Err(Errno::EOPNOTSUPP)
    }
}

/// Writes to the end of a file that was opened for appending, in one piece: other writers append
/// before or after it.
fn append(mut file: &StdFile, data: &mut dyn Payload) -> Result<usize> {
    let mut record = Vec::new();
    data.bytes(&mut |piece| {
        record.extend_from_slice(piece);
        Ok(())
    })?;
    let mut done = 0;
    while done < record.len() {
        match file.write(&record[done..]) {
            Ok(0) => return Err(Errno::EIO),
            Ok(written) => done += written,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            // The next write returns it.
            Err(_) if done > 0 => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(done)
}

/// Reads once, and returns the number of bytes: 0 at end of file only.
fn read_at(file: &StdFile, into: &mut [u8], at: u64) -> Result<usize> {
    // No file is longer.
    if at >= i64::MAX as u64 {
        return Ok(0);
    }
    loop {
        match file.read_at(into, at) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            done => return Ok(done?),
        }
    }
}
