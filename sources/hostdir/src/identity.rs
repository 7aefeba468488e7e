//! The identity under which the calling thread uses the host's file systems.
//!
//! Linux keeps it per thread, and so does the record here: successive operations of the same caller
//! cost nothing. A thread that has served one caller keeps that caller's identity until it serves
//! another; [`release_thread`] resets it.
//!
//! Leaving user 0 drops the file-system capabilities (`CAP_DAC_OVERRIDE`, `CAP_CHOWN`,
//! `CAP_FOWNER`, `CAP_FSETID`, `CAP_MKNOD`, …) from the effective set and returning restores them,
//! so the kernel checks each operation as if the caller performed it. `CAP_SYS_RESOURCE`, which
//! exempts from quotas and reserved blocks, is dropped and restored with them, as in Linux's own
//! NFS server (`CAP_NFSD_SET`). If ids are translated before this source, root is another user
//! ([`crate::Options::super_user`]) and keeps those capabilities effective. Others, like
//! `CAP_SYS_ADMIN`, stay effective: where that matters (`xattr`) barge checks itself.
//!
//! The umask can be made per-thread as well: threads that create files for clients clear theirs,
//! and the umask of the rest of the process and of its children stays unchanged.
//!
//! Lock order: the cache of groups takes its own mutex only, and not during a query of the user
//! database.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::fs::{Gid, Mode};
use rustix::thread::{CapabilitiesSecureBits, CapabilitySet};
use vfs::{Caller, Cx, Errno, Groups, Patience, Result};

/// The capabilities required to serve as other users.
const REQUIRED: CapabilitySet = CapabilitySet::SETUID
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::CHOWN)
    .union(CapabilitySet::FOWNER);

/// The lifetime of a cached list of groups: an NFS server's default.
const GROUPS_TTL: Duration = Duration::from_secs(60);

/// The most users with cached groups: a few hundred bytes each.
const MAX_USERS: usize = 4096;

/// Whether any export of this process switches identities: before that, threads are unchanged.
static SWITCHING: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// This thread's identity; `None` before the first switch, when the thread may have inherited
    /// any identity from its parent.
    static CURRENT: RefCell<Option<ThreadIdentity>> = const { RefCell::new(None) };
}

/// The identity under which the host's file system is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Identity {
    /// [`Identity::Switch`] if that is possible, otherwise [`Identity::Fixed`].
    #[default]
    Auto,
    /// The caller of each operation: owners are as on the host, and the host's kernel checks
    /// permissions. Needs to run as user 0 with its capabilities.
    Switch,
    /// The process: it owns all new files, and its permissions apply to all clients.
    Fixed,
    /// The process, with owners, permissions and types in extended attributes ([`crate::mapped`]).
    MappedXattr,
}

/// The identity of an export's operations.
pub(crate) struct CallerIdentity(Option<IdentitySwitch>);

impl CallerIdentity {
    /// Returns the identity for `option`. Returns `PermissionDenied` if each caller's is required
    /// and the process may not switch; `super_user` has root's privileges too. Unknown groups are
    /// those of the host's user database, or none without `user_database`.
    pub(crate) fn new(
        option: Identity,
        super_user: u32,
        user_database: bool,
    ) -> io::Result<CallerIdentity> {
        let switches = match option {
            Identity::Switch if !IdentitySwitch::permitted() => {
                return Err(io::Error::new(
                    io::ErrorKind::PermissionDenied,
                    "expected to run as user 0 with CAP_SETUID, CAP_SETGID, CAP_DAC_OVERRIDE, \
                     CAP_CHOWN and CAP_FOWNER, to act as each caller",
                ));
            }
            Identity::Auto => IdentitySwitch::permitted(),
            Identity::Switch => true,
            Identity::Fixed | Identity::MappedXattr => false,
        };
        Ok(CallerIdentity(
            switches.then(|| IdentitySwitch::new(super_user, user_database)),
        ))
    }

