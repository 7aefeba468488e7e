//! Fids as values, and the exchanges that operations consist of.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use p9::client::attr;
use p9::{Dialect, Fid, Names, Qid, Rmessage, Tmessage};
use parking_lot::Mutex;
use vfs::{Attr, Cx, Errno, Result};

use super::connection::{Connection, Reply, Ticket};
use super::fd_passing::FdPassing;
use super::held_fids::{HeldFids, MAX_IDLE};

/// A fid that the server knows. Dropping it clunks it, without waiting for the reply.
pub(super) struct OwnedFid {
    pub(super) session: Arc<Session>,
    pub(super) fid: Fid,
    /// Whether to send the clunk at once: an open file may hold space or locks.
    clunk_at_once: bool,
}

impl Drop for OwnedFid {
    fn drop(&mut self) {
        if self.fid != Fid::NONE {
            self.session.connection.clunk(self.fid, self.clunk_at_once);
        }
    }
}

impl OwnedFid {
    /// Marks the fid as open.
    pub(super) fn opened(mut self) -> OwnedFid {
        self.clunk_at_once = true;
        self
    }

    /// Clunks the fid and waits for the reply. The wait cannot be cancelled, which would leave the
    /// result of the clunk unknown.
    pub(super) fn clunk(self) -> Result<()> {
        let (wire, fid) = self.into_parts();
        wire.connection.call(&Tmessage::Clunk { fid }).map(drop)
    }

    /// Removes the file. The server clunks the fid even if that fails.
    pub(super) fn remove(self) -> Result<()> {
        let (wire, fid) = self.into_parts();
        wire.connection.call(&Tmessage::Remove { fid }).map(drop)
    }

    /// Takes the fid, so that the drop does nothing.
    fn into_parts(mut self) -> (Arc<Session>, Fid) {
        let fid = std::mem::replace(&mut self.fid, Fid::NONE);
        (self.session.clone(), fid)
    }
}

/// An open fid.
pub(super) struct Opened {
    pub(super) held: OwnedFid,
    iounit: u32,
}

impl Opened {
    pub(super) fn new(held: OwnedFid, iounit: u32) -> Opened {
        Opened { held, iounit }
    }

    /// The most bytes of a read or write.
    pub(super) fn max_io(&self) -> usize {
        let payload = self.held.session.connection.payload();
        match self.iounit {
            0 => payload as usize,
            iounit => iounit.min(payload) as usize,
        }
    }
}

/// A connection, and the properties of its server learned so far.
pub(super) struct Session {
    pub(super) connection: Arc<Connection>,
    /// Whether requests may be sent that depend on an earlier one without a reply. Cleared when the
    /// server turns out to process such requests out of order.
    in_order: AtomicBool,
    /// Whether requesting open file descriptors makes sense.
    pub(super) fd_passing: FdPassing,
    /// The fids of nodes.
    pub(super) held_fids: HeldFids,
    /// Held during writes to files open for reading and appending.
    pub(super) appending: Mutex<()>,
}

impl Session {
    pub(super) fn new(connection: Arc<Connection>) -> Arc<Session> {
        Arc::new(Session {
            in_order: AtomicBool::new(connection.dialect() == Dialect::Linux),
            fd_passing: FdPassing::new(connection.fd_passing()),
            held_fids: HeldFids::default(),
            appending: Mutex::new(()),
            connection,
        })
    }

    pub(super) fn dialect(&self) -> Dialect {
        self.connection.dialect()
    }

    pub(super) fn is_linux(&self) -> bool {
        self.dialect() == Dialect::Linux
    }

    /// Sends one request and waits for its reply.
    pub(super) fn call(&self, cx: &Cx<'_>, request: &Tmessage<'_>) -> Result<Reply> {
        self.with_room(|| self.connection.call_in(cx, request))
    }

