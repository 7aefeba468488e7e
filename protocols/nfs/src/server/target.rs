//! The object of a call, for the log of slow requests.
//!
//! The arguments of a call that RPCSEC_GSS encrypts are not readable here: only the share is
//! reported.

use vfs::Name;
use wire::{Malformed, RequestTarget, Xdr, XdrReader};

use super::filehandle::FileHandle;
use super::{Connection, v4};
use crate::rpc::{self, CALL, Record, flavor, program};
use crate::v3::{Handle, Procedure};
use crate::v4::op::{Claim, Op};

/// The arguments that identify an object.
#[derive(Default)]
struct Arguments<'a> {
    handle: Option<FileHandle>,
    name: Option<&'a [u8]>,
    offset: Option<u64>,
}

impl Connection {
    /// Returns the object of the call in `message`: the inode number of the node whose handle it
    /// has, if that node is cached, and the name after it. `export` is the number that the call
    /// noted ([`vfs::Call::note_export`]).
    pub(super) fn call_target(&self, export: u64, message: &[u8]) -> RequestTarget {
        let record = match self.marked {
            true => Record::new(message),
            false => Ok(Record::unmarked(message)),
        };
        let record = record.ok();
        let found = record.as_ref().and_then(|it| arguments(it.bytes()).ok());
        let found = found.unwrap_or_default();
        let node = found
            .handle
            .and_then(|handle| self.server.nodes.get(&handle));
        RequestTarget {
            share: self.server.export.share_name(export),
            inode: node.map(|node| node.id()),
            name: found
                .name
                .map(|name| String::from_utf8_lossy(name).into_owned()),
            offset: found.offset,
        }
    }
}

fn arguments(record: &[u8]) -> Result<Arguments<'_>, Malformed> {
    let mut from = XdrReader::new(record);
    let (_xid, kind) = (from.u32()?, from.u32()?);
    let Ok(call) = rpc::Call::read(&mut from) else {
        return Ok(Arguments::default());
    };
    if kind != CALL || call.credential.flavor == flavor::GSS {
        return Ok(Arguments::default());
    }
    match (call.program, call.version) {
        (program::NFS, 3) => of_procedure(call.procedure, from),
        (program::NFS, 4) if call.procedure == 1 => of_compound(from),
        _ => Ok(Arguments::default()),
    }
}

fn of_procedure(procedure: u32, mut from: XdrReader<'_>) -> Result<Arguments<'_>, Malformed> {
    let Some(procedure) = Procedure::from_number(procedure).filter(|it| *it != Procedure::Null)
    else {
        return Ok(Arguments::default());
    };
    let mut found = Arguments {
        handle: FileHandle::read(Handle::get(&mut from)?.bytes()),
        ..Arguments::default()
    };
    match procedure {
        Procedure::Lookup
        | Procedure::Create
        | Procedure::MkDir
        | Procedure::Symlink
        | Procedure::MkNod
        | Procedure::Remove
        | Procedure::RmDir
        | Procedure::Rename => found.name = Some(from.opaque(Name::MAX)?),
        Procedure::Read | Procedure::Write | Procedure::Commit => found.offset = Some(from.u64()?),
        _ => {}
    }
    Ok(found)
}

/// Returns the last handle in a compound and the last name after it.
fn of_compound(mut from: XdrReader<'_>) -> Result<Arguments<'_>, Malformed> {
    from.opaque(v4::MAX_TAG)?;
    let (_minor, count) = (from.u32()?, from.u32()?);
    let mut found = Arguments::default();
    for _ in 0..count.min(v4::MAX_OPERATIONS) {
        let Ok(op) = Op::get(&mut from) else {
            break;
        };
        match op {
            Op::Putfh(handle) => {
                found = Arguments {
                    handle: FileHandle::read(handle),
                    ..Arguments::default()
                }
            }
            Op::Putrootfh => found = Arguments::default(),
            Op::Lookup(name) | Op::Remove(name) | Op::Link(name) => found.name = Some(name),
            Op::Create(create) => found.name = Some(create.name),
            Op::Rename(rename) => found.name = Some(rename.from),
            Op::Open(open) => {
                if let Claim::Null(name) = open.claim {
                    found.name = Some(name);
                }
            }
            Op::Read(op) | Op::ReadPlus(op) => found.offset = Some(op.offset),
            Op::Write(op) => found.offset = Some(op.offset),
            Op::Commit(op) => found.offset = Some(op.offset),
            _ => {}
        }
    }
    Ok(found)
}
