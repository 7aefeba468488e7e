//! A file as a disk.

use std::sync::Arc;

use vfs::holes::{Solid, Walk};
use vfs::{
    Allocate, Cx, Errno, Export, Extent, File, Kind, Level, Name, Node, NodeId, OpenFlags, Result,
    Want,
};
use wire::{Incoming, Outgoing};

/// A regular file as an array of bytes whose length does not change: what is behind its end later is not of the disk, and if
/// it becomes shorter, reading what is gone is an error (`EIO`). May be used from many threads at once.
pub struct Disk {
    file: Arc<dyn File>,
    id: NodeId,
    size: u64,
    read_only: bool,
    punches: bool,
    solid: Solid,
}

impl Disk {
    /// Opens the file at `path` below the root of `export`, or the root itself, where that is a file, if `path` is empty. Links
    /// are not followed (`ELOOP`). To write as well, unless `read_only` is asked for or nothing else can be had.
    pub fn open(cx: &Cx<'_>, export: &Export, path: &[u8], read_only: bool) -> Result<Disk> {
        let mut node = export.fs.root(cx)?;
        let names = path
            .split(|&byte| byte == b'/')
            .filter(|name| !name.is_empty());
        for name in names {
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
            size: file.attr(cx, Want::STAT)?.size,
            id: node.id(),
            file,
            read_only,
            solid: Solid::default(),
            punches: export.fs.capabilities().holes != Level::None,
        })
    }

    /// Bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Whether it cannot be written to.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Whether ranges can be given back, and made zeros without writing them.
    pub fn punches(&self) -> bool {
        self.punches && !self.read_only
    }

    /// The number of the file.
    pub fn id(&self) -> NodeId {
        self.id
    }

    /// Whether `len` bytes from `offset` on are of it.
    pub fn holds(&self, offset: u64, len: u64) -> bool {
        offset.checked_add(len).is_some_and(|end| end <= self.size)
    }

    /// Puts `len` bytes from `offset` into `out`. Whatever of them is there in case of an error is the caller's to take back.
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

    /// What of `len` bytes from `offset` on is data, and what is holes that are worth telling of.
    pub fn pieces(&self, offset: u64, len: u64) -> Walk<'_> {
        Walk::new(&*self.file, &self.solid, offset..offset + len)
    }

    /// Writes what `message` has from `from` on, all that is left of it, to `offset`. Durable when it returns if `durably`.
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
            // Nothing may have happened if this is to be tried again.
            cx.may_wait()?;
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

    /// Makes all that was written durable.
    pub fn flush(&self, cx: &Cx<'_>) -> Result<()> {
        match self.read_only {
            true => Ok(()),
            false => self.file.fsync(cx, true),
        }
    }

    /// Makes `len` bytes from `offset` on zeros, and gives back the space that they took if `give_back`. `EOPNOTSUPP` where that
    /// takes writing them.
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
            cx.may_wait()?;
        }
        let how = match give_back {
            true => Allocate::Punch,
            false => Allocate::ZeroKeepSize,
        };
        if len > 0 {
            self.file.allocate(cx, how, offset, len)?;
        }
        match durably {
            true => self.file.fsync(cx, true),
            false => Ok(()),
        }
    }

    /// Gives `each` what of `len` bytes from `offset` on is data and what is holes, as [`File::extents`]; all that is left is
    /// data where nothing is said.
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

/// A file, and whether it can only be read.
fn open(cx: &Cx<'_>, node: &dyn Node, read_only: bool) -> Result<(Arc<dyn File>, bool)> {
    if !read_only {
        match node.open(cx, OpenFlags::READ | OpenFlags::WRITE) {
            Err(Errno::EROFS | Errno::EACCES | Errno::EPERM) => {}
            opened => return Ok((opened?, false)),
        }
    }
    Ok((node.open(cx, OpenFlags::READ)?, true))
}
