//! A guest's memory.
//!
//! The monitor has the files, and may truncate them while this process reads, or their file system
//! may have no page left. Each region is guarded: at the first access to a page that is not there
//! it becomes zeros, and the device ends. Where that is permitted, the size of a file is sealed
//! besides.
//!
//! One function of this file is unsafe, as the guard replaces a mapping.

use std::fs::File;
use std::io;
use std::sync::Arc;

use libc::iovec;
use rustix::fs::{SealFlags, fcntl_add_seals, fcntl_get_seals};
use sys::sigbus::GuardedRange;
use vfs::LogLimit;
use vhost::vhost_user::message::VhostUserMemoryRegion;
use vhost::vhost_user::{Error, Result};
use vm_memory::{
    Address, GuestAddress, GuestMemory, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion,
    GuestRegionMmap, Permissions,
};

/// All of a guest's memory that the monitor shared, mapped.
pub(crate) struct Memory {
    /// Dropped before the mappings that they guard.
    locations: Vec<RegionLocation>,
    map: GuestMemoryMmap<()>,
}

/// The location of a region in the monitor's address space, which queue addresses refer to.
#[derive(Clone)]
struct RegionLocation {
    monitor: u64,
    guest: u64,
    len: u64,
    guard: Arc<GuardedRange>,
}

/// The limit of lines about memory that may shrink.
static UNSEALED: LogLimit<()> = LogLimit::new();

impl Memory {
    /// Maps regions, each from its file.
    pub(crate) fn map(
        regions: impl IntoIterator<Item = (VhostUserMemoryRegion, File)>,
    ) -> Result<Memory> {
        let mut memory = Memory {
            locations: Vec::new(),
            map: GuestMemoryMmap::new(),
        };
        for (region, file) in regions {
            memory = memory.with(&region, file)?;
        }
        Ok(memory)
    }

    /// Returns the memory with another region.
    pub(crate) fn with(&self, region: &VhostUserMemoryRegion, file: File) -> Result<Memory> {
        if !is_sealed(&file)
            && let Some(suppressed) = UNSEALED.permit(())
        {
            tracing::warn!(
                suppressed,
                "the memory of a guest may shrink, which would end its device (expected memory that \
                 can be sealed, such as QEMU's memory-backend-memfd)"
            );
        }
        if !is_within_file(&file, region)? {
            return Err(invalid("a memory region beyond the end of its file"));
        }
        let guest = GuestAddress(region.guest_phys_addr);
        let mapped = GuestRegionMmap::new(region.mmap_region(file)?, guest)
            .ok_or_else(|| invalid("a memory region beyond the address space"))?;
        let location = RegionLocation {
            monitor: region.user_addr,
            guest: region.guest_phys_addr,
            len: region.memory_size,
            guard: Arc::new(guard(&mapped).map_err(Error::ReqHandlerError)?),
        };
        let map = self
            .map
            .insert_region(mapped.into())
            .map_err(|error| invalid(&error.to_string()))?;
        let locations = self.locations.iter().cloned().chain([location]).collect();
        Ok(Memory { locations, map })
    }

    /// Returns the memory without a region.
    pub(crate) fn without(&self, guest: u64, len: u64) -> Result<Memory> {
        let (map, _) = self
            .map
            .remove_region(GuestAddress(guest), len)
            .map_err(|error| invalid(&error.to_string()))?;
        let retained = |location: &&RegionLocation| location.guest != guest;
        Ok(Memory {
            locations: self.locations.iter().filter(retained).cloned().collect(),
            map,
        })
    }

    pub(crate) fn map_ref(&self) -> &GuestMemoryMmap<()> {
        &self.map
    }

    /// Returns an error if a page was not there when it was accessed. The contents of the memory
    /// are then not the guest's.
    pub(crate) fn check(&self) -> io::Result<()> {
        let mut guards = self.locations.iter().map(|location| &location.guard);
        if guards.any(|guard| guard.is_lost()) {
            return Err(io::Error::other("its memory was truncated"));
        }
        Ok(())
    }

    /// Returns the number of regions.
    pub(crate) fn regions(&self) -> usize {
        self.map.num_regions()
    }

