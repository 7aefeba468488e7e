//! v4.0: the requests that owners number, each of which is executed once (RFC 7530 section 9.1.7).

use std::sync::Arc;

use vfs::Sink as _;
use wire::{Outgoing as _, Xdr as _};

use super::compound::{Compound, OpError, OpResult};
use super::open_file::ExportTree;
use super::state::{ClientRef, OwnerRequest, Started};
use crate::server::RequestContext;
use crate::server::filehandle::FileHandle;
use crate::v4::{StateId, Status};

impl RequestContext<'_, Compound> {
    /// Runs `body` for the client of `stateid`: in v4.0 only once for each seqid of the owner.
    pub(super) fn with_stateid_client(
        &mut self,
        stateid: &StateId,
        seqid: u32,
        body: impl FnOnce(&mut Self, &ClientRef<ExportTree>) -> OpResult,
    ) -> OpResult {
        if self.compound.minor > 0 {
            let client = self.session_client()?;
            return body(self, &client);
        }
        self.check_holder(stateid)?;
        let server = self.server;
        self.serve_owner_request(|| server.state.start_on_stateid(stateid, seqid), body)
    }

    /// v4.0: runs `body` unless the request is a repetition. Then writes the cached result and
    /// restores the current file handle of that time.
    pub(super) fn serve_owner_request(
        &mut self,
        begin: impl FnOnce() -> Result<Started<OwnerRequest<ExportTree>>, Status>,
        body: impl FnOnce(&mut Self, &ClientRef<ExportTree>) -> OpResult,
    ) -> OpResult {
        let start = self.reply.len();
        let request = match begin()? {
            Started::New(request) => request,
            Started::Replay(cached) => {
                let cached = CachedResult::read(&cached).ok_or(Status::Serverfault)?;
                if cached.number != self.compound.number {
                    return Err(Status::BadSeqid.into());
                }
                self.reply.bytes(cached.body);
                if let Some(handle) = cached.handle {
                    self.putfh(handle)?;
                }
                return match cached.status {
                    Status::Ok => Ok(()),
                    status => Err(OpError::WithBody(status)),
                };
            }
        };
        self.reply.copy_result();
        let done = body(self, &request.client());
        let done = done.map_err(|error| self.parked_by_limit(error));
        let status = match &done {
            Ok(()) => Status::Ok,
            Err(OpError::Status(status)) => {
                self.reply.truncate(start);
                *status
            }
            Err(OpError::WithBody(status)) => *status,
            Err(OpError::Call(_)) => {
                self.reply.take_result_copy();
                return done;
            }
        };
        let body = self.reply.take_result_copy().unwrap_or_default();
        let handle = match self.compound.current.is_some() {
            true => self.handle().ok(),
            false => None,
        };
        request.finish(
            status,
            CachedResult::write(self.compound.number, status, handle, &body),
        );
        done
    }
}

/// The cached result of an owner's last request (v4.0), with the current file handle after it.
struct CachedResult<'a> {
    /// The operation's number.
    number: u32,
    status: Status,
    handle: Option<&'a [u8]>,
    body: &'a [u8],
}

impl<'a> CachedResult<'a> {
    fn write(number: u32, status: Status, handle: Option<FileHandle>, body: &[u8]) -> Arc<[u8]> {
        let mut cached = Vec::new();
        number.put(&mut cached);
        status.put(&mut cached);
        let handle = handle.map(|handle| handle.bytes());
        handle.as_deref().put(&mut cached);
        cached.extend_from_slice(body);
        cached.into()
    }

    fn read(cached: &'a [u8]) -> Option<CachedResult<'a>> {
        let mut from = wire::XdrReader::new(cached);
        Some(CachedResult {
            number: from.u32().ok()?,
            status: Status::get(&mut from).ok()?,
            handle: Option::get(&mut from).ok()?,
            body: from.rest(),
        })
    }
}
