//! READDIR, READDIRPLUS.
//!
//! Cookies are the source's, so the verifier is always zero: if a source cannot promise that its
//! cookies outlive an open directory, continuing with one is still better than starting over.

use std::sync::Arc;

use vfs::{AttrMask, Cx, DirEntry, DirSink, Errno, Node, OpenFlags, ReaddirMode};
use wire::{AFTER_DOT, AFTER_DOTS, Buffered, Outgoing, Xdr, cookie_of, offset_of, padding};

use super::StepResult;
use crate::server::{CallError, RequestContext, Server};
use crate::v3::{
    Attributes, Entry, EntryPlus, Handle, ReadDirArgs, ReadDirPlusArgs, Status, Verifier,
};

/// The arguments of a listing.
struct ListingRequest {
    dir: Handle,
    offset: u64,
    plus: ReaddirMode,
    /// The maximum length of the results in bytes, from the attributes on.
    most: usize,
    /// The maximum length of the names, file ids and cookies in it.
    names: usize,
}

impl RequestContext<'_> {
    pub(super) fn readdir(&mut self) -> Result<(), CallError> {
        let args: ReadDirArgs = self.decode()?;
        self.list(&ListingRequest {
            dir: args.dir,
            offset: args.cookie,
            plus: ReaddirMode::Names,
            most: args.count as usize,
            names: usize::MAX,
        })
    }

    pub(super) fn readdirplus(&mut self) -> Result<(), CallError> {
        let args: ReadDirPlusArgs = self.decode()?;
        self.list(&ListingRequest {
            dir: args.dir,
            offset: args.cookie,
            plus: ReaddirMode::Entries,
            most: args.max_count as usize,
            names: args.dir_count as usize,
        })
    }

    fn list(&mut self, wanted: &ListingRequest) -> Result<(), CallError> {
        let dir = self.directory(&wanted.dir);
        self.fill(dir, |request, dir| request.list_into_reply(dir, wanted))
    }

    fn list_into_reply(&mut self, node: &Arc<dyn Node>, wanted: &ListingRequest) -> StepResult<()> {
        let cx = self.cx();
        let dir = self.server.file(&cx, node, OpenFlags::READ)?;
        let attributes = Attributes::from(&dir.attr(&cx, AttrMask::STAT)?);
        {
            let head = &mut Buffered::new(self.reply.out);
            Status::Ok.put(head);
            Some(attributes).put(head);
            Verifier::default().put(head);
        }
        let begin = self.reply.out.len();
        let most = wanted.most.min(self.server.options.max_io as usize);
        let limit = most.saturating_sub(Entries::FIXED);
        let limit = limit.min(self.reply.out.room().saturating_sub(Entries::TAIL));
        let mut entries = Entries {
            cx: &cx,
            server: self.server,
            out: self.reply.out,
            plus: wanted.plus,
            end: begin + limit,
            names: wanted.names,
            full: false,
            failed: None,
        };
        entries.dots(node, wanted.offset)?;
        let mut done = Ok(());
        if !entries.full {
            let cookie = cookie_of(wanted.offset);
            done = dir.readdir(&cx, cookie, wanted.plus, &mut entries);
        }
        let (full, failed) = (entries.full, entries.failed);
        let empty = self.reply.out.len() == begin;
        match failed.map_or(done, Err) {
            // The entries before an error are returned; the error recurs for the rest.
            Err(errno) if empty || errno.is_signal() => return Err(errno.into()),
            Ok(()) if empty && full => return Err(Status::Toosmall.into()),
            done => {
                let tail = &mut Buffered::new(self.reply.out);
                false.put(tail);
                (done.is_ok() && !full).put(tail);
            }
        }
        Ok(())
    }
}

/// The entries of a listing, after the reply's header.
struct Entries<'a> {
    cx: &'a Cx<'a>,
    server: &'a Arc<Server>,
    out: &'a mut dyn Outgoing,
    plus: ReaddirMode,
    /// The length at which the last entry must end.
    end: usize,
    /// The bytes left for names, file ids and cookies.
    names: usize,
    /// Whether an entry did not fit.
    full: bool,
    /// The error of an entry that could not be read.
    failed: Option<Errno>,
}

impl Entries<'_> {
    /// After the last entry: the end of the list, and the end-of-directory flag.
    const TAIL: usize = 4 + 4;
    /// The results other than the entries: attributes, verifier and tail.
    const FIXED: usize = 4 + 84 + 8 + Entries::TAIL;

    /// Adds `.` and `..` if `offset` precedes them.
    fn dots(&mut self, dir: &Arc<dyn Node>, offset: u64) -> StepResult<()> {
        if offset == 0 {
            let attr = dir.attr(self.cx, AttrMask::STAT)?;
            let node = dir.clone();
            self.dot(b".", AFTER_DOT, vfs::Entry { node, attr })?;
        }
        if (offset == 0 || offset == AFTER_DOT) && !self.full {
            let parent = match dir.parent(self.cx) {
                Ok(parent) => parent,
                Err(errno) if errno.is_signal() => return Err(errno.into()),
                // Removed, or not accessible: the directory itself serves as its parent.
                Err(_) => vfs::Entry {
                    node: dir.clone(),
                    attr: dir.attr(self.cx, AttrMask::STAT)?,
                },
            };
            self.dot(b"..", AFTER_DOTS, parent)?;
        }
        Ok(())
    }

    fn dot(&mut self, name: &[u8], cookie: u64, of: vfs::Entry) -> StepResult<()> {
        let entry = Entry {
            fileid: of.attr.id,
            name,
            cookie,
        };
        self.put(entry, Some(of));
        self.failed.map_or(Ok(()), |errno| Err(errno.into()))
    }

    fn put(&mut self, entry: Entry<'_>, of: Option<vfs::Entry>) -> bool {
        let names = 4 + 8 + 4 + entry.name.len() + padding(entry.name.len()) + 8;
        let remaining = self.end.saturating_sub(self.out.len());
        if self.full || names > self.names || names > remaining {
            self.full = true;
            return false;
        }
        if self.plus == ReaddirMode::Names {
            Some(entry).put(&mut Buffered::new(self.out));
            self.names -= names;
            return true;
        }
        let attributes = of.as_ref().map(|of| Attributes::from(&of.attr));
        let object = match of.map(|of| self.server.handle(self.cx, &of.node)) {
            None => None,
            Some(Ok(handle)) => Handle::new(&handle.bytes()),
            Some(Err(errno)) if errno.is_signal() => {
                self.failed = Some(errno);
                return false;
            }
            Some(Err(_)) => None,
        };
        let handle = object.map_or(0, |object| {
            4 + object.bytes().len() + padding(object.bytes().len())
        });
        let all = names + 4 + attributes.map_or(0, |_| 84) + 4 + handle;
        if all > remaining {
            self.full = true;
            return false;
        }
        let plus = EntryPlus {
            entry,
            attributes,
            object,
        };
        Some(plus).put(&mut Buffered::new(self.out));
        self.names -= names;
        true
    }
}

impl DirSink for Entries<'_> {
    fn entry(&mut self, entry: DirEntry<'_>) -> bool {
        let listed = Entry {
            fileid: entry.id,
            name: entry.name,
            cookie: offset_of(entry.cookie),
        };
        self.put(listed, entry.entry)
    }
}