    /// Returns its regions and their files.
    pub(crate) fn files(&self) -> impl Iterator<Item = (VhostUserMemoryRegion, &File)> {
        self.locations.iter().filter_map(|location| {
            let region = self.map.find_region(GuestAddress(location.guest))?;
            let file = region.file_offset()?;
            let (guest, monitor) = (location.guest, location.monitor);
            let region = VhostUserMemoryRegion::new(guest, location.len, monitor, file.start());
            Some((region, file.file()))
        })
    }

    /// Translates `address` from the monitor's address space to the guest's.
    pub(crate) fn guest_address(&self, address: u64) -> Option<GuestAddress> {
        self.locations.iter().find_map(|location| {
            let offset = address.checked_sub(location.monitor)?;
            (offset < location.len).then(|| GuestAddress(location.guest + offset))
        })
    }

    /// Passes the guest addresses of the mapped memory from `start` on, `len` bytes, to `each`:
    /// address and length of each part.
    pub(crate) fn each_guest_range(
        &self,
        start: *const u8,
        len: usize,
        mut each: impl FnMut(u64, u64),
    ) {
        let (start, end) = (start.addr(), start.addr().saturating_add(len));
        for region in self.map.iter() {
            let base = region.as_ptr().addr();
            let (from, to) = (start.max(base), end.min(base + region.size()));
            if from < to {
                let offset = (from - base) as u64;
                each(region.start_addr().0 + offset, (to - from) as u64);
            }
        }
    }

    /// Adds the memory of `len` bytes at `address` to `pieces`, as few as possible; returns false
    /// if it is not all mapped.
    pub(crate) fn pieces(
        &self,
        address: GuestAddress,
        len: usize,
        pieces: &mut Vec<iovec>,
    ) -> bool {
        if let Some(region) = self.map.find_region(address)
            && let Some(offset) = region.to_region_addr(address)
            && offset.raw_value() + len as u64 <= region.len()
            && let Ok(slice) = region.get_slice(offset, len)
        {
            push(pieces, slice.ptr_guard_mut().as_ptr(), len);
            return true;
        }
        let mut found = 0;
        let Ok(slices) = GuestMemory::get_slices(&self.map, address, len, Permissions::ReadWrite)
        else {
            return false;
        };
        for slice in slices {
            let Ok(slice) = slice else { return false };
            push(pieces, slice.ptr_guard_mut().as_ptr(), slice.len());
            found += slice.len();
        }
        found == len
    }
}

/// Seals `file` against truncation if that is permitted, and returns whether it is sealed.
fn is_sealed(file: &File) -> bool {
    // Files that cannot be sealed have this seal, or none.
    let seals = fcntl_get_seals(file).unwrap_or(SealFlags::SEAL);
    seals.contains(SealFlags::SHRINK)
        || (!seals.contains(SealFlags::SEAL) && fcntl_add_seals(file, SealFlags::SHRINK).is_ok())
}

/// Guards the mapping of a region.
fn guard(region: &GuestRegionMmap<()>) -> io::Result<GuardedRange> {
    // SAFETY: the region is a mapping of its own, of whole pages to read and write. It stays mapped
    // while a `Memory` has it, whose guards are dropped first. Its bytes change at any time anyway,
    // and nobody has a reference to them.
    #[allow(unsafe_code)]
    unsafe {
        GuardedRange::new(region.as_ptr(), region.size())
    }
}

/// Returns whether all of a region is in its file: an access beyond its end would raise SIGBUS.
/// Only regular files have an end.
fn is_within_file(file: &File, region: &VhostUserMemoryRegion) -> Result<bool> {
    let stat = file.metadata().map_err(Error::ReqHandlerError)?;
    let end = region.mmap_offset.checked_add(region.memory_size);
    Ok(!stat.is_file() || end.is_some_and(|end| end <= stat.len()))
}

/// Adds memory to `pieces`, and merges it with the last piece if adjacent.
fn push(pieces: &mut Vec<iovec>, start: *mut u8, len: usize) {
    if let Some(last) = pieces.last_mut()
        && last.iov_base.cast::<u8>().wrapping_add(last.iov_len) == start
    {
        last.iov_len += len;
        return;
    }
    pieces.push(iovec {
        iov_base: start.cast(),
        iov_len: len,
    });
}

pub(crate) fn invalid(why: &str) -> Error {
    Error::ReqHandlerError(io::Error::new(io::ErrorKind::InvalidInput, why))
}
