//! A virtual machine monitor and its guest, at the level of messages and memory: its vhost-user
//! messages may be false, and its memory need not contain a valid queue.

use std::fs::File;
use std::io::{self, IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

/// Message types of the front end (vhost-user, "Front-end message types").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
#[allow(missing_docs)]
pub enum RequestType {
    GetFeatures = 1,
    SetFeatures = 2,
    SetMemTable = 5,
    SetVringNum = 8,
    SetVringAddr = 9,
    SetVringBase = 10,
    GetVringBase = 11,
    SetVringKick = 12,
    SetVringCall = 13,
    GetProtocolFeatures = 15,
    SetProtocolFeatures = 16,
    SetVringEnable = 18,
    ResetDevice = 34,
    AddMemReg = 37,
    RemMemReg = 38,
}

/// The offsets of a queue's parts in guest memory, and its size.
#[derive(Clone, Copy, Debug)]
pub struct QueueLayout {
    /// Number of descriptors.
    pub size: u32,
    /// The descriptor table.
    pub descriptors: u64,
    /// The available ring.
    pub available: u64,
    /// The used ring.
    pub used: u64,
}

impl QueueLayout {
    /// A valid layout.
    pub const VALID: QueueLayout = QueueLayout {
        size: 64,
        descriptors: 0,
        available: 0x1000,
        used: 0x2000,
    };
}

/// A monitor and its guest. Dropping it closes the connection.
pub struct Guest {
    socket: UnixStream,
    memory: File,
    /// The kick event of every queue.
    pub kick: OwnedFd,
    call: OwnedFd,
}

impl Guest {
    /// Address of the memory, in the guest and in the monitor.
    pub const BASE: u64 = 1 << 32;

    /// Size of the memory in bytes.
    pub const MEMORY_SIZE: u64 = 1 << 20;

    /// `VIRTIO_RING_F_EVENT_IDX`
    const EVENT_IDX: u64 = 1 << 29;

    /// Connects to the device over `socket`, and shares all of the memory, but sets up no queue.
    pub fn set_up(socket: UnixStream, event_idx: bool) -> io::Result<Guest> {
        let memory = memory(Guest::MEMORY_SIZE)?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let guest = Guest {
            socket,
            memory,
            kick: eventfd(0, flags)?,
            call: eventfd(0, flags)?,
        };
        let offered = guest.send_for_reply(RequestType::GetFeatures, &[])?;
        let event = u64::from(event_idx) * Guest::EVENT_IDX;
        let unwanted = Guest::EVENT_IDX - event;
        guest.send(
            RequestType::SetFeatures,
            &(offered & !unwanted).to_ne_bytes(),
            &[],
        )?;
        let offered = guest.send_for_reply(RequestType::GetProtocolFeatures, &[])?;
        guest.send(
            RequestType::SetProtocolFeatures,
            &offered.to_ne_bytes(),
            &[],
        )?;
        guest.set_mem_table(&[Guest::region(0, Guest::MEMORY_SIZE)])?;
        Ok(guest)
    }

    /// Returns a memory region of `len` bytes at the same offset `at` in memory and file: guest
    /// address, size, user address, mmap offset.
    pub fn region(at: u64, len: u64) -> [u64; 4] {
        [Guest::BASE + at, len, Guest::BASE + at, at]
    }

    /// Sends the memory table.
    pub fn set_mem_table(&self, regions: &[[u64; 4]]) -> io::Result<()> {
        let mut payload = words(&[regions.len() as u32, 0]);
        payload.extend(regions.iter().flatten().flat_map(|word| word.to_ne_bytes()));
        let files = vec![self.memory.as_fd(); regions.len()];
        self.send_acked(RequestType::SetMemTable, &payload, &files)
    }

    /// Starts queue `index`.
    pub fn start(&self, index: u32, place: QueueLayout, next: u32) -> io::Result<()> {
        self.send_acked(RequestType::SetVringNum, &words(&[index, place.size]), &[])?;
        self.send_acked(RequestType::SetVringBase, &words(&[index, next]), &[])?;
        let mut addresses = words(&[index, 0]);
        for part in [place.descriptors, place.used, place.available, 0] {
            addresses.extend(Guest::BASE.wrapping_add(part).to_ne_bytes());
        }
        self.send_acked(RequestType::SetVringAddr, &addresses, &[])?;
        let by = u64::from(index).to_ne_bytes();
        self.send_acked(RequestType::SetVringCall, &by, &[self.call.as_fd()])?;
        self.send_acked(RequestType::SetVringKick, &by, &[self.kick.as_fd()])?;
        self.send_acked(RequestType::SetVringEnable, &words(&[index, 1]), &[])
    }

    /// Stops queue `index` after all its requests have completed.
    pub fn stop(&self, index: u32) -> io::Result<()> {
        self.send_for_reply(RequestType::GetVringBase, &words(&[index, 0]))
            .map(drop)
    }

    /// Writes into guest memory.
    pub fn write(&self, at: u64, bytes: &[u8]) {
        // Bytes beyond the end are ignored.
        let room = Guest::MEMORY_SIZE
            .saturating_sub(at)
            .min(bytes.len() as u64);
        let written = self.memory.write_all_at(&bytes[..room as usize], at);
        written.expect("memory");
    }

    /// Truncates the file of the memory, as a monitor may at any time.
    pub fn truncate(&self) {
        ftruncate(&self.memory, 0).expect("it is not sealed");
    }

    /// Reads a number from guest memory.
    pub fn read_u16(&self, at: u64) -> u16 {
        let mut bytes = [0; 2];
        self.memory.read_exact_at(&mut bytes, at).expect("memory");
        u16::from_le_bytes(bytes)
    }

    /// Kicks the device.
    pub fn kick(&self) {
        rustix::io::write(&self.kick, &1u64.to_ne_bytes()).expect("an event");
    }

    /// Sends a message that has a reply, and returns the last eight bytes of the reply.
    pub fn send_for_reply(&self, ask: RequestType, payload: &[u8]) -> io::Result<u64> {
        self.send(ask, payload, &[])?;
        self.receive_reply()
    }

    /// Sends a message and waits for its acknowledgement; returns an error if it is refused.
    pub fn send_acked(
        &self,
        ask: RequestType,
        payload: &[u8],
        files: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        /// Version 1, with a reply requested.
        const NEED_REPLY: u32 = 1 | 1 << 3;
        self.message(ask as u32, NEED_REPLY, payload, files)?;
        match self.receive_reply()? {
            0 => Ok(()),
            _ => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    fn send(&self, ask: RequestType, payload: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.message(ask as u32, 1, payload, files)
    }

    /// Sends a message.
    pub fn message(
        &self,
        ask: u32,
        flags: u32,
        payload: &[u8],
        files: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let header = words(&[ask, flags, payload.len() as u32]);
        self.raw(&[&header[..], payload].concat(), files)
    }

    /// Sends raw bytes with file descriptors.
    pub fn raw(&self, bytes: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut rights = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            assert!(rights.push(SendAncillaryMessage::ScmRights(files)));
        }
        let bytes = [IoSlice::new(bytes)];
        sendmsg(&self.socket, &bytes, &mut rights, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    fn receive_reply(&self) -> io::Result<u64> {
        let mut header = [0; 12];
        (&self.socket).read_exact(&mut header)?;
        let size = u32::from_ne_bytes([header[8], header[9], header[10], header[11]]);
        let mut payload = vec![0; size as usize];
        (&self.socket).read_exact(&mut payload)?;
        let last = payload.last_chunk().copied().unwrap_or_default();
        Ok(u64::from_ne_bytes(last))
    }
}

/// Creates shareable memory.
pub fn memory(len: u64) -> io::Result<File> {
    let memory = memfd_create("guest", MemfdFlags::CLOEXEC)?;
    ftruncate(&memory, len)?;
    Ok(memory.into())
}

/// Encodes numbers of a message.
pub fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// Encodes a FUSE request of root.
pub fn fuse_request(opcode: u32, unique: u64, node: u64, args: &[u8]) -> Vec<u8> {
    let header = fuse::Header {
        opcode,
        unique,
        nodeid: node,
        ..fuse::Header::default()
    };
    header.message(args)
}

/// The arguments of INIT: FUSE 7.38 with all flags.
pub const INIT: [u8; 64] = {
    let mut args = [0xff; 64];
    let mut at = 0;
    while at < 8 {
        args[at] = 0;
        at += 1;
    }
    (args[0], args[4]) = (7, 38);
    args
};

/// Encodes a descriptor: address, length, flags, next.
pub fn descriptor(at: u64, len: u32, flags: u16, next: u16) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&(Guest::BASE.wrapping_add(at)).to_le_bytes());
    bytes[8..12].copy_from_slice(&len.to_le_bytes());
    bytes[12..14].copy_from_slice(&flags.to_le_bytes());
    bytes[14..].copy_from_slice(&next.to_le_bytes());
    bytes
}
