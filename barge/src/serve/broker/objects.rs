//! The objects of the host that shares consist of: directories, images, keys.
//!
//! The first process follows the paths of a share once, when the share is configured, and keeps a
//! descriptor of what they lead to. All processes that serve the share, after a crash or an upgrade
//! as well, get that object and do not know its path: a user who changes where the path leads does
//! not change what is served. A restart of the server follows the path anew, and so do a reload,
//! for a share that it changes, and `barge ctl reopen`.
//!
//! A path that leads nowhere, or hangs, is followed again when the share is tried again, until it
//! has led to something.
//!
//! The descriptor makes umount(8) of a served file system fail as for any program that uses it.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use concurrency::ThreadPool;
use parking_lot::Mutex;
use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use rustix::process::geteuid;
use sandbox::Object;

use crate::Failure;
use crate::config::{Config, ObjectOf};
use crate::serve::plan::Plan;
use crate::serve::share::{Place, Share};
use crate::source::NamedSource;

/// The objects of all shares of a server, by their numbers.
pub(super) struct Objects {
    all: Mutex<HashMap<u32, Arc<SharedObject>>>,
    /// The number of the next one.
    next: AtomicU32,
    /// Opens the paths: one that hangs stops no other.
    pool: ThreadPool,
}

/// An object of a share. Its path is followed until it has led to something, and never again.
pub(super) struct SharedObject {
    path: PathBuf,
    writable: bool,
    /// The name and the source of the share; `None` if an earlier program has found it.
    share: Option<NamedSource>,
    found: OnceLock<FoundObject>,
}

/// The object that a path has led to.
struct FoundObject {
    /// Opened with `O_PATH`.
    descriptor: OwnedFd,
    is_directory: bool,
}

/// Time for the paths of a configuration to be followed before the server goes on without those
/// that hang.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Number of paths that are followed at the same time.
const THREADS: usize = 64;

impl SharedObject {
    /// Returns the descriptor of what its path has led to, opened with `O_PATH`. Follows the path
    /// if it has led to nothing so far, which may take as long as a file system hangs.
    pub(super) fn find(&self) -> io::Result<BorrowedFd<'_>> {
        if let Some(found) = self.found() {
            return Ok(found);
        }
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let descriptor = open(&self.path, flags, Mode::empty())?;
        // A file system that hangs does so here.
        let kind = FileType::from_raw_mode(fstat(&descriptor)?.st_mode);
        let found = FoundObject {
            descriptor,
            is_directory: kind == FileType::Directory,
        };
        if let Some(dir) = changeable_part(&self.path) {
            let name = self.share.as_ref().and_then(|it| it.name.as_deref());
            tracing::warn!(
                share = name.unwrap_or_default(),
                "{}: other users can change where the path leads, at {}: what it leads to now \
                 is served until the server restarts",
                self.path.display(),
                dir.display()
            );
        }
        // Another thread may have followed it as well.
        Ok(self.found.get_or_init(|| found).descriptor.as_fd())
    }

    /// Returns that descriptor if there is one already.
    pub(super) fn found(&self) -> Option<BorrowedFd<'_>> {
        self.found.get().map(|found| found.descriptor.as_fd())
    }

    pub(super) fn is_writable(&self) -> bool {
        self.writable
    }

    /// Returns the failure to open the source of its share, which it is a part of.
    fn failed(&self, error: &io::Error) -> Failure {
        match &self.share {
            Some(share) => share.source.failed(error),
            None => Failure::new(error),
        }
    }

    /// Does what [`SharedObject::find`] does. The error says why the source cannot be opened.
    pub(super) fn find_again(&self) -> io::Result<BorrowedFd<'_>> {
        let failed = |error: io::Error| io::Error::other(self.failed(&error).message);
        self.find().map_err(failed)
    }

    /// Returns the object `number` for a root of its own, if it was found.
    pub(super) fn copy(&self, number: u32) -> io::Result<Object> {
        let found = self.found().ok_or(io::ErrorKind::NotFound)?;
        Ok(Object {
            number,
            descriptor: sandbox::root::copy_object(found)?,
            writable: self.writable,
        })
    }
}

impl Objects {
    /// Returns those that an earlier program has found: their numbers, whether they are writable,
    /// and their descriptors.
    pub(super) fn of(found: Vec<(u32, bool, OwnedFd)>) -> Objects {
        let object = |(number, writable, descriptor)| {
            let object = SharedObject {
                // It is not followed any more.
                path: PathBuf::new(),
                writable,
                share: None,
                found: OnceLock::from(FoundObject {
                    descriptor,
                    // The configuration says that.
                    is_directory: false,
                }),
            };
            (number, Arc::new(object))
        };
        Objects {
            all: Mutex::new(found.into_iter().map(object).collect()),
            next: AtomicU32::default(),
            pool: ThreadPool::new("barge-paths", THREADS, usize::MAX),
        }
    }

    pub(super) fn get(&self, number: u32) -> Option<Arc<SharedObject>> {
        self.all.lock().get(&number).cloned()
    }

    /// Returns those that were found, with their numbers, for another program.
    pub(super) fn list(&self) -> Vec<(u32, Arc<SharedObject>)> {
        let all = self.all.lock();
        let found = all.iter().filter(|(_, object)| object.found().is_some());
        let list = found.map(|(number, object)| (*number, object.clone()));
        list.collect()
    }

    /// Drops those that `config` does not have.
    pub(super) fn retain(&self, config: &Config) {
        let needed: HashSet<u32> = config.objects().collect();
        self.all.lock().retain(|number, _| needed.contains(number));
    }

