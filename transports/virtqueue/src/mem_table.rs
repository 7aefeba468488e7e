//! SET_MEM_TABLE messages with padding, of front ends that send room for more regions than they
//! have.
//!
//! User-mode Linux sends a message for two regions and fills one if it has no high memory
//! (`vhost_user_set_mem_table()` in `arch/um/drivers/virtio_uml.c`); the rest has size 0. The vhost
//! crate refuses regions of size 0, and messages longer than the regions that they count. Such a
//! message is received here instead; all others go to the crate.

use std::fs::File;
use std::io::{self, ErrorKind, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::unix::net::UnixStream;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, recvmsg, send};
use vhost::vhost_user::message::VhostUserMemoryRegion;

/// The request's number.
const SET_MEM_TABLE: u32 = 5;

/// The header size: request, flags, and the size of the body.
pub(crate) const HEADER: usize = 12;

/// The size of the number of regions, and padding.
const COUNT: usize = 8;

/// The size of a region: guest address, size, front end's address, file offset, 8 bytes each.
const REGION: usize = 32;

/// The maximum number of regions that the crate accepts in a message.
const MAX_REGIONS: usize = 32;

/// Bits of a header's flags: the protocol's version, a reply, a message that requests one.
const VERSION: u32 = 1;
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;

/// A SET_MEM_TABLE with regions of size 0.
pub(crate) struct PaddedMemTable {
    /// The counted regions, including those of size 0: each has a file.
    regions: Vec<VhostUserMemoryRegion>,
    flags: u32,
    len: usize,
}

impl PaddedMemTable {
    /// Parses a complete message. Returns `None` unless it is a SET_MEM_TABLE with padding, all of
    /// it of size 0.
    pub(crate) fn parse(message: &[u8]) -> Option<PaddedMemTable> {
        let (header, body) = message.split_at_checked(HEADER)?;
        let number = |at: usize| Some(u32::from_ne_bytes(*header.get(at..)?.first_chunk()?));
        let (request, flags, size) = (number(0)?, number(4)?, number(8)?);
        if request != SET_MEM_TABLE || flags & !NEED_REPLY != VERSION {
            return None;
        }
        let (count, table) = body.get(..size as usize)?.split_at_checked(COUNT)?;
        let count = u64::from_ne_bytes(*count.first_chunk()?);
        let count = usize::try_from(count)
            .ok()
            .filter(|count| (1..=MAX_REGIONS).contains(count))?;
        let (table, []) = table.as_chunks::<REGION>() else {
            return None;
        };
        let all: Vec<_> = table.iter().map(region).collect();
        let (regions, rest) = all.split_at_checked(count)?;
        let padded = !rest.is_empty() || regions.iter().any(is_empty);
        (padded && rest.iter().all(is_empty)).then(|| PaddedMemTable {
            regions: regions.to_vec(),
            flags,
            len: HEADER + size as usize,
        })
    }

    /// Receives the message, all of which is available in the socket. Returns its regions except
    /// those of size 0.
    ///
    /// Returns an error if the number of files differs from that of counted regions, if no region
    /// has a size, or if one extends beyond the end of the address space.
    pub(crate) fn receive(
        &self,
        socket: &UnixStream,
    ) -> io::Result<Vec<(VhostUserMemoryRegion, File)>> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_REGIONS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut message = vec![0; self.len];
        let into = &mut [IoSliceMut::new(&mut message)];
        let got = recvmsg(socket, into, &mut control, RecvFlags::CMSG_CLOEXEC)?;
        let files: Vec<File> = control
            .drain()
            .filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(files) => Some(files.map(File::from)),
                _ => None,
            })
            .flatten()
            .collect();
        let invalid = |why| Err(io::Error::new(ErrorKind::InvalidData, why));
        if got.bytes != self.len || files.len() != self.regions.len() {
            return invalid("SET_MEM_TABLE: expected a file for each region");
        }
        let regions = self.regions.iter().copied().zip(files);
        let regions: Vec<_> = regions.filter(|(region, _)| !is_empty(region)).collect();
        if regions.is_empty() || !regions.iter().all(|(region, _)| fits_address_space(region)) {
            return invalid("SET_MEM_TABLE: expected regions within the address space");
        }
        Ok(regions)
    }

    /// Sends a reply with the result, if the front end requested one.
    pub(crate) fn answer(&self, socket: &UnixStream, done: bool) -> io::Result<()> {
        if self.flags & NEED_REPLY == 0 {
            return Ok(());
        }
        let value = u64::from(!done).to_ne_bytes();
        let head = [SET_MEM_TABLE, VERSION | REPLY, value.len() as u32];
        let head = head.map(u32::to_ne_bytes);
        let answer = [head.as_flattened(), &value].concat();
        match send(socket, &answer, SendFlags::NOSIGNAL)? {
            sent if sent == answer.len() => Ok(()),
            _ => Err(ErrorKind::WriteZero.into()),
        }
    }
}

