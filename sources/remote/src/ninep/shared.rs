//! The state that all nodes and files of a connection share, and attaching for each user.

use std::collections::HashMap;
use std::sync::Arc;

use p9::client::attr;
use p9::{Dialect, Fid, QidType, Rmessage, Tmessage, Uid};
use parking_lot::{Mutex, MutexGuard};
use vfs::{Caller, Cx, Kind, Result};

use super::fid::{Opened, OwnedFid, Session};
use super::options::Options;
use super::places::Places;
use crate::ClientOwner;
use crate::locks::Mirrors;

/// The state that all nodes and files of a connection share.
pub(super) struct Shared {
    pub(super) session: Arc<Session>,
    pub(super) mirrors: Mirrors<Opened>,
    pub(super) places: Places,
    /// The client ID in lock requests.
    pub(super) client_id: ClientOwner,
    pub(super) options: Options,
    /// The root fid of each user.
    pub(super) roots: Mutex<HashMap<u32, Arc<OwnedFid>>>,
    pub(super) root: u64,
    pub(super) root_kind: Kind,
}

impl Shared {
    /// The user ID that a caller acts as.
    pub(super) fn user(&self, caller: &Caller) -> u32 {
        user_of(&self.options, self.session.dialect(), caller)
    }

    pub(super) fn root_id(&self) -> u64 {
        self.root
    }

    /// The group for nodes that a caller creates: its own, unless it acts as another user.
    pub(super) fn group(&self, caller: &Caller) -> u32 {
        match self.options.uid {
            Some(uid) if uid != caller.uid => u32::MAX,
            _ => caller.gid,
        }
    }

    /// The root fid of a user, attached at first use.
    pub(super) fn root_of(&self, cx: &Cx<'_>, user: u32) -> Result<Arc<OwnedFid>> {
        if let Some(root) = self.roots().get(&user) {
            return Ok(root.clone());
        }
        cx.check_may_block()?;
        let (root, _) = attach(&self.session, &self.options, user)?;
        let root = Arc::new(root);
        let mut roots = self.roots();
        if roots.len() >= Shared::MAX_USERS {
            roots.retain(|_, root| Arc::strong_count(root) > 1);
        }
        Ok(roots.entry(user).or_insert(root).clone())
    }

    /// The number of users from which unused attaches are dropped.
    const MAX_USERS: usize = 1024;

    fn roots(&self) -> MutexGuard<'_, HashMap<u32, Arc<OwnedFid>>> {
        self.roots.lock()
    }
}

pub(super) fn user_of(options: &Options, dialect: Dialect, caller: &Caller) -> u32 {
    match dialect {
        // 9P2000 identifies users by name only.
        Dialect::Plan9 => u32::MAX,
        Dialect::Unix | Dialect::Linux => options.uid.unwrap_or(caller.uid),
    }
}

/// Attaches as `user`. Returns the root's fid, and its ID and kind as far as the qid tells.
pub(super) fn attach(
    wire: &Arc<Session>,
    options: &Options,
    user: u32,
) -> Result<(OwnedFid, Option<(u64, Kind)>)> {
    let (fid, reply) = wire.with_room(|| {
        let fid = wire.connection.fid()?;
        let attach = Tmessage::Attach {
            fid,
            afid: Fid::NONE,
            uname: options.uname.as_bytes(),
            aname: options.aname.as_bytes(),
            n_uname: Uid(user),
        };
        Ok((fid, wire.connection.call(&attach)?))
    })?;
    let root = match reply.message()? {
        Rmessage::Attach { qid } if qid.kind.contains(QidType::DIR) => {
            Some((attr::id_of(&qid), Kind::Directory))
        }
        _ => None,
    };
    Ok((wire.own_fid(fid), root))
}
