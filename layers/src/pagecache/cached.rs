//! One file in the cache, shared by all who have it open: its contents, its size, what is to be written and by whom, and
//! what went wrong with that.
//!
//! Lock order: the state's mutex, never held across a call below; then those of memory and workers.

use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::task::{Wake, Waker};

use vfs::{Attr, Call, Caller, Cx, Errno, File, NodeId, Result, SetAttr, Want};

use super::core::Core;
use super::pages::{BLOCK, Pages, Piece, Run};
use super::payload::{Filling, Pieces};
use super::workers::Job;

/// A file that somebody has open, or of which there is something in the cache.
pub(super) struct Cached {
    this: Weak<Cached>,
    pub(super) id: NodeId,
    pub(super) core: Arc<Core>,
    state: Mutex<State>,
    changed: Condvar,
}

pub(super) struct State {
    pub(super) pages: Pages,
    /// Its size for those who have it open; nothing if it has to be asked for.
    pub(super) size: Option<u64>,
    /// The change counter that the contents are of; nothing once they were written here, for then it says nothing of what others do.
    change: Option<u64>,
    generation: u64,
    /// Moves when contents were forgotten or changed past the cache: what is on its way from below is of before.
    pub(super) epoch: u64,
    /// When last a write was sent or came back, by [`Core::landings`].
    pub(super) landed: u64,
    /// By what and on whose behalf it is written: whoever wrote last.
    writer: Option<Arc<Writer>>,
    pub(super) errors: Errors,
    /// Somebody changes it below meanwhile: writes wait.
    pub(super) exclusive: bool,
    /// All that there is to be written is, not only what fills a message.
    urgent: bool,
    /// Where the last message that was written ended: the next goes on there, as an elevator.
    hand: u64,
    /// Where there is enough for a whole message.
    full: Vec<u64>,
    /// How many workers were asked to write it.
    writers: usize,
    pub(super) opens: usize,
    /// It is on the list of files that have something to be written; at the last tick it was.
    listed: bool,
    old: bool,
}

/// What came of [`Cached::fetch`].
pub(super) enum Fetched {
    /// All up to there was read, or was here.
    UpTo(u64),
    /// Others read it, and have done some more of it.
    ByOthers,
}

/// A part of a file that one reads, and when he began, by [`State`]'s words.
pub(super) struct Reserved {
    range: Range<u64>,
    epoch: u64,
    landed: u64,
}

struct Writer {
    file: Arc<dyn File>,
    caller: Caller,
}

/// What went wrong in writing behind, as Linux counts it (`lib/errseq.c`): each who has the file open is told once of each
/// time; what nobody was told of is told to whoever opens it next.
pub(super) struct Errors {
    count: u64,
    last: Errno,
    told: bool,
}

impl Errors {
    /// From where one who opens the file counts.
    pub(super) fn sample(&self) -> u64 {
        match self.told {
            true => self.count,
            false => self.count - 1,
        }
    }

    /// Tells one who has seen those up to `seen`.
    pub(super) fn check(&mut self, seen: &mut u64) -> Result<()> {
        if self.count == *seen {
            return Ok(());
        }
        *seen = self.count;
        self.told = true;
        Err(self.last)
    }

    fn note(&mut self, errno: Errno) {
        self.count += 1;
        self.last = errno;
        self.told = false;
    }
}

/// Nobody writes the file while this is held, and nothing is to be written.
pub(super) struct Exclusive<'a>(&'a Cached);

impl Drop for Exclusive<'_> {
    fn drop(&mut self) {
        self.0.lock().exclusive = false;
        self.0.changed.notify_all();
    }
}

/// Whoever waits looks whether it was cancelled.
impl Wake for Cached {
    fn wake(self: Arc<Self>) {
        let _state = self.lock();
        self.changed.notify_all();
    }
}

impl Cached {
    /// Bytes of a message of write-behind; a source of smaller ones cuts it, and has the parts under way at once.
    pub(super) const MESSAGE: u64 = 1 << 20;

