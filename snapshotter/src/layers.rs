//! Layers that are mounted lazily: each once, at `ROOT/layers/HEX`, by a process `barge mount` in a
//! session of its own, which outlives this one.
//!
//! A [`LayerGuard`] excludes other threads from a layer while it is mounted, unmounted, or looked
//! at. It is taken before a transaction of the database, never within one.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use command::child::{self, ChildError};
use parking_lot::{Condvar, Mutex};
use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use sys::probes::{ProbeError, Probes};

use crate::digest::Digest;

/// Time for a layer to be mounted. containerd waits for it; then it downloads the layer.
const MOUNT_TIMEOUT: Duration = Duration::from_secs(60);

/// Time for a mounted layer to answer statfs(2), which needs no data of the layer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Time for which a source that was mounted and did not answer is not mounted again: containerd
/// repeats its calls at once, and each mount leaves a thread that waits for the server.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(30);

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
    pub cache_dir_size: Option<String>,
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
    probes: Probes,
}

#[derive(Default)]
struct State {
    guarded: BTreeSet<Digest>,
    mounting: usize,
    /// Layers and sources whose servers did not answer, until they are tried again.
    silent: BTreeMap<(Digest, String), Instant>,
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
    /// A mount whose server is gone.
    Broken(String),
    /// A mount whose server does not answer.
    Silent,
    /// A mount that cannot be checked now.
    Unchecked(String),
}

impl Layers {
    /// Manages the layers in `dir`, which exists.
    pub(crate) fn new(dir: PathBuf, config: MountConfig) -> Layers {
        Layers {
            dir,
            config,
            state: Mutex::default(),
            changed: Condvar::new(),
            probes: Probes::default(),
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
        let command = self.command(source, dir);
        let result = child::run(command, &"barge mount", MOUNT_TIMEOUT, &[]);
        result.map_err(|error| match error {
            ChildError::Failed(line) => line.strip_prefix("barge: ").unwrap_or(&line).to_owned(),
            ChildError::TimedOut => {
                format!("not mounted within {} seconds", MOUNT_TIMEOUT.as_secs())
            }
            ChildError::Broken(error) => format!("{}: {error}", self.config.program.display()),
        })
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
            if let Some(size) = &config.cache_dir_size {
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
    }

    /// Returns whether a mount of `source` did not answer a short time ago.
    fn is_silent(&self, digest: &Digest, source: &str) -> bool {
        let silent = &mut self.state.lock().silent;
        silent.retain(|_, since| since.elapsed() < SILENCE_TIMEOUT);
        silent.contains_key(&(digest.clone(), source.to_owned()))
    }
}

impl LayerGuard<'_> {
    /// Mounts the layer from `source`, unless it is mounted. A mount whose server has ended is
    /// replaced. A source that has just been mounted and did not answer is not tried again for
    /// [`SILENCE_TIMEOUT`].
    pub(crate) fn mount(&self, source: &str) -> Result<(), String> {
        let silent = "its server does not answer";
        let broken = match self.look() {
            Found::Mounted => return Ok(()),
            Found::Unchecked(why) => return Err(why),
            Found::Broken(why) => Some(why),
            Found::Silent => Some(silent.into()),
            Found::Nothing => None,
        };
        if let Some(why) = broken {
            tracing::warn!("layer {}: mounting again: {why}", self.digest);
            self.unmount().map_err(|error| error.to_string())?;
        }
        if self.layers.is_silent(&self.digest, source) {
            return Err(silent.into());
        }
        let dir = self.layers.path(&self.digest);
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&dir);
        made.map_err(|error| format!("{}: {error}", dir.display()))?;
        let mut result = self.layers.run_mount(source, &dir);
        if result.is_ok() {
            result = match self.look() {
                Found::Mounted => return Ok(()),
                Found::Broken(why) | Found::Unchecked(why) => Err(why),
                Found::Silent => {
                    let key = (self.digest.clone(), source.to_owned());
                    self.layers.state.lock().silent.insert(key, Instant::now());
                    Err(silent.into())
                }
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
        self.layers.probes.forget(&dir);
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
        match self.layers.probes.statvfs(&dir, ANSWER_TIMEOUT) {
            Ok(_) => Found::Mounted,
            Err(ProbeError::Failed(errno)) => Found::Broken(errno.to_string()),
            Err(ProbeError::TimedOut) => Found::Silent,
            Err(ProbeError::Unchecked(error)) => Found::Unchecked(error.to_string()),
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

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn layers() -> Layers {
        let config = MountConfig {
            program: "/bin/false".into(),
            cache_dir: None,
            cache_dir_size: None,
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
