//! COMMIT: when data becomes durable, and what happens to data that a restart of the server has
//! lost.
//!
//! - fsync commits a file. If the write verifier shows that the server has restarted, the data is
//!   written again with FILE_SYNC before fsync returns.
//! - If there is too much uncommitted data, the writing thread commits early.
//! - A thread of each mount commits data that has become old, so that a file closed without fsync
//!   neither holds memory nor stays at risk for long.
//! - After reconnecting, all uncommitted data is committed before attributes or data are read:
//!   otherwise a program would see the file without it.

use std::sync::{Arc, Weak};

use ::nfs::client::Stable;
use vfs::{Call, Caller, Cx, Errno, Result};

use super::rpc_client::Attempts;
use super::shared::Shared;
use super::uncommitted::{Change, Commit, Uncommitted};
use super::version::{Handle, ProtocolVersion};

impl<V: ProtocolVersion> Shared<V> {
    /// Announces a change of a file's content: see [`Uncommitted::change`].
    pub(super) fn change<'a>(
        &'a self,
        cx: &Cx<'_>,
        handle: &'a Handle,
    ) -> Result<Change<'a, V::Open>> {
        let connection = self.version.reconnections();
        self.uncommitted.change(cx, handle, connection)
    }

    /// Makes a file durable, and reports data of it that was given up.
    pub(super) fn commit(&self, cx: &Cx<'_>, handle: &Handle) -> Result<()> {
        let settled = self.make_durable(cx, handle);
        self.uncommitted.take_error(handle).and(settled)
    }

    /// Makes all files durable, each as its last writer.
    pub(super) fn commit_all(&self, cx: &Cx<'_>) -> Result<()> {
        let mut done = Ok(());
        for (handle, writer) in self.uncommitted.all() {
            let caller = writer.map_or_else(|| cx.caller.clone(), |writer| writer.caller);
            match self.commit(&cx.on_behalf_of(&caller), &handle) {
                // Removed since.
                Err(Errno::ESTALE) => {}
                result => done = done.and(result),
            }
        }
        done
    }

    /// Commits early after a write to `handle` if there is too much uncommitted data. The next
    /// fsync reports a failure.
    pub(super) fn commit_early(&self, cx: &Cx<'_>, handle: &Handle) {
        if let Some(handle) = self.uncommitted.over_limit(handle) {
            self.try_make_durable(cx, &handle);
        }
    }

    /// Commits uncommitted data after reconnecting to the server, which may have restarted.
    #[inline]
    pub(super) fn recommit_after_reconnect(&self, cx: &Cx<'_>) {
        let connection = self.version.reconnections();
        if self.uncommitted.may_be_lost(connection) {
            self.recommit_all(cx, connection);
        }
    }

    #[cold]
    fn recommit_all(&self, cx: &Cx<'_>, connection: u64) {
        let mut done = true;
        for (handle, writer) in self.uncommitted.all() {
            let caller = writer.map_or_else(|| cx.caller.clone(), |writer| writer.caller);
            done &= self.try_make_durable(&cx.on_behalf_of(&caller), &handle);
        }
        if done {
            self.uncommitted.recommitted(connection);
        }
    }

    fn try_make_durable(&self, cx: &Cx<'_>, handle: &Handle) -> bool {
        match self.make_durable(cx, handle) {
            Ok(()) | Err(Errno::ESTALE) => true,
            Err(errno) => {
                tracing::debug!(%errno, "commit failed: keeping uncommitted data");
                false
            }
        }
    }

    /// Makes a file durable. Data that the server refuses is given up, and
    /// [`Uncommitted::take_error`] returns the reason.
    fn make_durable(&self, cx: &Cx<'_>, handle: &Handle) -> Result<()> {
        let mut attempts = Attempts::new();
        loop {
            let Some(commit) = self.uncommitted.begin_commit(cx, handle)? else {
                return Ok(());
            };
            let verifier = match self.version.commit(cx, handle) {
                Ok(verifier) => verifier,
                // The file was removed, and its data with it.
                Err(Errno::ESTALE) => {
                    self.uncommitted.forget(handle);
                    return Err(Errno::ESTALE);
                }
                Err(errno) => {
                    self.uncommitted.failed(handle);
                    return Err(errno);
                }
            };
            if self.uncommitted.committed(handle, &commit, verifier)
                || self.write_again(cx, handle, &commit, verifier)?
            {
                return Ok(());
            }
            if !attempts.may_repeat(self.version.reconnections()) {
                self.uncommitted.failed(handle);
                return Err(Errno::EIO);
            }
        }
    }

    /// Writes lost data again, and returns whether all of it is durable.
    fn write_again(
        &self,
        cx: &Cx<'_>,
        handle: &Handle,
        commit: &Commit<V::Open>,
        verifier: [u8; 8],
    ) -> Result<bool> {
        tracing::info!("the server restarted: rewriting uncommitted data");
        let writer = commit.writer.as_ref();
        let open = writer.and_then(|writer| writer.open.upgrade());
        let caller = writer.map_or(cx.caller, |writer| &writer.caller);
        let cx = &cx.on_behalf_of(caller);
        let mut rewrite = self.uncommitted.rewrite(cx, handle, commit, verifier)?;
        let mut durable = true;
        while let Some((offset, data)) = rewrite.next() {
            match self.write_all(cx, handle, open.as_deref(), offset, data) {
                Ok(unstable) => {
                    durable &= unstable.is_none();
                    rewrite.wrote(unstable);
                }
                // A later attempt may succeed.
                Err(errno @ (Errno::EINTR | Errno::ETIMEDOUT)) => {
                    self.uncommitted.failed(handle);
                    return Err(errno);
                }
                Err(errno) => {
                    tracing::error!(%errno, "uncommitted data is lost");
                    rewrite.give_up(errno);
                }
            }
        }
        Ok(durable)
    }

    /// Writes `data` with FILE_SYNC, and returns the verifier if the server did not make it durable
    /// nevertheless.
    fn write_all(
        &self,
        cx: &Cx<'_>,
        handle: &Handle,
        open: Option<&V::Open>,
        offset: u64,
        data: &[u8],
    ) -> Result<Option<[u8; 8]>> {
        let (mut done, mut unstable) = (0, None);
        while done < data.len() {
            let most = self.version.limits().write.max(1) as usize;
            let piece = &data[done..][..most.min(data.len() - done)];
            let at = offset + done as u64;
            let written = self
                .version
                .write(cx, handle, open, at, Stable::FileSync, piece)?;
            if written.count == 0 {
                return Err(Errno::EIO);
            }
            if !written.durable {
                unstable = Some(written.verifier);
            }
            done += written.count as usize;
        }
        Ok(unstable)
    }
}

