//! Bytes on their way into files, which v3 and v4 say alike (RFC 1813 sections 3.3.7, 3.3.21; RFC 8881 sections 18.3,
//! 18.32).

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use vfs::{Cx, Errno, File, Node, OpenFlags, Payload, Result};
use wire::Incoming;

use super::Server;
use crate::rpc::Record;

/// How durable a write is to be when it is answered.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Durable {
    /// Not yet.
    No,
    /// Its data, and what reading them back takes.
    Data,
    All,
}

impl Server {
    /// Writes the part of `record` at `data`, as it came in `message`, at `offset`: how many bytes were written, fewer
    /// than there are only after an error. `EFBIG` where no file can go.
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
            // More than one step: none may be too early when the first is done.
            cx.may_wait()?;
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
                // What was written is told; the error comes again for the rest.
                Err(errno) if written == 0 || errno.is_signal() => return Err(errno),
                Err(_) => break,
            }
        }
        if durable != Durable::No {
            self.sync(cx, file, durable == Durable::Data)?;
        }
        Ok(written)
    }

    /// `node`, opened to be made durable: in the one way or the other, for what it is open for makes no difference.
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

    /// Makes a file's contents durable. If that fails, unstable writes may be lost, of which clients learn by
    /// another verifier.
    pub(super) fn sync(&self, cx: &Cx<'_>, file: &dyn File, datasync: bool) -> Result<()> {
        let done = file.fsync(cx, datasync);
        if done.is_err_and(|errno| !errno.is_signal()) {
            self.losses.fetch_add(1, Ordering::Relaxed);
        }
        done
    }

    /// What tells unstable writes that were lost: another than before.
    pub(super) fn write_verifier(&self) -> [u8; 8] {
        let losses = self.losses.load(Ordering::Relaxed);
        (u64::from(self.options.boot) << 32 | u64::from(losses)).to_be_bytes()
    }
}
