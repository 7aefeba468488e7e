//! On whose behalf the calling thread uses the host's file systems.
//!
//! Linux keeps that per thread, and so does the note here of what it is: equal callers in a row
//! cost nothing. A thread that has served one caller keeps that caller's identity until it
//! serves another; [`release_thread`] gives it back.
//!
//! Leaving user 0 takes the capabilities over file systems (`CAP_DAC_OVERRIDE`, `CAP_CHOWN`,
//! `CAP_FOWNER`, `CAP_FSETID`, `CAP_MKNOD`, …) out of force and coming back restores them, so the
//! kernel checks each operation as if the caller made it. `CAP_SYS_RESOURCE`, which lets a writer
//! past quotas and into reserved blocks, goes and comes with them, as in Linux's own NFS server
//! (`CAP_NFSD_SET`). Where ids are translated on the way here, the super-user is another
//! ([`crate::Options::super_user`]), and keeps those capabilities in force. Others, like
//! `CAP_SYS_ADMIN`, stay in force: where that matters (`xattr`) barge checks itself.
//!
//! The umask, too, is per thread as far as a thread wants it so: threads that create files for
//! clients clear theirs, and those of the rest of the process, and of its children, stay as they
//! are.
//!
//! Lock order: the cache of groups takes its own mutex only, and not while it asks the database.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::fs::{Gid, Mode};
use rustix::thread::{CapabilitiesSecureBits, CapabilitySet};
use vfs::{Caller, Errno, Groups, Patience, Result};

/// What serving as others takes.
pub(crate) const NEEDED: CapabilitySet = CapabilitySet::SETUID
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::CHOWN)
    .union(CapabilitySet::FOWNER);

/// How long the groups of a user are believed: as long as an NFS server believes them by default.
const GROUPS_LAST: Duration = Duration::from_secs(60);

/// How many users' groups are kept: a few hundred bytes each.
const USERS: usize = 4096;

/// Whether any export of this process switches: before, threads are what they always were.
static SWITCHING: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// What this thread was made to be; nothing before the first time, when it may have inherited
    /// anything from the thread that started it.
    static NOW: RefCell<Option<Now>> = const { RefCell::new(None) };
}

struct Now {
    uid: u32,
    gid: u32,
    groups: Arc<[u32]>,
    /// Whether the capabilities over file systems are in force though the user is not 0.
    powers: bool,
    /// Where the groups came from the user database: until when they count.
    until: Option<Instant>,
}

/// Switches threads to callers.
pub(crate) struct Switch {
    users: Mutex<HashMap<u32, Believed>>,
    none: Arc<[u32]>,
    super_user: u32,
}

/// A user's groups, and until when they count.
type Believed = (Instant, Arc<[u32]>);

impl Switch {
    /// Whether this process may switch at all.
    ///
    /// It has to run as user 0, because it is leaving 0 that takes the capabilities out of
    /// force, unless the secure bits say that it does not. In a namespace that a user has made for itself groups cannot be set
    /// (user_namespaces(7)), and no other user is there.
    pub(crate) fn permitted() -> bool {
        let groups = std::fs::read_to_string("/proc/self/setgroups");
        let own_namespace = groups.is_ok_and(|text| text.trim() == "deny");
        rustix::process::geteuid().is_root()
            && sys::caps::have(NEEDED)
            && rustix::thread::capabilities_secure_bits()
                .is_ok_and(|bits| !bits.contains(CapabilitiesSecureBits::NO_SETUID_FIXUP))
            && !own_namespace
    }

    pub(crate) fn new(super_user: u32) -> Switch {
        SWITCHING.store(true, Ordering::SeqCst);
        Switch {
            users: Mutex::default(),
            none: Arc::from([]),
            super_user,
        }
    }

    /// Whether `caller` has the super-user's powers.
    pub(crate) fn is_super_user(&self, caller: &Caller) -> bool {
        caller.uid == 0 || caller.uid == self.super_user
    }

