//! MOUNT, and the portmapper that says where it is (RFC 1833).

use vfs::Errno;
use wire::{Xdr, XdrReader};

use crate::client::{Ask, Failure, Procedure};
use crate::mount::{Mounted, Procedure as P, Status};
use crate::portmap;
use crate::rpc::program;

const MOUNT: Procedure = Procedure {
    program: program::MOUNT,
    version: 3,
    number: P::Mnt as u32,
};

/// The handle of a tree's root.
pub struct Mount<'a> {
    /// The tree.
    pub path: &'a [u8],
}

impl Ask for Mount<'_> {
    type Answer<'r> = Box<[u8]>;

    const PROCEDURE: Procedure = MOUNT;

    fn put(&self, to: &mut Vec<u8>) {
        self.path.put(to);
    }

    fn answer(&self, results: &[u8]) -> Result<Box<[u8]>, Failure> {
        match Mounted::get(&mut XdrReader::new(results))? {
            Mounted::Done(ok) => Ok(ok.root.bytes().into()),
            Mounted::Failed(status) => Err(Failure::Refused(match status {
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

/// The TCP port of MOUNT; 0 if there is none.
pub struct GetPort;

impl Ask for GetPort {
    type Answer<'r> = u16;

    const PROCEDURE: Procedure = Procedure {
        program: program::PORTMAP,
        version: 2,
        number: portmap::Procedure::GetPort as u32,
    };

    fn put(&self, to: &mut Vec<u8>) {
        let mapping = portmap::Mapping {
            program: MOUNT.program,
            version: MOUNT.version,
            protocol: portmap::TCP,
            port: 0,
        };
        mapping.put(to);
    }

    fn answer(&self, results: &[u8]) -> Result<u16, Failure> {
        let port = XdrReader::new(results).u32()?;
        Ok(port.try_into().unwrap_or(0))
    }
}