fn region(bytes: &[u8; REGION]) -> VhostUserMemoryRegion {
    let (numbers, _) = bytes.as_chunks();
    let number = |at: usize| {
        numbers
            .get(at)
            .map_or(0, |bytes| u64::from_ne_bytes(*bytes))
    };
    VhostUserMemoryRegion::new(number(0), number(1), number(2), number(3))
}

fn is_empty(region: &VhostUserMemoryRegion) -> bool {
    region.memory_size == 0
}

/// Returns whether a region ends within the address space.
fn fits_address_space(region: &VhostUserMemoryRegion) -> bool {
    let size = region.memory_size;
    [region.guest_phys_addr, region.user_addr, region.mmap_offset]
        .iter()
        .all(|begin| begin.checked_add(size).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a region of this size that cannot be mapped.
    fn garbage(size: u64) -> [u64; 4] {
        [u64::MAX, size, u64::MAX, u64::MAX]
    }

    const GOOD: [u64; 4] = [0, 4096, 0, 0];

    fn message(request: u32, flags: u32, count: u64, regions: &[[u64; 4]]) -> Vec<u8> {
        let size = (COUNT + regions.len() * REGION) as u32;
        let head = [request, flags, size].map(u32::to_ne_bytes);
        let numbers = [&[count][..], regions.as_flattened()].concat();
        let body: Vec<_> = numbers.into_iter().map(u64::to_ne_bytes).collect();
        [head.as_flattened(), body.as_flattened()].concat()
    }

    #[test]
    fn only_padding_of_size_0_is_padding() {
        let regions = |count, regions: &[[u64; 4]]| {
            PaddedMemTable::parse(&message(5, 1, count, regions)).map(|padded| padded.regions.len())
        };
        assert_eq!(regions(1, &[GOOD, [0; 4]]), Some(1));
        assert_eq!(regions(1, &[GOOD, garbage(0)]), Some(1));
        assert_eq!(regions(2, &[GOOD, [0; 4]]), Some(2));
        // Valid for the crate.
        assert_eq!(regions(1, &[GOOD]), None);
        assert_eq!(regions(2, &[GOOD, GOOD]), None);
        // Refused by the crate, too.
        assert_eq!(regions(1, &[GOOD, garbage(1)]), None);
        assert_eq!(regions(1, &[GOOD, GOOD]), None);
        assert_eq!(regions(3, &[GOOD, [0; 4]]), None);
        assert_eq!(regions(0, &[[0; 4]]), None);
        assert_eq!(regions(1 << 32 | 1, &[GOOD, [0; 4]]), None);
        let good = message(5, 1, 1, &[GOOD, [0; 4]]);
        for cut in 0..good.len() {
            assert!(PaddedMemTable::parse(&good[..cut]).is_none(), "{cut}");
        }
        assert!(PaddedMemTable::parse(&message(6, 1, 1, &[GOOD, [0; 4]])).is_none());
        assert!(PaddedMemTable::parse(&message(5, 5, 1, &[GOOD, [0; 4]])).is_none());
    }
}
