//! An upper bound on the length of the reply to a call, from the call alone. That much memory is
//! reserved before the call is served if there are many connections.
//!
//! Only procedures and operations that return data, names or lists have a bound that depends on
//! their arguments. Replies to WRITE, OPEN or RENAME are small for all arguments.
//!
//! A call that RPCSEC_GSS signs or encrypts is served by a worker only, which unwraps it once
//! (`server/gss`). A worker begins a request only while the replies to its client are within the
//! client's share. The bound of such a call is 0 because the lane, which reserves memory for the
//! replies that it makes, does not serve it.

use wire::{Malformed, Xdr, XdrReader};

use crate::rpc::{self, CALL, GssCredential, Record, flavor, program};
use crate::v3::{AclProcedure, Procedure, ReadArgs, ReadDirArgs, ReadDirPlusArgs};
use crate::v4::attr::number as n;
use crate::v4::op::Op;

/// The maximum length of a list of ACL entries or names, and of an extended attribute.
const LIST: usize = 64 << 10;

/// The headers, attributes and other small results of a procedure or operation.
const SMALL: usize = 512;

/// Returns the maximum length of the reply to the call in `message`; `most` if the call does not
/// bound it or is malformed.
pub(super) fn of(message: &[u8], marked: bool, most: usize) -> usize {
    let record = match marked {
        true => Record::new(message),
        false => Ok(Record::unmarked(message)),
    };
    record
        .and_then(|record| of_call(record.bytes()))
        .map_or(most, |bytes| bytes.min(most))
}

fn of_call(record: &[u8]) -> Result<usize, Malformed> {
    let mut from = XdrReader::new(record);
    let _xid = from.u32()?;
    if from.u32()? != CALL {
        return Ok(0);
    }
    let Ok(call) = rpc::Call::read(&mut from) else {
        // The call is rejected.
        return Ok(SMALL);
    };
    if call.credential.flavor == flavor::GSS {
        let credential = GssCredential::of(&call.credential);
        if credential.is_ok_and(|credential| credential.needs_full_patience()) {
            return Ok(0);
        }
    }
    match (call.program, call.version) {
        (program::NFS, 3) => of_procedure(call.procedure, from),
        (program::NFS, 4) => of_compound(from),
        (program::NFS_ACL, _) if call.procedure == AclProcedure::GetAcl as u32 => Ok(2 * LIST),
        _ => Ok(SMALL),
    }
}

fn of_procedure(procedure: u32, mut from: XdrReader<'_>) -> Result<usize, Malformed> {
    let bytes = match Procedure::from_number(procedure) {
        Some(Procedure::Read) => ReadArgs::get(&mut from)?.count,
        Some(Procedure::ReadDir) => ReadDirArgs::get(&mut from)?.count,
        Some(Procedure::ReadDirPlus) => ReadDirPlusArgs::get(&mut from)?.max_count,
        _ => 0,
    };
    Ok(SMALL + bytes as usize)
}

fn of_compound(mut from: XdrReader<'_>) -> Result<usize, Malformed> {
    let tag = from.opaque(super::v4::MAX_TAG)?;
    let (_minor, count) = (from.u32()?, from.u32()?);
    let mut bytes = SMALL + tag.len();
    for _ in 0..count.min(super::v4::MAX_OPERATIONS) {
        let Ok(op) = Op::get(&mut from) else {
            // The compound fails at this operation.
            break;
        };
        let more = match op {
            Op::Read(op) | Op::ReadPlus(op) => op.count as usize,
            Op::Readdir(op) => op.max_count as usize,
            Op::ListXattrs(op) => op.max_count as usize,
            Op::Getattr(want) if !want.has(n::ACL) => 0,
            Op::Getattr(_) | Op::GetXattr(_) => LIST,
            Op::Readlink => 4 << 10,
            // A retry is answered from the reply cache.
            Op::Sequence(_) => 8 << 10,
            _ => 0,
        };
        bytes = bytes.saturating_add(more + SMALL);
    }
    Ok(bytes)
}
