//! Tversion and Tattach: the start of a session and of a user's access.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use vfs::{AttrMask, Caller, Cx, Errno, Kind, Name, Node, Peer, Result};

use super::connection::{Negotiated, Options};
use super::fid::FidState;
use super::qid::qid_of;
use super::request::RequestContext;
use super::step::{Attach, Step};
use crate::{Dialect, Fid, Rmessage, Uid};

impl RequestContext<'_> {
    pub(super) fn version(&mut self, msize: u32, version: &[u8]) -> Result<()> {
        // The previous session ends in any case; the driver serves no other requests meanwhile.
        self.connection.fids.clear();
        self.connection.negotiated.store(0, Ordering::Release);
        self.connection.appends_only.store(false, Ordering::Relaxed);
        let Some(dialect) = Dialect::negotiate(version) else {
            let unknown = Rmessage::Version {
                msize: msize.min(self.connection.server.options.max_msize),
                version: b"unknown",
            };
            return self.reply(&unknown);
        };
        self.dialect = dialect;
        if msize < Options::MIN_MSIZE {
            return Err(Errno::EMSGSIZE);
        }
        let most = self.connection.server.options.max_msize;
        let msize = msize.min(most.max(Options::MIN_MSIZE));
        let hands = self.connection.server.fd_passing && version == Dialect::FD_PASSING.as_bytes();
        tracing::debug!(client = self.connection.client, %dialect, msize, fd_passing = hands, "session");
        let agreed = Negotiated {
            dialect,
            msize,
            fd_passing: hands,
        };
        self.connection
            .negotiated
            .store(agreed.pack(), Ordering::Release);
        self.reply(&Rmessage::Version {
            msize,
            version: dialect.version_with(hands).as_bytes(),
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
        self.connection.fids.check_free(fid)?;
        let caller = self.caller(uname, n_uname)?;
        let exports = &self.connection.server.exports;
        let (export, path) = exports.resolve(aname).ok_or(Errno::ENOENT)?;
        let cx = self.cx(&caller);
        let top = export.fs.root(&cx)?;
        export.note_client();
        let node = descend(&cx, top.clone(), path)?;
        let attr = node.attr(&cx, AttrMask::BASIC | AttrMask::TIMES)?;
        let below = node.id() != top.id();
        tracing::debug!(
            client = self.connection.client,
            uid = caller.uid,
            aname = %aname.escape_ascii(),
            "attach"
        );
        let quota = &self.connection.server.memory;
        let held = self.connection.fids.memory(quota, self.call.account());
        let attach = Arc::new(Attach {
            export,
            root: node,
            below,
            caller,
            memory: held.clone(),
        });
        self.connection.set_user(&attach);
        let root = Step::unnamed(&attach, attach.root.clone())?;
        self.connection.fids.insert(fid, FidState::Walked(root))?;
        self.reply(&Rmessage::Attach { qid: qid_of(&attr) })
    }

    /// Returns the caller of an attach: the user with the number if there is one, else the one with
    /// the name, if the peer may act as it. Without both it is the owner of the peer's socket, if
    /// known, or else the unknown user.
    fn caller(&self, uname: &[u8], n_uname: Uid) -> Result<Caller> {
        let server = &self.connection.server;
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
            self.connection.unnamed.call_once(|| {
                tracing::warn!(
                    client = self.connection.client,
                    uname = %uname.escape_ascii(),
                    "a client attached without a known user: it acts as uid {uid}, which cannot create files \
                     (EACCES) in directories that others cannot write to"
                );
            });
        }
        Ok(caller)
    }
}

/// Returns the node at `path` below `node`. Rejects `..`, and does not follow links.
fn descend(cx: &Cx<'_>, mut node: Arc<dyn Node>, path: &[u8]) -> Result<Arc<dyn Node>> {
    for (step, name) in (0..).zip(path.split(|&byte| byte == b'/')) {
        cx.call.begin_step(step);
        match name {
            b"" | b"." => continue,
            b".." => return Err(Errno::EACCES),
            _ if node.kind() != Kind::Directory => return Err(Errno::ENOTDIR),
            _ => node = node.lookup(cx, Name::new(name)?)?.node,
        }
    }
    Ok(node)
}
