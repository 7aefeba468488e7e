//! Mounts of volumes: `barge mount` as a child, bind mounts, and their end.
//!
//! A mount of a volume outlives this process: `barge mount` detaches from it once the volume is
//! mounted. The mount's source is a [`Label`], so the kernel's mount table is the only record.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use command::child::{self, ChildError};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, StatVfs, fstat, open};
use rustix::io::Errno;
use rustix::mount::{
    MountAttrFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount_bind, move_mount, open_tree,
    unmount,
};
use sys::mounts::{self, MountEntry};
use sys::namespaces::change_mount;
use sys::probes::{ProbeError, Probes};
use tonic::Status;

use crate::policy::{MountPlan, Source, digest};

/// Largest number of mounts on one directory that an unmount removes.
const MAX_STACKED: usize = 16;

/// Time for a mounted file system to answer statvfs(2). The kubelet waits two minutes.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// The first argument of this program when it enters a control group for a mount.
pub const ENTER_CGROUP: &str = "enter-cgroup";

/// The beginning of the names of public keys in the state directory.
const KEY_PREFIX: &str = "key-";

/// The source of a volume's mount in the mount table: `barge-csi:VOLUME:PLAN:SOURCE:OPTIONS:KEY`,
/// digests of the volume's identifier, of its [`MountPlan`], and short ones of the plan's parts,
/// which tell what differs. Mounts of earlier versions end after PLAN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label(String);

/// The names of a plan's parts, in the order of their digests in a label.
const PARTS: [&str; 3] = ["source", "options", "verifyKey"];

impl Label {
    /// The beginning of all labels.
    pub const PREFIX: &str = "barge-csi:";

    /// Returns the label of a volume that is mounted as `plan` says.
    pub fn new(volume_id: &str, plan: &MountPlan) -> Label {
        let parts = plan.parts().join(":");
        let (volume, plan) = (Label::of_volume(volume_id), plan.digest());
        Label(format!("{volume}{plan}:{parts}"))
    }

    /// Returns whether a source in the mount table is one of the same volume and plan.
    pub fn matches(&self, source: &str) -> bool {
        let plan = |text: &str| text.splitn(4, ':').take(3).collect::<Vec<_>>().join(":");
        plan(&self.0) == plan(source)
    }

    /// Returns the names of the parts in which another source of the same volume differs.
    pub fn difference(&self, source: &str) -> String {
        let parts = |text: &str| {
            text.split(':')
                .skip(3)
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        let (ours, theirs) = (parts(&self.0), parts(source));
        let differ = PARTS.iter().enumerate();
        let differ = differ.filter(|(at, _)| ours.get(*at) != theirs.get(*at));
        differ.map(|(_, name)| *name).collect::<Vec<_>>().join(", ")
    }

    /// Returns the text, as the mount table has it.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the beginning of the labels of a volume.
    pub fn of_volume(volume_id: &str) -> String {
        format!("{}{}:", Label::PREFIX, digest([volume_id]))
    }
}

/// Mounts volumes.
#[derive(Clone)]
pub struct Mounter {
    /// The program `barge`.
    pub barge: PathBuf,
    /// The directory for files that exist while a volume is being mounted.
    pub state_dir: PathBuf,
    /// The control group that the processes of mounts enter, or `None` for this process's.
    pub cgroup: Option<PathBuf>,
    /// The most time until a volume is mounted.
    pub timeout: Duration,
    /// Checks of file systems.
    pub probes: Probes,
}

/// The state of a directory that a volume may be mounted on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MountState {
    /// No mount.
    Absent,
    /// A mount that answers.
    Live(MountEntry),
    /// A mount whose process has ended. A mount that answers with another error is live: its server
    /// may come back.
    Dead(MountEntry),
}

/// Returns a function that turns an error into `INTERNAL` with `what` in front.
pub(crate) fn internal<E: Into<io::Error>>(what: impl std::fmt::Display) -> impl Fn(E) -> Status {
    move |error| Status::internal(format!("{what}: {}", error.into()))
}

