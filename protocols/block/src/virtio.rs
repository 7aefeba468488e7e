//! A virtio block device: a guest driver's requests through a queue (virtio 1.3, 5.2).
//!
//! A request is a header, the data to write, and a buffer for the data to read and for the status,
//! the last byte. There is no negotiation: the features and the configuration describe the device.

use std::sync::{Arc, LazyLock};

use vfs::{Call, Caller, Cx, Errno, Patience, Result};
use wire::{
    Incoming, Malformed, Outgoing, Reader, RequestTarget, Role, SavedState, ServeOutcome, Session,
    Vocabulary,
};

use crate::Disk;
use crate::requests::{Requests, vocabulary};

/// The size of a sector in bytes, the guest's unit, independent of the disk's blocks.
pub const SECTOR: u64 = 512;

/// Features of the device (virtio 1.3, 5.2.3).
mod feature {
    pub(super) const SEG_MAX: u64 = 1 << 2;
    pub(super) const RO: u64 = 1 << 5;
    pub(super) const BLK_SIZE: u64 = 1 << 6;
    pub(super) const FLUSH: u64 = 1 << 9;
    pub(super) const TOPOLOGY: u64 = 1 << 10;
    pub(super) const MQ: u64 = 1 << 12;
    pub(super) const DISCARD: u64 = 1 << 13;
    pub(super) const WRITE_ZEROES: u64 = 1 << 14;
}

/// Request types (virtio 1.3, 5.2.6).
mod kind {
    pub(super) const IN: u32 = 0;
    pub(super) const OUT: u32 = 1;
    pub(super) const FLUSH: u32 = 4;
    pub(super) const GET_ID: u32 = 8;
    pub(super) const DISCARD: u32 = 11;
    pub(super) const WRITE_ZEROES: u32 = 13;
}

/// Status values.
mod status {
    pub(super) const OK: u8 = 0;
    pub(super) const IOERR: u8 = 1;
    pub(super) const UNSUPP: u8 = 2;
}

/// Type, reserved, sector.
const HEADER: usize = 16;

/// Sector, number of sectors, flags.
const SEGMENT: usize = 16;

/// The most ranges of one discard or write-zeroes request: Linux uses no more than 256.
const MAX_SEGMENTS: usize = 256;

/// The most sectors of such a range: 1 GiB, so that none keeps a thread for long.
const MAX_SEGMENT_SECTORS: u32 = 1 << 21;

/// The block size for the guest: a page, which suits its file systems.
const BLOCK_SIZE: u64 = 4096;

/// The length of a disk's id in bytes.
const ID_SIZE: usize = 20;

/// Returns the features of a device for `disk` (virtio 1.3, 5.2.3), with several queues.
pub fn features(disk: &Disk) -> u64 {
    let mut features = feature::SEG_MAX | feature::FLUSH | feature::MQ;
    if disk.is_read_only() {
        features |= feature::RO;
    }
    if disk.size().is_multiple_of(BLOCK_SIZE) {
        features |= feature::TOPOLOGY;
    }
    if disk.can_discard() {
        features |= feature::DISCARD | feature::WRITE_ZEROES;
    }
    features | feature::BLK_SIZE
}

/// Returns the configuration of a device for `disk` with `queues` queues of `depth` descriptors
/// (virtio 1.3, 5.2.4). Bytes after the last whole sector are not part of the disk.
pub fn config_space(disk: &Disk, queues: u16, depth: u32) -> Vec<u8> {
    let mut config_space = Vec::new();
    let mut put = |bytes: &[u8]| config_space.extend_from_slice(bytes);
    put(&(disk.size() / SECTOR).to_le_bytes());
    // No limit for the size of a segment. The most segments: without those of the header and the
    // status.
    put(&0u32.to_le_bytes());
    put(&depth.saturating_sub(2).to_le_bytes());
    // No cylinders, heads and sectors.
    put(&[0; 4]);
    put(&(SECTOR as u32).to_le_bytes());
    // Eight sectors make an aligned block; the smallest and the optimal read, in sectors.
    put(&[3, 0]);
    put(&((BLOCK_SIZE / SECTOR) as u16).to_le_bytes());
    put(&0u32.to_le_bytes());
    // Writes are durable only after a flush.
    put(&[1, 0]);
    put(&queues.to_le_bytes());
    // Discard, then write zeroes, which may deallocate space.
    put(&MAX_SEGMENT_SECTORS.to_le_bytes());
    put(&(MAX_SEGMENTS as u32).to_le_bytes());
    put(&((BLOCK_SIZE / SECTOR) as u32).to_le_bytes());
    put(&MAX_SEGMENT_SECTORS.to_le_bytes());
    put(&(MAX_SEGMENTS as u32).to_le_bytes());
    put(&[1, 0, 0, 0]);
    // Monitors read the fields that they know.
    config_space.resize(CONFIG_SPACE_SIZE, 0);
    config_space
}