    /// Gives the calling thread the caller's identity, if this export switches: directly before the
    /// system calls that need the caller's permissions, and after all opens by handle.
    pub(crate) fn assume(&self, cx: &Cx<'_>) -> Result<()> {
        match &self.0 {
            Some(switch) => switch.assume_identity(cx.caller, cx.patience),
            None => assume_server(),
        }
    }

    /// Returns whether `caller` is distinguished from root.
    pub(crate) fn is_ordinary(&self, caller: &Caller) -> bool {
        let switch = self.0.as_ref();
        switch.is_some_and(|switch| !switch.is_super_user(caller))
    }

    /// Returns whether the host distinguishes callers.
    pub(crate) fn switches(&self) -> bool {
        self.0.is_some()
    }
}

struct ThreadIdentity {
    uid: u32,
    gid: u32,
    groups: Arc<[u32]>,
    /// Whether the file-system capabilities are effective although the user is not 0.
    keeps_capabilities: bool,
    /// The expiry of groups from the user database.
    groups_expire: Option<Instant>,
}

/// Switches threads to the identities of callers.
struct IdentitySwitch {
    users: Mutex<HashMap<u32, CachedGroups>>,
    no_groups: Arc<[u32]>,
    super_user: u32,
    user_database: bool,
}

/// A user's groups, with their expiry.
type CachedGroups = (Instant, Arc<[u32]>);

impl IdentitySwitch {
    /// Returns whether this process can switch identities.
    ///
    /// It has to run as user 0, because leaving user 0 is what drops the capabilities, unless the
    /// secure bits disable that. In a user namespace that an ordinary user created, groups cannot
    /// be set (user_namespaces(7)), and no other users exist.
    fn permitted() -> bool {
        let groups = std::fs::read_to_string("/proc/self/setgroups");
        let own_namespace = groups.is_ok_and(|text| text.trim() == "deny");
        rustix::process::geteuid().is_root()
            && sys::caps::have_all(REQUIRED)
            && rustix::thread::capabilities_secure_bits()
                .is_ok_and(|bits| !bits.contains(CapabilitiesSecureBits::NO_SETUID_FIXUP))
            && !own_namespace
    }

    fn new(super_user: u32, user_database: bool) -> IdentitySwitch {
        SWITCHING.store(true, Ordering::SeqCst);
        IdentitySwitch {
            users: Mutex::default(),
            no_groups: Arc::from([]),
            super_user,
            user_database,
        }
    }

    /// Returns whether `caller` has root's privileges.
    fn is_super_user(&self, caller: &Caller) -> bool {
        caller.uid == 0 || caller.uid == self.super_user
    }

    /// Gives the calling thread the identity of `caller`. Returns `WOULD_BLOCK` if the user
    /// database has to be queried and `patience` does not permit it.
    fn assume_identity(&self, caller: &Caller, patience: Patience) -> Result<()> {
        CURRENT.with_borrow_mut(|now| {
            let (groups, groups_expire) = match &caller.groups {
                Groups::Known(groups) => (groups.clone(), None),
                // Root's groups grant no further access.
                Groups::Unknown if caller.uid == 0 || !self.user_database => {
                    (self.no_groups.clone(), None)
                }
                Groups::Unknown => match now {
                    Some(now) if now.uid == caller.uid && now.groups_are_current() => {
                        (now.groups.clone(), now.groups_expire)
                    }
                    _ => {
                        let (groups_expire, groups) = self.groups(caller.uid, patience)?;
                        (groups, Some(groups_expire))
                    }
                },
            };
            change_thread(
                now,
                ThreadIdentity {
                    uid: caller.uid,
                    gid: caller.gid,
                    groups,
                    keeps_capabilities: caller.uid != 0 && self.is_super_user(caller),
                    groups_expire,
                },
            )
        })
    }

