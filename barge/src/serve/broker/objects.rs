//! The objects of the host that shares consist of: directories, images, keys.
//!
//! The first process follows the paths of a share once, when the share is configured, and keeps a
//! descriptor of what they lead to. All processes that serve the share, after a crash or an upgrade
//! as well, get that object and do not know its path: a user who changes where the path leads does
//! not change what is served. A restart of the server follows the path anew, and so do a reload,
//! for a share that it changes, and `barge ctl reopen`.
//!
//! The descriptor makes umount(8) of a served file system fail as for any program that uses it.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;
use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use rustix::process::geteuid;
use sandbox::Object;

use super::confinement::share_paths;
use crate::Failure;
use crate::config::{Config, ObjectOf};
use crate::serve::plan::Plan;
use crate::serve::share::{Place, Share};

/// The objects of all shares of a server, by their numbers.
#[derive(Default)]
pub(super) struct Objects {
    all: Mutex<HashMap<u32, Arc<Found>>>,
    /// The number of the next one.
    next: AtomicU32,
}

/// An object that a path has led to.
pub(super) struct Found {
    /// Opened with `O_PATH`.
    descriptor: OwnedFd,
    writable: bool,
}

impl Found {
    /// Returns its descriptor, opened with `O_PATH`.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    /// Returns the object `number` for a root of its own.
    pub(super) fn copy(&self, number: u32) -> io::Result<Object> {
        Ok(Object {
            number,
            descriptor: sandbox::root::copy_object(self.descriptor.as_fd())?,
            writable: self.writable,
        })
    }
}

impl Objects {
    /// Returns those that an earlier program has found, with their numbers.
    pub(super) fn of(taken_over: Vec<(u32, bool, OwnedFd)>) -> Objects {
        let found = taken_over
            .into_iter()
            .map(|(number, writable, descriptor)| {
                let found = Found {
                    descriptor,
                    writable,
                };
                (number, Arc::new(found))
            });
        let all: HashMap<_, _> = found.collect();
        Objects {
            next: AtomicU32::new(all.keys().max().map_or(0, |most| most + 1)),
            all: Mutex::new(all),
        }
    }

    pub(super) fn get(&self, number: u32) -> Option<Arc<Found>> {
        self.all.lock().get(&number).cloned()
    }

    /// Returns all for another program: number, whether it is writable, and the descriptor.
    pub(super) fn list(&self) -> Vec<(u32, bool, Arc<Found>)> {
        let all = self.all.lock();
        let list = all
            .iter()
            .map(|(number, found)| (*number, found.writable, found.clone()));
        list.collect()
    }

    /// Drops those that `config` does not have.
    pub(super) fn retain(&self, config: &Config) {
        let needed: HashSet<u32> = config.objects().collect();
        self.all.lock().retain(|number, _| needed.contains(number));
    }

    /// Finds the objects of those shares of `config` that have none. `plan` is that of the same
    /// shares. Returns the failure to open a source; other files may be missing.
    pub(super) fn find(&self, config: &mut Config, plan: &Plan) -> Result<(), Failure> {
        let reloadable = plan.sources.reloadable;
        for (configured, share) in config.shares_mut().iter_mut().zip(&plan.sources.shares) {
            let is_known = |it: &ObjectOf| self.all.lock().contains_key(&it.number);
            if configured.objects.is_empty() || !configured.objects.iter().all(is_known) {
                configured.objects = self.find_of(share, reloadable)?;
            }
        }
        Ok(())
    }

    /// Makes the shares of `plan` refer to the objects by descriptors of this process.
    pub(super) fn locate(&self, plan: &mut Plan) -> Result<(), Failure> {
        for object in plan.sources.objects_mut() {
            if let Some(found) = self.get(object.number()) {
                let descriptor = found.descriptor.try_clone().map_err(Failure::new)?;
                object.place = Place::Descriptor(descriptor);
            }
        }
        Ok(())
    }