    /// Repeats `step`, which has no effect if it fails, after `EMFILE` and `ENFILE`: the server may
    /// have no more fids or descriptors, so idle fids are given up first.
    pub(super) fn with_room<T>(&self, mut step: impl FnMut() -> Result<T>) -> Result<T> {
        /// Enough to give up all of them, by halves.
        const TRIES: u32 = MAX_IDLE.ilog2() + 2;
        for _ in 0..TRIES {
            match step() {
                Err(Errno::EMFILE | Errno::ENFILE) if self.held_fids.give_up_half() => {}
                done => return done,
            }
        }
        step()
    }

    /// Gets the attributes of a fid.
    pub(super) fn attr(&self, cx: &Cx<'_>, fid: Fid) -> Result<Attr> {
        let reply = self.call(cx, &self.getattr_request(fid))?;
        self.parse_attr(&reply)
    }

    fn getattr_request(&self, fid: Fid) -> Tmessage<'static> {
        match self.dialect() {
            Dialect::Linux => Tmessage::Getattr {
                fid,
                mask: attr::REQUEST_MASK,
            },
            Dialect::Plan9 | Dialect::Unix => Tmessage::Stat { fid },
        }
    }

    fn parse_attr(&self, reply: &Reply) -> Result<Attr> {
        match reply.message()? {
            Rmessage::Stat { stat } => Ok(attr::of_stat(&stat, self.dialect())),
            getattr => attr::of_getattr(&getattr),
        }
    }

    /// Walks from `from` along `names`, at most [`Names::MAX`], to a new fid; without names, this
    /// clones the fid. Returns `ENOENT` if the walk ends early.
    pub(super) fn walk(
        self: &Arc<Self>,
        cx: &Cx<'_>,
        from: Fid,
        names: &[&[u8]],
    ) -> Result<(OwnedFid, Option<Qid>)> {
        self.with_room(|| Walk::begin(self, cx, from, names)?.end(cx))
    }

    /// Walks, and gets the attributes of the new fid.
    pub(super) fn walk_getattr(
        self: &Arc<Self>,
        cx: &Cx<'_>,
        from: Fid,
        names: &[&[u8]],
    ) -> Result<(OwnedFid, Attr)> {
        self.with_room(|| {
            let find = WalkGetattr::begin(self, cx, from, names)?;
            find.walked(cx)?.end(cx)
        })
    }

    /// Returns whether the server accepts requests that depend on unanswered ones.
    pub(super) fn is_in_order(&self) -> bool {
        self.in_order.load(Ordering::Relaxed)
    }

    /// Sends a request that depends on an unanswered one, if the server accepts that.
    pub(super) fn pipelined(&self, request: &Tmessage<'_>) -> Option<Ticket<'_>> {
        if !self.is_in_order() {
            return None;
        }
        self.connection.submit(request).ok()
    }

    /// Waits for the reply to an early request that depends on one that has failed. The failed
    /// request is repeated, perhaps with the same fid, for which the early one must not be carried
    /// out then.
    pub(super) fn settle_pipelined(&self, cx: &Cx<'_>, early: Option<Ticket<'_>>) {
        if let Some(early) = early {
            // It fails, as it has no fid.
            let _ = self.connection.wait_in(cx, early);
        }
    }

    /// Waits for the reply to an early request. If the server refused it, sends it again: the
    /// request it depends on has succeeded by now.
    pub(super) fn await_pipelined(
        &self,
        cx: &Cx<'_>,
        early: Option<Ticket<'_>>,
        request: &Tmessage<'_>,
    ) -> Result<Reply> {
        let Some(early) = early else {
            return self.call(cx, request);
        };
        if let Ok(reply) = self.connection.wait_in(cx, early) {
            return Ok(reply);
        }
        let again = self.call(cx, request)?;
        self.in_order.store(false, Ordering::Relaxed);
        Ok(again)
    }
}

/// A Twalk in flight.
pub(super) struct Walk<'a> {
    session: &'a Arc<Session>,
    pub(super) fid: Fid,
    names: usize,
    ticket: Ticket<'a>,
}

