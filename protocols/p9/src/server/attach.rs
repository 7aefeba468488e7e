//! Tversion and Tattach: how a session and a user's part in it begin.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use vfs::{
    Allotment, Call, Caller, Cx, Errno, Export, Kind, Name, Node, Peer, Portion, Result, Want,
};

use super::fid::{self, FidState, Step};
use super::qid::qid_of;
use super::{Agreed, Options, Turn};
use crate::{Dialect, Fid, Rmessage, Uid};

/// Which trees clients may attach to.
pub trait Exports: Send + Sync {
    /// The export that `aname` (Tattach) means, and the path below its root that remains of it:
    /// names with slashes between and around them, perhaps none.
    fn resolve<'a>(&self, aname: &'a [u8]) -> Option<(Arc<Export>, &'a [u8])>;
}

/// Exports by name: an `aname` is an export's name and, behind a slash, a path below its root; so
/// are both together where one export's name is another's path, and the longest wins. A name may
/// have slashes of its own; those around it do not count. The export without a name is what no other
/// is meant by. Where there is one export alone, an empty `aname` means it, whatever its name.
#[derive(Clone, Default)]
pub struct ExportList(pub Vec<Arc<Export>>);

impl Exports for ExportList {
    fn resolve<'a>(&self, aname: &'a [u8]) -> Option<(Arc<Export>, &'a [u8])> {
        let aname = trim_slashes(aname);
        if let ([only], []) = (self.0.as_slice(), aname) {
            return Some((only.clone(), aname));
        }
        let below = |export: &Arc<Export>| {
            let name = trim_slashes(export.name.as_bytes());
            let rest = aname.strip_prefix(name)?;
            let whole = name.is_empty() || rest.is_empty() || rest[0] == b'/';
            whole.then(|| (name.len(), export.clone(), rest))
        };
        let found = self.0.iter().filter_map(below);
        let (_, export, rest) = found.max_by_key(|(len, ..)| *len)?;
        Some((export, rest))
    }
}

fn trim_slashes(mut path: &[u8]) -> &[u8] {
    while let Some(rest) = path.strip_prefix(b"/") {
        path = rest;
    }
    while let Some(rest) = path.strip_suffix(b"/") {
        path = rest;
    }
    path
}

/// What a Tattach began: a user's part in an export. All fids walked from there share it.
pub(super) struct Attach {
    pub(super) export: Arc<Export>,
    /// Where it began; nothing above is reached from it.
    pub(super) root: Arc<dyn Node>,
    /// Whether that is below the export's own root.
    pub(super) below: bool,
    pub(super) caller: Caller,
    /// Of all that the connection holds, bytes.
    pub(super) held: Arc<Allotment>,
}

impl Attach {
    /// Room for so many bytes among what the connection holds: `EMFILE` if its client has its
    /// share, `ENFILE` if all clients together have what there is.
    pub(super) fn room(&self, bytes: usize) -> Result<Portion> {
        self.held.take(bytes).map_err(fid::errno)
    }

    /// The caller of a message that names a group for what it makes, as far as the peer may choose
    /// it.
    pub(super) fn caller_in(&self, call: &Call, gid: u32) -> Caller {
        if gid == u32::MAX {
            return self.caller.clone();
        }
        call.acts_as(Caller {
            gid,
            ..self.caller.clone()
        })
    }
}