/// The size of the configuration that monitors read, zones included.
const CONFIG_SPACE_SIZE: usize = 96;

/// A guest's device. Requests of all its queues may be served at once.
pub struct Device {
    disk: Arc<Disk>,
    requests: Requests,
}

impl Device {
    /// Returns a device for `disk`.
    pub fn new(disk: Arc<Disk>) -> Device {
        Device {
            disk,
            requests: Requests::default(),
        }
    }

    /// Answers into `out`; the last byte of its room is the status.
    fn execute(&self, cx: &Cx<'_>, message: &dyn Incoming, out: &mut dyn Outgoing) -> Result<()> {
        let mut request = Reader::new(message.bytes());
        let header = (request.u32(), request.u32(), request.u64());
        let (Ok(kind), Ok(_), Ok(sector)) = header else {
            return Err(Errno::EINVAL);
        };
        let capacity = out.room().saturating_sub(1);
        match kind {
            kind::IN => {
                let offset = self.byte_offset(sector, capacity as u64)?;
                self.disk.read(cx, offset, capacity, out)
            }
            kind::OUT => {
                let len = message.size() - HEADER;
                let offset = self.byte_offset(sector, len as u64)?;
                self.disk.write(cx, offset, message, HEADER, false)
            }
            kind::FLUSH => self.disk.flush(cx),
            kind::GET_ID => {
                let mut id = format!("{:016x}", self.disk.id()).into_bytes();
                id.resize(ID_SIZE.min(capacity), 0);
                out.bytes(&id);
                Ok(())
            }
            kind::DISCARD | kind::WRITE_ZEROES if self.disk.can_discard() => {
                for segment in self.segments(kind, request.rest())? {
                    let (offset, len) = (segment.offset, segment.len);
                    self.disk.zero(cx, offset, len, segment.deallocate, false)?;
                }
                Ok(())
            }
            _ => Err(Errno::EOPNOTSUPP),
        }
    }

    /// Returns the offset of `sector`, if `len` bytes there are within the disk.
    fn byte_offset(&self, sector: u64, len: u64) -> Result<u64> {
        let offset = sector.checked_mul(SECTOR).ok_or(Errno::EIO)?;
        let whole = len.is_multiple_of(SECTOR) && self.disk.contains(offset, len);
        whole.then_some(offset).ok_or(Errno::EIO)
    }

    /// Decodes the ranges of a discard or write-zeroes request: all are valid, or the request
    /// fails.
    fn segments(&self, kind: u32, bytes: &[u8]) -> Result<Vec<Segment>> {
        if bytes.is_empty()
            || !bytes.len().is_multiple_of(SEGMENT)
            || bytes.len() > MAX_SEGMENTS * SEGMENT
        {
            return Err(Errno::EINVAL);
        }
        let segment = |bytes: &[u8]| {
            let mut fields = Reader::new(bytes);
            let segment = (fields.u64(), fields.u32(), fields.u32());
            let (Ok(sector), Ok(sectors), Ok(flags)) = segment else {
                return Err(Errno::EINVAL);
            };
            // Discarding always deallocates; for write zeroes it is a flag.
            let known = match kind {
                kind::DISCARD => 0,
                _ => 1,
            };
            if flags & !known != 0 {
                return Err(Errno::EOPNOTSUPP);
            }
            if sectors > MAX_SEGMENT_SECTORS {
                return Err(Errno::EIO);
            }
            let len = u64::from(sectors) * SECTOR;
            Ok(Segment {
                offset: self.byte_offset(sector, len)?,
                len,
                deallocate: kind == kind::DISCARD || flags != 0,
            })
        };
        bytes.chunks(SEGMENT).map(segment).collect()
    }
}

