//! The sources to serve and their options.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use layers::disk_quota::DiskLimits;
use layers::gate::AccessPolicy;
use layers::hide::Rules;
use layers::limit::Limits;
use layers::{MapIds, XattrMap};

use super::args::access::ClientList;
use crate::config::ObjectOf;
use crate::source::{NamedSource, Source};

/// An object of the host that a share consists of.
#[derive(Clone)]
pub(super) struct ReachedObject {
    object: ObjectOf,
    pub(super) place: Place,
}

/// The place of an object for this process.
#[derive(Clone)]
pub(super) enum Place {
    /// Its path. Only a process that is not confined follows that.
    Path,
    /// The root of this process.
    Root,
    /// This descriptor, opened with `O_PATH`.
    Descriptor(Arc<OwnedFd>),
    /// This process does not have it: its path leads nowhere so far, or it cannot be passed.
    Nowhere,
}

impl ReachedObject {
    pub(super) fn number(&self) -> u32 {
        self.object.number
    }

    pub(super) fn is_writable(&self) -> bool {
        self.object.writable
    }

    /// Returns whether it belongs to the source, and not to another option.
    pub(super) fn is_of_source(&self) -> bool {
        self.object.of_source
    }

    /// Returns the path at which this process opens the object.
    fn path(&self) -> PathBuf {
        match &self.place {
            Place::Path => self.object.path.clone(),
            // It is in no root if it is nowhere.
            Place::Root | Place::Nowhere => sandbox::root::object_path(self.object.number),
            Place::Descriptor(fd) => format!("/proc/self/fd/{}", fd.as_raw_fd()).into(),
        }
    }
}

impl From<ObjectOf> for ReachedObject {
    fn from(object: ObjectOf) -> ReachedObject {
        let place = Place::Path;
        ReachedObject { object, place }
    }
}

impl Share {
    /// Returns the object that `path` leads to or into, and the path within it.
    fn object_of<'a>(&self, path: &'a Path) -> Option<(&ReachedObject, &'a Path)> {
        let all = self.objects.iter();
        let into = all.filter_map(|it| Some((it, path.strip_prefix(&it.object.path).ok()?)));
        into.min_by_key(|(_, rest)| rest.components().count())
    }

    /// Returns the path at which this process reaches what is at `path` for the first process.
    pub(super) fn path_here(&self, path: &Path) -> PathBuf {
        match self.object_of(path) {
            None => path.to_owned(),
            Some((object, rest)) if rest.as_os_str().is_empty() => object.path(),
            Some((object, rest)) => object.path().join(rest),
        }
    }

    /// Returns whether `path` leads to a directory, and not into a file.
    pub(super) fn leads_to_directory(&self, path: &Path) -> bool {
        let found = self.object_of(path);
        found.is_none_or(|(object, _)| object.object.is_directory)
    }

    /// Returns the source as this process reaches it.
    pub(super) fn source_here(&self) -> Source {
        self.named.source.moved(|path| self.path_here(path))
    }
}

impl Sources {
    pub(super) fn objects(&self) -> impl Iterator<Item = &ReachedObject> {
        self.shares.iter().flat_map(|share| &share.objects)
    }

    /// Closes the descriptors of objects, once the sources are open: what is not served any more is
    /// not in use.
    pub(super) fn close_objects(&mut self) {
        for share in &mut self.shares {
            share.objects.clear();
        }
    }

    pub(super) fn objects_mut(&mut self) -> impl Iterator<Item = &mut ReachedObject> {
        let shares = self.shares.iter_mut();
        shares.flat_map(|share| &mut share.objects)
    }
}

/// A source and its options.
#[derive(Clone)]
pub(super) struct Share {
    pub(super) named: NamedSource,
    /// The objects that its paths have led to; none if this process follows its paths.
    pub(super) objects: Vec<ReachedObject>,
    /// Whether it is not to be opened until it is reopened.
    pub(super) released: bool,
    /// The file to write a read trace to.
    pub(super) read_trace: Option<PathBuf>,
    /// The options of a source that is a directory of this host. The descriptor budget is set by
    /// the opener, which divides it among the shares.
    pub(super) hostdir: hostdir::Options,
    /// The directory that stores changes to the source.
    pub(super) overlay: Option<PathBuf>,
    /// Whether descriptors of open files are passed to clients of this host.
    pub(super) fd_passing: bool,
    /// Files that its options name, which a reload reads again.
    pub(super) files: Vec<PathBuf>,
    /// The rules that hide paths.
    pub(super) hidden: Rules,
    /// The limits of its disk space and number of files.
    pub(super) quota: DiskLimits,
    pub(super) ids: Vec<MapIds>,
    pub(super) xattrs: Option<XattrMap>,
    /// The terms of access without the clients, which are in [`Sources::client_lists`].
    pub(super) access: AccessPolicy,
    pub(super) limits: Limits,
}

/// All sources, and the options that they have in common.
pub(super) struct Sources {
    pub(super) shares: Vec<Share>,
    /// The clients that may use each source; a source without a list is open to all clients.
    pub(super) client_lists: Vec<ClientList>,
    /// Whether a reload may change them.
    pub(super) reloadable: bool,
    /// The group whose members may connect to Unix sockets.
    pub(super) socket_group: Option<u32>,
    /// Whether directories without kernel file handles are refused.
    pub(super) kernel_handles: bool,
    /// The file to log every call to.
    pub(super) record_calls: Option<PathBuf>,
}
