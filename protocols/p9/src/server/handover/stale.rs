//! An open file that could not be opened again.

use core::any::Any;

use vfs::{
    AllocateMode, Attr, AttrMask, BreakCallback, CopyMode, Cx, DirSink, Errno, Extent, File, Lease,
    LeaseKind, Payload, ReaddirMode, Result, SetAttr, Sink, Whence,
};

/// An open file that could not be opened again when its session was continued. Every operation
/// returns `ESTALE`, except that of a clunk, for which nothing is left to do.
pub(super) struct StaleFile;

impl File for StaleFile {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn attr(&self, _: &Cx<'_>, _: AttrMask) -> Result<Attr> {
        Err(Errno::ESTALE)
    }

    fn setattr(&self, _: &Cx<'_>, _: &SetAttr) -> Result<Attr> {
        Err(Errno::ESTALE)
    }

    fn read(&self, _: &Cx<'_>, _: u64, _: usize, _: &mut dyn Sink) -> Result<usize> {
        Err(Errno::ESTALE)
    }

    fn write(&self, _: &Cx<'_>, _: u64, _: &mut dyn Payload) -> Result<usize> {
        Err(Errno::ESTALE)
    }

    fn readdir(&self, _: &Cx<'_>, _: u64, _: ReaddirMode, _: &mut dyn DirSink) -> Result<()> {
        Err(Errno::ESTALE)
    }

    fn fsync(&self, _: &Cx<'_>, _: bool) -> Result<()> {
        Err(Errno::ESTALE)
    }

    fn flush(&self, _: &Cx<'_>) -> Result<()> {
        Ok(())
    }

    fn allocate(&self, _: &Cx<'_>, _: AllocateMode, _: u64, _: u64) -> Result<()> {
        Err(Errno::ESTALE)
    }

    fn seek(&self, _: &Cx<'_>, _: u64, _: Whence) -> Result<u64> {
        Err(Errno::ESTALE)
    }

    fn extents(&self, _: &Cx<'_>, _: u64, _: u64, _: &mut dyn FnMut(Extent) -> bool) -> Result<()> {
        Err(Errno::ESTALE)
    }

    fn copy(&self, _: &Cx<'_>, _: u64, _: &dyn File, _: u64, _: u64, _: CopyMode) -> Result<u64> {
        Err(Errno::ESTALE)
    }

    fn lease(&self, _: &Cx<'_>, _: LeaseKind, _: &BreakCallback) -> Result<Box<dyn Lease>> {
        Err(Errno::ESTALE)
    }
}
