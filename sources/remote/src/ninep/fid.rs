//! Fids as values, and the exchanges that operations consist of.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use p9::client::attr;
use p9::{Dialect, Fid, Names, Qid, Rmessage, Tmessage};
use parking_lot::Mutex;
use vfs::{Attr, Cx, Errno, Result};

use super::handed::Hands;
use super::pipe::{Pipe, Reply, Ticket};

/// A fid that the server knows. Dropping it clunks it, without waiting for the reply.
pub(super) struct Held {
    pub(super) wire: Arc<Wire>,
    pub(super) fid: Fid,
    /// Whether to send the clunk at once: an open file may hold space or locks.
    soon: bool,
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.fid != Fid::NONE {
            self.wire.pipe.clunk(self.fid, self.soon);
        }
    }
}

impl Held {
    /// Marks the fid as open.
    pub(super) fn opened(mut self) -> Held {
        self.soon = true;
        self
    }

    /// Clunks the fid and waits for the reply. The wait cannot be cancelled, which would leave the
    /// result of the clunk unknown.
    pub(super) fn clunk(self) -> Result<()> {
        let (wire, fid) = self.into_parts();
        wire.pipe.call(&Tmessage::Clunk { fid }).map(drop)
    }

    /// Removes the file. The server clunks the fid even if that fails.
    pub(super) fn remove(self) -> Result<()> {
        let (wire, fid) = self.into_parts();
        wire.pipe.call(&Tmessage::Remove { fid }).map(drop)
    }

    /// Takes the fid, so that the drop does nothing.
    fn into_parts(mut self) -> (Arc<Wire>, Fid) {
        let fid = std::mem::replace(&mut self.fid, Fid::NONE);
        (self.wire.clone(), fid)
    }
}

/// A pipe, and the properties of its server learned so far.
pub(super) struct Wire {
    pub(super) pipe: Arc<Pipe>,
    /// Whether requests may be sent that depend on an earlier one without a reply. Cleared when the
    /// server turns out to process such requests out of order.
    in_order: AtomicBool,
    /// Whether requesting open file descriptors makes sense.
    pub(super) hands: Hands,
    /// Held during writes to files open for reading and appending.
    pub(super) appending: Mutex<()>,
}

impl Wire {
    pub(super) fn new(pipe: Arc<Pipe>) -> Arc<Wire> {
        Arc::new(Wire {
            in_order: AtomicBool::new(pipe.dialect() == Dialect::Linux),
            hands: Hands::new(pipe.takes_files()),
            appending: Mutex::new(()),
            pipe,
        })
    }

    pub(super) fn dialect(&self) -> Dialect {
        self.pipe.dialect()
    }

    pub(super) fn is_linux(&self) -> bool {
        self.dialect() == Dialect::Linux
    }

    /// Sends one request and waits for its reply.
    pub(super) fn call(&self, cx: &Cx<'_>, request: &Tmessage<'_>) -> Result<Reply> {
        self.pipe.call_in(cx, request)
    }

    /// Gets the attributes of a fid.
    pub(super) fn attr(&self, cx: &Cx<'_>, fid: Fid) -> Result<Attr> {
        let reply = self.call(cx, &self.ask_attr(fid))?;
        self.attr_in(&reply)
    }

    fn ask_attr(&self, fid: Fid) -> Tmessage<'static> {
        match self.dialect() {
            Dialect::Linux => Tmessage::Getattr {
                fid,
                mask: attr::ASKED,
            },
            Dialect::Plan9 | Dialect::Unix => Tmessage::Stat { fid },
        }
    }

    fn attr_in(&self, reply: &Reply) -> Result<Attr> {
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
    ) -> Result<(Held, Option<Qid>)> {
        let walk = Walk::begin(self, cx, from, names)?;
        walk.end(cx)
    }

    /// Walks, and gets the attributes of the new fid.
    pub(super) fn find(
        self: &Arc<Self>,
        cx: &Cx<'_>,
        from: Fid,
        names: &[&[u8]],
    ) -> Result<(Held, Attr)> {
        let find = Find::begin(self, cx, from, names)?;
        find.walked(cx)?.end(cx)
    }

    /// Returns whether the server accepts requests that depend on unanswered ones.
    pub(super) fn is_in_order(&self) -> bool {
        self.in_order.load(Ordering::Relaxed)
    }

    /// Sends a request that depends on an unanswered one, if the server accepts that.
    pub(super) fn early(&self, request: &Tmessage<'_>) -> Option<Ticket<'_>> {
        if !self.is_in_order() {
            return None;
        }
        self.pipe.submit(request).ok()
    }

    /// Waits for the reply to an early request. If the server refused it, sends it again: the
    /// request it depends on has succeeded by now.
    pub(super) fn late(
        &self,
        cx: &Cx<'_>,
        early: Option<Ticket<'_>>,
        request: &Tmessage<'_>,
    ) -> Result<Reply> {
        let Some(early) = early else {
            return self.call(cx, request);
        };
        if let Ok(reply) = self.pipe.wait_in(cx, early) {
            return Ok(reply);
        }
        let again = self.call(cx, request)?;
        self.in_order.store(false, Ordering::Relaxed);
        Ok(again)
    }
}

