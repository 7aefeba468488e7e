//! Locks and threads for the layers that start threads: from parking_lot and std or, in tests of
//! thread interleavings, from shuttle.

#[cfg(not(feature = "shuttle"))]
pub(crate) use std::{sync::atomic, thread};

#[cfg(not(feature = "shuttle"))]
pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard};

#[cfg(feature = "shuttle")]
pub(crate) use shuttle::{sync::atomic, thread};

#[cfg(feature = "shuttle")]
pub(crate) use self::scheduled::{Condvar, Mutex, MutexGuard};

/// Shuttle's locks with the interface of parking_lot's. A panic under a lock ends a test, so
/// poisoned locks do not occur.
#[cfg(feature = "shuttle")]
mod scheduled {
    use std::ops::{Deref, DerefMut};
    use std::time::Duration;

    use shuttle::sync::{self, WaitTimeoutResult};

    const HELD: &str = "a guard is empty only while it waits";

    const POISON: &str = "a panic ends the test";

    #[derive(Default)]
    pub(crate) struct Mutex<T>(sync::Mutex<T>);

    /// `None` while a [`Condvar`] waits.
    pub(crate) struct MutexGuard<'a, T>(Option<sync::MutexGuard<'a, T>>);

    #[derive(Default)]
    pub(crate) struct Condvar(sync::Condvar);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Mutex<T> {
            Mutex(sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            MutexGuard(Some(self.0.lock().expect(POISON)))
        }
    }

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            self.0.as_ref().expect(HELD)
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.0.as_mut().expect(HELD)
        }
    }

    impl Condvar {
        pub(crate) fn new() -> Condvar {
            Condvar::default()
        }

        pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
            let held = guard.0.take().expect(HELD);
            guard.0 = Some(self.0.wait(held).expect(POISON));
        }

        pub(crate) fn wait_for<T>(
            &self,
            guard: &mut MutexGuard<'_, T>,
            time: Duration,
        ) -> WaitTimeoutResult {
            let held = guard.0.take().expect(HELD);
            let (held, waited) = self.0.wait_timeout(held, time).expect(POISON);
            guard.0 = Some(held);
            waited
        }

        pub(crate) fn notify_one(&self) {
            self.0.notify_one();
        }

        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }
    }
}
