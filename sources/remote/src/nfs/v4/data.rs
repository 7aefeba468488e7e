//! File data: reads, without transferring holes if the server supports READ_PLUS, and writes.
//!
//! COMMIT is deliberately elsewhere.

use std::sync::atomic::Ordering;

use ::nfs::client::v4::{Piece, Read, ReadPieces, StateId, Write};
use ::nfs::client::{Failure, Stable, Written};
use vfs::{Cx, Errno, Result, Sink};

use super::client_state::ClientState;
use super::core::{PendingCompound, errno};
use super::open_state::OpenState;
use super::server::V4;
use crate::nfs::read_destination::{ReadDestination, ReadResult, end_in};
use crate::nfs::version::{Handle, Open};

/// A read or write in flight, and its arguments.
pub(in crate::nfs) struct PendingIo {
    compound: PendingCompound,
    state: StateId,
    plus: bool,
}

/// Begins to read `count` bytes at `offset`. Without `wait`, returns `None` if no slot is free.
pub(super) fn begin_read(
    v4: &V4,
    cx: &Cx<'_>,
    open: Open<'_, V4>,
    (offset, count): (u64, u32),
    wait: bool,
) -> Result<Option<PendingIo>> {
    let read = v4.read(open, offset, count)?;
    let compound = v4.core.begin(cx, &read, wait)?;
    let (state, plus) = (read.state, read.plus);
    Ok(compound.map(|compound| PendingIo {
        compound,
        state,
        plus,
    }))
}

/// Waits for the reply, and returns the number of bytes read and whether the file ends after them.
/// Repeats the read after `NFS4ERR_DELAY` and errors of the state.
pub(super) fn end_read(
    v4: &V4,
    cx: &Cx<'_>,
    pending: PendingIo,
    open: Open<'_, V4>,
    (offset, count): (u64, u32),
    sink: &mut dyn Sink,
) -> Result<(usize, bool)> {
    let PendingIo {
        compound,
        state,
        plus,
    } = pending;
    let operations = Read {
        handle: open.handle,
        state,
        offset,
        count,
        plus,
    };
    let mut doubtful = false;
    let end = |destination: ReadDestination<'_>| {
        v4.core.end_in(
            cx,
            compound,
            &operations,
            destination,
            |read, destination| {
                doubtful = read.empty && read.first.is_none();
                match destination {
                    Some(destination) => destination.put(|sink| put_pieces(sink, &read)),
                    None => (read.len(), read.eof),
                }
            },
        )
    };
    let done = match count as usize {
        len if len >= v4.core.direct_receive_min() => end_in(sink, len, end),
        _ => end(ReadDestination::Sink(sink)),
    };
    match done {
        Ok(_) if doubtful => return v4.read_without_plus(cx, open, offset, count, sink),
        Ok(read) => return Ok(read),
        Err(failure) if v4.falls_back_to_read(plus, &failure) => {}
        Err(Failure::Delay | Failure::State(_)) => {}
        Err(failure) => return Err(errno(failure)),
    }
    let make = |_: &ClientState| v4.read(open, offset, count);
    v4.core.call(cx, make, |read| put_pieces(sink, &read))
}

/// Begins a write. Without `wait`, returns `None` if no slot is free.
pub(super) fn begin_write(
    v4: &V4,
    cx: &Cx<'_>,
    write: &Write<'_>,
    wait: bool,
) -> Result<Option<PendingIo>> {
    let compound = v4.core.begin(cx, write, wait)?;
    let (state, plus) = (write.state, false);
    Ok(compound.map(|compound| PendingIo {
        compound,
        state,
        plus,
    }))
}

/// Waits for the reply, and returns how much was written, and how stably. Repeats the write after
/// `NFS4ERR_DELAY` and errors of the state.
pub(super) fn end_write(
    v4: &V4,
    cx: &Cx<'_>,
    pending: PendingIo,
    open: Open<'_, V4>,
    (offset, data): (u64, &[u8]),
    stable: Stable,
) -> Result<Written> {
    let operations = Write {
        handle: open.handle,
        state: pending.state,
        offset,
        stable,
        data,
    };
    match v4
        .core
        .end(cx, pending.compound, &operations, |written| written)
    {
        Ok(written) => return Ok(written),
        Err(Failure::Delay | Failure::State(_)) => {}
        Err(failure) => return Err(errno(failure)),
    }
    let make = |_: &ClientState| write(open, offset, stable, data);
    v4.core.call(cx, make, |written| written)
}

/// Writes with the stateid of an open file or the anonymous one, and waits for the reply.
pub(super) fn write_with(
    v4: &V4,
    cx: &Cx<'_>,
    (handle, open): (&Handle, Option<&OpenState>),
    offset: u64,
    stable: Stable,
    data: &[u8],
) -> Result<Written> {
    let make = |_: &ClientState| {
        Ok(Write {
            handle,
            state: open.map_or(Ok(StateId::ANONYMOUS), |open| open.state())?,
            offset,
            stable,
            data,
        })
    };
    v4.core.call(cx, make, |written| written)
}

/// The arguments of a write with the current stateid.
pub(super) fn write<'a>(
    open: Open<'a, V4>,
    offset: u64,
    stable: Stable,
    data: &'a [u8],
) -> Result<Write<'a>> {
    Ok(Write {
        handle: open.handle,
        state: open.state.state()?,
        offset,
        stable,
        data,
    })
}

impl V4 {
    /// The arguments of a read with the current stateid.
    fn read<'a>(&self, open: Open<'a, V4>, offset: u64, count: u32) -> Result<Read<'a>> {
        Ok(Read {
            handle: open.handle,
            state: open.state.state()?,
            offset,
            count,
            plus: self.read_plus.load(Ordering::Relaxed),
        })
    }

    /// Returns whether to repeat a read without READ_PLUS, which the server does not support or has
    /// got wrong.
    fn falls_back_to_read(&self, plus: bool, failure: &Failure) -> bool {
        let refused = matches!(
            failure,
            Failure::Error(Errno::EOPNOTSUPP | Errno::EIO) | Failure::Malformed(_)
        );
        if plus && refused && self.read_plus.swap(false, Ordering::Relaxed) {
            let peer = self.core.peer();
            tracing::info!("{peer}: READ_PLUS does not work, using READ: {failure:?}");
        }
        plus && refused
    }

    /// Repeats with READ a READ_PLUS whose reply has only an empty segment.
    fn read_without_plus(
        &self,
        cx: &Cx<'_>,
        open: Open<'_, V4>,
        offset: u64,
        count: u32,
        sink: &mut dyn Sink,
    ) -> Result<(usize, bool)> {
        let make = |_: &ClientState| {
            let read = self.read(open, offset, count)?;
            Ok(Read {
                plus: false,
                ..read
            })
        };
        let (got, eof) = self.core.call(cx, make, |read| put_pieces(sink, &read))?;
        if got > 0 && self.read_plus.swap(false, Ordering::Relaxed) {
            let peer = self.core.peer();
            tracing::info!("{peer}: READ_PLUS omits data, using READ");
        }
        Ok((got, eof))
    }
}

/// Stores the data that was read.
fn put_pieces(sink: &mut dyn Sink, read: &ReadPieces<'_>) -> ReadResult {
    for piece in read.pieces() {
        match piece {
            Piece::Data(data) => sink.bytes(data),
            Piece::Hole(len) => sink.zeros(len),
        }
    }
    (read.len(), read.eof)
}
