//! MOUNT, the portmapper (RFC 1833), and NSM and NLM calls to a client.

use vfs::Errno;
use wire::{Xdr, XdrReader};

use crate::client::{CallArguments, ClientCall, Failure, Procedure};
use crate::mount::{Mounted, Procedure as P, Status};
use crate::nsm;
use crate::portmap;
use crate::rpc::program;

const MOUNT: Procedure = Procedure {
    program: program::MOUNT,
    version: 3,
    number: P::Mnt as u32,
};

/// A MNT; returns the handle of the root.
pub struct Mount<'a> {
    /// The path to mount.
    pub path: &'a [u8],
}

impl CallArguments for Mount<'_> {
    fn procedure(&self) -> Procedure {
        MOUNT
    }

    fn put(&self, to: &mut Vec<u8>) {
        self.path.put(to);
    }
}

impl ClientCall for Mount<'_> {
    type Answer<'r> = Box<[u8]>;

    fn answer(&self, results: &[u8]) -> Result<Box<[u8]>, Failure> {
        match Mounted::get(&mut XdrReader::new(results))? {
            Mounted::Done(ok) => Ok(ok.root.bytes().into()),
            Mounted::Failed(status) => Err(Failure::Error(match status {
                Status::Perm => Errno::EPERM,
                Status::Noent => Errno::ENOENT,
                Status::Acces => Errno::EACCES,
                Status::Notdir => Errno::ENOTDIR,
                Status::Inval => Errno::EINVAL,
                Status::Nametoolong => Errno::ENAMETOOLONG,
                Status::Notsupp => Errno::EOPNOTSUPP,
                Status::Ok | Status::Io | Status::Serverfault => Errno::EIO,
            })),
        }
    }
}

/// A GETPORT of the portmapper; returns the port of a program, 0 if it is not registered.
pub struct GetPort {
    /// The program number.
    pub program: u32,
    /// The program version.
    pub version: u32,
    /// [`portmap::TCP`] or [`portmap::UDP`].
    pub protocol: u32,
}

impl GetPort {
    /// The port of MOUNT over TCP.
    pub const MOUNT: GetPort = GetPort {
        program: MOUNT.program,
        version: MOUNT.version,
        protocol: portmap::TCP,
    };

    /// The port of NLM over UDP.
    pub const NLM: GetPort = GetPort {
        program: program::NLM,
        version: 4,
        protocol: portmap::UDP,
    };

    /// The port of NSM over UDP.
    pub const NSM: GetPort = GetPort {
        program: program::NSM,
        version: 1,
        protocol: portmap::UDP,
    };
}

impl CallArguments for GetPort {
    fn procedure(&self) -> Procedure {
        Procedure {
            program: program::PORTMAP,
            version: 2,
            number: portmap::Procedure::GetPort as u32,
        }
    }

    fn put(&self, to: &mut Vec<u8>) {
        let mapping = portmap::Mapping {
            program: self.program,
            version: self.version,
            protocol: self.protocol,
            port: 0,
        };
        mapping.put(to);
    }
}

impl ClientCall for GetPort {
    type Answer<'r> = u16;

    fn answer(&self, results: &[u8]) -> Result<u16, Failure> {
        let port = XdrReader::new(results).u32()?;
        Ok(port.try_into().unwrap_or(0))
    }
}

/// An NLM v4 call without results, with encoded arguments.
pub struct NlmCall<'a, const PROCEDURE: u32>(pub &'a [u8]);

impl<const PROCEDURE: u32> CallArguments for NlmCall<'_, PROCEDURE> {
    fn procedure(&self) -> Procedure {
        Procedure {
            program: program::NLM,
            version: 4,
            number: PROCEDURE,
        }
    }

    fn put(&self, to: &mut Vec<u8>) {
        to.extend(self.0);
    }
}

impl<const PROCEDURE: u32> ClientCall for NlmCall<'_, PROCEDURE> {
    type Answer<'r> = ();

    fn answer(&self, _: &[u8]) -> Result<(), Failure> {
        Ok(())
    }
}

/// An SM_NOTIFY: reports that a server has restarted.
pub struct Notify<'a> {
    /// The server's name.
    pub name: &'a [u8],
    /// The server's NSM state number.
    pub state: i32,
}

impl CallArguments for Notify<'_> {
    fn procedure(&self) -> Procedure {
        Procedure {
            program: program::NSM,
            version: 1,
            number: nsm::Procedure::Notify as u32,
        }
    }

    fn put(&self, to: &mut Vec<u8>) {
        let changed = nsm::StatChange {
            name: self.name,
            state: self.state,
        };
        changed.put(to);
    }
}

impl ClientCall for Notify<'_> {
    type Answer<'r> = ();

    fn answer(&self, _: &[u8]) -> Result<(), Failure> {
        Ok(())
    }
}
