//! Reading missing data from the source.

use std::ops::Range;
use std::sync::Arc;

use vfs::{Cx, File, Result};

use super::{Cached, Fetched, Job, ReadReservation, State};
use crate::pagecache::pages::Piece;
use crate::pagecache::payload::CacheSink;

impl Cached {
    /// Returns the data of `range`, which is within the file's size, or the first part that must be
    /// read.
    pub(in crate::pagecache) fn get(
        &self,
        range: Range<u64>,
    ) -> std::result::Result<Vec<Piece>, Range<u64>> {
        self.lock().pages.get(range)
    }

    /// Reads what is missing at the beginning of `range` through `file`, or waits for another
    /// caller that reads it.
    pub(in crate::pagecache) fn fetch(
        &self,
        file: &dyn File,
        cx: &Cx<'_>,
        range: Range<u64>,
    ) -> Result<Fetched> {
        let mut state = self.lock();
        let wanted = state.pages.first_missing(range.clone());
        let others = state.pages.is_being_read(&range);
        if others && wanted.start > range.start {
            drop(self.wait(state, cx)?);
            return Ok(Fetched::ByOthers);
        }
        if wanted.is_empty() {
            return Ok(Fetched::UpTo(range.end));
        }
        let reserved = self.reserve(&mut state, wanted);
        drop(state);
        let end = reserved.range.end;
        self.fill(file, cx, reserved)?;
        Ok(Fetched::UpTo(end))
    }

    /// Reads what is missing of `requested`, a random read in a file of `size` bytes, and the pages
    /// around it if that pays, through `file`; or waits for another caller that reads it.
    pub(in crate::pagecache) fn fetch_around(
        &self,
        file: &dyn File,
        cx: &Cx<'_>,
        requested: Range<u64>,
        size: u64,
    ) -> Result<Fetched> {
        let mut state = self.lock();
        if state.pages.is_being_read(&requested) {
            drop(self.wait(state, cx)?);
            return Ok(Fetched::ByOthers);
        }
        let window = state.pages.read_around_window(&requested, size);
        let reserved = ReadReservation {
            requested: Some(requested),
            ..self.reserve(&mut state, window)
        };
        drop(state);
        self.fill(file, cx, reserved).map(Fetched::UpTo)
    }

    fn reserve(&self, state: &mut State, range: Range<u64>) -> ReadReservation {
        state.pages.begin_read(range.clone());
        ReadReservation {
            range,
            requested: None,
            epoch: state.epoch,
            last_write_epoch: state.last_write_epoch,
        }
    }

    /// Starts jobs that read the missing parts of `range` through `file`. Readers of these parts
    /// wait for them.
    pub(in crate::pagecache) fn read_ahead(
        &self,
        file: &Arc<dyn File>,
        cx: &Cx<'_>,
        mut range: Range<u64>,
    ) {
        let Some(this) = self.this.upgrade() else {
            return;
        };
        let mut state = self.lock();
        while !range.is_empty() {
            let wanted = state.pages.first_missing(range.clone());
            range.start = wanted.end;
            if !wanted.is_empty() {
                let memory = &self.core.memory;
                memory.begin_read_ahead(wanted.end - wanted.start);
                let reserved = self.reserve(&mut state, wanted);
                let job = Job::Read(this.clone(), file.clone(), cx.caller.clone(), reserved);
                self.core.workers.run(job);
            }
        }
    }

    /// Does [`Job::Read`].
    pub(in crate::pagecache) fn fill_ahead(
        &self,
        file: &dyn File,
        cx: &Cx<'_>,
        reserved: ReadReservation,
    ) {
        let bytes = reserved.range.end - reserved.range.start;
        // The caller that needs the data reads it again, and meets the error.
        let _ = self.fill(file, cx, reserved);
        self.core.memory.end_read_ahead(bytes);
    }

    /// Reads a reserved range through `file`. Returns the offset up to which data was read.
    pub(in crate::pagecache) fn fill(
        &self,
        file: &dyn File,
        cx: &Cx<'_>,
        reserved: ReadReservation,
    ) -> Result<u64> {
        let ReadReservation {
            range,
            requested,
            epoch,
            last_write_epoch: landed,
        } = reserved;
        let mut filling = CacheSink::new(self, epoch, range.clone(), requested);
        let len = (range.end - range.start) as usize;
        let done = file.read(cx, range.start, len, &mut filling);
        let mut state = self.lock();
        state.pages.end_read(&range);
        if let Ok(got) = done {
            let end = range.start + got as u64;
            if end < range.end && (state.epoch, state.last_write_epoch) == (epoch, landed) {
                state.record_end(end, range.end);
            }
        }
        drop(state);
        self.changed.notify_all();
        done.map(|got| range.start + got as u64)
    }
}