    pub(super) fn new(core: Arc<Core>, id: NodeId, attr: &Attr) -> Arc<Cached> {
        Arc::new_cyclic(|this: &Weak<Cached>| Cached {
            this: this.clone(),
            id,
            state: Mutex::new(State {
                pages: Pages::new(core.memory.clone(), this.clone()),
                size: Some(attr.size),
                change: Some(attr.change),
                generation: attr.generation,
                epoch: 0,
                landed: 0,
                writer: None,
                errors: Errors {
                    count: 0,
                    last: Errno::EIO,
                    told: true,
                },
                exclusive: false,
                urgent: false,
                hand: 0,
                full: Vec::new(),
                writers: 0,
                opens: 0,
                listed: false,
                old: false,
            }),
            changed: Condvar::new(),
            core,
        })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic holds it")
    }

    pub(super) fn changed(&self) {
        self.changed.notify_all();
    }

    /// Waits for a change of the state; `EINTR` once cancelled.
    pub(super) fn wait<'a>(
        &self,
        state: MutexGuard<'a, State>,
        cx: &Cx<'_>,
    ) -> Result<MutexGuard<'a, State>> {
        cx.may_wait()?;
        cx.call.check()?;
        let state = self.changed.wait(state).expect("no panic holds it");
        cx.call.check()?;
        Ok(state)
    }

    /// Before the first [`Cached::wait`] of a call, and without the lock.
    pub(super) fn may_wait(&self, cx: &Cx<'_>) -> Result<()> {
        cx.may_wait()?;
        if let Some(this) = self.this.upgrade() {
            cx.call.wake_on_cancel(&Waker::from(this));
        }
        Ok(())
    }

    /// [`Pages::evict`]; without `again` only what is gone already counts.
    pub(super) fn evict(&self, number: u64, again: Option<bool>) -> bool {
        let pages = &mut self.lock().pages;
        match again {
            Some(again) => pages.evict(number, again),
            None => !pages.has(number),
        }
    }

    /// Whether it need not be known any more. It must be if somebody is still to be told of what was lost, which is only so
    /// if he let go of it without closing.
    pub(super) fn is_idle(&self) -> bool {
        let state = self.lock();
        let empty = state.pages.is_empty() && state.pages.is_clean();
        state.opens == 0 && empty && state.errors.told
    }

    /// It was opened when `attr` was so, asked for when [`Core::landings`] was `since`.
    pub(super) fn opened(&self, attr: &Attr, since: u64) {
        let mut state = self.lock();
        state.opens += 1;
        let sure = self.is_sure(&state, since);
        let same = state.change == Some(attr.change);
        if state.generation != attr.generation || !same {
            state.forget();
        }
        state.generation = attr.generation;
        if sure {
            state.change = Some(attr.change);
            state.resize(attr.size);
        }
    }

    /// Whether attributes that came are newer than all that was written here.
    fn is_sure(&self, state: &State, since: u64) -> bool {
        state.pages.is_clean() && !state.exclusive && state.landed <= since
    }

    /// Attributes have come, asked for when [`Core::landings`] was `since`: they say what others have done, or the
    /// size is ours.
    pub(super) fn meet(&self, attr: &mut Attr, since: u64) {
        let mut state = self.lock();
        if !self.is_sure(&state, since) {
            attr.size = attr.size.max(state.size.unwrap_or(0));
            return;
        }
        if state.change.is_some_and(|change| change != attr.change) {
            state.forget();
            state.change = Some(attr.change);
        }
        state.resize(attr.size);
    }

    /// Attributes that `ask` asks for. Times and space are those of what was written here, so it is sent first.
    pub(super) fn attr(
        &self,
        cx: &Cx<'_>,
        want: Want,
        ask: impl FnOnce() -> Result<Attr>,
    ) -> Result<Attr> {
        if want.intersects(Want::SIZE | Want::TIMES) {
            self.clean(cx)?;
        }
        let since = self.core.landings();
        let mut attr = ask()?;
        self.meet(&mut attr, since);
        Ok(attr)
    }

    /// Changes attributes by `change`, behind all that was written here.
    pub(super) fn setattr(
        &self,
        cx: &Cx<'_>,
        set: &SetAttr,
        change: impl FnOnce() -> Result<Attr>,
    ) -> Result<Attr> {
        let _exclusive = self.exclusive(cx)?;
        let attr = change()?;
        match set.size {
            Some(_) => self.cut(attr.size),
            None => self.lock().change = None,
        }
        Ok(attr)
    }

    /// Others may have changed it: what was read is read anew, and its size asked for.
    pub(super) fn doubt(&self) {
        let mut state = self.lock();
        state.forget();
        if state.pages.is_clean() {
            state.size = None;
        }
    }

    /// Its size, asked for by `file` if it is not known.
    pub(super) fn size(&self, file: &dyn File, cx: &Cx<'_>) -> Result<u64> {
        if let Some(size) = self.lock().size {
            return Ok(size);
        }
        cx.may_wait()?;
        let since = self.core.landings();
        let mut attr = file.attr(cx, Want::STAT)?;
        self.meet(&mut attr, since);
        let mut state = self.lock();
        Ok(*state.size.get_or_insert(attr.size))
    }

    /// Takes over `put`, which a program has written at `range` by `file`. Answers whether it took all.
    pub(super) fn write(
        &self,
        (file, cx): (&Arc<dyn File>, &Cx<'_>),
        range: Range<u64>,
        put: impl FnOnce(&mut Pages) -> Result<()>,
    ) -> Result<()> {
        /// So many stretches in one block are as many messages: they are sent before there are more.
        const SCATTERED: usize = 64;
        let mut state = self.lock();
        while state.exclusive
            || state.size.is_none()
            || state.pages.scattered(range.start) > SCATTERED
        {
            drop(state);
            self.may_wait(cx)?;
            self.size(&**file, cx)?;
            state = self.lock();
            if state.exclusive {
                drop(self.wait(state, cx)?);
            } else if state.pages.scattered(range.start) > SCATTERED {
                drop(state);
                self.clean(cx)?;
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
        if !std::mem::replace(&mut state.listed, true) {
            self.core.workers.watch(self.this.clone());
        }
        self.look_for_messages(&mut state, range);
        Ok(())
    }

    /// Has it written if there is a whole message now, or too much in all.
    fn look_for_messages(&self, state: &mut State, written: Range<u64>) {
        if self.core.memory.is_full_of_dirt() {
            self.hurry(state);
            return;
        }
        // Looked for where a block is complete, not for each write.
        let last = written.end - 1;
        if !written.end.is_multiple_of(BLOCK) && written.end - written.start < Cached::MESSAGE {
            return;
        }
        let Some(stretch) = state.pages.stretch(last, 2 * Cached::MESSAGE) else {
            return;
        };
        let mut whole = stretch.start.next_multiple_of(Cached::MESSAGE);
        while whole + Cached::MESSAGE <= stretch.end {
            if !state.full.contains(&whole) {
                state.full.push(whole);
                self.ask(state, 1);
            }
            whole += Cached::MESSAGE;
        }
    }

    /// Has all of it written.
    fn hurry(&self, state: &mut State) {
        if !std::mem::replace(&mut state.urgent, true) || state.writers == 0 {
            self.ask(state, self.core.depth);
        }
    }

    fn ask(&self, state: &mut State, more: usize) {
        if let Some(this) = self.this.upgrade() {
            for _ in 0..more.min(self.core.depth.saturating_sub(state.writers)) {
                state.writers += 1;
                self.core.workers.run(Job::Write(this.clone()));
            }
        }
    }

    /// All of it is to be written soon.
    pub(super) fn send_soon(&self) {
        let mut state = self.lock();
        if state.pages.has_dirty() {
            self.hurry(&mut state);
        }
    }

    /// Time has passed: whether it is to be written now; nothing if there is nothing to be written.
    pub(super) fn grows_old(&self) -> Option<bool> {
        let mut state = self.lock();
        if state.pages.is_clean() {
            (state.listed, state.old) = (false, false);
            return None;
        }
        let due = std::mem::replace(&mut state.old, true);
        if due {
            state.urgent = true;
            state.writers += 1;
        }
        Some(due)
    }

    /// A worker's part: writes as long as there is something to be written.
    pub(super) fn write_behind(&self) {
        let call = Call::detached();
        while let Some((run, writer)) = self.next_run(false) {
            // Its error is noted, and nothing cancels it.
            let _ = self.send(run, &writer, &Cx::new(&writer.caller, &call));
        }
    }

    /// What is to be written next: for whoever waits for it (`all`), or for a worker, which leaves if there is nothing.
    fn next_run(&self, all: bool) -> Option<(Run, Arc<Writer>)> {
        let mut state = self.lock();
        let state = &mut *state;
        let run = match all || state.urgent {
            true => state.pages.pick(state.hand, Cached::MESSAGE),
            false => loop {
                let Some(at) = state.full.pop() else {
                    break None;
                };
                let run = state.pages.pick_whole(at, Cached::MESSAGE);
                if run.is_some() {
                    break run;
                }
            },
        };
        let writer = state.writer.clone();
        let found = run.zip(writer);
        match &found {
            Some((run, _)) => {
                state.hand = run.range.end;
                state.landed = self.core.landed();
            }
            None => {
                if !state.pages.has_dirty() {
                    state.urgent = false;
                    state.full.clear();
                }
                if !all {
                    state.writers -= 1;
                }
            }
        }
        found
    }

    /// Writes `run`. What the source does not take is lost and the error noted; if the call is cancelled (`EINTR`) it is to be
    /// written again.
    fn send(&self, run: Run, writer: &Writer, cx: &Cx<'_>) -> Result<()> {
        let Run { range, pieces } = run;
        let len = range.end - range.start;
        let mut buffer = self.core.buffer();
        let done = writer
            .file
            .write(cx, range.start, &mut Pieces::new(&pieces, &mut buffer));
        self.core.give_back(buffer);
        drop(pieces);
        let cancelled = cx.call.check().is_err();
        let mut state = self.lock();
        state.landed = self.core.landed();
        let (written, error) = match done {
            Ok(0) => (0, Some(Errno::EIO)),
            Ok(count) => ((count as u64).min(len), None),
            Err(_) if cancelled => (0, None),
            Err(errno) => (0, Some(errno)),
        };
        state.pages.landed(&range, written, error.is_none());
        if let Some(errno) = error {
            tracing::warn!("{len} bytes that were written behind are lost: {errno}");
            state.errors.note(errno);
            // Whether it is as long as they made it is to be asked.
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

    /// Waits until nothing is to be written. Errors of that are noted; `EINTR` if the call is cancelled.
    pub(super) fn clean(&self, cx: &Cx<'_>) -> Result<()> {
        if self.lock().pages.is_clean() {
            return Ok(());
        }
        self.may_wait(cx)?;
        loop {
            let mut state = self.lock();
            if state.pages.is_clean() {
                return Ok(());
            }
            if state.pages.has_more_than(Cached::MESSAGE) {
                self.hurry(&mut state);
            }
            drop(state);
            if let Some((run, writer)) = self.next_run(true) {
                let caller = writer.caller.clone();
                self.send(run, &writer, &cx.on_behalf_of(&caller))?;
                continue;
            }
            let state = self.lock();
            if !state.pages.is_clean() {
                drop(self.wait(state, cx)?);
            }
        }
    }

    /// Has everything written, and nothing more until the answer is dropped.
    pub(super) fn exclusive(&self, cx: &Cx<'_>) -> Result<Exclusive<'_>> {
        self.may_wait(cx)?;
        let mut state = self.lock();
        while state.exclusive {
            state = self.wait(state, cx)?;
        }
        state.exclusive = true;
        drop(state);
        let exclusive = Exclusive(self);
        self.clean(cx)?;
        Ok(exclusive)
    }

    /// It was cut or extended to `size` below, while nobody wrote.
    pub(super) fn cut(&self, size: u64) {
        let mut state = self.lock();
        state.pages.cut(size);
        state.epoch += 1;
        state.landed = self.core.landed();
        state.change = None;
        state.size = Some(size);
    }

    /// Something was changed below past the cache: `range` is not what it was, and the size may not be.
    pub(super) fn overwritten(&self, range: Range<u64>, size: Option<u64>) {
        let mut state = self.lock();
        state.pages.remove(range.clone());
        if state.pages.is_fetched(&range) {
            state.epoch += 1;
        }
        state.landed = self.core.landed();
        state.change = None;
        state.size = size;
        drop(state);
        self.changed.notify_all();
    }

    /// `range` of it, which is within its size, or what of it is to be read first.
    pub(super) fn get(&self, range: Range<u64>) -> std::result::Result<Vec<Piece>, Range<u64>> {
        self.lock().pages.get(range)
    }

    /// Reads by `file` what is not here of the beginning of `range`, or waits for whoever does.
    pub(super) fn fetch(&self, file: &dyn File, cx: &Cx<'_>, range: Range<u64>) -> Result<Fetched> {
        let mut state = self.lock();
        let wanted = state.pages.wanted(range.clone());
        let others = state.pages.is_fetched(&range);
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

    fn reserve(&self, state: &mut State, range: Range<u64>) -> Reserved {
        state.pages.fetch(range.clone());
        Reserved {
            range,
            epoch: state.epoch,
            landed: state.landed,
        }
    }

    /// Has workers read by `file` what is not here of `range` and nobody reads yet. Whoever wants it meanwhile waits for them.
    pub(super) fn read_ahead(&self, file: &Arc<dyn File>, cx: &Cx<'_>, mut range: Range<u64>) {
        let Some(this) = self.this.upgrade() else {
            return;
        };
        let mut state = self.lock();
        while !range.is_empty() {
            let wanted = state.pages.wanted(range.clone());
            range.start = wanted.end;
            if !wanted.is_empty() {
                let reserved = self.reserve(&mut state, wanted);
                let job = Job::Read(this.clone(), file.clone(), cx.caller.clone(), reserved);
                self.core.workers.run(job);
            }
        }
    }

    /// Reads by `file` what is reserved for that.
    pub(super) fn fill(&self, file: &dyn File, cx: &Cx<'_>, reserved: Reserved) -> Result<()> {
        let Reserved {
            range,
            epoch,
            landed,
        } = reserved;
        let mut filling = Filling::new(self, epoch, range.clone());
        let len = (range.end - range.start) as usize;
        let done = file.read(cx, range.start, len, &mut filling);
        let mut state = self.lock();
        state.pages.fetched(&range);
        if let Ok(got) = done {
            let end = range.start + got as u64;
            if end < range.end && (state.epoch, state.landed) == (epoch, landed) {
                state.ends_at(end, range.end);
            }
        }
        drop(state);
        self.changed.notify_all();
        done.map(drop)
    }
}

impl State {
    /// Forgets what was read.
    pub(super) fn forget(&mut self) {
        self.pages.forget_clean();
        self.epoch += 1;
    }

    fn resize(&mut self, size: u64) {
        if self.size.is_some_and(|old| size < old) {
            self.pages.cut(size);
        }
        self.size = Some(size);
    }

    /// The source has nothing from `end` on, where it was asked for up to `to`: what is there was written here and has not
    /// arrived, or somebody else has cut the file.
    fn ends_at(&mut self, end: u64, to: u64) {
        if self.pages.unwritten_from(end) {
            self.pages.fill(end..to, None);
        } else {
            self.resize(end);
        }
    }
}
