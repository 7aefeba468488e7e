//! GETATTR, VERIFY, NVERIFY (RFC 8881 sections 18.7, 18.15, 18.31).

use wire::{Buffered, Outgoing as _};

use super::attr::{AttributeSource, WRITE_ONLY, needed, supported};
use super::compound::{Compound, OpResult};
use super::referral;
use crate::server::RequestContext;
use crate::v4::Status;
use crate::v4::attr::{Attributes, Bitmap, number as n};

impl RequestContext<'_, Compound> {
    pub(super) fn getattr(&mut self, want: Bitmap) -> OpResult {
        let node = self.node()?;
        if !want.and(&WRITE_ONLY).is_empty() {
            return Err(Status::Inval.into());
        }
        let (server, cx) = (self.server, self.cx());
        let want = want.and(&supported(server, self.compound.minor));
        if server.referrals.of(&node).is_some()
            && !want.without(&referral::ABSENT_ATTRIBUTES).is_empty()
            && want.and(&referral::REFERRAL_AWARE).is_empty()
        {
            return Err(Status::Moved.into());
        }
        let attr = node.attr(&cx, needed(&want))?;
        server.check_exists(&cx, &node, &attr)?;
        let described =
            AttributeSource::new(server, &cx, (&node, self.is_at_name()), &attr, &want)?;
        let attributes = described.attributes(server, self.compound.minor, &want);
        self.reply.value(&attributes.set());
        let counted = self.reply.len();
        self.reply.value(&0u32);
        attributes.put_values(&mut Buffered::new(&mut self.reply));
        let len = (self.reply.len() - counted - 4) as u32;
        self.reply.patch(counted, &len.to_be_bytes());
        Ok(())
    }

    pub(super) fn verify(&mut self, given: &Attributes<'_>, otherwise: Status) -> OpResult {
        let node = self.node()?;
        let want = given.set();
        const ONLY_READ: Bitmap = Bitmap::of(&[n::RDATTR_ERROR]);
        if !want.and(&WRITE_ONLY).is_empty() || !want.and(&ONLY_READ).is_empty() {
            return Err(Status::Inval.into());
        }
        let (server, cx) = (self.server, self.cx());
        if given.unknown
            || !want
                .without(&supported(server, self.compound.minor))
                .is_empty()
        {
            return Err(Status::Attrnotsupp.into());
        }
        let attr = node.attr(&cx, needed(&want))?;
        let described =
            AttributeSource::new(server, &cx, (&node, self.is_at_name()), &attr, &want)?;
        let same = described.attributes(server, self.compound.minor, &want) == *given;
        // VERIFY succeeds if the attributes are equal, NVERIFY if they are not.
        match same == (otherwise == Status::NotSame) {
            true => Ok(()),
            false => Err(otherwise.into()),
        }
    }
}
