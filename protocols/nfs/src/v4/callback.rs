//! Callbacks (RFC 8881 sections 16.2 and 20, RFC 7530 section 16.25, RFC 7862 section 16).

use wire::{Malformed, Put, Xdr, XdrReader, xdr_struct, xdr_union};

use super::attr::Bitmap;
use super::types::{Owner, WriteResponse};
use super::{SessionId, StateId, Status};

/// The version of the callback program that sessions use (RFC 8881 appendix: `NFS_CB`).
pub(crate) const VERSION: u32 = 1;

/// Its only procedure besides NULL.
pub(crate) const COMPOUND: u32 = 1;

xdr_struct! {
    /// The header of a CB_COMPOUND.
    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct CallbackHead<'a> {
        pub(crate) tag: &'a [u8],
        pub(crate) minor: u32,
        /// Used by v4.0 only.
        pub(crate) ident: u32,
        /// The number of operations that follow.
        pub(crate) count: u32,
    }

    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct CallbackSequence {
        pub(crate) session: SessionId,
        pub(crate) sequence: u32,
        pub(crate) slot: u32,
        pub(crate) highest_slot: u32,
        pub(crate) cache_this: bool,
        /// The number of referring call lists that follow; this server sends none.
        pub(crate) referring: u32,
    }

    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct Recall<'a> {
        pub(crate) state: StateId,
        /// Whether the file will be truncated to length 0, so that dirty data need not be written
        /// back.
        pub(crate) truncate: bool,
        pub(crate) handle: &'a [u8],
    }

    /// Asks for the return of state of these kinds until at most `keep` are left.
    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct RecallAny {
        pub(crate) keep: u32,
        pub(crate) kinds: Bitmap,
    }

    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct NotifyLock<'a> {
        pub(crate) handle: &'a [u8],
        pub(crate) owner: Owner<'a>,
    }

    /// Reports the end of an asynchronous copy (RFC 7862 section 16.1).
    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct Offload<'a> {
        /// The destination file's handle.
        pub(crate) handle: &'a [u8],
        pub(crate) state: StateId,
        pub(crate) how: Offloaded,
    }
}

/// The result of an asynchronous copy (`offload_info4`).
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Offloaded {
    /// Success.
    Done(WriteResponse),
    /// Failure after this many bytes.
    Failed(Status, u64),
}

impl<'a> Xdr<'a> for Offloaded {
    fn get(from: &mut XdrReader<'a>) -> Result<Offloaded, Malformed> {
        match Status::get(from)? {
            Status::Ok => WriteResponse::get(from).map(Offloaded::Done),
            status => Ok(Offloaded::Failed(status, from.u64()?)),
        }
    }

    fn put(&self, to: &mut impl Put) {
        match self {
            Offloaded::Done(written) => {
                Status::Ok.put(to);
                written.put(to);
            }
            Offloaded::Failed(status, count) => {
                status.put(to);
                count.put(to);
            }
        }
    }
}

xdr_union! {
    /// A callback operation with its arguments, by operation number.
    #[derive(Clone, Debug, PartialEq)]
    pub(crate) enum CallbackOp<'a> {
        Recall(Recall<'a>) = 4,
        RecallAny(RecallAny) = 8,
        Sequence(CallbackSequence) = 11,
        NotifyLock(NotifyLock<'a>) = 13,
        Offload(Offload<'a>) = 15,
    }
}

/// The kinds of state in CB_RECALL_ANY: read and write delegations (RFC 8881 section 20.6.1).
pub(crate) const DELEGATIONS: Bitmap = Bitmap::of(&[0, 1]);

/// The result of a callback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CalledBack {
    /// The status of the operation after CB_SEQUENCE.
    Answered(Status),
    /// CB_SEQUENCE failed with this status.
    NotInSequence(Status),
    /// The client rejected the call.
    Refused,
}

impl CalledBack {
    /// Parses a reply after XID and message type.
    pub(crate) fn read(from: &mut XdrReader<'_>) -> Result<CalledBack, Malformed> {
        const ACCEPTED: u32 = 0;
        const SUCCESS: u32 = 0;
        if from.u32()? != ACCEPTED {
            return Ok(CalledBack::Refused);
        }
        let (_flavor, _verifier) = (from.u32()?, from.opaque(400)?);
        if from.u32()? != SUCCESS {
            return Ok(CalledBack::Refused);
        }
        let status = Status::get(from)?;
        let _tag = from.opaque(1024)?;
        if from.u32()? == 0 {
            return Ok(CalledBack::NotInSequence(status));
        }
        let _sequence = from.u32()?;
        match Status::get(from)? {
            Status::Ok => {}
            failed => return Ok(CalledBack::NotInSequence(failed)),
        }
        Ok(CalledBack::Answered(status))
    }
}

/// Returns a client's reply to call `xid`: success, CB_SEQUENCE, and one operation.
#[cfg(test)]
pub(crate) fn reply(xid: u32, sequence: &CallbackSequence, number: u32, status: Status) -> Vec<u8> {
    use crate::rpc::{LAST, MARK, REPLY};
    let mut bytes = vec![0; MARK];
    for word in [xid, REPLY, 0, 0, 0, 0] {
        word.put(&mut bytes);
    }
    status.put(&mut bytes);
    b"".as_slice().put(&mut bytes);
    2u32.put(&mut bytes);
    11u32.put(&mut bytes);
    Status::Ok.put(&mut bytes);
    sequence.session.put(&mut bytes);
    for word in [sequence.sequence, sequence.slot, sequence.highest_slot, 0] {
        word.put(&mut bytes);
    }
    number.put(&mut bytes);
    status.put(&mut bytes);
    let mark = (bytes.len() - MARK) as u32 | LAST;
    bytes[..MARK].copy_from_slice(&mark.to_be_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v4::types::Stable;

    #[test]
    fn rfc7862_16_1_cb_offload_as_it_travels() {
        let offload = |how| {
            CallbackOp::Offload(Offload {
                handle: b"file",
                state: StateId {
                    seqid: 1,
                    other: [2; 12],
                },
                how,
            })
        };
        let done = offload(Offloaded::Done(WriteResponse {
            callback: Vec::new(),
            count: 5,
            committed: Stable::Unstable,
            verifier: [6; 8],
        }));
        let failed = offload(Offloaded::Failed(Status::Nospc, 7));
        let head =
            b"\0\0\0\x0f\0\0\0\x04file\0\0\0\x01\x02\x02\x02\x02\x02\x02\x02\x02\x02\x02\x02\x02";
        let written = b"\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x05\0\0\0\0\x06\x06\x06\x06\x06\x06\x06\x06";
        for (op, tail) in [
            (done, &written[..]),
            (failed, b"\0\0\0\x1c\0\0\0\0\0\0\0\x07"),
        ] {
            let mut bytes = Vec::new();
            op.put(&mut bytes);
            assert_eq!(bytes, [&head[..], tail].concat());
            assert_eq!(CallbackOp::get(&mut XdrReader::new(&bytes)), Ok(op));
        }
    }
}
