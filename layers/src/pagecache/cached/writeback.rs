//! Write-back: its triggers, the order of writes, and their results.

use std::ops::Range;
use std::sync::Arc;

use vfs::{Call, Cx, Errno, File, Result};

use super::{Cached, Exclusive, Job, State, Writer};
use crate::pagecache::pages::Pages;
use crate::pagecache::pages::dirty::DirtyRun;
use crate::pagecache::payload::join;
use crate::pagecache::units::BLOCK;

impl Cached {
    /// Stores data that a program writes at `range` through `file`, with `put`.
    pub(in crate::pagecache) fn write(
        &self,
        (file, cx): (&Arc<dyn File>, &Cx<'_>),
        range: Range<u64>,
        put: impl FnOnce(&mut Pages) -> Result<()>,
    ) -> Result<()> {
        /// The maximum number of dirty runs in a block, each of which takes a message: more are
        /// written first.
        const SCATTERED: usize = 64;
        let mut state = self.lock();
        while state.exclusive
            || state.size.is_none()
            || state.pages.dirty_runs(range.start) > SCATTERED
        {
            drop(state);
            self.may_wait(cx)?;
            self.size(&**file, cx)?;
            state = self.lock();
            if state.exclusive {
                drop(self.wait(state, cx)?);
            } else if state.pages.dirty_runs(range.start) > SCATTERED {
                drop(state);
                self.flush(cx)?;
            } else {
                continue;
            }
            state = self.lock();
        }
        put(&mut state.pages)?;
        state.size = Some(state.size.unwrap_or(0).max(range.end));
        state.change = None;
        let same = state
            .writer
            .as_ref()
            .is_some_and(|writer| Arc::ptr_eq(&writer.file, file) && writer.caller == *cx.caller);
        if !same {
            state.writer = Some(Arc::new(Writer {
                file: file.clone(),
                caller: cx.caller.clone(),
            }));
        }
        if !std::mem::replace(&mut state.on_dirty_list, true) {
            self.core.workers.track_dirty(self.this.clone());
        }
        self.start_full_messages(&mut state, range);
        Ok(())
    }

    /// Starts write-back if a whole message is dirty now, or too much in all.
    fn start_full_messages(&self, state: &mut State, written: Range<u64>) {
        if self.core.memory.needs_writeback() {
            self.start_writeback(state);
            return;
        }
        // Checked when a block is complete, not after each write.
        let last = written.end - 1;
        if !written.end.is_multiple_of(BLOCK) && written.end - written.start < self.core.message {
            return;
        }
        let Some(stretch) = state.pages.dirty_run_at(last, 2 * self.core.message) else {
            return;
        };
        let mut whole = stretch.start.next_multiple_of(self.core.message);
        while whole + self.core.message <= stretch.end {
            if !state.full_messages.contains(&whole) {
                state.full_messages.push(whole);
                self.queue_writes(state, 1);
            }
            whole += self.core.message;
        }
    }

    /// Starts write-back of all dirty data.
    fn start_writeback(&self, state: &mut State) {
        if !std::mem::replace(&mut state.urgent, true) || state.writers == 0 {
            self.queue_writes(state, self.core.depth);
        }
    }

    fn queue_writes(&self, state: &mut State, more: usize) {
        if let Some(this) = self.this.upgrade() {
            for _ in 0..more.min(self.core.depth.saturating_sub(state.writers)) {
                state.writers += 1;
                self.core.workers.run(Job::Write(this.clone()));
            }
        }
    }

    /// Starts write-back of all dirty data, if there is any.
    pub(in crate::pagecache) fn request_writeback(&self) {
        let mut state = self.lock();
        if state.pages.has_dirty() {
            self.start_writeback(&mut state);
        }
    }

    /// Called at each tick. Returns whether to start write-back, `None` if there is no dirty data.
    pub(in crate::pagecache) fn check_age(&self) -> Option<bool> {
        let mut state = self.lock();
        if state.pages.is_clean() {
            (state.on_dirty_list, state.dirty_at_last_tick) = (false, false);
            return None;
        }
        let due = std::mem::replace(&mut state.dirty_at_last_tick, true);
        if due {
            state.urgent = true;
            state.writers += 1;
        }
        Some(due)
    }

    /// The job of a worker: writes until no more is due.
    pub(in crate::pagecache) fn write_back(&self) {
        let call = Call::detached();
        loop {
            let Some((run, writer)) = self.next_run(&mut self.lock(), false) else {
                return;
            };
            // The error is recorded, and nothing cancels the call.
            let _ = self.write_run(run, &writer, &Cx::new(&writer.caller, &call));
        }
    }

    /// Returns the next run to write: of all dirty data for a caller that waits (`all`), otherwise
    /// for a worker, which ends on `None`.
    fn next_run(&self, state: &mut State, all: bool) -> Option<(DirtyRun, Arc<Writer>)> {
        let run = match all || state.urgent {
            true => state
                .pages
                .take_run(state.write_position, self.core.message),
            false => loop {
                let Some(at) = state.full_messages.pop() else {
                    break None;
                };
                let run = state.pages.take_message(at, self.core.message);
                if run.is_some() {
                    break run;
                }
            },
        };
        let writer = state.writer.clone();
        let found = run.zip(writer);
        match &found {
            Some((run, _)) => {
                state.write_position = run.range.end;
                state.last_write_epoch = self.core.advance_write_epoch();
            }
            None => {
                if !state.pages.has_dirty() {
                    state.urgent = false;
                    state.full_messages.clear();
                }
                if !all {
                    state.writers -= 1;
                }
            }
        }
        found
    }

    /// Writes `run`. Data that the source rejects is lost and the error recorded; if the call is
    /// cancelled (`EINTR`), the data stays dirty.
    fn write_run(&self, run: DirtyRun, writer: &Writer, cx: &Cx<'_>) -> Result<()> {
        let DirtyRun { range, pieces } = run;
        let len = range.end - range.start;
        let mut buffer = self.core.buffer();
        let mut payload = join(&pieces, &mut buffer);
        let done = writer.file.write(cx, range.start, &mut payload);
        self.core.return_buffer(buffer);
        drop(pieces);
        let cancelled = cx.call.check().is_err();
        let mut state = self.lock();
        state.last_write_epoch = self.core.advance_write_epoch();
        let (written, error) = match done {
            Ok(0) => (0, Some(Errno::EIO)),
            Ok(count) => ((count as u64).min(len), None),
            Err(_) if cancelled => (0, None),
            Err(errno) => (0, Some(errno)),
        };
        state.pages.end_write(&range, written, error.is_none());
        if let Some(errno) = error {
            tracing::warn!("write-back failed, {len} bytes are lost: {errno}");
            state.errors.note(errno);
            // The size may not be the one that these writes gave the file.
            state.size = None;
        }
        if state.pages.is_clean() {
            state.writer = None;
            state.urgent = false;
        }
        drop(state);
        self.changed.notify_all();
        match cancelled && written < len {
            true => Err(Errno::EINTR),
            false => Ok(()),
        }
    }

    /// Waits until there is no dirty data. Write errors are recorded. Returns `EINTR` if the call
    /// is cancelled.
    pub(in crate::pagecache) fn flush(&self, cx: &Cx<'_>) -> Result<()> {
        if self.lock().pages.is_clean() {
            return Ok(());
        }
        self.may_wait(cx)?;
        loop {
            let mut state = self.lock();
            if state.pages.is_clean() {
                return Ok(());
            }
            if state.pages.has_more_than(self.core.message) {
                self.start_writeback(&mut state);
            }
            let Some((run, writer)) = self.next_run(&mut state, true) else {
                // Data that is dirty again while it is in flight must wait for the reply.
                drop(self.wait(state, cx)?);
                continue;
            };
            drop(state);
            let caller = writer.caller.clone();
            self.write_run(run, &writer, &cx.on_behalf_of(&caller))?;
        }
    }

    /// Writes all dirty data, and blocks writes until the guard is dropped.
    pub(in crate::pagecache) fn exclusive(&self, cx: &Cx<'_>) -> Result<Exclusive<'_>> {
        self.may_wait(cx)?;
        let mut state = self.lock();
        while state.exclusive {
            state = self.wait(state, cx)?;
        }
        state.exclusive = true;
        drop(state);
        let exclusive = Exclusive(self);
        self.flush(cx)?;
        Ok(exclusive)
    }
}