/// Returns the status for a file system that could not be checked.
pub(crate) fn probe_failed(target: &Path, error: ProbeError) -> Status {
    match error {
        ProbeError::Failed(errno) => internal(target.display())(errno),
        ProbeError::TimedOut => {
            let text = format!("{}: the file system does not answer", target.display());
            Status::deadline_exceeded(text)
        }
        ProbeError::Unchecked(error) => {
            Status::resource_exhausted(format!("{}: {error}", target.display()))
        }
    }
}

/// Returns whether the error of a file system says that its connection has ended: fs/fuse/dev.c
/// returns these once the device is closed or the connection is aborted.
fn is_dead(errno: Errno) -> bool {
    matches!(errno, Errno::NOTCONN | Errno::CONNABORTED)
}

/// Returns the attributes of a mount that [`change_mount`] has to set again on Linux before 5.12,
/// where they replace those of the mount.
fn attributes_of(entry: &MountEntry) -> MountAttrFlags {
    let mut attributes = MountAttrFlags::empty();
    for (option, attribute) in [
        ("nosuid", MountAttrFlags::MOUNT_ATTR_NOSUID),
        ("nodev", MountAttrFlags::MOUNT_ATTR_NODEV),
        ("noexec", MountAttrFlags::MOUNT_ATTR_NOEXEC),
    ] {
        let has = entry.options.split(',').any(|one| one == option);
        attributes.set(attribute, has);
    }
    attributes
}

/// Removes an empty directory that may not exist.
pub fn remove_dir(dir: &Path) -> Result<(), Status> {
    match fs::remove_dir(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(internal(dir.display())(error))
        }
        _ => Ok(()),
    }
}

impl Mounter {
    /// Returns the state of `target`. Returns `DEADLINE_EXCEEDED` if the file system does not
    /// answer within ten seconds.
    pub fn state(&self, target: &Path) -> Result<MountState, Status> {
        let entry = mounts::at(target).map_err(internal("mount table"))?;
        let Some(entry) = entry else {
            return Ok(MountState::Absent);
        };
        match self.statvfs(target) {
            Ok(_) => Ok(MountState::Live(entry)),
            Err(ProbeError::Failed(errno)) if is_dead(errno) => Ok(MountState::Dead(entry)),
            Err(ProbeError::Failed(_)) => Ok(MountState::Live(entry)),
            Err(error) => Err(probe_failed(target, error)),
        }
    }

    /// Calls statvfs(2), and waits for ten seconds.
    pub fn statvfs(&self, target: &Path) -> Result<Arc<StatVfs>, ProbeError> {
        self.probes.statvfs(target, ANSWER_TIMEOUT)
    }

    /// Mounts `from` on `target` as well. Only `target` becomes read-only; it has the other
    /// attributes of `from`, such as `noexec`.
    pub fn bind(&self, from: &Path, target: &Path, read_only: bool) -> Result<(), Status> {
        let failed = internal(target.display());
        mount_bind(from, target).map_err(|errno| failed(io::Error::from(errno)))?;
        if read_only && let Err(status) = self.make_read_only(target) {
            let _ = unmount(target, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH);
            return Err(status);
        }
        Ok(())
    }

    fn make_read_only(&self, target: &Path) -> Result<(), Status> {
        // The mount table has them also while the server of the file system is away.
        let entry = mounts::at(target).map_err(internal("mount table"))?;
        let gone = || Status::internal(format!("{}: no longer mounted", target.display()));
        let set = attributes_of(&entry.ok_or_else(gone)?)
            | MountAttrFlags::MOUNT_ATTR_RDONLY
            | MountAttrFlags::MOUNT_ATTR_NOSUID
            | MountAttrFlags::MOUNT_ATTR_NODEV;
        let changed = change_mount(CWD, target, set, MountAttrFlags::empty(), false);
        changed.map_err(internal(target.display()))
    }

