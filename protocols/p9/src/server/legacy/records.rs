//! Tread of a directory: its entries as whole stat records, read from front to back (read(5)).

use std::sync::Arc;

use vfs::{DirEntry, DirSink, Entry, Errno, ReaddirMode, Result};

use crate::message::DATA_HEAD;
use crate::server::fid::{DirPosition, FidState, Open};
use crate::server::request::RequestContext;
use crate::{Dialect, Kind};

impl RequestContext<'_> {
    pub(in crate::server) fn read_records(
        &mut self,
        fid: &FidState,
        open: &Arc<Open>,
        offset: u64,
        count: u32,
    ) -> Result<()> {
        if self.dialect == Dialect::Linux {
            return Err(Errno::EISDIR);
        }
        let mut records = open.records.lock();
        let mut cookie = match offset {
            0 => 0,
            _ if offset == records.offset => records.cookie,
            _ => return Err(Errno::EINVAL),
        };
        let end = DATA_HEAD + self.reply_room(count);
        self.begin_data(Kind::Read);
        let done = self.put_records(fid, open, &mut cookie, end);
        let len = self.out.len() - DATA_HEAD;
        match done {
            // Records before an error are returned; the next Tread returns the error.
            Err(errno) if len == 0 || errno.is_signal() => return Err(errno),
            _ => {}
        }
        *records = DirPosition {
            offset: offset + len as u64,
            cookie,
        };
        self.end_data(Kind::Read)
    }

    /// Writes records until `end`, and sets `cookie` to the position after the last.
    fn put_records(
        &mut self,
        fid: &FidState,
        open: &Open,
        cookie: &mut u64,
        end: usize,
    ) -> Result<()> {
        let cx = self.cx(&fid.attach().caller);
        loop {
            let mut batch = Batch(Vec::new());
            open.file
                .readdir(&cx, *cookie, ReaddirMode::Entries, &mut batch)?;
            let whole = batch.0.len() < Batch::MAX_ENTRIES;
            for found in batch.0 {
                let Some(Entry { node, attr }) = found.entry else {
                    *cookie = found.cookie;
                    continue;
                };
                let record = self.record(&cx, &*node, &attr, &found.name)?;
                if record.len() > end - self.out.len() {
                    // An empty reply would mean the end of the directory.
                    let empty = self.out.len() == DATA_HEAD;
                    return if empty { Err(Errno::EINVAL) } else { Ok(()) };
                }
                self.out.bytes(&record);
                *cookie = found.cookie;
            }
            if whole {
                return Ok(());
            }
        }
    }
}

/// Some entries, processed after the source's call, which may hold locks meanwhile.
struct Batch(Vec<BatchEntry>);

struct BatchEntry {
    name: Vec<u8>,
    cookie: u64,
    entry: Option<Entry>,
}

impl Batch {
    /// About as many as fill 8 KiB, which Plan 9 requests at once.
    const MAX_ENTRIES: usize = 100;
}

impl DirSink for Batch {
    fn entry(&mut self, entry: DirEntry<'_>) -> bool {
        if self.0.len() == Batch::MAX_ENTRIES {
            return false;
        }
        self.0.push(BatchEntry {
            name: entry.name.to_vec(),
            cookie: entry.cookie,
            entry: entry.entry,
        });
        true
    }
}