impl Turn<'_> {
    pub(super) fn version(&mut self, msize: u32, version: &[u8]) -> Result<()> {
        // What was agreed on before ends in any case; the driver serves nothing meanwhile.
        self.peer.fids.clear();
        self.peer.agreed.store(0, Ordering::Release);
        self.peer.appends_only.store(false, Ordering::Relaxed);
        let Some(dialect) = Dialect::answering(version) else {
            let unknown = Rmessage::Version {
                msize: msize.min(self.peer.server.options.max_msize),
                version: b"unknown",
            };
            return self.reply(&unknown);
        };
        self.dialect = dialect;
        if msize < Options::MIN_MSIZE {
            return Err(Errno::EMSGSIZE);
        }
        let most = self.peer.server.options.max_msize;
        let msize = msize.min(most.max(Options::MIN_MSIZE));
        let hands = self.peer.server.hands_over && version == Dialect::HANDING.as_bytes();
        tracing::debug!(client = self.peer.client, %dialect, msize, hands, "session");
        let agreed = Agreed {
            dialect,
            msize,
            hands,
        };
        self.peer.agreed.store(agreed.pack(), Ordering::Release);
        self.reply(&Rmessage::Version {
            msize,
            version: dialect.saying(hands).as_bytes(),
        })
    }

    pub(super) fn attach(
        &mut self,
        fid: Fid,
        afid: Fid,
        uname: &[u8],
        aname: &[u8],
        n_uname: Uid,
    ) -> Result<()> {
        // No Tauth has ever been granted.
        if afid != Fid::NONE {
            return Err(Errno::EBADF);
        }
        self.peer.fids.check_free(fid)?;
        let caller = self.caller(uname, n_uname)?;
        let exports = &self.peer.server.exports;
        let (export, path) = exports.resolve(aname).ok_or(Errno::ENOENT)?;
        let cx = self.cx(&caller);
        let top = export.fs.root(&cx)?;
        let node = descend(&cx, top.clone(), path)?;
        let attr = node.attr(&cx, Want::BASIC | Want::TIMES)?;
        let below = node.id() != top.id();
        tracing::debug!(
            client = self.peer.client,
            uid = caller.uid,
            aname = %aname.escape_ascii(),
            "attach"
        );
        let user = &self.peer.user;
        user.get_or_init(|| format!("uid {} at /{}", caller.uid, export.name));
        let quota = &self.peer.server.held;
        let held = self.peer.fids.held(quota, self.call.account());
        let attach = Arc::new(Attach {
            export,
            root: node,
            below,
            caller,
            held: held.clone(),
        });
        let root = Step::unnamed(&attach, attach.root.clone())?;
        self.peer.fids.insert(fid, FidState::Walked(root))?;
        self.reply(&Rmessage::Attach { qid: qid_of(&attr) })
    }

    /// The caller that attaches: the user with the number if there is one, else with the name, as
    /// far as the peer may act as that. With neither, the owner of the peer's socket, if it is
    /// known, or else nobody.
    fn caller(&self, uname: &[u8], n_uname: Uid) -> Result<Caller> {
        let server = &self.peer.server;
        let known = match n_uname {
            Uid::NONE => server.users.uid(uname),
            Uid(uid) => Some(uid),
        };
        let owner = self.call.peer().and_then(Peer::owner);
        if let (None, b"", Some(owner)) = (known, uname, owner) {
            return Ok(owner.clone());
        }
        let uid = known.or(server.options.unknown_user).ok_or(Errno::EPERM)?;
        let gid = server.users.primary_group(uid).unwrap_or(uid);
        let caller = self.call.acts_as(Caller::new(uid, gid));
        if known.is_none() && owner.is_none_or(|owner| owner.uid != caller.uid) {
            self.peer.unnamed.call_once(|| {
                tracing::warn!(
                    client = self.peer.client,
                    uname = %uname.escape_ascii(),
                    "a client attaches without a known user: it acts as uid {uid}, \
                     which may not create files (EACCES) where others may not write"
                );
            });
        }
        Ok(caller)
    }
}

/// The node at `path` below `node`. No link is followed and no `..`.
fn descend(cx: &Cx<'_>, mut node: Arc<dyn Node>, path: &[u8]) -> Result<Arc<dyn Node>> {
    for name in path.split(|&byte| byte == b'/') {
        match name {
            b"" | b"." => continue,
            b".." => return Err(Errno::EACCES),
            _ if node.kind() != Kind::Directory => return Err(Errno::ENOTDIR),
            _ => node = node.lookup(cx, Name::new(name)?)?.node,
        }
    }
    Ok(node)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slashes_around_a_path_do_not_count() {
        assert_eq!(trim_slashes(b"//a/b/"), b"a/b");
        assert_eq!(trim_slashes(b"/"), b"");
    }
}
