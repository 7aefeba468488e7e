//! The protocol state of a connection that continues in another handler.
//!
//! The handler of the vhost crate remembers the negotiated features privately, and learns them from
//! messages alone. So a new handler first receives these messages over a socket pair, and then its
//! descriptor is replaced by the monitor's connection: the monitor sends and receives nothing.
//!
//! This file is unsafe because the handler owns the descriptor and does not lend it.

#![allow(unsafe_code)]

use std::io::{self, Write};
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};

use rustix::io::DupFlags;
use vhost::vhost_user::BackendReqHandler;

use super::Control;
use super::format::invalid;

/// The negotiation of a connection so far.
pub(super) struct Negotiation {
    /// Whether the monitor has requested the features.
    pub(super) features_requested: bool,
    /// The features that the monitor acknowledged last.
    pub(super) features: u64,
    pub(super) protocol_features: u64,
}

/// Creates a handler for the monitor connected to `socket` that continues after this negotiation.
/// Returns `InvalidData` if `control` refuses the features.
pub(super) fn handler(
    control: Arc<Mutex<Control>>,
    socket: &UnixStream,
    negotiation: &Negotiation,
) -> io::Result<BackendReqHandler<Mutex<Control>>> {
    const GET_FEATURES: u32 = 1;
    const SET_FEATURES: u32 = 2;
    const SET_PROTOCOL_FEATURES: u32 = 16;
    let (mut ours, theirs) = UnixStream::pair()?;
    let mut handler = BackendReqHandler::from_stream(theirs, control);
    let mut replay = |request: u32, body: &[u8]| {
        let header = [request, 1, body.len() as u32].map(u32::to_ne_bytes);
        ours.write_all(&[header.as_flattened(), body].concat())?;
        // These messages fail only if the device does not offer the features.
        let refused = |_| invalid("features that this device offers");
        handler.handle_request().map_err(refused)
    };
    if negotiation.features_requested {
        // The reply is discarded with the socket pair.
        replay(GET_FEATURES, &[])?;
    }
    for (request, features) in [
        (SET_FEATURES, negotiation.features),
        (SET_PROTOCOL_FEATURES, negotiation.protocol_features),
    ] {
        // A new handler has none.
        if features != 0 {
            replay(request, &features.to_ne_bytes())?;
        }
    }
    connect(&mut handler, socket)?;
    Ok(handler)
}

/// Replaces the connection of a handler.
fn connect(handler: &mut BackendReqHandler<Mutex<Control>>, socket: &UnixStream) -> io::Result<()> {
    // SAFETY: the descriptor is open and owned by the handler, which is borrowed exclusively, so
    // it is neither used nor closed meanwhile. It is not closed here either, and afterwards it is a
    // connected stream socket as before.
    let owned = unsafe { OwnedFd::from_raw_fd(handler.as_raw_fd()) };
    let mut replaced = ManuallyDrop::new(owned);
    Ok(rustix::io::dup3(socket, &mut replaced, DupFlags::CLOEXEC)?)
}
