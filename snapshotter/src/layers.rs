//! Layers that are mounted lazily: each once, at `ROOT/layers/HEX`, by a process `barge mount` in a
//! session of its own, which outlives this one.
//!
//! A [`LayerGuard`] excludes other threads from a layer while it is mounted, unmounted, or looked
//! at. It is taken before a transaction of the database, never within one.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder};
use std::io::{self, Read};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statfs, statx};
use rustix::io::{Errno, retry_on_intr};
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

use crate::digest::Digest;

/// Time for a layer to be mounted. containerd waits for it; then it downloads the layer.
const MOUNT_TIMEOUT: Timespec = Timespec {
    tv_sec: 60,
    tv_nsec: 0,
};

/// Time for a mounted layer to answer statfs(2), which needs no data of the layer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Time between the end of `barge mount` and the end of its messages.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(1);

/// Largest part of the messages of `barge mount` that is read, bytes.
const MAX_MESSAGE: u64 = 4096;

/// Largest number of layers that are being mounted at a time.
const MAX_MOUNTING: usize = 8;

/// How to mount layers.
#[derive(Clone, Debug)]
pub struct MountConfig {
    /// The program `barge`.
    pub program: PathBuf,
    /// Directory of the disk cache, or `None` for no cache. Its path has no comma.
    pub cache_dir: Option<PathBuf>,
    /// Maximum size of the disk cache, as the option `cache_dir_size` of `barge mount` takes it.
    pub cache_size: Option<String>,
    /// Public keys, of which one must have signed each layer.
    pub verify_keys: Vec<PathBuf>,
    /// Public keys, of which one must have signed the image of each layer from a registry with
    /// cosign.
    pub cosign_keys: Vec<PathBuf>,
}

/// The mounts of layers.
pub(crate) struct Layers {
    /// ROOT/layers.
    dir: PathBuf,
    config: MountConfig,
    state: Mutex<State>,
    changed: Condvar,
    /// The layers that statfs(2) has been asked about and that have not answered.
    checked: Arc<Mutex<BTreeSet<Digest>>>,
}

#[derive(Default)]
struct State {
    guarded: BTreeSet<Digest>,
    mounting: usize,
}

/// Excludes other threads from a layer.
pub(crate) struct LayerGuard<'a> {
    layers: &'a Layers,
    digest: Digest,
}

/// Counts a layer as one that is being mounted.
struct Mounting<'a>(&'a Layers);

/// The state of a layer's directory.
enum Found {
    Nothing,
    Mounted,
    /// A mount whose server is gone, or does not answer.
    Broken(String),
}

impl Layers {
    /// Manages the layers in `dir`, which exists.
    pub(crate) fn new(dir: PathBuf, config: MountConfig) -> Layers {
        Layers {
            dir,
            config,
            state: Mutex::default(),
            changed: Condvar::new(),
            checked: Arc::default(),
        }
    }

    /// Waits until no other thread has the layer, and excludes others.
    pub(crate) fn guard(&self, digest: &Digest) -> LayerGuard<'_> {
        let mut state = self.state.lock();
        self.changed
            .wait_while(&mut state, |state| state.guarded.contains(digest));
        state.guarded.insert(digest.clone());
        LayerGuard {
            layers: self,
            digest: digest.clone(),
        }
    }

    /// Returns the layers that have a directory, mounted or not.
    pub(crate) fn directories(&self) -> io::Result<Vec<Digest>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            found.extend(entry?.file_name().to_str().and_then(Digest::from_hex));
        }
        Ok(found)
    }

    fn path(&self, digest: &Digest) -> PathBuf {
        self.dir.join(digest.hex())
    }

    /// Runs `barge mount` and waits until it is ready. The error is its message.
    fn run_mount(&self, source: &str, dir: &Path) -> Result<(), String> {
        let _mounting = self.start_mounting();
        let result = self.command(source, dir).spawn();
        let result = result.map_err(|error| format!("{}: {error}", self.config.program.display()));
        result.and_then(wait)
    }

    /// Waits until fewer than [`MAX_MOUNTING`] layers are being mounted, and counts one more.
    fn start_mounting(&self) -> Mounting<'_> {
        let mut state = self.state.lock();
        self.changed
            .wait_while(&mut state, |state| state.mounting >= MAX_MOUNTING);
        state.mounting += 1;
        Mounting(self)
    }

    fn command(&self, source: &str, dir: &Path) -> Command {
        let config = &self.config;
        // Containers get set-user-ID programs and devices as from any other layer: users of the
        // host cannot enter ROOT. Their users reach the layer through overlayfs or a bind mount.
        let mut options = String::from("ro,suid,dev,allow_other");
        // A file of this host needs no cache, and barge mount refuses one.
        if source.contains("://") {
            if let Some(dir) = &config.cache_dir {
                options += &format!(",cache_dir={}", dir.display());
            }
            if let Some(size) = &config.cache_size {
                options += &format!(",cache_dir_size={size}");
            }
        }
        let mut command = Command::new(&config.program);
        command.args(["mount", "-o", &options]);
        for key in &config.verify_keys {
            command.arg("--verify-key").arg(key);
        }
        // Stores have layers without a manifest.
        if source.starts_with("oci://") {
            for key in &config.cosign_keys {
                command.arg("--cosign-key").arg(key);
            }
        }
        command.arg("--").arg(source).arg(dir);
        // The service manager waits for this process alone.
        command.env_remove("NOTIFY_SOCKET");
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        // A group to end all of it, if it takes too long. When it is ready it starts a session.
        command.process_group(0);
        command
    }
}