/// A Twalk in flight.
pub(super) struct Walk<'a> {
    wire: &'a Arc<Wire>,
    pub(super) fid: Fid,
    names: usize,
    ticket: Ticket<'a>,
}

impl<'a> Walk<'a> {
    pub(super) fn begin(
        wire: &'a Arc<Wire>,
        cx: &Cx<'_>,
        from: Fid,
        names: &[&[u8]],
    ) -> Result<Walk<'a>> {
        cx.may_wait()?;
        cx.call.check()?;
        let fid = wire.pipe.fid()?;
        let walk = Tmessage::Walk {
            fid: from,
            newfid: fid,
            names: Names::new(names),
        };
        match wire.pipe.submit(&walk) {
            Ok(ticket) => Ok(Walk {
                wire,
                fid,
                names: names.len(),
                ticket,
            }),
            Err(errno) => {
                wire.pipe.forget(fid);
                Err(errno)
            }
        }
    }

    /// Waits for the reply, and returns the fid and the last name's qid.
    pub(super) fn end(self, cx: &Cx<'_>) -> Result<(Held, Option<Qid>)> {
        let Walk {
            wire,
            fid,
            names,
            ticket,
        } = self;
        let reply = match wire.pipe.wait_in(cx, ticket) {
            Ok(reply) => reply,
            // A cancelled walk should leave no fid, but not every server ensures that: the number
            // is not reused.
            Err(Errno::EINTR) => return Err(Errno::EINTR),
            Err(errno) => {
                wire.pipe.forget(fid);
                return Err(errno);
            }
        };
        let Rmessage::Walk { qids } = reply.message()? else {
            return Err(Errno::EIO);
        };
        if qids.len() < names {
            wire.pipe.forget(fid);
            return Err(Errno::ENOENT);
        }
        let held = Held {
            wire: wire.clone(),
            fid,
            soon: false,
        };
        Ok((held, qids.iter().last()))
    }
}

/// A walk and, if the server accepts that, an attribute request for its new fid in flight.
pub(super) struct Find<'a> {
    walk: Walk<'a>,
    early: Option<Ticket<'a>>,
}

/// A [`Find`] whose walk has succeeded.
pub(super) struct Found<'a> {
    held: Held,
    qid: Option<Qid>,
    asked: Ticket<'a>,
    was_early: bool,
}

impl<'a> Find<'a> {
    pub(super) fn begin(
        wire: &'a Arc<Wire>,
        cx: &Cx<'_>,
        from: Fid,
        names: &[&[u8]],
    ) -> Result<Find<'a>> {
        let walk = Walk::begin(wire, cx, from, names)?;
        let early = wire.early(&wire.ask_attr(walk.fid));
        Ok(Find { walk, early })
    }

    /// Waits for the reply to the walk.
    pub(super) fn walked(self, cx: &Cx<'_>) -> Result<Found<'a>> {
        let wire = self.walk.wire;
        let (held, qid) = self.walk.end(cx)?;
        let was_early = self.early.is_some();
        let asked = match self.early {
            Some(early) => early,
            None => wire.pipe.submit(&wire.ask_attr(held.fid))?,
        };
        Ok(Found {
            held,
            qid,
            asked,
            was_early,
        })
    }
}

impl Found<'_> {
    /// Waits for the attributes.
    ///
    /// A multi-threaded server may read the new fid during the walk and return the attributes of
    /// the walk's start (diod does). They are then requested again.
    pub(super) fn end(self, cx: &Cx<'_>) -> Result<(Held, Attr)> {
        let Found {
            held,
            qid,
            asked,
            was_early,
        } = self;
        let wire = held.wire.clone();
        let reply = match was_early {
            true => wire.late(cx, Some(asked), &wire.ask_attr(held.fid))?,
            false => wire.pipe.wait_in(cx, asked)?,
        };
        let mut attr = wire.attr_in(&reply)?;
        if was_early && qid.is_some_and(|qid| attr::id_of(&qid) != attr.id) {
            wire.in_order.store(false, Ordering::Relaxed);
            attr = wire.attr(cx, held.fid)?;
        }
        Ok((held, attr))
    }
}

impl Wire {
    /// Wraps a fid that was established other than by a walk.
    pub(super) fn held(self: &Arc<Self>, fid: Fid) -> Held {
        Held {
            wire: self.clone(),
            fid,
            soon: false,
        }
    }
}
