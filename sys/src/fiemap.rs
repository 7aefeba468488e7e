//! Extent maps: the location of a file's bytes on its device.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Result;

/// An allocated range of a file (`struct fiemap_extent`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// The first byte in the file.
    pub logical: u64,
    /// The first byte on the device.
    pub physical: u64,
    /// The length in bytes.
    pub length: u64,
    reserved64: [u64; 2],
    /// [`LAST`], [`UNWRITTEN`] and others of `FIEMAP_EXTENT_*`.
    pub flags: u32,
    reserved: [u32; 3],
}

/// The last extent of the file (`FIEMAP_EXTENT_LAST`).
pub const LAST: u32 = 0x1;
/// Allocated but not written on the device, although the page cache may have data
/// (`FIEMAP_EXTENT_UNWRITTEN`).
pub const UNWRITTEN: u32 = 0x800;

/// The maximum number of extents per call: 3.5 KiB of result, on the stack.
pub const BATCH: usize = 64;

/// `FS_IOC_FIEMAP` (`include/uapi/linux/fs.h`): `_IOWR('f', 11, struct fiemap)`, of 32 bytes.
const FS_IOC_FIEMAP: u32 = 0xc020_660b;

#[repr(C)]
struct Request {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    count: u32,
    reserved: u32,
    extents: [Extent; BATCH],
}

/// Returns up to [`BATCH`] extents that overlap `start..start+len`, in order and without flushing
/// dirty pages. Returns `EOPNOTSUPP` if the file system has no such map.
pub fn extents(
    fd: BorrowedFd<'_>,
    start: u64,
    len: u64,
    out: &mut [Extent; BATCH],
) -> Result<usize> {
    let mut request = Request {
        start,
        length: len,
        flags: 0,
        mapped: 0,
        count: BATCH as u32,
        reserved: 0,
        extents: [Extent::default(); BATCH],
    };
    // SAFETY: the kernel reads the request's head and writes it and at most `count` extents, for
    // which `extents` has room. rustix has no such ioctl.
    #[allow(unsafe_code)]
    let answer = unsafe { libc::ioctl(fd.as_raw_fd(), FS_IOC_FIEMAP as _, &raw mut request) };
    crate::check(answer)?;
    *out = request.extents;
    Ok((request.mapped as usize).min(BATCH))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    #[test]
    fn the_layout_is_the_kernel_s() {
        assert_eq!(size_of::<Extent>(), 56);
        assert_eq!(std::mem::offset_of!(Request, extents), 32);
    }

    #[test]
    fn written_stretches_are_told_and_holes_are_not() {
        let file = tempfile::tempfile_in(".").expect("a file");
        file.set_len(1 << 20).expect("room");
        file.write_all_at(&[1; 4096], 64 << 10).expect("writes");
        let mut found = [Extent::default(); BATCH];
        match extents(file.as_fd(), 0, u64::MAX, &mut found) {
            Err(rustix::io::Errno::OPNOTSUPP) => eprintln!("skipped: no FIEMAP here"),
            found_count => {
                assert_eq!(found_count, Ok(1));
                assert_eq!((found[0].logical, found[0].length), (64 << 10, 4096));
            }
        }
    }
}