    /// Unmounts all volumes on `target`. A target without a mount, or which does not exist, is no
    /// error. Returns `FAILED_PRECONDITION` for a mount of another program.
    pub fn unmount_all(&self, target: &Path) -> Result<(), Status> {
        for _ in 0..MAX_STACKED {
            let entry = mounts::at(target).map_err(internal("mount table"))?;
            let Some(entry) = entry else {
                return Ok(());
            };
            if !entry.source.starts_with(Label::PREFIX) {
                let text = format!("{}: not a mount of this plugin", target.display());
                return Err(Status::failed_precondition(text));
            }
            let mut unmounted = unmount(target, UnmountFlags::NOFOLLOW);
            if unmounted == Err(Errno::BUSY) && self.probes.is_waiting(target) {
                // This process uses the mount itself, as the file system does not answer.
                unmounted = unmount(target, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH);
            }
            match unmounted {
                // Another process may have unmounted it.
                Ok(()) | Err(Errno::INVAL) => self.probes.forget(target),
                Err(errno) => return Err(internal(target.display())(errno)),
            }
        }
        let text = format!("{}: more than {MAX_STACKED} mounts", target.display());
        Err(Status::internal(text))
    }

    /// Removes the leftovers of a process that ended while it mounted a volume.
    pub fn clean(&self) -> io::Result<()> {
        for entry in mounts::read()? {
            if entry.target.starts_with(&self.state_dir) && entry.target.ends_with(PinnedTree::NAME)
            {
                unmount(&entry.target, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)?;
            }
        }
        for entry in fs::read_dir(&self.state_dir)? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str());
            if name.is_some_and(|name| name.starts_with(KEY_PREFIX)) {
                fs::remove_file(&path)?;
            } else if name.is_some_and(|name| name.starts_with(PinnedTree::PREFIX)) {
                // The mount is gone: these are an empty directory or file, and one around it.
                let tree = path.join(PinnedTree::NAME);
                let _ = fs::remove_dir(&tree).or_else(|_| fs::remove_file(&tree));
                fs::remove_dir(&path)?;
            }
        }
        Ok(())
    }

    /// Mounts a volume on an existing directory and waits until it is mounted.
    pub fn mount(&self, volume_id: &str, plan: &MountPlan, target: &Path) -> Result<(), Status> {
        let pinned = PinnedTree::new(plan, &self.state_dir)?;
        let key = plan.verify_key.as_ref().map(|key| self.key_file(key));
        let key = key.transpose().map_err(internal("state directory"))?;
        let label = Label::new(volume_id, plan);
        // Users of pods have other IDs than the process that serves.
        let mut options = vec![format!("fsname={}", label.as_str()), "allow_other".into()];
        options.extend(plan.options.iter().chain(&plan.node_options).cloned());
        let mut command = self.command().map_err(internal("barge-csi"))?;
        // An image is served by a confined process rather than parsed by the kernel.
        command.args(["mount", "--fuse", "-o", &options.join(",")]);
        if let Some(key) = &key {
            command.arg("--verify-key").arg(key.path());
        }
        let source = match (&pinned, &plan.source) {
            (Some(pinned), _) => pinned.source(),
            (None, Source::Remote(url)) => url.clone(),
            (None, _) => "mem:".into(),
        };
        command.arg("--").arg(&source).arg(target);
        command
            .env_clear()
            .envs(std::env::var_os("PATH").map(|path| ("PATH", path)))
            .envs(plan.environment.iter().map(|(name, value)| (name, value)));
        command.current_dir("/");
        let mounted = child::run(command, &"barge mount", self.timeout, &plan.secrets);
        mounted.map_err(|error| match error {
            ChildError::Failed(text) => Status::internal(text),
            ChildError::TimedOut => {
                let text = format!("not mounted within {} s", self.timeout.as_secs());
                Status::deadline_exceeded(text)
            }
            ChildError::Broken(error) => internal(self.barge.display())(error),
        })
    }

    /// Mounts a volume in place of a dead mount, which comes back if that fails: the next call
    /// finds that the volume was mounted here.
    pub fn replace(&self, volume_id: &str, plan: &MountPlan, target: &Path) -> Result<(), Status> {
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        let failed = internal::<Errno>(target.display());
        let dead = open_tree(CWD, target, flags).map_err(&failed)?;
        self.unmount_all(target)?;
        let mounted = self.mount(volume_id, plan, target);
        if mounted.is_err() {
            // A process that was ended may have mounted already.
            let _ = self.unmount_all(target);
            let on = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
            if let Err(errno) = move_mount(&dead, c"", CWD, target, on) {
                tracing::warn!("{}: {}", target.display(), io::Error::from(errno));
            }
        }
        mounted
    }

    /// Returns the command for `barge`, within the control group.
    fn command(&self) -> io::Result<Command> {
        let Some(cgroup) = &self.cgroup else {
            return Ok(Command::new(&self.barge));
        };
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(ENTER_CGROUP).arg(cgroup).arg(&self.barge);
        Ok(command)
    }

    fn key_file(&self, key: &str) -> io::Result<tempfile::NamedTempFile> {
        let mut file = tempfile::Builder::new()
            .prefix(KEY_PREFIX)
            .tempfile_in(&self.state_dir)?;
        file.write_all(key.as_bytes())?;
        Ok(file)
    }
}

