//! The bounded table of contexts.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use vfs::{Caller, LogLimit};

use super::Context;
use super::window::Window;

/// An established context.
pub(super) struct GssContext {
    pub(super) number: u32,
    pub(super) principal: String,
    pub(super) caller: Option<Caller>,
    /// The time at which it expires.
    pub(super) expires: Duration,
    pub(super) context: Mutex<Box<dyn Context>>,
    pub(super) window: Mutex<Window>,
    /// The number of the latest use, counted over all contexts.
    used: AtomicU64,
}

impl GssContext {
    pub(super) fn new(
        number: u32,
        context: Box<dyn Context>,
        principal: super::Principal,
        now: Duration,
    ) -> GssContext {
        GssContext {
            number,
            principal: principal.name,
            caller: principal.caller,
            expires: now.saturating_add(principal.lifetime),
            context: Mutex::new(context),
            window: Mutex::new(Window::new()),
            used: AtomicU64::new(0),
        }
    }

    /// Locks the mechanism's context.
    pub(super) fn context(&self) -> MutexGuard<'_, Box<dyn Context>> {
        self.context.lock()
    }

    /// Records `sequence`; returns whether it is new.
    pub(super) fn admit(&self, sequence: u32) -> bool {
        let mut window = self.window.lock();
        window.admit(sequence)
    }
}

#[derive(Default)]
pub(super) struct Table {
    contexts: Mutex<Contexts>,
    uses: AtomicU64,
}

#[derive(Default)]
struct Contexts {
    established: HashMap<u32, Arc<GssContext>>,
    /// Contexts that wait for another token, with the time since when.
    pending: HashMap<u32, (Duration, Box<dyn Context>)>,
}

impl Table {
    /// The maximum number of contexts: for a few hundred clients with some users each. A context
    /// takes about a KiB.
    pub(super) const MAX_CONTEXTS: usize = 4096;

    /// The maximum number of contexts of one principal, so that none evicts those of others. A
    /// client creates one for each service, and whenever a ticket is renewed.
    pub(super) const MAX_OF_A_PRINCIPAL: usize = 256;

    /// The maximum number of contexts that wait for another token, in total. Kerberos needs no
    /// second token.
    pub(super) const MAX_PENDING: usize = 64;

    /// The time for which a context waits for another token.
    const PENDING_TIMEOUT: Duration = Duration::from_secs(60);

    fn contexts(&self) -> MutexGuard<'_, Contexts> {
        self.contexts.lock()
    }

    fn use_now(&self, context: &GssContext) {
        let use_ = self.uses.fetch_add(1, Ordering::Relaxed);
        context.used.store(use_, Ordering::Relaxed);
    }

    /// Returns the context with this number, if it has not expired.
    pub(super) fn find(&self, number: u32, now: Duration) -> Option<Arc<GssContext>> {
        let found = self.contexts().established.get(&number)?.clone();
        if found.expires <= now {
            return None;
        }
        self.use_now(&found);
        Some(found)
    }

    /// Adds a context. Evicts the least recently used one if there are too many.
    pub(super) fn add(&self, context: GssContext) -> Arc<GssContext> {
        let context = Arc::new(context);
        self.use_now(&context);
        let mut contexts = self.contexts();
        let of_one = |other: &GssContext| other.principal == context.principal;
        contexts.evict_if_full(Table::MAX_OF_A_PRINCIPAL, "of one principal", of_one);
        contexts.evict_if_full(Table::MAX_CONTEXTS, "of all", |_| true);
        contexts.established.insert(context.number, context.clone());
        context
    }

    /// Removes a context.
    pub(super) fn remove(&self, number: u32) {
        self.contexts().established.remove(&number);
    }

    /// Keeps a context that waits for another token.
    pub(super) fn add_pending(&self, number: u32, context: Box<dyn Context>, now: Duration) {
        let mut contexts = self.contexts();
        if contexts.pending.len() >= Table::MAX_PENDING {
            let oldest = contexts.pending.iter().min_by_key(|(_, (since, _))| *since);
            if let Some(oldest) = oldest.map(|(number, _)| *number) {
                tracing::debug!(
                    "{} incomplete contexts: dropping the oldest",
                    Table::MAX_PENDING
                );
                contexts.pending.remove(&oldest);
            }
        }
        contexts.pending.insert(number, (now, context));
    }

    /// Takes the waiting context with this number.
    pub(super) fn take_pending(&self, number: u32) -> Option<Box<dyn Context>> {
        let (_, context) = self.contexts().pending.remove(&number)?;
        Some(context)
    }

    pub(super) fn expire(&self, now: Duration) {
        let mut contexts = self.contexts();
        contexts
            .established
            .retain(|_, context| context.expires > now);
        contexts
            .pending
            .retain(|_, (since, _)| *since + Table::PENDING_TIMEOUT > now);
    }
}

impl Contexts {
    /// Evicts the least recently used context that `counts` accepts if there are `most` of them.
    fn evict_if_full(&mut self, most: usize, whose: &str, counts: impl Fn(&GssContext) -> bool) {
        let counted = self.established.values().filter(|context| counts(context));
        if counted.clone().count() < most {
            return;
        }
        let oldest = counted.min_by_key(|context| context.used.load(Ordering::Relaxed));
        if let Some(oldest) = oldest.map(|context| context.number) {
            static EVICTED: LogLimit<()> = LogLimit::new();
            if let Some(suppressed) = EVICTED.permit(()) {
                tracing::warn!(
                    suppressed,
                    "{most} RPCSEC_GSS contexts {whose}: dropping an idle one"
                );
            }
            self.established.remove(&oldest);
        }
    }
}