    /// Returns the groups of user `uid` from the host's user database.
    fn groups(&self, uid: u32, patience: Patience) -> Result<CachedGroups> {
        let now = Instant::now();
        let users = || self.users.lock();
        if let Some((groups_expire, groups)) = users().get(&uid)
            && *groups_expire > now
        {
            return Ok((*groups_expire, groups.clone()));
        }
        if patience < Patience::Full {
            return Err(Errno::WOULD_BLOCK);
        }
        let groups: Arc<[u32]> = match sys::users::by_uid(uid) {
            Ok(Some(user)) => sys::users::groups(&user).into(),
            Ok(None) => self.no_groups.clone(),
            Err(error) => return Err(sys::errno(error)),
        };
        let mut users = users();
        if users.len() >= MAX_USERS {
            users.retain(|_, (groups_expire, _)| *groups_expire > now);
            if users.len() >= MAX_USERS {
                users.clear();
            }
        }
        let groups_expire = now + GROUPS_TTL;
        users.insert(uid, (groups_expire, groups.clone()));
        Ok((groups_expire, groups))
    }
}

impl ThreadIdentity {
    fn is_super_user(&self) -> bool {
        self.uid == 0 || self.keeps_capabilities
    }

    fn groups_are_current(&self) -> bool {
        self.groups_expire
            .is_some_and(|groups_expire| groups_expire > Instant::now())
    }
}

/// Clears the umask of the calling thread, before it creates the first file for a client, without
/// affecting other threads. If a sandbox forbids that (unshare(2)), the umask of the whole process
/// is cleared, since there is no other way to give a file the requested mode and leave default ACLs
/// to the kernel.
pub(crate) fn clear_umask() {
    thread_local! {
        static CLEARED: Cell<bool> = const { Cell::new(false) };
    }
    if !CLEARED.get() {
        if sys::umask::clear_own().is_err() {
            rustix::process::umask(Mode::empty());
        }
        CLEARED.set(true);
    }
}

/// Gives the calling thread the process's own identity, if any export switches identities.
pub(crate) fn assume_server() -> Result<()> {
    if !SWITCHING.load(Ordering::SeqCst) {
        return Ok(());
    }
    CURRENT.with_borrow_mut(|now| {
        let server = ThreadIdentity {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            groups: Arc::from([]),
            keeps_capabilities: false,
            groups_expire: None,
        };
        change_thread(now, server)
    })
}

/// Gives the calling thread the process's own identity back after it served callers of exports that
/// switch. Required before it uses files for another purpose or starts a program. Returns `EPERM`
/// if the kernel refuses.
pub fn release_thread() -> Result<()> {
    assume_server()
}

/// Changes the parts that differ. After a failure the thread's identity counts as unknown, so that
/// the next switch sets all of it: it never works under a wrong identity.
fn change_thread(now: &mut Option<ThreadIdentity>, to: ThreadIdentity) -> Result<()> {
    let (uid, gid, groups, keeps_capabilities) = match now {
        Some(now) => (
            now.uid != to.uid,
            now.gid != to.gid,
            !Arc::ptr_eq(&now.groups, &to.groups) && now.groups != to.groups,
            // Leaving user 0, the kernel drops all capabilities but one.
            now.is_super_user() != to.is_super_user()
                || (to.keeps_capabilities && now.uid != to.uid),
        ),
        None => (true, true, true, true),
    };
    if !(uid || gid || groups || keeps_capabilities) {
        if let Some(now) = now {
            now.groups_expire = to.groups_expire;
        }
        return Ok(());
    }
    *now = None;
    if groups {
        let groups: Vec<Gid> = to.groups.iter().map(|&gid| Gid::from_raw(gid)).collect();
        sys::creds::set_thread_groups(&groups).map_err(sys::errno)?;
    }
    if gid {
        sys::creds::set_fs_gid(to.gid).map_err(sys::errno)?;
    }
    if uid {
        sys::creds::set_fs_uid(to.uid).map_err(sys::errno)?;
    }
    if keeps_capabilities {
        sys::caps::set_fs_capabilities(to.is_super_user()).map_err(sys::errno)?;
    }
    *now = Some(to);
    Ok(())
}