    /// Makes the calling thread `caller`. `WOULD_BLOCK` if the user database has to be asked and
    /// `patience` is short of that.
    pub(crate) fn become_caller(&self, caller: &Caller, patience: Patience) -> Result<()> {
        NOW.with_borrow_mut(|now| {
            let (groups, until) = match &caller.groups {
                Groups::Known(groups) => (groups.clone(), None),
                // The super-user's groups open no door that is not open.
                Groups::Unknown if caller.uid == 0 => (self.none.clone(), None),
                Groups::Unknown => match now {
                    Some(now) if now.uid == caller.uid && now.still_believed() => {
                        (now.groups.clone(), now.until)
                    }
                    _ => {
                        let (until, groups) = self.groups(caller.uid, patience)?;
                        (groups, Some(until))
                    }
                },
            };
            switch(
                now,
                Now {
                    uid: caller.uid,
                    gid: caller.gid,
                    groups,
                    powers: caller.uid != 0 && self.is_super_user(caller),
                    until,
                },
            )
        })
    }

    /// The groups of user `uid` as the host's database has them.
    fn groups(&self, uid: u32, patience: Patience) -> Result<Believed> {
        let now = Instant::now();
        let users = || self.users.lock().expect("no panic holds it");
        if let Some((until, groups)) = users().get(&uid)
            && *until > now
        {
            return Ok((*until, groups.clone()));
        }
        if patience < Patience::Full {
            return Err(Errno::WOULD_BLOCK);
        }
        let groups: Arc<[u32]> = match sys::users::by_uid(uid) {
            Ok(Some(user)) => sys::users::groups(&user).into(),
            Ok(None) => self.none.clone(),
            Err(error) => return Err(sys::errno(error)),
        };
        let mut users = users();
        if users.len() >= USERS {
            users.retain(|_, (until, _)| *until > now);
            if users.len() >= USERS {
                users.clear();
            }
        }
        let until = now + GROUPS_LAST;
        users.insert(uid, (until, groups.clone()));
        Ok((until, groups))
    }
}

impl Now {
    fn is_super_user(&self) -> bool {
        self.uid == 0 || self.powers
    }

    fn still_believed(&self) -> bool {
        self.until.is_some_and(|until| until > Instant::now())
    }
}

/// Clears the umask of the calling thread, before it creates the first file for a client, and
/// leaves those of other threads alone. Where a sandbox forbids that (unshare(2)), the umask of the
/// whole process is cleared, as there is no other way to give a file the mode that a client asks
/// for and leave default ACLs to the kernel.
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

/// Makes the calling thread the process's own user again, if an export ever switched.
pub(crate) fn become_server() -> Result<()> {
    if !SWITCHING.load(Ordering::SeqCst) {
        return Ok(());
    }
    NOW.with_borrow_mut(|now| {
        let server = Now {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            groups: Arc::from([]),
            powers: false,
            until: None,
        };
        switch(now, server)
    })
}

/// Gives the calling thread the process's own identity back, after it served callers of exports
/// that switch: before it does anything else with files, or starts a program. `EPERM` if the
/// kernel refuses.
pub fn release_thread() -> Result<()> {
    become_server()
}

/// Changes what differs. If anything fails the thread is taken for unknown, so that the next
/// time all is set: it never works as someone it should not be.
fn switch(now: &mut Option<Now>, to: Now) -> Result<()> {
    let (uid, gid, groups, powers) = match now {
        Some(now) => (
            now.uid != to.uid,
            now.gid != to.gid,
            !Arc::ptr_eq(&now.groups, &to.groups) && now.groups != to.groups,
            // Leaving 0 the kernel takes all of them but one away.
            now.is_super_user() != to.is_super_user() || (to.powers && now.uid != to.uid),
        ),
        None => (true, true, true, true),
    };
    if !(uid || gid || groups || powers) {
        if let Some(now) = now {
            now.until = to.until;
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
    if powers {
        sys::caps::put_over_files(to.is_super_user()).map_err(sys::errno)?;
    }
    *now = Some(to);
    Ok(())
}
