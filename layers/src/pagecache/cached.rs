//! One file in the cache, shared by all who have it open: its contents, its size, what is to be written and by whom, and
//! what went wrong with that.
//!
//! Lock order: the state's mutex, never held across a call below; then those of memory and workers.

mod behind;
mod fetch;

use std::ops::Range;
use std::sync::{Arc, Weak};
use std::task::{Wake, Waker};

use vfs::{Attr, Caller, Cx, Errno, File, NodeId, Result, SetAttr, Want};

use super::core::Core;
use super::memory::Held;
use super::pages::Pages;
use crate::sync::{Condvar, Mutex, MutexGuard};

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

/// What a file has to be known for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// Somebody has it open, or something of it is here.
    Needed,
    /// Somebody is still to be told of what was lost, which is only so if he let go of it without closing.
    Untold,
    /// Nothing.
    Idle,
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
    /// Which part of it a program has asked for, if it reads at random.
    asked: Option<Range<u64>>,
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

    pub(super) fn new(core: Arc<Core>, id: NodeId) -> Arc<Cached> {
        Arc::new_cyclic(|this: &Weak<Cached>| Cached {
            this: this.clone(),
            id,
            state: Mutex::new(State {
                pages: Pages::new(core.memory.clone(), this.clone()),
                size: None,
                change: None,
                generation: 0,
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
    pub(super) fn evict(&self, held: Held, again: Option<bool>) -> bool {
        let pages = &mut self.lock().pages;
        match again {
            Some(again) => pages.evict(held, again),
            None => !pages.has(held),
        }
    }

    /// What it has to be known for.
    pub(super) fn used(&self) -> Use {
        let state = self.lock();
        let empty = state.pages.is_empty() && state.pages.is_clean();
        match state.opens == 0 && empty {
            false => Use::Needed,
            true if state.errors.told => Use::Idle,
            true => Use::Untold,
        }
    }

    /// What nobody was told of, if nobody has it open; somebody is now, if that is to do (`told`).
    pub(super) fn owes(&self, told: bool) -> Result<()> {
        let mut state = self.lock();
        if state.opens > 0 || state.errors.told {
            return Ok(());
        }
        state.errors.told = told;
        Err(state.errors.last)
    }

    /// Something of it is lost, and nobody has it open any more.
    #[cfg(test)]
    pub(super) fn lose(&self) {
        let mut state = self.lock();
        state.errors.note(Errno::EIO);
        state.opens -= 1;
    }

    /// It was opened when `attr` was so, asked for when [`Core::landings`] was `since`.
    pub(super) fn opened(&self, attr: &Attr, since: u64) {
        let mut state = self.lock();
        state.opens += 1;
        state.pages.opened();
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

    /// It was opened, and what is known of it is true still.
    pub(super) fn joined(&self) {
        self.lock().opens += 1;
    }

    /// One who had it open has not any more. What was read is kept for who opens it later, if that is to be (`keep`).
    pub(super) fn closed(&self, keep: bool) {
        let mut state = self.lock();
        state.opens -= 1;
        if state.opens == 0 && !keep {
            state.forget();
            state.size = None;
        }
    }

    /// Whether attributes that came are newer than all that was written here.
    pub(super) fn is_sure(&self, state: &State, since: u64) -> bool {
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

    /// It was cut or extended to `size` below, while nobody wrote.
    pub(super) fn cut(&self, size: u64) {
        let mut state = self.lock();
        state.pages.cut(size);
        state.epoch += 1;
        state.landed = self.core.landed();
        state.change = None;
        state.size = Some(size);
    }

    /// Something was changed below past the cache: `range` is not what it was, and the size is what `size` makes of it.
    pub(super) fn overwritten(
        &self,
        range: Range<u64>,
        size: impl FnOnce(Option<u64>) -> Option<u64>,
    ) {
        let mut state = self.lock();
        state.pages.remove(range.clone());
        if state.pages.is_fetched(&range) {
            state.epoch += 1;
        }
        state.landed = self.core.landed();
        state.change = None;
        state.size = size(state.size);
        drop(state);
        self.changed.notify_all();
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
