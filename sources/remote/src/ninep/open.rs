//! Opening fids, in every dialect.

use std::sync::Arc;

use p9::client::request;
use p9::{Fid, Rmessage, Tmessage};
use vfs::{Cx, Errno, OpenFlags, Result};

use super::fd_passing::PassedFd;
use super::fid::{Opened, Session, Walk};
use super::legacy;

/// Opens a clone of `fid`.
pub(super) fn open_fid(
    wire: &Arc<Session>,
    cx: &Cx<'_>,
    fid: Fid,
    flags: OpenFlags,
) -> Result<Opened> {
    match wire.is_linux() {
        true => open_and(wire, cx, fid, flags, |_| ()).map(|(opened, _)| opened),
        false => legacy::open_fid(wire, cx, fid, flags),
    }
}

/// Does [`open_fid`] over 9P2000.L, and requests the file's descriptor.
pub(super) fn open_with_fd(
    wire: &Arc<Session>,
    cx: &Cx<'_>,
    fid: Fid,
    flags: OpenFlags,
) -> Result<(Opened, Option<PassedFd>)> {
    let (opened, fd_request) = open_and(wire, cx, fid, flags, |fid| wire.request_fd(fid))?;
    let handed = wire.receive_fd(cx, fd_request, opened.held.fid, flags);
    Ok((opened, handed))
}

/// Opens a clone of `fid`, and calls `then` to send a request directly after.
fn open_and<T>(
    wire: &Arc<Session>,
    cx: &Cx<'_>,
    fid: Fid,
    flags: OpenFlags,
    then: impl Fn(Fid) -> T,
) -> Result<(Opened, T)> {
    let open = |fid| Tmessage::Lopen {
        fid,
        flags: request::lopen(flags),
    };
    wire.with_room(|| {
        let walk = Walk::begin(wire, cx, fid, &[])?;
        let early = wire.pipelined(&open(walk.fid));
        let second = then(walk.fid);
        let held = match walk.end(cx) {
            Ok((held, _)) => held,
            Err(errno) => {
                wire.settle_pipelined(cx, early);
                return Err(errno);
            }
        };
        let reply = wire.await_pipelined(cx, early, &open(held.fid))?;
        match reply.message()? {
            Rmessage::Lopen { iounit, .. } => Ok((Opened::new(held.opened(), iounit), second)),
            _ => Err(Errno::EIO),
        }
    })
}
