//! NBD's messages (the protocol's specification: `doc/proto.md` of the reference implementation).
//! Big-endian.

use bitflags::bitflags;
use wire::{Malformed, Outgoing, XdrReader};

/// Returns the server's first message: `NBDMAGIC`, `IHAVEOPT`, and the flags for the fixed newstyle
/// without padding zeros.
pub(super) fn greeting() -> [u8; 18] {
    let mut greeting = *b"NBDMAGICIHAVEOPT\0\0";
    greeting[16..].copy_from_slice(&HandshakeFlags::all().bits().to_be_bytes());
    greeting
}

bitflags! {
    /// Handshake flags of both sides.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) struct HandshakeFlags: u16 {
        const FIXED_NEWSTYLE = 1;
        const NO_ZEROES = 2;
    }

    /// Transmission flags of an export.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) struct TransmissionFlags: u16 {
        const HAS_FLAGS = 1;
        const READ_ONLY = 2;
        const SEND_FLUSH = 4;
        const SEND_FUA = 8;
        const SEND_TRIM = 32;
        const SEND_WRITE_ZEROES = 64;
        const SEND_DF = 128;
        /// A flush on one connection applies to all.
        const CAN_MULTI_CONN = 256;
        const SEND_FAST_ZERO = 2048;
    }

    /// Flags of a command.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) struct CommandFlags: u16 {
        /// Durable before the reply.
        const FUA = 1;
        /// Zeros must stay allocated.
        const NO_HOLE = 2;
        /// The reply must not be fragmented.
        const DF = 4;
        /// One extent is enough.
        const REQ_ONE = 8;
        /// Zeros only if that is faster than writing them.
        const FAST_ZERO = 16;
    }
}

/// `IHAVEOPT`: the start of an option.
const OPTION_MAGIC: u64 = u64::from_be_bytes(*b"IHAVEOPT");

/// The start of a request.
const REQUEST_MAGIC: u32 = 0x2560_9513;

/// Magic, option, length.
const OPTION_HEAD: usize = 16;

/// Magic, flags, type, cookie, offset, length.
pub(super) const REQUEST_HEAD: usize = 28;

/// The longest data of an option: names have up to 4096 bytes, and a metadata query has several.
const MAX_OPTION: u32 = 64 << 10;

/// The largest payload of a request or a reply, in bytes: nbdkit's (`MAX_REQUEST_SIZE`), and twice
/// the protocol's default.
pub(super) const MAX_PAYLOAD: u32 = 64 << 20;

/// Command types.
pub(super) mod command {
    pub(in crate::nbd) const READ: u16 = 0;
    pub(in crate::nbd) const WRITE: u16 = 1;
    pub(in crate::nbd) const DISC: u16 = 2;
    pub(in crate::nbd) const FLUSH: u16 = 3;
    pub(in crate::nbd) const TRIM: u16 = 4;
    pub(in crate::nbd) const WRITE_ZEROES: u16 = 6;
    pub(in crate::nbd) const BLOCK_STATUS: u16 = 7;
}

/// Options.
pub(super) mod option {
    pub(in crate::nbd) const EXPORT_NAME: u32 = 1;
    pub(in crate::nbd) const ABORT: u32 = 2;
    pub(in crate::nbd) const LIST: u32 = 3;
    pub(in crate::nbd) const INFO: u32 = 6;
    pub(in crate::nbd) const GO: u32 = 7;
    pub(in crate::nbd) const STRUCTURED_REPLY: u32 = 8;
    pub(in crate::nbd) const LIST_META_CONTEXT: u32 = 9;
    pub(in crate::nbd) const SET_META_CONTEXT: u32 = 10;
}

/// Option reply types.
pub(super) mod reply {
    pub(in crate::nbd) const ACK: u32 = 1;
    pub(in crate::nbd) const SERVER: u32 = 2;
    pub(in crate::nbd) const INFO: u32 = 3;
    pub(in crate::nbd) const META_CONTEXT: u32 = 4;
    const ERROR: u32 = 1 << 31;
    pub(in crate::nbd) const UNSUPPORTED: u32 = ERROR + 1;
    pub(in crate::nbd) const POLICY: u32 = ERROR + 2;
    pub(in crate::nbd) const INVALID: u32 = ERROR + 3;
    pub(in crate::nbd) const UNKNOWN: u32 = ERROR + 6;
}

/// Chunk types of structured replies.
pub(super) mod chunk {
    pub(in crate::nbd) const NONE: u16 = 0;
    pub(in crate::nbd) const OFFSET_DATA: u16 = 1;
    pub(in crate::nbd) const OFFSET_HOLE: u16 = 2;
    pub(in crate::nbd) const BLOCK_STATUS: u16 = 5;
    pub(in crate::nbd) const ERROR: u16 = (1 << 15) + 1;
}

/// Error numbers of the protocol.
pub(super) mod error {
    pub(in crate::nbd) const EPERM: u32 = 1;
    pub(in crate::nbd) const EIO: u32 = 5;
    pub(in crate::nbd) const EINVAL: u32 = 22;
    pub(in crate::nbd) const ENOSPC: u32 = 28;
    pub(in crate::nbd) const ENOTSUP: u32 = 95;
}

/// A client's message in any phase: its start shows the type.
pub(super) enum Message<'a> {
    /// The client's handshake flags.
    Flags(u32),
    Option {
        number: u32,
        data: &'a [u8],
    },
    Request(Request),
}

