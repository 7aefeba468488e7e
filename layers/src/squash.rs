//! Maps the super-user, or all users, to the anonymous user, as NFS exports do (exports(5):
//! `root_squash`, `all_squash`).
//!
//! Owners are shown unchanged. Where all users are anonymous, an owner or group that a client
//! requests becomes the anonymous one, too, so that programs that restore owners work on files that
//! they created. Where only the super-user is anonymous, the source decides about such requests.
//! The ids inside POSIX ACLs are left unchanged, and so are the calls of this program itself
//! ([`vfs::Call::internal`]).

use std::borrow::Cow;

use vfs::{Caller, Cx, Groups, Node, Peer, Result, SetAttr};

use crate::{Layer, Opened, forward};

/// The users to make anonymous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SquashMode {
    /// No user.
    None,
    /// User 0 of other hosts, and group 0 in their credentials; not those of this host and its
    /// guests.
    RemoteRoot,
    /// User 0, and group 0 wherever it occurs.
    Root,
    /// All users.
    All,
}

/// The layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Squash {
    /// The users to make anonymous.
    pub mode: SquashMode,
    /// The anonymous user.
    pub uid: u32,
    /// The anonymous group.
    pub gid: u32,
}

/// Linux's overflow id: `nobody`, and `nogroup` or `nobody`.
pub const NOBODY: u32 = 65534;

impl Squash {
    /// Creates a layer that maps them to [`NOBODY`].
    pub fn new(mode: SquashMode) -> Squash {
        Squash {
            mode,
            uid: NOBODY,
            gid: NOBODY,
        }
    }

    /// Returns the caller to act as in place of the calling one.
    pub(crate) fn caller<'a>(&self, cx: &Cx<'a>) -> Cow<'a, Caller> {
        self.of(cx, Cow::Borrowed(cx.caller))
    }

    /// Returns the caller to act as in place of `caller`, who makes the call.
    pub(crate) fn of<'a>(&self, cx: &Cx<'_>, caller: Cow<'a, Caller>) -> Cow<'a, Caller> {
        let group = |gid| if gid == 0 { self.gid } else { gid };
        Cow::Owned(match self.mode {
            SquashMode::None => return caller,
            SquashMode::RemoteRoot if !cx.call.peer().is_some_and(Peer::is_remote) => {
                return caller;
            }
            _ if cx.call.is_internal() => return caller,
            SquashMode::All => Caller {
                uid: self.uid,
                gid: self.gid,
                groups: Groups::Known([].into()),
            },
            SquashMode::RemoteRoot | SquashMode::Root => Caller {
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
                    // With unknown groups, the source would look up those of the anonymous user.
                    Groups::Unknown if caller.uid == 0 => Groups::Known([].into()),
                    groups => groups.clone(),
                },
            },
        })
    }

    /// Maps the owners in the request `set`.
    pub(crate) fn request(&self, set: &SetAttr) -> SetAttr {
        match self.mode {
            SquashMode::None | SquashMode::RemoteRoot | SquashMode::Root => *set,
            SquashMode::All => SetAttr {
                uid: set.uid.map(|_| self.uid),
                gid: set.gid.map(|_| self.gid),
                ..*set
            },
        }
    }
}

impl Layer for Squash {
    fn allows_passthrough(&self) -> bool {
        true
    }

    fn setattr(&self, inner: &dyn Node, cx: &Cx<'_>, set: &SetAttr) -> Result<vfs::Attr> {
        let caller = self.caller(cx);
        inner.setattr(&cx.on_behalf_of(&caller), &self.request(set))
    }

    fn file_setattr(&self, inner: Opened<'_>, cx: &Cx<'_>, set: &SetAttr) -> Result<vfs::Attr> {
        let caller = self.caller(cx);
        inner.setattr(&cx.on_behalf_of(&caller), &self.request(set))
    }

    forward! { capabilities id above }

    forward! { by caller: all but setattr file_setattr }
}
