//! A guest's memory.

use std::fs::File;
use std::io;

use libc::iovec;
use vhost::vhost_user::message::VhostUserMemoryRegion;
use vhost::vhost_user::{Error, Result};
use vm_memory::{
    Address, GuestAddress, GuestMemory, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion,
    GuestRegionMmap, Permissions,
};

/// All of a guest's memory that the monitor shared, mapped.
pub(crate) struct Memory {
    map: GuestMemoryMmap<()>,
    locations: Vec<RegionLocation>,
}

/// The location of a region in the monitor's address space, which queue addresses refer to.
#[derive(Clone, Copy)]
struct RegionLocation {
    monitor: u64,
    guest: u64,
    len: u64,
}

impl Memory {
    /// Maps regions, each from its file.
    pub(crate) fn map(
        regions: impl IntoIterator<Item = (VhostUserMemoryRegion, File)>,
    ) -> Result<Memory> {
        let mut memory = Memory {
            map: GuestMemoryMmap::new(),
            locations: Vec::new(),
        };
        for (region, file) in regions {
            memory = memory.with(&region, file)?;
        }
        Ok(memory)
    }

    /// Returns the memory with another region.
    pub(crate) fn with(&self, region: &VhostUserMemoryRegion, file: File) -> Result<Memory> {
        let location = RegionLocation {
            monitor: region.user_addr,
            guest: region.guest_phys_addr,
            len: region.memory_size,
        };
        if !is_within_file(&file, region)? {
            return Err(invalid("a memory region beyond the end of its file"));
        }
        let mapped = GuestRegionMmap::new(region.mmap_region(file)?, GuestAddress(location.guest))
            .ok_or_else(|| invalid("a memory region beyond the address space"))?;
        let map = self
            .map
            .insert_region(mapped.into())
            .map_err(|error| invalid(&error.to_string()))?;
        let locations = self.locations.iter().copied().chain([location]).collect();
        Ok(Memory { map, locations })
    }

    /// Returns the memory without a region.
    pub(crate) fn without(&self, guest: u64, len: u64) -> Result<Memory> {
        let (map, _) = self
            .map
            .remove_region(GuestAddress(guest), len)
            .map_err(|error| invalid(&error.to_string()))?;
        let retained = |location: &&RegionLocation| location.guest != guest;
        Ok(Memory {
            map,
            locations: self.locations.iter().filter(retained).copied().collect(),
        })
    }

    pub(crate) fn map_ref(&self) -> &GuestMemoryMmap<()> {
        &self.map
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
