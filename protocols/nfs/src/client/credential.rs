//! The credentials of calls.

use vfs::{Caller, Groups};
use wire::Xdr;

use crate::rpc::{OpaqueAuth, SysCredential, flavor};

/// Encodes the credentials of calls.
#[derive(Clone)]
pub struct Credentials {
    machine: Vec<u8>,
}

impl Credentials {
    /// Creates the credentials of calls from the machine `name`.
    pub fn new(name: &str) -> Credentials {
        // The maximum length of a machine name in AUTH_SYS.
        let machine = name.as_bytes().iter().copied().take(255).collect();
        Credentials { machine }
    }

    /// Writes an AUTH_SYS credential of `caller` and an AUTH_NONE verifier. Groups beyond the
    /// sixteenth are omitted.
    pub(super) fn put(&self, caller: &Caller, to: &mut Vec<u8>) {
        flavor::SYS.put(to);
        let at = to.len();
        0u32.put(to);
        let sys = SysCredential {
            machine: self.machine.clone(),
            caller: Caller {
                groups: match &caller.groups {
                    Groups::Known(groups) => Groups::Known(groups.clone()),
                    Groups::Unknown => Groups::Known([].into()),
                },
                ..*caller
            },
        };
        sys.put(to);
        let len = (to.len() - at - 4) as u32;
        to[at..at + 4].copy_from_slice(&len.to_be_bytes());
        OpaqueAuth::NONE.put(to);
    }
}
