//! Mounts of volumes: `barge mount` as a child, bind mounts, and their end.
//!
//! A mount of a volume outlives this process: `barge mount` detaches from it once the volume is
//! mounted. The mount's source is a [`Label`], so the kernel's mount table is the only record.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, StatVfsMountFlags, fstat, open, statvfs};
use rustix::io::Errno;
use rustix::mount::{
    MountAttrFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount_bind, move_mount, open_tree,
    unmount,
};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use sys::namespaces::change_mount;
use tonic::Status;

use crate::mount_table::{self, MountEntry};
use crate::policy::{MountPlan, Source, digest};

/// The most mounts on one directory that an unmount removes.
const STACKED: usize = 16;

/// The first argument of this program when it enters a control group for a mount.
pub const ENTER_CGROUP: &str = "enter-cgroup";

/// The beginning of the names of public keys in the state directory.
const KEY_PREFIX: &str = "key-";

/// The most bytes of an error message of `barge mount`.
const MESSAGE: usize = 1024;

/// The most bytes of the messages of `barge mount` that are searched for the last line: more than
/// a source, which has 4,096, and a sentence.
const WINDOW: u64 = 8192;

/// The source of a volume's mount in the mount table: `barge-csi:VOLUME:PLAN`, digests of the
/// volume's identifier and of its [`MountPlan`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label(String);

impl Label {
    /// The beginning of all labels.
    pub const PREFIX: &str = "barge-csi:";

