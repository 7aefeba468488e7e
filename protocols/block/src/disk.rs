//! A file as a disk.

use std::sync::Arc;

use vfs::holes::{HoleScanner, HoleSearchHint};
use vfs::{
    AllocateMode, AttrMask, Cx, Errno, Export, Extent, File, Kind, Name, Node, NodeId, OpenFlags,
    Result, Support,
};
use wire::{Incoming, Outgoing};

/// A regular file as an array of bytes of constant length: bytes added after its end later are not
/// part of the disk, and if it shrinks, reading the missing bytes fails (`EIO`). May be used from
/// many threads at once.
pub struct Disk {
    file: Arc<dyn File>,
    id: NodeId,
    size: u64,
    read_only: bool,
    can_discard: bool,
    hint: HoleSearchHint,
}

impl Disk {
    /// Opens the file at `path` below the root of `export`, or the root itself if `path` is empty
    /// and the root is a file. Links are not followed (`ELOOP`). The disk is writable, unless
    /// `read_only` is requested or the file can only be opened for reading.
    pub fn open(cx: &Cx<'_>, export: &Export, path: &[u8], read_only: bool) -> Result<Disk> {
        let mut node = export.fs.root(cx)?;
        let names = path
            .split(|&byte| byte == b'/')
            .filter(|name| !name.is_empty());
        for (step, name) in (0..).zip(names) {
            cx.call.begin_step(step);
            node = node.lookup(cx, Name::new(name)?)?.node;
        }
        match node.kind() {
            Kind::File => {}
            Kind::Symlink => return Err(Errno::ELOOP),
            Kind::Directory => return Err(Errno::EISDIR),
            _ => return Err(Errno::EINVAL),
        }
        let (file, read_only) = open(cx, &*node, read_only)?;
        Ok(Disk {
            size: file.attr(cx, AttrMask::STAT)?.size,
            id: node.id(),
            file,
            read_only,
            hint: HoleSearchHint::default(),
            can_discard: export.fs.capabilities().holes != Support::None,
        })
    }

    /// Returns the size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns whether writes are refused.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Returns whether ranges can be deallocated, and zeroed without writing.
    pub fn can_discard(&self) -> bool {
        self.can_discard && !self.read_only
    }

    /// Returns the inode number of the file.
    pub fn id(&self) -> NodeId {
        self.id
    }

    /// Returns whether `len` bytes at `offset` are within the disk.
    pub fn contains(&self, offset: u64, len: u64) -> bool {
        offset.checked_add(len).is_some_and(|end| end <= self.size)
    }

    /// Reads `len` bytes at `offset` into `out`. After an error the caller discards the bytes
    /// already there.
    pub fn read(&self, cx: &Cx<'_>, offset: u64, len: usize, out: &mut dyn Outgoing) -> Result<()> {
        let mut done = 0;
        while done < len {
            match self.file.read(cx, offset + done as u64, len - done, out)? {
                0 => return Err(Errno::EIO),
                read => done += read,
            }
        }
        Ok(())
    }

    /// Splits `len` bytes at `offset` into data and holes that are large enough to report.
    pub fn scan(&self, offset: u64, len: u64) -> HoleScanner<'_> {
        HoleScanner::new(&*self.file, &self.hint, offset..offset + len)
    }

    /// Writes the rest of `message` after `from` to `offset`. Durable on return if `durably`.
    pub fn write(
        &self,
        cx: &Cx<'_>,
        offset: u64,
        message: &dyn Incoming,
        from: usize,
        durably: bool,
    ) -> Result<()> {
        self.check_writable()?;
        if durably {
            // A request that is tried again must not have had any effect.
            cx.check_may_block()?;
        }
        let len = message.size().saturating_sub(from);
        let mut done = 0;
        while done < len {
            let rest = from + done..from + len;
            let at = offset + done as u64;
            match message.payload(rest, &mut |payload| self.file.write(cx, at, payload))? {
                0 => return Err(Errno::EIO),
                written => done += written,
            }
        }
        match durably {
            true => self.file.fsync(cx, true),
            false => Ok(()),
        }
    }

    /// Makes all completed writes durable.
    pub fn flush(&self, cx: &Cx<'_>) -> Result<()> {
        match self.read_only {
            true => Ok(()),
            false => self.file.fsync(cx, true),
        }
    }

    /// Zeroes `len` bytes at `offset`, and deallocates their space if `give_back`. Returns
    /// `EOPNOTSUPP` if that is only possible by writing.
    pub fn zero(
        &self,
        cx: &Cx<'_>,
        offset: u64,
        len: u64,
        give_back: bool,
        durably: bool,
    ) -> Result<()> {
        self.check_writable()?;
        if durably {
            cx.check_may_block()?;
        }
        let how = match give_back {
            true => AllocateMode::Punch,
            false => AllocateMode::ZeroKeepSize,
        };
        if len > 0 {
            self.file.allocate(cx, how, offset, len)?;
        }
        match durably {
            true => self.file.fsync(cx, true),
            false => Ok(()),
        }
    }

    /// Passes the data and holes in `len` bytes at `offset` to `each`, as [`File::extents`]. A
    /// range that the source does not report is data.
    pub fn extents(
        &self,
        cx: &Cx<'_>,
        offset: u64,
        len: u64,
        each: &mut dyn FnMut(Extent) -> bool,
    ) -> Result<()> {
        let end = offset + len;
        let (mut at, mut goes_on) = (offset, true);
        self.file.extents(cx, offset, len, &mut |extent| {
            let stop = end.min(extent.offset + extent.len);
            let len = stop.saturating_sub(at);
            if len > 0 {
                goes_on = each(Extent {
                    offset: at,
                    len,
                    ..extent
                });
                at = stop;
            }
            goes_on
        })?;
        if goes_on && at < end {
            each(Extent {
                offset: at,
                len: end - at,
                hole: false,
            });
        }
        Ok(())
    }

    fn check_writable(&self) -> Result<()> {
        match self.read_only {
            true => Err(Errno::EPERM),
            false => Ok(()),
        }
    }
}

/// Returns an open file, and whether it is read-only.
fn open(cx: &Cx<'_>, node: &dyn Node, read_only: bool) -> Result<(Arc<dyn File>, bool)> {
    if !read_only {
        match node.open(cx, OpenFlags::READ | OpenFlags::WRITE) {
            Err(Errno::EROFS | Errno::EACCES | Errno::EPERM) => {}
            opened => return Ok((opened?, false)),
        }
    }
    Ok((node.open(cx, OpenFlags::READ)?, true))
}