    /// Gives objects to those shares of `config` that have none, and follows their paths, for
    /// [`TIMEOUT`] at most. `plan` is that of the same shares. Returns the failure to open each of
    /// these shares whose source does not exist; other files may be missing.
    pub(super) fn find(&self, config: &mut Config, plan: &Plan) -> Vec<Failure> {
        let reloadable = plan.sources.reloadable;
        let most = config.objects().max().map_or(0, |most| most + 1);
        self.next.fetch_max(most, Ordering::Relaxed);
        let deadline = Instant::now() + TIMEOUT;
        let mut paths = self.paths_of_new(config, plan, deadline);
        let (results, arriving) = channel();
        let mut waiting = 0;
        let shares = config.shares_mut().iter_mut().zip(&plan.sources.shares);
        for (at, (configured, share)) in shares.enumerate() {
            if configured.released {
                continue;
            }
            let is_new = configured.objects.is_empty();
            if is_new {
                let written = || share.named.source.written_paths();
                let of_source = paths.remove(&at).unwrap_or_else(written);
                configured.objects = self.new_objects(share, reloadable, of_source);
            }
            let own = configured.objects.iter();
            let objects: Vec<_> = own
                .map(|it| (it.of_source, self.object(it, share)))
                .collect();
            // The process that serves the share asks again for those that were missing.
            if !is_new || objects.is_empty() {
                continue;
            }
            waiting += 1;
            let results = results.clone();
            self.pool.run(move || {
                let mut failed = None;
                for (of_source, object) in &objects {
                    // The use of other files says why they are missing.
                    if let Err(error) = object.find()
                        && *of_source
                    {
                        failed.get_or_insert_with(|| object.failed(&error));
                    }
                }
                // The wait may have ended.
                let _ = results.send((at, failed));
            });
        }
        let mut failures = Vec::new();
        for _ in 0..waiting {
            let left = deadline.saturating_duration_since(Instant::now());
            match arriving.recv_timeout(left) {
                Ok((at, failure)) => failures.extend(failure.map(|it| (at, it))),
                Err(_) => break,
            }
        }
        failures.sort_by_key(|(at, _)| *at);
        for object in config
            .shares_mut()
            .iter_mut()
            .flat_map(|it| &mut it.objects)
        {
            let known = self
                .get(object.number)
                .filter(|known| known.share.is_some());
            if let Some(found) = known.as_ref().and_then(|it| it.found.get()) {
                object.is_directory = found.is_directory;
            }
        }
        failures.into_iter().map(|(_, failure)| failure).collect()
    }

    /// Returns the paths of the sources of those shares of `config` that have no objects, by the
    /// positions of the shares, unless they hang until `deadline`: whether a path leads into an
    /// image has to be looked at.
    fn paths_of_new(
        &self,
        config: &Config,
        plan: &Plan,
        deadline: Instant,
    ) -> HashMap<usize, Vec<PathBuf>> {
        let (results, arriving) = channel();
        let shares = config.shares().iter().zip(&plan.sources.shares).enumerate();
        let new = shares
            .filter(|(_, (configured, _))| configured.objects.is_empty() && !configured.released);
        let mut waiting = 0;
        for (at, (_, share)) in new {
            let (source, results) = (share.named.source.clone(), results.clone());
            // The wait may have ended.
            let find = move || drop(results.send((at, source.host_paths())));
            self.pool.run(find);
            waiting += 1;
        }
        let left = || deadline.saturating_duration_since(Instant::now());
        let arrived = (0..waiting).map_while(|_| arriving.recv_timeout(left()).ok());
        arrived.collect()
    }

    /// Returns the object that `configured` names for `share`.
    fn object(&self, configured: &ObjectOf, share: &Share) -> Arc<SharedObject> {
        let mut all = self.all.lock();
        let object = all.entry(configured.number).or_insert_with(|| {
            Arc::new(SharedObject {
                path: configured.path.clone(),
                writable: configured.writable,
                share: Some(share.named.clone()),
                found: OnceLock::new(),
            })
        });
        object.clone()
    }

    /// Makes the shares of `plan` refer to the objects by descriptors of this process.
    pub(super) fn locate(&self, plan: &mut Plan) -> Result<(), Failure> {
        for object in plan.sources.objects_mut() {
            let known = self.get(object.number());
            object.place = match known.as_ref().and_then(|it| it.found()) {
                Some(found) => {
                    let own = found.try_clone_to_owned().map_err(Failure::new)?;
                    Place::Descriptor(Arc::new(own))
                }
                None => Place::Nowhere,
            };
        }
        Ok(())
    }

    /// Returns the objects of a new share, whose paths have not been followed. Those of its source
    /// are `of_source`. A reload may change whether the share is read-only.
    fn new_objects(
        &self,
        share: &Share,
        reloadable: bool,
        of_source: Vec<PathBuf>,
    ) -> Vec<ObjectOf> {
        let writable = !share.access.read_only || reloadable;
        let of_source = of_source.into_iter().map(|path| (path, writable, true));
        let overlay = share.overlay.iter().map(|path| (path.clone(), true, false));
        let files = share.files.iter().map(|path| (path.clone(), false, false));
        let mut objects: Vec<ObjectOf> = Vec::new();
        for (path, writable, of_source) in of_source.chain(overlay).chain(files) {
            if objects.iter().any(|it| it.path == path && it.writable) {
                continue;
            }
            objects.push(ObjectOf {
                path,
                number: self.next.fetch_add(1, Ordering::Relaxed),
                is_directory: true,
                of_source,
                writable,
            });
        }
        objects
    }
}

impl Default for Objects {
    fn default() -> Objects {
        Objects::of(Vec::new())
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
