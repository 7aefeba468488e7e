//! A directory, its export, and another user of the directory on the host.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use hostdir::{HostDir, Identity, Options};
use tempfile::TempDir;
use vfs::{
    Call, Caller, Cx, DirEntry, DirSink, Entry, Errno, File, FileSystem, Groups, Mode, Name, Node,
    OpenFlags, Patience, ReaddirMode, Result,
};
use wire::payload::{SlicePayload, VecSink};

pub(crate) static CALL: Call = Call::detached();

pub(crate) struct Fixture {
    pub(crate) fs: Arc<HostDir>,
    pub(crate) root: Arc<dyn Node>,
    dir: TempDir,
}

impl Fixture {
    /// Returns one in the temporary directory of the host.
    pub(crate) fn new(options: Options) -> Fixture {
        Fixture::at(std::env::temp_dir(), options)
    }

    /// Returns one that acts as the process.
    pub(crate) fn fixed() -> Fixture {
        Fixture::new(fixed())
    }

    /// Returns one that acts as each caller; prints the reason and returns `None` if that is not
    /// permitted.
    pub(crate) fn switching() -> Option<Fixture> {
        if !is_root() {
            eprintln!("skipped: switching users needs root");
            return None;
        }
        let fixture = Fixture::new(Options {
            identity: Identity::Switch,
            ..Options::default()
        });
        fixture.outside(|dir| chmod(dir, 0o777));
        Some(fixture)
    }

    pub(crate) fn at(dir: PathBuf, options: Options) -> Fixture {
        let _ = hostdir::identity::release_thread();
        let dir = TempDir::new_in(dir).expect("a directory");
        let fs = HostDir::open(dir.path(), options).expect("exports");
        let root = fs.root(&root()).expect("a root");
        Fixture { fs, root, dir }
    }

    /// Runs `act` on the directory as the user that the tests run as, outside the export.
    pub(crate) fn outside<T>(&self, act: impl FnOnce(&Path) -> T) -> T {
        hostdir::identity::release_thread().expect("the thread was ours before");
        act(self.dir.path())
    }

    pub(crate) fn lookup(&self, path: &str) -> Result<Entry> {
        walk(&root(), self.root.clone(), path)
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        let _ = hostdir::identity::release_thread();
    }
}

/// Returns options for acting as the process.
pub(crate) fn fixed() -> Options {
    Options {
        identity: Identity::Fixed,
        ..Options::default()
    }
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

pub(crate) fn chmod(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("chmod");
}

/// Returns root's context with full patience.
pub(crate) fn root() -> Cx<'static> {
    Cx::new(&Caller::ROOT, &CALL)
}

pub(crate) fn with(patience: Patience) -> Cx<'static> {
    Cx { patience, ..root() }
}

/// Returns a user without supplementary groups.
pub(crate) fn user(uid: u32, gid: u32) -> Caller {
    in_groups(uid, gid, &[])
}

pub(crate) fn in_groups(uid: u32, gid: u32, groups: &[u32]) -> Caller {
    Caller {
        uid,
        gid,
        groups: Groups::Known(groups.into()),
    }
}

pub(crate) fn name(name: &str) -> Name<'_> {
    Name::new(name.as_bytes()).expect("a name")
}

pub(crate) fn walk(cx: &Cx<'_>, from: Arc<dyn Node>, path: &str) -> Result<Entry> {
    let mut entry = Entry {
        attr: from.attr(cx, vfs::AttrMask::STAT)?,
        node: from,
    };
    for step in path.split('/').filter(|step| !step.is_empty()) {
        entry = entry.node.lookup(cx, name(step))?;
    }
    Ok(entry)
}

pub(crate) fn create(
    cx: &Cx<'_>,
    dir: &dyn Node,
    file: &str,
    mode: u32,
) -> Result<(Entry, Arc<dyn File>)> {
    let flags = OpenFlags::READ | OpenFlags::WRITE | OpenFlags::EXCL;
    dir.create(cx, name(file), flags, Mode::without_umask(mode))
}

pub(crate) fn read(cx: &Cx<'_>, file: &dyn File, offset: u64, len: usize) -> Result<Vec<u8>> {
    let mut sink = VecSink::new(len);
    let read = file.read(cx, offset, len, &mut sink)?;
    assert_eq!(read, sink.filled().len());
    Ok(sink.into_bytes())
}

pub(crate) fn write(cx: &Cx<'_>, file: &dyn File, offset: u64, data: &[u8]) -> Result<usize> {
    file.write(cx, offset, &mut SlicePayload::new(data))
}

/// A directory entry: name, number, cookie, node.
pub(crate) type Listed = (String, u64, u64, Option<Entry>);

/// Collects up to that many entries.
pub(crate) struct List(pub(crate) Vec<Listed>, pub(crate) usize);

impl DirSink for List {
    fn entry(&mut self, entry: DirEntry<'_>) -> bool {
        if self.0.len() == self.1 {
            return false;
        }
        let name = String::from_utf8_lossy(entry.name).into_owned();
        self.0.push((name, entry.id, entry.cookie, entry.entry));
        true
    }
}

pub(crate) fn list(cx: &Cx<'_>, dir: &dyn Node, plus: ReaddirMode) -> Result<Vec<Listed>> {
    let file = dir.open(cx, OpenFlags::READ)?;
    let mut all = List(Vec::new(), usize::MAX);
    file.readdir(cx, 0, plus, &mut all)?;
    let mut none = List(Vec::new(), usize::MAX);
    let last = all.0.last().map_or(0, |entry| entry.2);
    file.readdir(cx, last, plus, &mut none)?;
    assert!(none.0.is_empty(), "there is an end");
    all.0.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(all.0)
}

/// Returns the error of an operation that must fail.
pub(crate) fn failed<T>(result: Result<T>) -> Errno {
    match result {
        Ok(_) => panic!("it succeeded"),
        Err(errno) => errno,
    }
}
