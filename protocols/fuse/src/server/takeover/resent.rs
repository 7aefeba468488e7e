//! Requests that an earlier process has begun, and whose reply is not known: it was killed in the
//! middle. A system call is carried out or not, even then (a write may end early), so what the tree
//! shows decides. If it does not, the request fails with `EIO`.
//!
//! The client's kernel holds the directory's lock until it has the reply, so that no other program
//! of the mount can have changed the name meanwhile. Programs outside the mount can: an exclusive
//! create, for example, is taken for this request's own only if the object is of its kind and not
//! older than the request.

use std::ops::Range;
use std::sync::Arc;

use vfs::{
    Attr, AttrMask, Caller, Cx, Entry, Errno, File, Kind, Name, NewNode, Node, NodeId, OpenFlags,
    Patience, RenameFlags, Result,
};
use wire::payload::VecSink;

use super::super::RequestContext;
use super::super::handles::Open;

/// An observation is stored with this added, so that it is not 0.
const SHIFT: u64 = 1;

impl RequestContext<'_> {
    /// Returns a context for observations, with root's privileges.
    pub(super) fn observer(&self) -> Cx<'_> {
        Cx {
            patience: Patience::Full,
            ..self.cx.on_behalf_of(&Caller::ROOT)
        }
    }

    /// Returns whether an object with these attributes was made since the earlier attempt.
    fn is_new(&self, attr: &Attr, kind: Kind) -> bool {
        let made = attr.btime.unwrap_or(attr.ctime);
        let made = u64::try_from(made.sec).ok().and_then(|sec| {
            let nanos = sec.checked_mul(1_000_000_000)?;
            nanos.checked_add(made.nsec.into())
        });
        attr.kind == kind
            && (self.attempt).is_some_and(|attempt| made.is_some_and(|made| made >= attempt.since))
    }

    /// Returns the object `name` that this request has made before its reply was lost, or `EEXIST`.
    fn own_object(&self, dir: &dyn Node, name: Name<'_>, kind: Kind) -> Result<Entry> {
        if self.attempt.is_none() {
            return Err(Errno::EEXIST);
        }
        let cx = self.observer();
        let entry = dir.lookup(&cx, name)?;
        let attr = entry.node.attr(&cx, AttrMask::STAT | AttrMask::BTIME)?;
        match self.is_new(&attr, kind) {
            true => Ok(Entry { attr, ..entry }),
            false => Err(Errno::EEXIST),
        }
    }

    /// Opens the file that this CREATE has made before its reply was lost, or returns `EEXIST`.
    pub(in super::super) fn open_own(
        &self,
        dir: &dyn Node,
        name: Name<'_>,
        flags: OpenFlags,
    ) -> Result<(Entry, Arc<dyn File>)> {
        let entry = self.own_object(dir, name, Kind::File)?;
        let flags = flags - OpenFlags::EXCL - OpenFlags::TRUNC;
        let cx = match entry.attr.uid == self.cx.caller.uid {
            // The permissions of the new file do not apply to its creator's open file.
            true => self.observer(),
            // A program of the host may have made it.
            false => self.cx,
        };
        let file = entry.node.open(&cx, flags)?;
        Ok((entry, file))
    }

    /// Returns the object that this MKNOD, MKDIR or SYMLINK has made before its reply was lost, or
    /// `EEXIST`.
    pub(in super::super) fn own_entry(
        &self,
        dir: &dyn Node,
        name: Name<'_>,
        what: &NewNode<'_>,
    ) -> Result<Entry> {
        let entry = self.own_object(dir, name, what.kind())?;
        match what {
            NewNode::Symlink(target) if entry.node.readlink(&self.observer())? != *target => {
                Err(Errno::EEXIST)
            }
            _ => Ok(entry),
        }
    }

    /// Returns the link that this LINK has made before its reply was lost, or `EEXIST`.
    pub(in super::super) fn own_link(
        &self,
        dir: &dyn Node,
        name: Name<'_>,
        target: &dyn Node,
    ) -> Result<Entry> {
        if self.attempt.is_none() {
            return Err(Errno::EEXIST);
        }
        let entry = dir.lookup(&self.observer(), name)?;
        match entry.node.id() == target.id() {
            true => Ok(entry),
            false => Err(Errno::EEXIST),
        }
    }

    /// Returns whether this RENAME has been carried out before its reply was lost. Observes the
    /// object to be renamed if another one takes its name.
    pub(in super::super) fn is_renamed(
        &self,
        (from, name): (&dyn Node, Name<'_>),
        (to, newname): (&dyn Node, Name<'_>),
        flags: RenameFlags,
    ) -> Result<bool> {
        let Some((records, entry)) = self.journaled else {
            return Ok(false);
        };
        let id = |dir: &dyn Node, name| -> Result<Option<NodeId>> {
            match dir.lookup(&self.observer(), name) {
                Err(Errno::ENOENT) => Ok(None),
                found => Ok(Some(found?.node.id())),
            }
        };
        let replaced = flags.intersects(RenameFlags::EXCHANGE | RenameFlags::WHITEOUT);
        match self.attempt {
            None if replaced => {
                self.cx.check_may_block()?;
                if let Some(id) = id(from, name)? {
                    records.observe(entry, id.wrapping_add(SHIFT));
                }
                Ok(false)
            }
            None => Ok(false),
            // It was not observed, and so not carried out.
            Some(attempt) if replaced && attempt.observed == 0 => {
                if let Some(id) = id(from, name)? {
                    records.observe(entry, id.wrapping_add(SHIFT));
                }
                Ok(false)
            }
            Some(attempt) if replaced => {
                let observed = attempt.observed.wrapping_sub(SHIFT);
                Ok(id(from, name)? != Some(observed))
            }
            Some(_) => Ok(id(from, name)?.is_none() && id(to, newname)?.is_some()),
        }
    }

    /// Returns the size of an open file.
    fn size(&self, open: &Open) -> Result<u64> {
        Ok(open.file.attr(&self.observer(), AttrMask::STAT)?.size)
    }

    /// Observes the size of a file before a change that must not be made twice. Returns the size
    /// before and after an earlier attempt.
    fn observe_size(&self, open: &Open) -> Result<Option<(u64, u64)>> {
        let Some((records, entry)) = self.journaled else {
            return Ok(None);
        };
        let size = self.size(open)?;
        match self.attempt {
            Some(attempt) if attempt.observed != 0 => Ok(Some((attempt.observed - SHIFT, size))),
            // It was not observed, and so not carried out.
            _ => {
                records.observe(entry, size.saturating_add(SHIFT));
                Ok(None)
            }
        }
    }

    /// Returns how many bytes this WRITE at the end, whose data are the `range` of the message, has
    /// written before its reply was lost; `None` if it is to be carried out. Returns `EIO` if other
    /// data follow the old end: others have written meanwhile.
    pub(in super::super) fn appended(
        &self,
        open: &Open,
        range: Range<usize>,
    ) -> Result<Option<usize>> {
        let Some((before, now)) = self.observe_size(open)? else {
            return Ok(None);
        };
        let mut data = Vec::new();
        self.message.payload(range, &mut |payload| {
            payload.bytes(&mut |bytes| {
                data.extend_from_slice(bytes);
                Ok(())
            })?;
            Ok(0)
        })?;
        let written = match now.checked_sub(before) {
            Some(0) => return Ok(None),
            Some(more) => usize::try_from(more).unwrap_or(usize::MAX).min(data.len()),
            None => return Err(Errno::EIO),
        };
        let cx = self.observer();
        let mut found = VecSink::new(written);
        let file = open.node().open(&cx, OpenFlags::READ)?;
        while found.filled().len() < written {
            let at = found.filled().len();
            if file.read(&cx, before + at as u64, written - at, &mut found)? == 0 {
                return Err(Errno::EIO);
            }
        }
        match *found.filled() == data[..written] {
            true => Ok(Some(written)),
            false => Err(Errno::EIO),
        }
    }

    /// Returns whether this FALLOCATE has moved the file's end before its reply was lost.
    pub(in super::super) fn is_moved(&self, open: &Open) -> Result<bool> {
        Ok(self
            .observe_size(open)?
            .is_some_and(|(before, now)| before != now))
    }
}
