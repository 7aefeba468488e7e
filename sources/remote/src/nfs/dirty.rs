//! What was written and is not durable yet.
//!
//! Writes that nobody asked to be durable are in the server's memory until a COMMIT. A verifier, which is
//! another after each start of the server, tells whether they still were there. If not, they are lost: the
//! bytes are not kept here to be written again, so the next fsync answers `EIO`, once, as after a failed
//! write-back of a local disk.
//!
//! Lock order: the one mutex, never held across a request.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

use ::nfs::client::Written;
use vfs::{Errno, Result};

use super::version::Handle;

/// Files with writes that are not durable, by the verifier of the first of these.
#[derive(Default)]
pub(super) struct Dirty(Mutex<HashMap<Handle, Since>>);

#[derive(Clone, Copy)]
struct Since {
    verifier: [u8; 8],
    /// The server has begun anew since.
    lost: bool,
}

impl Dirty {
    /// Notes a write.
    pub(super) fn written(&self, handle: &Handle, written: &Written) {
        let mut files = self.files();
        match files.get_mut(handle) {
            Some(since) => since.lost |= since.verifier != written.verifier,
            None if written.durable => {}
            None => {
                let since = Since {
                    verifier: written.verifier,
                    lost: false,
                };
                files.insert(handle.clone(), since);
            }
        }
    }

    /// Makes a file durable by `commit`, if it is not.
    pub(super) fn clean(
        &self,
        handle: &Handle,
        commit: impl FnOnce() -> Result<[u8; 8]>,
    ) -> Result<()> {
        // What is written from here on is noted anew.
        let Some(since) = self.files().remove(handle) else {
            return Ok(());
        };
        match commit() {
            Ok(verifier) if verifier == since.verifier && !since.lost => Ok(()),
            Ok(_) => Err(Errno::EIO),
            // There is no such file any more: what was written to it is nobody's.
            Err(Errno::ESTALE) => Err(Errno::ESTALE),
            Err(errno) => {
                // Not durable yet: whoever asks next tries again.
                let mut files = self.files();
                let again = files.entry(handle.clone()).or_insert(since);
                again.lost |= since.lost || again.verifier != since.verifier;
                Err(errno)
            }
        }
    }

    /// Those that are not durable.
    pub(super) fn all(&self) -> Vec<Handle> {
        self.files().keys().cloned().collect()
    }

    fn files(&self) -> MutexGuard<'_, HashMap<Handle, Since>> {
        self.0.lock().expect("no panic holds it")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: [u8; 8] = [1; 8];
    const NEW: [u8; 8] = [2; 8];

    fn write(verifier: [u8; 8], durable: bool) -> Written {
        Written {
            count: 1,
            durable,
            verifier,
        }
    }

    #[test]
    fn what_is_durable_needs_no_commit() {
        let (dirty, file): (_, Handle) = (Dirty::default(), [1][..].into());
        dirty.written(&file, &write(OLD, true));
        assert_eq!(dirty.clean(&file, || panic!("asked")), Ok(()));
        dirty.written(&file, &write(OLD, false));
        assert_eq!(dirty.all(), std::slice::from_ref(&file));
        assert_eq!(dirty.clean(&file, || Ok(OLD)), Ok(()));
        assert_eq!(dirty.clean(&file, || panic!("asked")), Ok(()));
    }

    #[test]
    fn what_a_restart_has_lost_is_told_once() {
        let (dirty, file): (_, Handle) = (Dirty::default(), [1][..].into());
        dirty.written(&file, &write(OLD, false));
        assert_eq!(dirty.clean(&file, || Ok(NEW)), Err(Errno::EIO));
        assert_eq!(dirty.clean(&file, || Ok(NEW)), Ok(()));
        dirty.written(&file, &write(OLD, false));
        dirty.written(&file, &write(NEW, false));
        assert_eq!(dirty.clean(&file, || Ok(OLD)), Err(Errno::EIO));
    }

    #[test]
    fn what_is_removed_is_not_asked_for_again() {
        let (dirty, file): (_, Handle) = (Dirty::default(), [1][..].into());
        dirty.written(&file, &write(OLD, false));
        let gone = dirty.clean(&file, || Err(Errno::ESTALE));
        assert_eq!((gone, dirty.all()), (Err(Errno::ESTALE), Vec::new()));
    }

    #[test]
    fn a_commit_that_fails_is_tried_again() {
        let (dirty, file): (_, Handle) = (Dirty::default(), [1][..].into());
        dirty.written(&file, &write(OLD, false));
        let failed = dirty.clean(&file, || {
            dirty.written(&file, &write(NEW, false));
            Err(Errno::ENOSPC)
        });
        assert_eq!(failed, Err(Errno::ENOSPC));
        assert_eq!(dirty.clean(&file, || Ok(NEW)), Err(Errno::EIO));
    }
}
