//! Makes someone anonymous of the super-user, or of everyone, as NFS exports do (exports(5):
//! `root_squash`, `all_squash`).
//!
//! Owners are shown as they are. An owner or group that a client asks for is squashed as its
//! callers are: where everyone is anonymous, giving a file to anyone gives it to the anonymous
//! user, so that programs that restore owners work on what they made. Where only the super-user
//! is, requests are the source's to refuse. The ids inside POSIX ACLs are left alone. What this
//! program does of its own accord is ([`vfs::Call::of_ours`]), too.

use std::borrow::Cow;

use vfs::{Caller, Cx, Groups, Node, Peer, Result, SetAttr};

use crate::{Layer, Opened, forward};

/// Who is made anonymous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whom {
    /// Nobody.
    None,
    /// User 0 of other hosts, and group 0 wherever they claim it; not that of this host and its
    /// guests.
    RemoteRoot,
    /// User 0, and group 0 wherever it occurs.
    Root,
    /// Everyone.
    All,
}

/// The layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Squash {
    /// Who is made anonymous.
    pub whom: Whom,
    /// The anonymous user.
    pub uid: u32,
    /// The anonymous group.
    pub gid: u32,
}

/// Linux's overflow id: `nobody`, and `nogroup` or `nobody`.
pub const NOBODY: u32 = 65534;

impl Squash {
    /// Makes nobody of them.
    pub fn new(whom: Whom) -> Squash {
        Squash {
            whom,
            uid: NOBODY,
            gid: NOBODY,
        }
    }

    /// Whom it makes of the caller.
    pub(crate) fn caller<'a>(&self, cx: &Cx<'a>) -> Cow<'a, Caller> {
        self.of(cx, Cow::Borrowed(cx.caller))
    }

    /// Whom it makes of `caller`, whose call it is.
    pub(crate) fn of<'a>(&self, cx: &Cx<'_>, caller: Cow<'a, Caller>) -> Cow<'a, Caller> {
        let group = |gid| if gid == 0 { self.gid } else { gid };
        Cow::Owned(match self.whom {
            Whom::None => return caller,
            Whom::RemoteRoot if !cx.call.peer().is_some_and(Peer::is_remote) => return caller,
            _ if cx.call.is_ours() => return caller,
            Whom::All => Caller {
                uid: self.uid,
                gid: self.gid,
                groups: Groups::Known([].into()),
            },
            Whom::RemoteRoot | Whom::Root => Caller {
                uid: if caller.uid == 0 {
                    self.uid
                } else {
                    caller.uid
                },
                gid: group(caller.gid),
                groups: match &caller.groups {
                    Groups::Known(groups) if groups.contains(&0) => {
                        Groups::Known(groups.iter().copied().map(group).collect())
                    }
                    // The source would look the anonymous user's groups up.
                    Groups::Unknown if caller.uid == 0 => Groups::Known([].into()),
                    groups => groups.clone(),
                },
            },
        })
    }

    /// What it makes of the owners that `set` asks for.
    pub(crate) fn request(&self, set: &SetAttr) -> SetAttr {
        match self.whom {
            Whom::None | Whom::RemoteRoot | Whom::Root => *set,
            Whom::All => SetAttr {
                uid: set.uid.map(|_| self.uid),
                gid: set.gid.map(|_| self.gid),
                ..*set
            },
        }
    }
}

impl Layer for Squash {
    fn leaves_contents(&self) -> bool {
        true
    }

    fn setattr(&self, inner: &dyn Node, cx: &Cx<'_>, set: &SetAttr) -> Result<vfs::Attr> {
        let who = self.caller(cx);
        inner.setattr(&cx.on_behalf_of(&who), &self.request(set))
    }

    fn file_setattr(&self, inner: Opened<'_>, cx: &Cx<'_>, set: &SetAttr) -> Result<vfs::Attr> {
        let who = self.caller(cx);
        inner.setattr(&cx.on_behalf_of(&who), &self.request(set))
    }

    forward! { capabilities id above }

    forward! { by caller:
        root resolve sync
        handle attr access statfs open readlink lookup parent create make tmpfile link
        unlink rename xattr xattrs set_xattr remove_xattr host_lock host_lock_holder
        file_attr read write readdir fsync flush allocate seek extents copy lease
    }
}