/// A local source, mounted in the state directory until it is dropped, so that its path leads
/// nowhere else when `barge mount` opens it.
struct PinnedTree {
    dir: PathBuf,
    is_dir: bool,
}

impl PinnedTree {
    const PREFIX: &str = "source-";
    const NAME: &str = "tree";

    /// Pins the source of `plan`, if it is local.
    fn new(plan: &MountPlan, state_dir: &Path) -> Result<Option<PinnedTree>, Status> {
        let Some(file) = plan.source.open_local()? else {
            return Ok(None);
        };
        let failed = internal::<io::Error>("state directory");
        let kind = FileType::from_raw_mode(fstat(&file).map_err(internal("source"))?.st_mode);
        let is_dir = kind == FileType::Directory;
        if !is_dir && kind != FileType::RegularFile {
            let text = "the source is neither a directory nor a file";
            return Err(Status::invalid_argument(text));
        }
        let dir = tempfile::Builder::new()
            .prefix(PinnedTree::PREFIX)
            .tempdir_in(state_dir)
            .map_err(&failed)?;
        let pinned = PinnedTree {
            dir: dir.keep(),
            is_dir,
        };
        let tree = pinned.tree();
        match is_dir {
            true => fs::create_dir(&tree),
            false => File::create(&tree).map(drop),
        }
        .map_err(&failed)?;
        let flags = OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_EMPTY_PATH;
        let on = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        let mounted =
            open_tree(&file, c"", flags).and_then(|mount| move_mount(&mount, c"", CWD, &tree, on));
        mounted.map_err(|errno| failed(errno.into()))?;
        Ok(Some(pinned))
    }

    fn tree(&self) -> PathBuf {
        self.dir.join(PinnedTree::NAME)
    }

    fn source(&self) -> String {
        let kind = if self.is_dir { "dir" } else { "image" };
        format!("{kind}:{}", self.tree().display())
    }
}