/// A command. The data of a write follow at [`REQUEST_HEAD`].
#[derive(Clone, Copy)]
pub(super) struct Request {
    pub(super) flags: u16,
    pub(super) kind: u16,
    pub(super) cookie: u64,
    pub(super) offset: u64,
    pub(super) len: u32,
}

impl Request {
    fn decode(bytes: &[u8]) -> Result<Request, Malformed> {
        let mut fields = XdrReader::new(bytes);
        fields.u32()?;
        let word = fields.u32()?;
        Ok(Request {
            flags: (word >> 16) as u16,
            kind: word as u16,
            cookie: fields.u64()?,
            offset: fields.u64()?,
            len: fields.u32()?,
        })
    }
}

/// Returns the length of the message that `head` begins with, once it can be determined.
pub(super) fn frame(head: &[u8]) -> Result<Option<usize>, Malformed> {
    let Some(first) = head.first_chunk() else {
        return Ok(None);
    };
    match u32::from_be_bytes(*first) {
        REQUEST_MAGIC if head.len() < REQUEST_HEAD => Ok(None),
        REQUEST_MAGIC => {
            let request = Request::decode(head)?;
            let len = match request.kind {
                command::WRITE if request.len > MAX_PAYLOAD => {
                    let len = request.len;
                    let what = format!("expected at most {MAX_PAYLOAD} bytes to write, got {len}");
                    return Err(Malformed::new(what));
                }
                command::WRITE => request.len as usize,
                _ => 0,
            };
            Ok(Some(REQUEST_HEAD + len))
        }
        first if first == (OPTION_MAGIC >> 32) as u32 => {
            if head.len() < OPTION_HEAD {
                return Ok(None);
            }
            let mut fields = XdrReader::new(head);
            let (magic, _) = (fields.u64()?, fields.u32()?);
            if magic != OPTION_MAGIC {
                return Err(Malformed::new(format!(
                    "expected an option, which begins with {OPTION_MAGIC:x}, got {magic:x}"
                )));
            }
            match fields.u32()? {
                len if len > MAX_OPTION => Err(Malformed::new(format!(
                    "expected at most {MAX_OPTION} bytes of an option, got {len}"
                ))),
                len => Ok(Some(OPTION_HEAD + len as usize)),
            }
        }
        flags if flags <= u32::from(HandshakeFlags::all().bits()) => Ok(Some(first.len())),
        other => Err(Malformed::new(format!(
            "expected flags, an option or a request, got {other:x}"
        ))),
    }
}

/// Returns how many bytes a message requests to read, [`MAX_PAYLOAD`] at most.
pub(super) fn reply_bound(message: &[u8]) -> usize {
    match decode(message) {
        Ok(Message::Request(request)) if request.kind == command::READ => {
            request.len.min(MAX_PAYLOAD) as usize
        }
        _ => 0,
    }
}

/// Decodes a message of the length that [`frame`] returned.
pub(super) fn decode(bytes: &[u8]) -> Result<Message<'_>, Malformed> {
    let mut fields = XdrReader::new(bytes);
    Ok(match fields.u32()? {
        REQUEST_MAGIC => Message::Request(Request::decode(bytes)?),
        flags if bytes.len() < OPTION_HEAD => Message::Flags(flags),
        _ => {
            fields.u32()?;
            let number = fields.u32()?;
            fields.u32()?;
            let data = fields.rest();
            Message::Option { number, data }
        }
    })
}

/// Writes a reply to an option.
pub(super) fn option_reply(out: &mut dyn Outgoing, option: u32, kind: u32, data: &[u8]) {
    const MAGIC: u64 = 0x0003_e889_0455_65a9;
    let mut head = [0; 20];
    head[..8].copy_from_slice(&MAGIC.to_be_bytes());
    head[8..12].copy_from_slice(&option.to_be_bytes());
    head[12..16].copy_from_slice(&kind.to_be_bytes());
    head[16..].copy_from_slice(&(data.len() as u32).to_be_bytes());
    out.bytes(&head);
    out.bytes(data);
}

/// Returns the header of a simple reply.
pub(super) fn simple_head(cookie: u64, error: u32) -> [u8; 16] {
    const MAGIC: u32 = 0x6744_6698;
    let mut head = [0; 16];
    head[..4].copy_from_slice(&MAGIC.to_be_bytes());
    head[4..8].copy_from_slice(&error.to_be_bytes());
    head[8..].copy_from_slice(&cookie.to_be_bytes());
    head
}

/// The size of a chunk's header in bytes.
pub(super) const CHUNK_HEAD: usize = 20;

/// Returns the header of a structured reply's chunk with `len` bytes of payload; the last chunk of
/// its reply if `done`.
pub(super) fn chunk_head(cookie: u64, kind: u16, len: u32, done: bool) -> [u8; CHUNK_HEAD] {
    const MAGIC: u32 = 0x668e_33ef;
    let mut head = [0; CHUNK_HEAD];
    head[..4].copy_from_slice(&MAGIC.to_be_bytes());
    head[4..6].copy_from_slice(&u16::from(done).to_be_bytes());
    head[6..8].copy_from_slice(&kind.to_be_bytes());
    head[8..16].copy_from_slice(&cookie.to_be_bytes());
    head[16..].copy_from_slice(&len.to_be_bytes());
    head
}
