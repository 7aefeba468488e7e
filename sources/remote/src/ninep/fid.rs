//! Fids as values, and the exchanges that every operation is made of.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use p9::client::attr;
use p9::{Dialect, Fid, Names, Qid, Rmessage, Tmessage};
use vfs::{Attr, Cx, Errno, Result};

use super::handed::Hands;
use super::pipe::{Pipe, Reply, Ticket};

/// A fid that the server knows. Dropping it gives it up, without waiting for the server's answer.
pub(super) struct Held {
    pub(super) wire: Arc<Wire>,
    pub(super) fid: Fid,
    /// Whether the server shall be told at once: an open file may hold space, or locks.
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
    /// It is open from now on.
    pub(super) fn opened(mut self) -> Held {
        self.soon = true;
        self
    }

    /// Gives it up and waits for the server's answer. Nothing cancels that: what it ends would be in doubt.
    pub(super) fn clunk(self) -> Result<()> {
        let (wire, fid) = self.into_parts();
        wire.pipe.call(&Tmessage::Clunk { fid }).map(drop)
    }

    /// Removes what it points at; it is gone afterwards in any case.
    pub(super) fn remove(self) -> Result<()> {
        let (wire, fid) = self.into_parts();
        wire.pipe.call(&Tmessage::Remove { fid }).map(drop)
    }

    /// Its drop does nothing any more.
    fn into_parts(mut self) -> (Arc<Wire>, Fid) {
        let fid = std::mem::replace(&mut self.fid, Fid::NONE);
        (self.wire.clone(), fid)
    }
}

/// A pipe, and what has been learned of the server behind it.
pub(super) struct Wire {
    pub(super) pipe: Arc<Pipe>,
    /// Whether requests may be sent that build on one before them whose reply has not come. A server
    /// that takes them up out of order refuses them, and is not tried again.
    in_order: AtomicBool,
    /// Whether open files are worth being asked for.
    pub(super) hands: Hands,
    /// Held by writes of files that are open for reading and appending.
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

    /// One request and its reply.
    pub(super) fn call(&self, cx: &Cx<'_>, request: &Tmessage<'_>) -> Result<Reply> {
        self.pipe.call_in(cx, request)
    }

    /// Attributes of what a fid points at.
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

    /// Walks from `from` by `names`, at most [`Names::MAX`], to a new fid; without names, that is another for
    /// the same. `ENOENT` if the server does not get there.
    pub(super) fn walk(
        self: &Arc<Self>,
        cx: &Cx<'_>,
        from: Fid,
        names: &[&[u8]],
    ) -> Result<(Held, Option<Qid>)> {
        let walk = Walk::begin(self, cx, from, names)?;
        walk.end(cx)
    }

    /// Walks, and asks for the attributes of what is found there.
    pub(super) fn find(
        self: &Arc<Self>,
        cx: &Cx<'_>,
        from: Fid,
        names: &[&[u8]],
    ) -> Result<(Held, Attr)> {
        let find = Find::begin(self, cx, from, names)?;
        find.walked(cx)?.end(cx)
    }

    /// Whether the server takes what builds on requests that are not answered.
    pub(super) fn is_in_order(&self) -> bool {
        self.in_order.load(Ordering::Relaxed)
    }

    /// Sends what builds on a request before it, if the server takes that.
    pub(super) fn early(&self, request: &Tmessage<'_>) -> Option<Ticket<'_>> {
        if !self.is_in_order() {
            return None;
        }
        self.pipe.submit(request).ok()
    }

    /// The reply to what was sent early. What it builds on has succeeded by now, so if it was refused it
    /// is sent again.
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

    /// Waits for its end: the fid, and the last name's qid.
    pub(super) fn end(self, cx: &Cx<'_>) -> Result<(Held, Option<Qid>)> {
        let Walk {
            wire,
            fid,
            names,
            ticket,
        } = self;
        let reply = match wire.pipe.wait_in(cx, ticket) {
            Ok(reply) => reply,
            // A cancelled walk should be as if it had never been asked for, but not every server is so
            // strict: the number is not used again.
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

/// A walk in flight, and the request for the attributes of what it leads to, in the same flight if
/// the server takes that.
pub(super) struct Find<'a> {
    walk: Walk<'a>,
    early: Option<Ticket<'a>>,
}

/// A [`Find`] that has got there.
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

    /// Waits for the end of the walk.
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
    /// A server of several threads may look at the new fid while it walks, and tell the attributes of where that began (diod
    /// does): they are asked for again then.
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
    /// A fid that was established by other means than a walk.
    pub(super) fn held(self: &Arc<Self>, fid: Fid) -> Held {
        Held {
            wire: self.clone(),
            fid,
            soon: false,
        }
    }
}