    /// Returns the label of a volume that is mounted as `plan` says.
    pub fn new(volume_id: &str, plan: &MountPlan) -> Label {
        Label(format!("{}{}", Label::of_volume(volume_id), plan.digest()))
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
#[derive(Clone, Debug)]
pub struct Mounter {
    /// The program `barge`.
    pub barge: PathBuf,
    /// The directory for files that exist while a volume is being mounted.
    pub state_dir: PathBuf,
    /// The control group that the processes of mounts enter, or `None` for this process's.
    pub cgroup: Option<PathBuf>,
    /// The most time until a volume is mounted.
    pub timeout: Duration,
}

/// The state of a directory that a volume may be mounted on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MountState {
    /// No mount.
    Absent,
    /// A mount that answers.
    Live(MountEntry),
    /// A mount whose process has ended, or which is broken otherwise.
    Dead(MountEntry),
}

/// Returns the state of `target`. Blocks while the file system does not answer.
pub fn state(target: &Path) -> Result<MountState, Status> {
    let entry = mount_table::at(target).map_err(internal("mount table"))?;
    let Some(entry) = entry else {
        return Ok(MountState::Absent);
    };
    Ok(match statvfs(target) {
        Ok(_) => MountState::Live(entry),
        Err(_) => MountState::Dead(entry),
    })
}

/// Returns a function that turns an error into `INTERNAL` with `what` in front.
pub(crate) fn internal<E: Into<io::Error>>(what: impl std::fmt::Display) -> impl Fn(E) -> Status {
    move |error| Status::internal(format!("{what}: {}", error.into()))
}

/// Mounts `from` on `target` as well. Only `target` becomes read-only; it has the other attributes
/// of `from`, such as `noexec`.
pub fn bind(from: &Path, target: &Path, read_only: bool) -> Result<(), Status> {
    let failed = internal(target.display());
    mount_bind(from, target).map_err(|errno| failed(io::Error::from(errno)))?;
    if read_only {
        let changed = statvfs(target).map_err(io::Error::from).and_then(|stat| {
            let set = attributes_of(stat.f_flag)
                | MountAttrFlags::MOUNT_ATTR_RDONLY
                | MountAttrFlags::MOUNT_ATTR_NOSUID
                | MountAttrFlags::MOUNT_ATTR_NODEV;
            change_mount(CWD, target, set, MountAttrFlags::empty(), false)
        });
        if let Err(error) = changed {
            let _ = unmount(target, UnmountFlags::NOFOLLOW);
            return Err(failed(error));
        }
    }
    Ok(())
}

/// Returns the attributes of a mount that [`change_mount`] has to set again on Linux before 5.12,
/// where they replace those of the mount.
fn attributes_of(flags: StatVfsMountFlags) -> MountAttrFlags {
    let mut attributes = MountAttrFlags::empty();
    for (flag, attribute) in [
        (StatVfsMountFlags::NOSUID, MountAttrFlags::MOUNT_ATTR_NOSUID),
        (StatVfsMountFlags::NODEV, MountAttrFlags::MOUNT_ATTR_NODEV),
        (StatVfsMountFlags::NOEXEC, MountAttrFlags::MOUNT_ATTR_NOEXEC),
    ] {
        attributes.set(attribute, flags.contains(flag));
    }
    attributes
}

/// Unmounts all volumes on `target`. A target without a mount, or which does not exist, is no
/// error. Returns `FAILED_PRECONDITION` for a mount of another program.
pub fn unmount_all(target: &Path) -> Result<(), Status> {
    for _ in 0..STACKED {
        let entry = mount_table::at(target).map_err(internal("mount table"))?;
        let Some(entry) = entry else {
            return Ok(());
        };
        if !entry.source.starts_with(Label::PREFIX) {
            let text = format!("{}: not a mount of this plugin", target.display());
            return Err(Status::failed_precondition(text));
        }
        match unmount(target, UnmountFlags::NOFOLLOW) {
            // Another process has unmounted it.
            Ok(()) | Err(Errno::INVAL) => {}
            Err(errno) => return Err(internal(target.display())(errno)),
        }
    }
    let text = format!("{}: more than {STACKED} mounts", target.display());
    Err(Status::internal(text))
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
    /// Removes the leftovers of a process that ended while it mounted a volume.
    pub fn clean(&self) -> io::Result<()> {
        for entry in mount_table::read()? {
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
        let (status, mut text) = self.run(command, &plan.secrets)?;
        if status.success() {
            return Ok(());
        }
        if text.is_empty() {
            text = format!("barge mount: {status}");
        }
        Err(Status::internal(text))
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

    /// Runs a command until it ends, and kills it with its children after the timeout. Returns the
    /// last line of its standard error, without the secrets.
    fn run(
        &self,
        mut command: Command,
        secrets: &[String],
    ) -> Result<(ExitStatus, String), Status> {
        let failed = internal(self.barge.display());
        let mut errors = tempfile::tempfile_in(&self.state_dir).map_err(&failed)?;
        let stderr = errors.try_clone().map_err(&failed)?;
        // A group of its own, until `barge mount` makes a session once it has mounted.
        let mut child = command
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(stderr)
            .current_dir("/")
            .spawn()
            .map_err(&failed)?;
        let ended = wait(&mut child, self.timeout);
        let status = self.finish(&mut child, ended)?;
        Ok((status, last_line(&mut errors, secrets).map_err(&failed)?))
    }

    /// Returns the status of a child that has `ended`. If it has not, or that is unknown, kills it
    /// with its children and returns an error.
    fn finish(
        &self,
        child: &mut Child,
        ended: io::Result<Option<ExitStatus>>,
    ) -> Result<ExitStatus, Status> {
        if let Ok(Some(status)) = ended {
            return Ok(status);
        }
        let failed = internal(self.barge.display());
        if let Some(group) = Pid::from_raw(child.id() as i32) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        child.wait().map_err(&failed)?;
        ended.map_err(&failed)?;
        let text = format!("not mounted within {} s", self.timeout.as_secs());
        Err(Status::deadline_exceeded(text))
    }
}

/// Waits until a child ends, or `timeout` has passed.
fn wait(child: &mut Child, timeout: Duration) -> io::Result<Option<ExitStatus>> {
    let pid = Pid::from_raw(child.id() as i32).ok_or(io::ErrorKind::InvalidInput)?;
    let handle = pidfd_open(pid, PidfdFlags::empty())?;
    let deadline = Instant::now() + timeout;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        let left = Timespec::try_from(left).ok();
        let mut ready = [PollFd::new(&handle, PollFlags::IN)];
        match poll(&mut ready, left.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Returns the last line of a file that is not empty: at most its last [`MESSAGE`] bytes, without
/// secrets and control characters. If there are secrets, returns an empty text for a line of more
/// than [`WINDOW`] bytes, whose end may begin within one.
fn last_line(file: &mut File, secrets: &[String]) -> io::Result<String> {
    let len = file.seek(SeekFrom::End(0))?;
    let start = len.saturating_sub(WINDOW);
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    file.take(WINDOW).read_to_end(&mut bytes)?;
    if start > 0 && !secrets.is_empty() {
        // The first line may be incomplete.
        let end = bytes.iter().position(|&byte| byte == b'\n');
        bytes.drain(..end.unwrap_or(bytes.len()));
    }
    let text = String::from_utf8_lossy(&bytes);
    let line = text.lines().rfind(|line| !line.trim().is_empty());
    let line = redact(line.unwrap_or_default(), secrets);
    let line: String = line.chars().filter(|c| !c.is_control()).collect();
    let cut = line.len().saturating_sub(MESSAGE);
    let end = (cut..=line.len()).find_map(|at| line.get(at..));
    Ok(end.unwrap_or_default().trim().to_owned())
}

/// Replaces secrets in a line with `***`: the longest first, as one may contain another, and each
/// line of a secret of several lines.
fn redact(line: &str, secrets: &[String]) -> String {
    let mut hidden: Vec<&str> = Vec::new();
    for secret in secrets {
        let lines = secret.split(['\n', '\r']).map(str::trim);
        // Others, such as a bracket of JSON, tell nothing.
        hidden.extend(lines.filter(|line| line.contains(char::is_alphanumeric)));
        hidden.extend([secret.trim(), secret.as_str()]);
    }
    hidden.retain(|secret| !secret.is_empty());
    hidden.sort_by_key(|secret| (std::cmp::Reverse(secret.len()), *secret));
    hidden.dedup();
    let mut line = line.to_owned();
    for secret in hidden {
        line = line.replace(secret, "***");
    }
    line
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
        let failed = internal("state directory");
        let kind = FileType::from_raw_mode(fstat(&file).map_err(internal("source"))?.st_mode);
        let is_dir = kind == FileType::Directory;
        if !is_dir && kind != FileType::RegularFile {
            let text = "the source is neither a directory nor a file";
            return Err(Status::invalid_argument(text));
        }
        let dir = tempfile::Builder::new()
            .prefix(PinnedTree::PREFIX)
            .tempdir_in(state_dir)
            .map_err(internal("state directory"))?;
        let pinned = PinnedTree {
            dir: dir.keep(),
            is_dir,
        };
        let tree = pinned.tree();
        match is_dir {
            true => fs::create_dir(&tree),
            false => File::create(&tree).map(drop),
        }
        .map_err(internal("state directory"))?;
        let flags = OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_EMPTY_PATH;
        let mount = open_tree(&file, c"", flags).map_err(&failed)?;
        let on = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        move_mount(&mount, c"", CWD, &tree, on).map_err(&failed)?;
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
        fs::write(&script, text).expect("written");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(&script, mode).expect("changed");
        let (mounter, _state) = mounter(&script.display().to_string(), Duration::from_secs(20));
        let failed = mounter.mount("v", &plan(&["hush"]), Path::new("/t"));
        let failed = failed.expect_err("it fails");
        assert_eq!(
            (failed.code(), failed.message()),
            (Code::Internal, "failed: key ***")
        );
    }

    /// Returns the message of a mount that writes `text` and fails.
    fn message(text: &str, secrets: &[&str]) -> String {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(text.as_bytes()).expect("written");
        let secrets: Vec<String> = secrets.iter().map(|&secret| secret.to_owned()).collect();
        last_line(&mut file, &secrets).expect("read")
    }

    #[test]
    fn a_secret_is_redacted_before_a_message_is_cut() {
        let secret = "hush".repeat(20);
        for after in MESSAGE - 100..=MESSAGE {
            let text = format!("failed: {secret}{}\n", "x".repeat(after));
            let message = message(&text, &[&secret]);
            assert!(!message.contains("hush"), "{message}");
            assert!(message.len() <= MESSAGE && message.ends_with('x'));
        }
        // A line whose beginning is missing could begin within the secret.
        for after in WINDOW as usize - 100..=WINDOW as usize {
            let text = format!("failed: {secret}{}", "x".repeat(after));
            let message = message(&text, &[&secret]);
            assert!(!message.contains("hush"), "{message}");
        }
        let text = format!("{}\nfailed\n\n", "x".repeat(20_000));
        assert_eq!(message(&text, &[&secret]), "failed");
        assert_eq!(message(&"x".repeat(20_000), &[]), "x".repeat(MESSAGE));
        assert_eq!(message(&"é".repeat(2000), &[]), "é".repeat(MESSAGE / 2));
        assert_eq!(message("key hush \n", &["hush "]), "key ***");
        assert_eq!(message("key hu\tsh!\n", &["hu\tsh"]), "key ***!");
    }

    #[test]
    fn secrets_of_several_lines_and_parts_of_others_are_redacted() {
        let secrets = [
            "hush",
            "hush-long",
            "-- KEY --\n  line one\r\nline two\n{\n",
        ];
        for (text, expected) in [
            ("a hush-long b", "a *** b"),
            ("a hush b", "a *** b"),
            ("-- KEY --\n  line one\r\nline two", "***"),
            ("bad line one, -- KEY --", "bad ***, ***"),
            ("line two {", "*** {"),
        ] {
            assert_eq!(message(text, &secrets), expected, "{text:?}");
        }
    }

    /// Waits until a process has ended.
    fn has_ended(pid: &str) {
        let pid = Pid::from_raw(pid.trim().parse().expect("a number")).expect("a process");
        let handle = match pidfd_open(pid, PidfdFlags::empty()) {
            Err(Errno::SRCH) => return,
            handle => handle.expect("opened"),
        };
        let limit = Timespec {
            tv_sec: 20,
            tv_nsec: 0,
        };
        let mut ready = [PollFd::new(&handle, PollFlags::IN)];
        assert_eq!(poll(&mut ready, Some(&limit)), Ok(1), "it runs");
    }

    /// Returns a program that starts another one and writes the number of that to `file`.
    fn program_with_child(dir: &Path, file: &Path) -> String {
        let script = dir.join("barge");
        let text = format!(
            "#!/bin/sh\nsleep 1000 &\necho $! >{0}.new\nmv {0}.new {0}\nwait\n",
            file.display()
        );
        fs::write(&script, text).expect("written");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(&script, mode).expect("changed");
        script.display().to_string()
    }

    #[test]
    fn a_mount_that_takes_too_long_is_ended_with_its_children() {
        let state = tempfile::tempdir().expect("a directory");
        let file = state.path().join("child");
        let program = program_with_child(state.path(), &file);
        let (mounter, _state) = mounter(&program, Duration::from_secs(2));
        let failed = mounter.mount("v", &plan(&[]), Path::new("/t"));
        assert_eq!(failed.expect_err("late").code(), Code::DeadlineExceeded);
        has_ended(&fs::read_to_string(&file).expect("it was started"));
    }

    #[test]
    fn a_child_that_cannot_be_waited_for_is_ended() {
        let (mounter, _state) = mounter("sleep", Duration::from_secs(20));
        let mut child = Command::new("sleep")
            .arg("1000")
            .process_group(0)
            .spawn()
            .expect("starts");
        let failed = mounter.finish(&mut child, Err(Errno::MFILE.into()));
        assert_eq!(failed.expect_err("an error").code(), Code::Internal);
        assert!(
            !child
                .try_wait()
                .expect("a child")
                .expect("it has ended")
                .success()
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
    fn mounts_of_others_stay() {
        let refused = unmount_all(Path::new("/proc")).expect_err("not ours");
        assert_eq!(refused.code(), Code::FailedPrecondition);
        unmount_all(Path::new("/no/such/directory")).expect("no mount");
    }
}
