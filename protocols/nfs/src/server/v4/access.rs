//! ACCESS (RFC 8881 section 18.1).

use vfs::{Access, Kind};

use super::compound::{Compound, OpResult};
use crate::server::RequestContext;
use crate::v4::reply::Accessible;

impl RequestContext<'_, Compound> {
    pub(super) fn access(&mut self, want: u32) -> OpResult {
        let node = self.node()?;
        let directory = node.kind() == Kind::Directory;
        let known = access_bits(directory).fold(0, |all, (bit, _)| all | bit);
        let known = want & known & allowed_bits(self.compound.minor);
        let mut requested = Access::empty();
        for (bit, access) in access_bits(directory) {
            if known & bit != 0 {
                requested |= access;
            }
        }
        let may = node.access(&self.cx(), requested)?;
        let mut access = 0;
        for (bit, needed) in access_bits(directory) {
            if known & bit != 0 && may.contains(needed) {
                access |= bit;
            }
        }
        self.reply.value(&Accessible {
            supported: known,
            access,
        });
        Ok(())
    }
}

/// Returns the bits of ACCESS: read, lookup, modify, extend, delete, execute; xattr read, write,
/// list.
fn access_bits(directory: bool) -> impl Iterator<Item = (u32, Access)> {
    let bits = [
        (0x01, Access::READ, true),
        (0x02, Access::EXEC, directory),
        (0x04, Access::WRITE, true),
        (0x08, Access::WRITE, true),
        (0x10, Access::WRITE, directory),
        (0x20, Access::EXEC, !directory),
        (0x40, Access::READ, true),
        (0x80, Access::WRITE, true),
        (0x100, Access::READ, true),
    ];
    bits.into_iter()
        .filter(|&(_, _, makes_sense)| makes_sense)
        .map(|(bit, access, _)| (bit, access))
}

fn allowed_bits(minor: u32) -> u32 {
    if minor >= 2 { 0x1ff } else { 0x3f }
}
