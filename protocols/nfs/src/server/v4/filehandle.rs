//! The operations that set or return the current filehandle: PUTFH, PUTPUBFH, PUTROOTFH, GETFH,
//! SAVEFH and RESTOREFH (RFC 8881 sections 18.8, 18.19 to 18.21, 18.27, 18.28).

use super::compound::{Compound, CurrentHandle, OpResult};
use crate::server::RequestContext;
use crate::server::filehandle::FileHandle;
use crate::v4::Status;

impl RequestContext<'_, Compound> {
    pub(super) fn putfh(&mut self, handle: &[u8]) -> OpResult {
        let handle = FileHandle::read(handle).ok_or(Status::Badhandle)?;
        let node = self.server.node(&self.cx(), &handle)?;
        self.compound.stateid = None;
        self.compound.current = Some(CurrentHandle {
            node,
            at_name: handle.is_at_name(),
            handle: Some(handle),
        });
        Ok(())
    }

    pub(super) fn putrootfh(&mut self) -> OpResult {
        let export = &self.server.export;
        let root = export.fs.root(&self.cx())?;
        export.note_client();
        self.set_current_in(root, false);
        Ok(())
    }

    pub(super) fn getfh(&mut self) -> OpResult {
        let handle = self.handle()?;
        self.reply.value(&handle.bytes().as_slice());
        Ok(())
    }

    pub(super) fn savefh(&mut self) -> OpResult {
        let current = self.compound.current.as_ref().ok_or(Status::Nofilehandle)?;
        self.compound.saved = Some(current.clone());
        self.compound.saved_stateid = self.compound.stateid;
        Ok(())
    }

    pub(super) fn restorefh(&mut self) -> OpResult {
        let saved = self.compound.saved.as_ref().ok_or(Status::Restorefh)?;
        self.compound.current = Some(saved.clone());
        self.compound.stateid = self.compound.saved_stateid;
        Ok(())
    }
}
