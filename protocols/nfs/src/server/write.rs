//! Writing and syncing files, common to v3 and v4 (RFC 1813 sections 3.3.7, 3.3.21; RFC 8881
//! sections 18.3, 18.32).

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use vfs::{Cx, Errno, File, Node, OpenFlags, Payload, Result};
use wire::Incoming;

use super::Server;
use crate::rpc::Record;

/// How durable a write must be before the reply.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Durable {
    /// Unstable.
    No,
    /// The data and the metadata needed to read it back, as after fdatasync(2).
    Data,
    All,
}

impl Server {
    /// Writes the range `data` of `record`, which arrived in `message`, at `offset`. Returns the
    /// number of bytes written, which is smaller than the range only after an error. Returns
    /// `EFBIG` if the end exceeds the largest file offset.
    pub(super) fn write(
        &self,
        cx: &Cx<'_>,
        file: &dyn File,
        (message, record, data): (&dyn Incoming, &Record<'_>, Range<usize>),
        offset: u64,
        durable: Durable,
    ) -> Result<usize> {
        if i64::try_from(offset.saturating_add(data.len() as u64)).is_err() {
            return Err(Errno::EFBIG);
        }
        let pieces: Vec<_> = record.pieces(data).collect();
        if pieces.len() > 1 || durable != Durable::No {
            // More than one step: the later ones must not return `WOULD_BLOCK` after the first is
            // done.
            cx.check_may_block()?;
        }
        let mut written = 0;
        for piece in pieces {
            let (len, offset) = (piece.len(), offset + written as u64);
            let mut write = |payload: &mut dyn Payload| file.write(cx, offset, payload);
            match message.payload(piece, &mut write) {
                Ok(count) => {
                    written += count.min(len);
                    if count < len {
                        break;
                    }
                }
                // Report the bytes already written; the error recurs for the rest.
                Err(errno) if written == 0 || errno.is_signal() => return Err(errno),
                Err(_) => break,
            }
        }
        if durable != Durable::No {
            self.sync(cx, file, durable == Durable::Data)?;
        }
        Ok(written)
    }

    /// Returns `node` opened for syncing, with the first flags or else the second: the access mode
    /// makes no difference.
    pub(super) fn file_to_sync(
        &self,
        cx: &Cx<'_>,
        node: &Arc<dyn Node>,
        [one, other]: [OpenFlags; 2],
    ) -> Result<Arc<dyn File>> {
        match self.file(cx, node, one) {
            Err(Errno::EACCES) => self.file(cx, node, other),
            done => done,
        }
    }

    /// Makes a file's contents durable. If that fails, unstable writes may be lost, and the write
    /// verifier changes to tell clients.
    pub(super) fn sync(&self, cx: &Cx<'_>, file: &dyn File, datasync: bool) -> Result<()> {
        let done = file.fsync(cx, datasync);
        if done.is_err_and(|errno| !errno.is_signal()) {
            self.sync_failures.fetch_add(1, Ordering::Relaxed);
        }
        done
    }

    /// Returns the write verifier, which changes whenever unstable writes may have been lost.
    pub(super) fn write_verifier(&self) -> [u8; 8] {
        let losses = self.sync_failures.load(Ordering::Relaxed);
        (u64::from(self.options.boot) << 32 | u64::from(losses)).to_be_bytes()
    }
}
