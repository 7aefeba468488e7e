//! MOUNT v3: returns the file handle of a path (RFC 1813 appendix I).
//!
//! The server keeps no list of mounts: clients come and go without notice, and no decision depends
//! on it. DUMP returns an empty list.

use std::sync::Arc;

use vfs::{AttrMask, Caller, Cx, Errno, Kind, LogLimit, Name, Node, Peer, PeerKey};

use super::{CallError, RequestContext};
use crate::mount::{Export, MAX_PATH, MountOk, Mounted, Path, Procedure, Status};
use crate::rpc::CallRejection;
use crate::v3::{Handle, List};

/// Serves a MOUNT call.
pub(super) fn serve(request: &mut RequestContext<'_>, procedure: u32) -> Result<(), CallError> {
    let procedure = Procedure::from_number(procedure).ok_or(CallRejection::ProcedureUnavailable)?;
    match procedure {
        Procedure::Null | Procedure::UmntAll => Ok(()),
        Procedure::Mnt => request.serve(RequestContext::mount),
        Procedure::Dump => {
            request.answer(&List::<()>(Vec::new()));
            Ok(())
        }
        Procedure::Umnt => request.serve(|_, _: Path<'_>| Ok(())),
        Procedure::Export => {
            let server = request.server;
            let listed = server.listed.read();
            let is_shown = |path: &str| !request.is_refused(path.as_bytes());
            let exports = listed.iter().filter(|listed| is_shown(&listed.path));
            let exports = exports.map(|listed| Export {
                path: listed.path.as_bytes(),
                groups: List(listed.clients.iter().map(|name| name.as_bytes()).collect()),
            });
            request.answer(&List(exports.collect()));
            Ok(())
        }
    }
}

impl<'a> RequestContext<'a> {
    fn mount(&self, path: Path<'_>) -> Result<Mounted, CallError> {
        static REFUSED: LogLimit<Option<PeerKey>> = LogLimit::new();
        match self.mounted(path.bytes) {
            Ok(root) => Ok(Mounted::Done(MountOk {
                root,
                flavors: self.mount_flavors(),
            })),
            Err(errno) => match CallError::retry(errno) {
                Some(stop) => Err(stop),
                None => {
                    if let Some(suppressed) = REFUSED.permit(self.call.account().client()) {
                        let path = path.bytes.escape_ascii();
                        tracing::info!(%path, suppressed, "mount denied: {errno}");
                    }
                    Ok(Mounted::Failed(status(errno)))
                }
            },
        }
    }

    /// Returns whether the caller is a process of another user of this host, and must not use the
    /// export at `path`.
    pub(super) fn is_refused(&self, path: &[u8]) -> bool {
        let is_untrusted = |peer: &Peer| !peer.is_trusted();
        self.call.peer().is_some_and(is_untrusted)
            && self.find_exported(path, |_, _| Ok(())).err() == Some(Errno::EACCES)
    }

    fn mount_flavors(&self) -> Vec<u32> {
        let flavors = &self.server.options.flavors;
        flavors.iter().map(|flavor| flavor.pseudo()).collect()
    }

    /// Returns the handle of the directory at `path`, for every caller that is let in: the handle
    /// grants nothing beyond the directory's mode, and the caller may have no access to the
    /// directories above it.
    fn mounted(&self, path: &[u8]) -> vfs::Result<Handle> {
        self.find_exported(path, |cx, directory| {
            let handle = self.server.handle(cx, directory)?;
            Handle::new(&handle.bytes()).ok_or(Errno::EIO)
        })
    }

    /// Calls `use_it` with the directory at `path`, as the server itself. The path may begin with
    /// the export's name.
    ///
    /// Symbolic links are followed as by mountd(8), within the export. Returns `EACCES` if a link
    /// leads out of the export by `..` or by an absolute target, which is a path of the host that
    /// is unknown here, and `ELOOP` after 40 links, as in path_resolution(7).
    pub(super) fn find_exported<T>(
        &self,
        path: &[u8],
        use_it: impl FnOnce(&Cx<'_>, &Arc<dyn Node>) -> vfs::Result<T>,
    ) -> vfs::Result<T> {
        if path.len() > MAX_PATH {
            return Err(Errno::ENAMETOOLONG);
        }
        let call = self.call.internal();
        let cx = Cx {
            caller: &Caller::ROOT,
            call: &call,
            ..self.cx()
        };
        let export = &self.server.export;
        // The remaining names, the next one last.
        let mut names = reversed(path);
        names.pop_if(|name| **name == *export.name.as_bytes());
        let root = export.fs.root(&cx)?;
        export.note_client();
        // The directories between the root and the current one.
        let mut way: Vec<Arc<dyn Node>> = Vec::new();
        let mut links = 0;
        let mut steps = 0;
        while let Some(name) = names.pop() {
            // The lookup below is this program's own, which limits of the share let through.
            self.call.begin_step(steps);
            steps += 1;
            if let Err(again) = root.attr(&self.cx(), AttrMask::BASIC)
                && again.is_signal()
            {
                return Err(again);
            }
            if *name == *b".." {
                way.pop().ok_or(Errno::EACCES)?;
                continue;
            }
            let directory = way.last().unwrap_or(&root);
            let node = directory.lookup(&cx, Name::new(&name)?)?.node;
            match node.kind() {
                Kind::Directory => way.push(node),
                Kind::Symlink if links == MAX_LINKS => return Err(Errno::ELOOP),
                Kind::Symlink => {
                    links += 1;
                    let target = node.readlink(&cx)?;
                    if target.starts_with(b"/") {
                        return Err(Errno::EACCES);
                    }
                    names.extend(reversed(&target));
                }
                _ => return Err(Errno::ENOTDIR),
            }
        }
        use_it(&cx, way.last().unwrap_or(&root))
    }
}

/// The maximum number of links that Linux follows in a path.
const MAX_LINKS: u32 = 40;

/// Returns the names of a path, the last one first.
fn reversed(path: &[u8]) -> Vec<Box<[u8]>> {
    let names = path
        .split(|&byte| byte == b'/')
        .filter(|name| !name.is_empty() && *name != b".");
    names.rev().map(Box::from).collect()
}

fn status(errno: Errno) -> Status {
    match errno {
        Errno::EPERM => Status::Perm,
        Errno::ENOENT => Status::Noent,
        Errno::EACCES => Status::Acces,
        Errno::ENOTDIR => Status::Notdir,
        Errno::EINVAL => Status::Inval,
        Errno::ENAMETOOLONG => Status::Nametoolong,
        _ => Status::Io,
    }
}