impl<'a> Walk<'a> {
    pub(super) fn begin(
        wire: &'a Arc<Session>,
        cx: &Cx<'_>,
        from: Fid,
        names: &[&[u8]],
    ) -> Result<Walk<'a>> {
        cx.check_may_block()?;
        cx.call.check_begin()?;
        let fid = wire.connection.fid()?;
        let walk = Tmessage::Walk {
            fid: from,
            newfid: fid,
            names: Names::new(names),
        };
        match wire.connection.submit(&walk) {
            Ok(ticket) => Ok(Walk {
                session: wire,
                fid,
                names: names.len(),
                ticket,
            }),
            Err(errno) => {
                wire.connection.forget(fid);
                Err(errno)
            }
        }
    }

    /// Waits for the reply, and returns the fid and the last name's qid.
    pub(super) fn end(self, cx: &Cx<'_>) -> Result<(OwnedFid, Option<Qid>)> {
        let Walk {
            session: wire,
            fid,
            names,
            ticket,
        } = self;
        // A cancelled walk should leave no fid, but not every server ensures that: the number is
        // not reused.
        let reply = wire.connection.wait_in(cx, ticket)?;
        let Rmessage::Walk { qids } = reply.message()? else {
            return Err(Errno::EIO);
        };
        if qids.len() < names {
            return Err(Errno::ENOENT);
        }
        let held = OwnedFid {
            session: wire.clone(),
            fid,
            clunk_at_once: false,
        };
        Ok((held, qids.iter().last()))
    }
}

/// A walk and, if the server accepts that, an attribute request for its new fid in flight.
pub(super) struct WalkGetattr<'a> {
    walk: Walk<'a>,
    pipelined: Option<Ticket<'a>>,
}

/// A [`WalkGetattr`] whose walk has succeeded.
pub(super) struct PendingGetattr<'a> {
    held: OwnedFid,
    qid: Option<Qid>,
    getattr: Ticket<'a>,
    was_pipelined: bool,
}

impl<'a> WalkGetattr<'a> {
    pub(super) fn begin(
        wire: &'a Arc<Session>,
        cx: &Cx<'_>,
        from: Fid,
        names: &[&[u8]],
    ) -> Result<WalkGetattr<'a>> {
        let walk = Walk::begin(wire, cx, from, names)?;
        let early = wire.pipelined(&wire.getattr_request(walk.fid));
        Ok(WalkGetattr {
            walk,
            pipelined: early,
        })
    }

    /// Waits for the reply to the walk.
    pub(super) fn walked(self, cx: &Cx<'_>) -> Result<PendingGetattr<'a>> {
        let wire = self.walk.session;
        let (held, qid) = self.walk.end(cx)?;
        let was_early = self.pipelined.is_some();
        let getattr = match self.pipelined {
            Some(early) => early,
            None => wire.connection.submit(&wire.getattr_request(held.fid))?,
        };
        Ok(PendingGetattr {
            held,
            qid,
            getattr,
            was_pipelined: was_early,
        })
    }
}

impl PendingGetattr<'_> {
    /// Waits for the attributes.
    ///
    /// A multi-threaded server may read the new fid during the walk and return the attributes of
    /// the walk's start (diod does). They are then requested again.
    pub(super) fn end(self, cx: &Cx<'_>) -> Result<(OwnedFid, Attr)> {
        let PendingGetattr {
            held,
            qid,
            getattr,
            was_pipelined: was_early,
        } = self;
        let wire = held.session.clone();
        let reply = match was_early {
            true => wire.await_pipelined(cx, Some(getattr), &wire.getattr_request(held.fid))?,
            false => wire.connection.wait_in(cx, getattr)?,
        };
        let mut attr = wire.parse_attr(&reply)?;
        if was_early && qid.is_some_and(|qid| attr::id_of(&qid) != attr.id) {
            wire.in_order.store(false, Ordering::Relaxed);
            attr = wire.attr(cx, held.fid)?;
        }
        Ok((held, attr))
    }
}

impl Session {
    /// Wraps a fid that was established other than by a walk.
    pub(super) fn own_fid(self: &Arc<Self>, fid: Fid) -> OwnedFid {
        OwnedFid {
            session: self.clone(),
            fid,
            clunk_at_once: false,
        }
    }
}
