//! Extended attributes (RFC 8276 section 8.4), of the `user` namespace only.

use vfs::XattrFlags;

use super::compound::{Compound, OpResult};
use crate::server::RequestContext;
use crate::v4::Status;
use crate::v4::op::{ListXattrs, SetXattr};
use crate::v4::reply::XattrNames;

/// The prefix that names have in the source but not on the wire.
const USER: &[u8] = b"user.";

/// The maximum length of a value, as in Linux.
const MAX_VALUE: usize = 65536;

fn full_name(name: &[u8]) -> Result<Vec<u8>, Status> {
    match name.len() {
        0 => Err(Status::Inval),
        1..=250 if name.contains(&0) => Err(Status::Inval),
        1..=250 => Ok([USER, name].concat()),
        _ => Err(Status::Nametoolong),
    }
}

impl RequestContext<'_, Compound> {
    pub(super) fn get_xattr(&mut self, name: &[u8]) -> OpResult {
        let value = self.node()?.xattr(&self.cx(), &full_name(name)?)?;
        self.reply.value(&value.as_slice());
        Ok(())
    }

    pub(super) fn set_xattr(&mut self, args: SetXattr<'_>) -> OpResult {
        let node = self.node()?;
        let flags = match args.option {
            0 => XattrFlags::empty(),
            1 => XattrFlags::CREATE,
            2 => XattrFlags::REPLACE,
            _ => return Err(Status::Inval.into()),
        };
        if args.value.len() > MAX_VALUE {
            return Err(Status::Xattr2big.into());
        }
        let name = full_name(args.name)?;
        let before = self.change(&node)?;
        node.set_xattr(&self.cx(), &name, args.value, flags)?;
        self.forbid_restart();
        let change = self.change_since(before, &node);
        self.reply.value(&change);
        Ok(())
    }

    pub(super) fn remove_xattr(&mut self, name: &[u8]) -> OpResult {
        let node = self.node()?;
        let name = full_name(name)?;
        let before = self.change(&node)?;
        node.remove_xattr(&self.cx(), &name)?;
        self.forbid_restart();
        let change = self.change_since(before, &node);
        self.reply.value(&change);
        Ok(())
    }

    pub(super) fn list_xattrs(&mut self, args: ListXattrs) -> OpResult {
        let all = self.node()?.xattrs(&self.cx())?;
        let names: Vec<&[u8]> = all
            .split(|&byte| byte == 0)
            .filter_map(|name| name.strip_prefix(USER))
            .collect();
        // The cookie is the number of names already returned. The names come after the cookie, the
        // count and the eof flag.
        let returned = usize::try_from(args.cookie).unwrap_or(usize::MAX);
        let rest = match names.get(returned..) {
            Some(rest) => rest,
            None => return Err(Status::BadCookie.into()),
        };
        let mut remaining = (args.max_count as usize)
            .checked_sub(8 + 4 + 4)
            .ok_or(Status::Toosmall)?;
        let fits = rest
            .iter()
            .take_while(|name| {
                let len = 4 + name.len() + wire::padding(name.len());
                let fits = len <= remaining;
                remaining = remaining.saturating_sub(len);
                fits
            })
            .count();
        if fits == 0 && !rest.is_empty() {
            return Err(Status::Toosmall.into());
        }
        self.reply.value(&XattrNames {
            cookie: (returned + fits) as u64,
            names: rest[..fits].to_vec(),
            eof: fits == rest.len(),
        });
        Ok(())
    }
}