/// A thread that commits old data. It ends when this is dropped.
pub(super) struct Committer<V: ProtocolVersion> {
    uncommitted: Arc<Uncommitted<V::Open>>,
    call: Arc<Call>,
}

impl<V: ProtocolVersion> Committer<V> {
    pub(super) fn start(shared: &Arc<Shared<V>>) -> std::io::Result<Committer<V>> {
        let committer = Committer {
            uncommitted: shared.uncommitted.clone(),
            call: Arc::new(Call::detached()),
        };
        let (uncommitted, call) = (committer.uncommitted.clone(), committer.call.clone());
        let shared = Arc::downgrade(shared);
        std::thread::Builder::new()
            .name("nfs-commit".into())
            .spawn(move || commit_due(&uncommitted, &call, &shared))?;
        Ok(committer)
    }
}

impl<V: ProtocolVersion> Drop for Committer<V> {
    fn drop(&mut self) {
        self.uncommitted.stop();
        self.call.cancel();
    }
}

fn commit_due<V: ProtocolVersion>(
    uncommitted: &Uncommitted<V::Open>,
    call: &Call,
    shared: &Weak<Shared<V>>,
) {
    while let Some((handle, writer)) = uncommitted.due() {
        let Some(shared) = shared.upgrade() else {
            return;
        };
        let caller = writer.map_or(Caller::ROOT, |writer| writer.caller);
        shared.try_make_durable(&Cx::new(&caller, call), &handle);
    }
}