impl LayerGuard<'_> {
    /// Mounts the layer from `source`, unless it is mounted. A mount whose server has ended is
    /// replaced.
    pub(crate) fn mount(&self, source: &str) -> Result<(), String> {
        match self.look() {
            Found::Mounted => return Ok(()),
            Found::Broken(why) => {
                tracing::warn!("layer {}: mounting again: {why}", self.digest);
                self.unmount().map_err(|error| error.to_string())?;
            }
            Found::Nothing => {}
        }
        let dir = self.layers.path(&self.digest);
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&dir);
        made.map_err(|error| format!("{}: {error}", dir.display()))?;
        let mut result = self.layers.run_mount(source, &dir);
        if result.is_ok() {
            result = match self.look() {
                Found::Mounted => return Ok(()),
                Found::Broken(why) => Err(why),
                Found::Nothing => Err("barge mount mounted nothing".into()),
            };
        }
        if let Err(error) = self.unmount() {
            tracing::warn!("layer {}: {error}", self.digest);
        }
        result
    }

    /// Unmounts the layer, at once for new users, and for containers that use it when they end.
    /// Removes its directory.
    pub(crate) fn unmount(&self) -> io::Result<()> {
        let dir = self.layers.path(&self.digest);
        // A thread may wait for the server of this mount. The next mount has another one.
        self.layers.checked.lock().remove(&self.digest);
        loop {
            match unmount(&dir, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
                Ok(()) => tracing::info!("layer {}: unmounted", self.digest),
                // It is no mount point, or not any more.
                Err(Errno::INVAL) => break,
                Err(Errno::NOENT) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
        fs::remove_dir(&dir)
    }

    fn look(&self) -> Found {
        let dir = self.layers.path(&self.digest);
        let flags = AtFlags::NO_AUTOMOUNT | AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_DONT_SYNC;
        match statx(CWD, &dir, flags, StatxFlags::TYPE) {
            Err(Errno::NOENT) => return Found::Nothing,
            Ok(found) if !found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT) => {
                return Found::Nothing;
            }
            Ok(_) => {}
            Err(error) => return Found::Broken(error.to_string()),
        }
        match self.answers(dir) {
            Ok(()) => Found::Mounted,
            Err(why) => Found::Broken(why),
        }
    }

    /// Returns an error if the server of the mount has ended or does not answer. A thread waits for
    /// it, at most one for each layer.
    fn answers(&self, dir: PathBuf) -> Result<(), String> {
        let silent = || "its server does not answer".to_string();
        let checked = self.layers.checked.clone();
        if !checked.lock().insert(self.digest.clone()) {
            return Err(silent());
        }
        let digest = self.digest.clone();
        let (sender, receiver) = channel();
        let ask = move || {
            let answer = statfs(&dir).map(drop);
            checked.lock().remove(&digest);
            // The receiver may have given up.
            let _ = sender.send(answer);
        };
        let thread = thread::Builder::new().name("statfs".into()).spawn(ask);
        thread.map_err(|error| {
            self.layers.checked.lock().remove(&self.digest);
            error.to_string()
        })?;
        match receiver.recv_timeout(ANSWER_TIMEOUT) {
            Ok(answer) => answer.map_err(|error| error.to_string()),
            Err(_) => Err(silent()),
        }
    }
}

