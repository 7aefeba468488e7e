//! Datagram service, for the small part of a protocol that uses UDP: each datagram is answered
//! before the next is received.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use transports::{DatagramSocket, Frame, Outbox};
use vfs::{Call, Patience};
use wire::{ServeOutcome, Session};

use crate::serve::serve;
use crate::server::Engine;

impl Engine {
    /// Answers received datagrams, each a message, with `session` until the engine stops. A message
    /// that would have to wait for an event is not answered.
    pub fn serve_datagrams(
        self: &Arc<Self>,
        datagrams: DatagramSocket,
        session: Box<dyn Session>,
    ) -> io::Result<()> {
        let engine = self.clone();
        self.spawn_listener("udp", move |stop| {
            if let Err(error) = answer(&datagrams, &*session, &engine, stop) {
                engine.report_failed_listener(&"a UDP port", &error);
            }
        })
    }
}

fn answer(
    datagrams: &DatagramSocket,
    session: &dyn Session,
    engine: &Engine,
    stop: BorrowedFd<'_>,
) -> io::Result<()> {
    let mut message = vec![0; DatagramSocket::MAX_SIZE];
    let mut out = Outbox::default();
    while let Some((len, from)) = datagrams.receive(&mut message, stop)? {
        let call = Call::detached().with_peer(Arc::new(engine.peer(datagrams.origin(from))));
        let message = Frame(&message[..len]);
        out.clear();
        let peer = from.to_string();
        match serve(session, &call, Patience::Full, &message, out.begin(), &peer) {
            Ok(ServeOutcome::Done) if !out.bytes().is_empty() => {
                if let Err(error) = datagrams.send(out.bytes(), from) {
                    tracing::debug!(%from, "cannot reply: {error}");
                }
            }
            Ok(_) => {}
            Err(what) => tracing::debug!(%from, "malformed message: {what}"),
        }
    }
    Ok(())
}
