//! SECINFO, SECINFO_NO_NAME (RFC 8881 sections 18.29, 18.45).

use super::compound::{Compound, OpResult};
use crate::server::RequestContext;
use crate::server::gss::Flavor;
use crate::v4::Status;
use crate::v4::types::{GssInfo, SecInfo};

impl RequestContext<'_, Compound> {
    pub(super) fn secinfo(&mut self, bytes: &[u8]) -> OpResult {
        self.lookup_name(bytes)?;
        self.flavors();
        Ok(())
    }

    pub(super) fn secinfo_no_name(&mut self, style: u32) -> OpResult {
        match style {
            0 => drop(self.node()?),
            1 => self.lookup_parent()?,
            _ => return Err(Status::Badxdr.into()),
        }
        self.flavors();
        Ok(())
    }

    /// Writes the allowed security flavors. From v4.1 on this consumes the current file handle.
    fn flavors(&mut self) {
        let flavors = &self.server.options.flavors;
        let info = |flavor: &Flavor| match (flavor, flavor.service()) {
            (Flavor::None, _) => SecInfo::None,
            (_, None) => SecInfo::Sys,
            (_, Some(service)) => SecInfo::Gss(GssInfo {
                oid: Flavor::KRB5,
                quality: 0,
                service: service as u32,
            }),
        };
        let all: Vec<SecInfo<'_>> = flavors.iter().map(info).collect();
        self.reply.value(&all);
        if self.compound.minor > 0 {
            self.compound.current = None;
        }
    }
}
