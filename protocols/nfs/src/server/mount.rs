//! MOUNT v3: from a path to a handle (RFC 1813 appendix I).
//!
//! Who mounted what is not kept: clients come and go without a word, and nothing depends on it. DUMP lists nobody.

use std::sync::PoisonError;

use vfs::{Caller, Cx, Errno, Kind, Name};

use super::gss::Flavor;
use super::{Stop, Turn};
use crate::mount::{Export, MAX_PATH, MountOk, Mounted, Path, Procedure, Status};
use crate::rpc::{Refusal, flavor};
use crate::v3::{Handle, List};

/// Answers a call of MOUNT.
pub(super) fn serve(turn: &mut Turn<'_>, procedure: u32) -> Result<(), Stop> {
    let procedure = Procedure::from_number(procedure).ok_or(Refusal::ProcedureUnavailable)?;
    match procedure {
        Procedure::Null | Procedure::UmntAll => Ok(()),
        Procedure::Mnt => turn.answer(Turn::mount),
        Procedure::Dump => {
            turn.reply(&List::<()>(Vec::new()));
            Ok(())
        }
        Procedure::Umnt => turn.answer(|_, _: Path<'_>| Ok(())),
        Procedure::Export => {
            let server = turn.server.clone();
            let listed = server.listed.read().unwrap_or_else(PoisonError::into_inner);
            let exports = listed.iter().map(|listed| Export {
                path: listed.path.as_bytes(),
                groups: List(listed.clients.iter().map(|name| name.as_bytes()).collect()),
            });
            turn.reply(&List(exports.collect()));
            Ok(())
        }
    }
}

impl<'a> Turn<'a> {
    fn mount(&self, path: Path<'_>) -> Result<Mounted, Stop> {
        match self.mounted(path.bytes) {
            Ok(root) => Ok(Mounted::Done(MountOk {
                root,
                flavors: self.mount_flavors(),
            })),
            Err(errno) => match Stop::later(errno) {
                Some(stop) => Err(stop),
                None => {
                    tracing::info!(path = %path.bytes.escape_ascii(), "not mounted: {errno}");
                    Ok(Mounted::Failed(status(errno)))
                }
            },
        }
    }

    fn mount_flavors(&self) -> Vec<u32> {
        let flavors = &self.server.options.flavors;
        let mut numbers: Vec<u32> = flavors.iter().map(|flavor| flavor.pseudo()).collect();
        if flavors.contains(&Flavor::Sys) {
            numbers.push(flavor::NONE);
        }
        numbers
    }

    /// The directory at `path`, whoever of those who are let in asks: to know it lets nobody do what its mode does not, and
    /// the way to it may be closed to him. The export's name may stand before it. Links are not followed.
    fn mounted(&self, path: &[u8]) -> vfs::Result<Handle> {
        if path.len() > MAX_PATH {
            return Err(Errno::ENAMETOOLONG);
        }
        let call = self.call.of_ours();
        let cx = Cx {
            caller: &Caller::ROOT,
            call: &call,
            ..self.cx()
        };
        let export = &self.server.export;
        let mut names = path
            .split(|&byte| byte == b'/')
            .filter(|name| !name.is_empty() && *name != b".")
            .peekable();
        names.next_if(|&name| name == export.name.as_bytes());
        let mut node = export.fs.root(&cx)?;
        for name in names {
            if name == b".." {
                return Err(Errno::EACCES);
            }
            node = node.lookup(&cx, Name::new(name)?)?.node;
            if node.kind() != Kind::Directory {
                return Err(Errno::ENOTDIR);
            }
        }
        let handle = self.server.handle(&cx, &node)?;
        Handle::new(&handle.bytes()).ok_or(Errno::EIO)
    }
}

fn status(errno: Errno) -> Status {
    match errno {
        Errno::EPERM => Status::Perm,
        Errno::ENOENT => Status::Noent,
        Errno::EACCES => Status::Acces,
        Errno::ENOTDIR | Errno::ELOOP => Status::Notdir,
        Errno::EINVAL => Status::Inval,
        Errno::ENAMETOOLONG => Status::Nametoolong,
        _ => Status::Io,
    }
}