    /// Finds the objects of `share`.
    fn find_of(&self, share: &Share, reloadable: bool) -> Result<Vec<ObjectOf>, Failure> {
        let name = share.named.name.as_deref().unwrap_or_default();
        let of_source = share.named.source.host_paths();
        let mut objects: Vec<ObjectOf> = Vec::new();
        for visible in share_paths(share, reloadable) {
            let (path, writable) = (visible.path, visible.writable);
            if objects.iter().any(|it| it.path == path && it.writable) {
                continue;
            }
            let descriptor = match open(&path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
                Ok(descriptor) => descriptor,
                Err(error) if of_source.contains(&path) => {
                    return Err(share.named.source.failed(&error.into()));
                }
                // Its use says why.
                Err(_) => continue,
            };
            if let Some(dir) = changeable_part(&path) {
                tracing::warn!(
                    share = name,
                    "{}: other users can change where the path leads, at {}: what it leads to now \
                     is served until the server restarts",
                    path.display(),
                    dir.display()
                );
            }
            let kind = fstat(&descriptor).map(|stat| FileType::from_raw_mode(stat.st_mode));
            let is_directory = kind.is_ok_and(|kind| kind == FileType::Directory);
            let number = self.add(Found {
                descriptor,
                writable,
            });
            objects.push(ObjectOf {
                path,
                number,
                is_directory,
                writable,
            });
        }
        Ok(objects)
    }

    fn add(&self, found: Found) -> u32 {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.all.lock().insert(number, Arc::new(found));
        number
    }
}

/// Maximum number of symbolic links, as Linux's.
const MAX_LINKS: usize = 40;

/// Returns a directory on the way of `path` in which users other than this one and root can replace
/// the next part of the way: it belongs to one of them, or they may write to it.
fn changeable_part(path: &Path) -> Option<PathBuf> {
    let own = geteuid().as_raw();
    let is_trusted = |uid: u32| uid == 0 || uid == own;
    let parts = |path: &Path| -> Vec<OsString> {
        let parts = path.components().rev();
        parts.map(|part| part.as_os_str().to_owned()).collect()
    };
    let mut rest = parts(&std::env::current_dir().ok()?.join(path));
    let (mut at, mut links) = (PathBuf::from("/"), 0);
    while let Some(part) = rest.pop() {
        match Path::new(&part).components().next() {
            Some(Component::RootDir) => at = "/".into(),
            Some(Component::ParentDir) => drop(at.pop()),
            Some(Component::Normal(name)) => {
                let dir = fs::metadata(&at).ok()?;
                let next = at.join(name);
                let found = fs::symlink_metadata(&next).ok()?;
                let by_group = dir.mode() & 0o020 != 0 && dir.gid() != 0;
                let by_others = by_group || dir.mode() & 0o002 != 0;
                let sticky = dir.mode() & 0o1000 != 0 && is_trusted(found.uid());
                if !is_trusted(dir.uid()) || by_others && !sticky {
                    return Some(at);
                }
                if !found.is_symlink() {
                    at = next;
                    continue;
                }
                links += 1;
                if links > MAX_LINKS {
                    return None;
                }
                rest.extend(parts(&fs::read_link(&next).ok()?));
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    #[test]
    fn a_path_that_others_can_change_is_found() {
        let dir = tempfile::tempdir().expect("a directory");
        let base = dir.path().canonicalize().expect("a path");
        fs::create_dir_all(base.join("open/a")).expect("made");
        fs::create_dir_all(base.join("own/a")).expect("made");
        symlink(base.join("open/a"), base.join("link")).expect("made");
        let mode = |mode| {
            let mode = Permissions::from_mode(mode);
            fs::set_permissions(base.join("open"), mode).expect("changed");
        };
        let part = |path: &str| changeable_part(&base.join(path));
        mode(0o777);
        assert_eq!(part("own/a"), None);
        for path in ["open/a", "link", "own/../open/a"] {
            assert_eq!(part(path), Some(base.join("open")), "{path}");
        }
        // The object itself may be anybody's.
        assert_eq!(part("open"), None);
        mode(0o1777);
        assert_eq!(part("open/a"), None);
        if geteuid().is_root() {
            chown(base.join("open/a"), Some(65534), None).expect("given");
            assert_eq!(part("open/a"), Some(base.join("open")));
            mode(0o755);
            chown(base.join("open"), Some(65534), None).expect("given");
            assert_eq!(part("link"), Some(base.join("open")));
        }
    }
}