/// A range to discard or zero.
struct Segment {
    offset: u64,
    len: u64,
    deallocate: bool,
}

impl Session for Device {
    /// All that it needs is in the requests.
    fn save_state(&self, _call: &Call) -> Option<SavedState> {
        Some(SavedState::default())
    }

    fn frame(&self, head: &[u8]) -> std::result::Result<Option<usize>, Malformed> {
        let whole = match Reader::new(head).u32() {
            Ok(kind::DISCARD | kind::WRITE_ZEROES) => HEADER + MAX_SEGMENTS * SEGMENT,
            _ => HEADER,
        };
        Ok(Some(whole))
    }

    fn role(&self, _: &[u8]) -> std::result::Result<Role, Malformed> {
        Ok(self.requests.next())
    }

    fn serve(
        &self,
        call: &Call,
        patience: Patience,
        message: &dyn Incoming,
        out: &mut dyn Outgoing,
    ) -> std::result::Result<ServeOutcome, Malformed> {
        let capacity = out.room();
        if capacity == 0 {
            return Err(Malformed::new("a request without a status byte"));
        }
        let cx = Cx {
            caller: &Caller::ROOT,
            patience,
            call,
        };
        let kind = Reader::new(message.bytes()).u32().unwrap_or(u32::MAX);
        let done = self.execute(&cx, message, out);
        call.note_operation(u16::try_from(kind).unwrap_or(u16::MAX));
        let status = match done {
            Ok(()) => status::OK,
            Err(errno) => {
                out.truncate(0);
                match errno {
                    Errno::WOULD_BLOCK => return Ok(ServeOutcome::WouldBlock),
                    Errno::PARKED => return Ok(ServeOutcome::Parked),
                    Errno::EOPNOTSUPP => {
                        call.note_error(Errno::EOPNOTSUPP.raw());
                        status::UNSUPP
                    }
                    errno => {
                        call.note_error(errno.raw());
                        tracing::debug!("block device request failed: {errno}");
                        status::IOERR
                    }
                }
            }
        };
        out.zeros(capacity - 1 - out.len());
        out.bytes(&[status]);
        Ok(ServeOutcome::Done)
    }

    fn answer_failure(&self, _: &dyn Incoming, out: &mut dyn Outgoing) -> bool {
        let capacity = out.room();
        if capacity > 0 {
            out.zeros(capacity - 1);
            out.bytes(&[status::IOERR]);
        }
        capacity > 0
    }

    fn target(&self, _: &Call, message: &[u8]) -> RequestTarget {
        let mut request = Reader::new(message);
        let header = (request.u32(), request.u32(), request.u64());
        let offset = match header {
            (Ok(kind::IN | kind::OUT), Ok(_), Ok(sector)) => sector.checked_mul(SECTOR),
            _ => None,
        };
        RequestTarget {
            inode: Some(self.disk.id()),
            offset,
            ..RequestTarget::default()
        }
    }

    fn vocabulary(&self) -> &'static Vocabulary {
        &VOCABULARY
    }
}

/// A request is named by its type.
static VOCABULARY: LazyLock<Vocabulary> = LazyLock::new(|| {
    vocabulary("virtio-blk", kind::WRITE_ZEROES, |kind| match kind {
        kind::IN => "VIRTIO_BLK_T_IN",
        kind::OUT => "VIRTIO_BLK_T_OUT",
        kind::FLUSH => "VIRTIO_BLK_T_FLUSH",
        kind::GET_ID => "VIRTIO_BLK_T_GET_ID",
        kind::DISCARD => "VIRTIO_BLK_T_DISCARD",
        kind::WRITE_ZEROES => "VIRTIO_BLK_T_WRITE_ZEROES",
        _ => "",
    })
});