impl Drop for PinnedTree {
    fn drop(&mut self) {
        let tree = self.tree();
        // The processes of the mount have a mount of their own, or the file open.
        let _ = unmount(&tree, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
        let removed = match self.is_dir {
            true => fs::remove_dir(&tree),
            false => fs::remove_file(&tree),
        };
        if let Err(error) = removed.and_then(|()| fs::remove_dir(&self.dir)) {
            tracing::warn!("{}: {error}", self.dir.display());
        }
    }
}

/// Makes this process enter a control group (version 2), which is created if it does not exist, and
/// replaces it with `command`. Returns only errors.
pub fn enter_cgroup(cgroup: &Path, command: &mut Command) -> io::Error {
    let entered = fs::create_dir_all(cgroup).and_then(|()| {
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        let file = open(cgroup.join("cgroup.procs"), flags, Mode::empty())?;
        rustix::io::write(file.as_fd(), b"0")?;
        Ok(())
    });
    match entered {
        Ok(()) => command.exec(),
        Err(error) => error,
    }
}

/// Creates the directory to publish a volume on, unless it exists. Returns whether it was created.
pub fn create_target(target: &Path) -> Result<bool, Status> {
    let failed = internal(target.display());
    match rustix::fs::mkdir(target, Mode::from_raw_mode(0o750)) {
        Ok(()) => Ok(true),
        Err(Errno::EXIST) => {
            let stat = rustix::fs::statat(CWD, target, AtFlags::SYMLINK_NOFOLLOW);
            let kind = FileType::from_raw_mode(stat.map_err(&failed)?.st_mode);
            if kind != FileType::Directory {
                let text = format!("{}: not a directory", target.display());
                return Err(Status::already_exists(text));
            }
            Ok(false)
        }
        Err(errno) => Err(failed(errno)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::Code;

    fn mounter(program: &str, timeout: Duration) -> (Mounter, tempfile::TempDir) {
        let state = tempfile::tempdir().expect("a directory");
        let mounter = Mounter {
            barge: program.into(),
            state_dir: state.path().to_owned(),
            cgroup: None,
            timeout,
            probes: Probes::default(),
        };
        (mounter, state)
    }

    fn plan(secrets: &[&str]) -> MountPlan {
        MountPlan {
            source: Source::Remote("nfs://server/export".into()),
            options: Vec::new(),
            node_options: Vec::new(),
            verify_key: None,
            environment: Vec::new(),
            secrets: secrets.iter().map(|&secret| secret.to_owned()).collect(),
        }
    }

    #[test]
    fn the_error_of_a_mount_is_one_line_without_secrets() {
        let state = tempfile::tempdir().expect("a directory");
        let script = state.path().join("barge");
        let text = "#!/bin/sh\necho first >&2\nprintf 'failed: key hush\\n\\n' >&2\nexit 3\n";
        vfs_testkit::write_program(&script, text);
        let (mounter, _state) = mounter(&script.display().to_string(), Duration::from_secs(20));
        let failed = mounter.mount("v", &plan(&["hush"]), Path::new("/t"));
        let failed = failed.expect_err("it fails");
        assert_eq!(
            (failed.code(), failed.message()),
            (Code::Internal, "failed: key ***")
        );
    }

    #[test]
    fn labels_differ_by_volume_and_by_plan() {
        let one = Label::new("v", &plan(&[]));
        assert!(one.0.starts_with(&Label::of_volume("v")));
        assert!(!one.0.starts_with(&Label::of_volume("w")));
        let mut other = plan(&[]);
        other.options.push("ro".into());
        assert_ne!(Label::new("v", &other), one);
        assert!(
            one.0
                .bytes()
                .all(|byte| byte.is_ascii_graphic() && byte != b',')
        );
    }

    #[test]
    fn a_label_tells_what_differs() {
        let one = Label::new("v", &plan(&[]));
        assert!(one.matches(one.as_str()));
        // That of a mount of an earlier version.
        let old = one.as_str().splitn(4, ':').take(3).collect::<Vec<_>>();
        assert!(one.matches(&old.join(":")));
        let mut other = plan(&[]);
        other.options.push("ro".into());
        let other = Label::new("v", &other);
        assert!(!one.matches(other.as_str()));
        assert_eq!(one.difference(other.as_str()), "options");
        let mut other = plan(&[]);
        other.source = Source::Remote("nfs://h/e".into());
        other.verify_key = Some("key".into());
        let other = Label::new("v", &other);
        assert_eq!(one.difference(other.as_str()), "source, verifyKey");
    }

    #[test]
    fn a_server_that_is_away_is_no_dead_mount() {
        for errno in [Errno::NOTCONN, Errno::CONNABORTED] {
            assert!(is_dead(errno), "{errno}");
        }
        for errno in [
            Errno::TIMEDOUT,
            Errno::IO,
            Errno::HOSTDOWN,
            Errno::STALE,
            Errno::ACCESS,
        ] {
            assert!(!is_dead(errno), "{errno}");
        }
    }

    #[test]
    fn mounts_of_others_stay() {
        let (mounter, _state) = mounter("/bin/false", Duration::ZERO);
        let refused = mounter.unmount_all(Path::new("/proc"));
        let refused = refused.expect_err("not ours");
        assert_eq!(refused.code(), Code::FailedPrecondition);
        let missing = Path::new("/no/such/directory");
        mounter.unmount_all(missing).expect("no mount");
    }
}