impl Drop for Mounting<'_> {
    fn drop(&mut self) {
        self.0.state.lock().mounting -= 1;
        self.0.changed.notify_all();
    }
}

impl Drop for LayerGuard<'_> {
    fn drop(&mut self) {
        self.layers.state.lock().guarded.remove(&self.digest);
        self.layers.changed.notify_all();
    }
}

/// Waits for `barge mount` to be ready, or to fail.
fn wait(mut child: Child) -> Result<(), String> {
    let pid = Pid::from_child(&child);
    let messages = match child.stderr.take().map(read_messages).transpose() {
        Ok(messages) => messages,
        Err(error) => {
            let _ = kill_process_group(pid, Signal::KILL);
            child.wait().map_err(|error| error.to_string())?;
            return Err(format!("messages of barge mount: {error}"));
        }
    };
    let pidfd = pidfd_open(pid, PidfdFlags::empty());
    let ended = pidfd.and_then(|pidfd| {
        retry_on_intr(|| {
            poll(
                &mut [PollFd::new(&pidfd, PollFlags::IN)],
                Some(&MOUNT_TIMEOUT),
            )
        })
    });
    let in_time = matches!(ended, Ok(1..));
    if !in_time {
        // It may have just ended.
        let _ = kill_process_group(pid, Signal::KILL);
    }
    let status = child.wait().map_err(|error| error.to_string())?;
    if !in_time {
        return Err(format!(
            "not mounted within {} seconds",
            MOUNT_TIMEOUT.tv_sec
        ));
    }
    if status.success() {
        return Ok(());
    }
    let messages = messages.and_then(|messages| messages.recv_timeout(MESSAGE_TIMEOUT).ok());
    let messages = messages.unwrap_or_default();
    let last = messages.lines().rev().find(|line| !line.trim().is_empty());
    Err(match last {
        Some(line) => line.strip_prefix("barge: ").unwrap_or(line).to_owned(),
        None => format!("barge mount: {status}"),
    })
}

/// Reads the messages of a program to their end, and sends the first of them. Returns an error if
/// no thread can be started.
fn read_messages(mut stderr: ChildStderr) -> io::Result<Receiver<String>> {
    let (sender, receiver) = channel();
    let read = move || {
        let mut messages = Vec::new();
        // After an error, the part before it is sent.
        let _ = stderr.by_ref().take(MAX_MESSAGE).read_to_end(&mut messages);
        let _ = io::copy(&mut stderr, &mut io::sink());
        let _ = sender.send(String::from_utf8_lossy(&messages).into_owned());
    };
    thread::Builder::new().name("messages".into()).spawn(read)?;
    Ok(receiver)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layers() -> Layers {
        let config = MountConfig {
            program: "/bin/false".into(),
            cache_dir: None,
            cache_size: None,
            verify_keys: vec!["signer".into()],
            cosign_keys: vec!["cosign".into()],
        };
        Layers::new(PathBuf::new(), config)
    }

    #[test]
    fn a_signature_of_cosign_is_required_of_a_registry() {
        for (source, cosign) in [("oci://h/r?layer=x", true), ("s3://b/x.erofs", false)] {
            let command = layers().command(source, Path::new("on"));
            let args: Vec<_> = command.get_args().collect();
            let has = |option: &str, key: &str| args.windows(2).any(|pair| pair == [option, key]);
            assert!(has("--verify-key", "signer"), "{args:?}");
            assert_eq!(has("--cosign-key", "cosign"), cosign, "{args:?}");
        }
    }

    #[test]
    fn a_panic_frees_the_place_of_a_mount() {
        let layers = layers();
        thread::scope(|scope| {
            let mounting = scope.spawn(|| {
                let _mounting = layers.start_mounting();
                assert_eq!(layers.state.lock().mounting, 1);
                panic!("while a layer is being mounted");
            });
            assert!(mounting.join().is_err());
        });
        assert_eq!(layers.state.lock().mounting, 0);
    }
}
