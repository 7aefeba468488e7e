//! MOUNT, and the portmapper that says where it is (RFC 1833).

use vfs::Errno;
use wire::{Xdr, XdrReader};

use crate::client::{Ask, Failure, Procedure};
use crate::mount::{Mounted, Procedure as P, Status};
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

    fn answer<'r>(&self, results: &'r [u8]) -> Result<Box<[u8]>, Failure> {
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

/// A tree is not used any more.
pub struct Unmount<'a> {
    /// The tree.
    pub path: &'a [u8],
}

impl Ask for Unmount<'_> {
    type Answer<'r> = ();

    const PROCEDURE: Procedure = Procedure {
        number: P::Umnt as u32,
        ..MOUNT
    };

    fn put(&self, to: &mut Vec<u8>) {
        self.path.put(to);
    }

    fn answer<'r>(&self, _: &'r [u8]) -> Result<(), Failure> {
        Ok(())
    }
}

/// The TCP port of MOUNT; 0 if there is none.
pub struct GetPort;

impl Ask for GetPort {
    type Answer<'r> = u16;

    /// `PMAPPROC_GETPORT`
    const PROCEDURE: Procedure = Procedure {
        program: 100_000,
        version: 2,
        number: 3,
    };

    fn put(&self, to: &mut Vec<u8>) {
        const TCP: u32 = 6;
        for word in [MOUNT.program, MOUNT.version, TCP, 0] {
            word.put(to);
        }
    }

    fn answer<'r>(&self, results: &'r [u8]) -> Result<u16, Failure> {
        let port = XdrReader::new(results).u32()?;
        Ok(port.try_into().unwrap_or(0))
    }
}
