//! The operations of a snapshotter. Each returns when its result is on disk, and may block for the
//! time that a layer takes to be mounted.
//!
//! A step that a crash interrupts leaves one of these: a directory without a snapshot, a mount of a
//! layer that no snapshot uses, or a layer in use without its mount. The next start, or Cleanup,
//! removes the first two; the next start, or the next use, mounts the layer.
//!
//! Lock order: a layer's guard, then a transaction of the database.

use std::fs::{self, DirBuilder, File, Permissions};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};
use std::thread;

use parking_lot::Mutex;

use crate::api::{Info, Kind, Labels, Mount, UsageResponse};
use crate::digest::Digest;
use crate::error::{Error, ErrorKind, Result};
use crate::filter::Filters;
use crate::layers::{LayerGuard, Layers, MountConfig};
use crate::metadata::{Metadata, NewSnapshot, Record};
use crate::overlay::Overlay;
use crate::source::{LayerInfo, LayerSource};
use crate::tree;

/// The label with the chain ID of the layer that a snapshot is prepared for.
const TARGET: &str = "containerd.io/snapshot.ref";

/// The label with the parent's chain ID, which containerd 2.4 sets also where it prepares layers in
/// parallel, without their parents.
const PARENT_CHAIN: &str = "containerd.io/snapshot/parent-chain-id";

/// The label of a layer that was not downloaded, and its value, both as stargz-snapshotter's.
const REMOTE: (&str, &str) = ("containerd.io/snapshot/remote", "remote snapshot");

/// Labels with maps of ids, `CONTAINER:HOST:COUNT`, separated by commas.
const UID_MAP: &str = "containerd.io/snapshot/uidmapping";
const GID_MAP: &str = "containerd.io/snapshot/gidmapping";

/// Number of layers to mount at a time after a start.
const THREADS: usize = 4;

/// Configuration of a [`Snapshotter`].
#[derive(Clone, Debug)]
pub struct SnapshotterConfig {
    /// Directory of all state, which is created if missing.
    pub root: PathBuf,
    /// How to mount layers.
    pub mount: MountConfig,
    /// Where to look for layers, in this order. Without any, all layers are downloaded.
    pub layer_sources: Vec<LayerSource>,
}

/// A snapshotter. Threads may share it.
pub struct Snapshotter {
    overlay: Overlay,
    metadata: Metadata,
    layers: Layers,
    sources: Vec<LayerSource>,
    /// Held while directories are removed.
    cleanup: Mutex<()>,
}

impl Snapshotter {
    /// Opens the state in `config.root`. Returns `FailedPrecondition` if another process has it
    /// open.
    pub fn open(config: SnapshotterConfig) -> Result<Snapshotter> {
        let root = &config.root;
        // Others may use an existing one, but enter none of the directories in it.
        let made = DirBuilder::new().recursive(true).mode(0o700).create(root);
        made.map_err(|error| Error::io(root, error))?;
        let root = root
            .canonicalize()
            .map_err(|error| Error::io(root, error))?;
        let snapshots = root.join("snapshots");
        let layers = root.join("layers");
        create_private_dir(&snapshots)?;
        create_private_dir(&layers)?;
        let overlay = Overlay::new(&snapshots)?;
        let used = numbers(&snapshots)?.into_iter().max().unwrap_or(0);
        let snapshotter = Snapshotter {
            metadata: Metadata::open(&root.join("metadata.redb"), used)?,
            layers: Layers::new(layers, config.mount),
            sources: config.layer_sources,
            overlay,
            cleanup: Mutex::new(()),
        };
        snapshotter.check_directories()?;
        Ok(snapshotter)
    }

    /// Repairs what an earlier process left: removes directories and unmounts layers that no
    /// snapshot uses, and mounts those in use, as after a reboot. Other operations may run
    /// meanwhile.
    pub fn recover(&self) {
        if let Err(error) = self.cleanup() {
            tracing::warn!("cleanup: {error}");
        }
        let layers = match self.metadata.layers() {
            Ok(layers) => layers,
            Err(error) => {
                tracing::warn!("{error}");
                return;
            }
        };
        let queue = Mutex::new(layers.into_iter());
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    loop {
                        let Some((layer, _)) = queue.lock().next() else {
                            break;
                        };
                        if let Err(error) = self.ensure_mounted(&layer) {
                            tracing::warn!("{error}");
                        }
                    }
                });
            }
        });
    }

    /// Prepares a writable snapshot. If the labels name a layer that can be mounted lazily, mounts
    /// it, commits it under its chain ID, and returns `AlreadyExists`.
    pub fn prepare(&self, key: &str, parent: &str, labels: &Labels) -> Result<Vec<Mount>> {
        if let Some(target) = labels.get(TARGET)
            && self.prepare_layer(target, key, parent, labels)?
        {
            return Err(Error::exists(target));
        }
        self.create(Kind::Active, key, parent, labels)
    }

    /// Prepares a read-only view of a committed snapshot.
    pub fn view(&self, key: &str, parent: &str, labels: &Labels) -> Result<Vec<Mount>> {
        self.create(Kind::View, key, parent, labels)
    }

    /// Returns the mounts of an active snapshot or a view. Mounts its layers again if necessary.
    pub fn mounts(&self, key: &str) -> Result<Vec<Mount>> {
        let record = self.metadata.get(key)?;
        if !matches!(record.kind(), Kind::Active | Kind::View) {
            let message = format!("snapshot '{key}' is neither active nor a view");
            return Err(Error::precondition(message));
        }
        let parents = self.metadata.chain(&record.parent)?;
        self.ensure_all_mounted(&parents)?;
        Ok(self.mounts_of(&record, &parents))
    }

    /// Commits the active snapshot `key` as `name`.
    pub fn commit(&self, key: &str, name: &str, parent: &str, labels: &Labels) -> Result<()> {
        let record = self.metadata.get(key)?;
        if record.kind() != Kind::Active {
            return Err(Error::precondition(format!(
                "snapshot '{key}' is not active"
            )));
        }
        let usage = self.disk_usage(&record)?;
        self.metadata.commit(key, name, parent, labels, usage)
    }

    /// Removes a snapshot. Its directory stays until [`cleanup`](Self::cleanup); a layer that no
    /// snapshot uses any more is unmounted.
    pub fn remove(&self, key: &str) -> Result<()> {
        if let Some(layer) = self.metadata.remove(key)?
            && let Err(error) = self.unmount_unused(&layer)
        {
            // The snapshot is gone. Cleanup unmounts the layer.
            tracing::warn!("layer {layer}: {error}");
        }
        Ok(())
    }

    /// Returns a snapshot.
    pub fn stat(&self, key: &str) -> Result<Info> {
        Ok(self.metadata.get(key)?.info(key))
    }

    /// Changes labels: those of `paths` (`labels` or `labels.NAME`), or all.
    pub fn update(&self, name: &str, labels: &Labels, paths: &[String]) -> Result<Info> {
        self.metadata.update(name, labels, paths)
    }

    /// Returns the snapshots that match one of `filters`, or all without filters.
    pub fn list(&self, filters: &[String]) -> Result<Vec<Info>> {
        let filters = Filters::parse(filters)?;
        let all = self.metadata.list()?.into_iter();
        let infos = all.map(|(name, record)| record.info(&name));
        Ok(infos.filter(|info| filters.matches(info)).collect())
    }

    /// Returns the disk usage of a snapshot without its parents; a layer that is mounted lazily
    /// uses none.
    pub fn usage(&self, key: &str) -> Result<UsageResponse> {
        let record = self.metadata.get(key)?;
        match record.kind() {
            Kind::Active => self.disk_usage(&record),
            _ => Ok(record.usage),
        }
    }

    /// Removes directories of removed snapshots, and unmounts layers that no snapshot uses.
    pub fn cleanup(&self) -> Result<()> {
        let _one_at_a_time = self.cleanup.lock();
        let dir = self.overlay.root();
        let removed = self.metadata.with_ids(|ids| {
            let mut numbers = numbers(dir)?;
            numbers.retain(|number| !ids.contains(number));
            Ok(numbers)
        })?;
        for number in removed {
            let dir = self.overlay.dir(number);
            if let Err(error) = tree::remove(&dir) {
                tracing::warn!("{}: {error}", dir.display());
            }
        }
        let layers = self.layers.directories();
        for layer in layers.map_err(|error| Error::new(ErrorKind::Internal, error))? {
            if let Err(error) = self.unmount_unused(&layer) {
                tracing::warn!("layer {layer}: {error}");
            }
        }
        Ok(())
    }

    /// Returns whether the layer for `target` is mounted and committed, so that its download is
    /// unnecessary. A layer that cannot be mounted is not an error.
    fn prepare_layer(
        &self,
        target: &str,
        key: &str,
        parent: &str,
        labels: &Labels,
    ) -> Result<bool> {
        let Some(layer) = LayerInfo::from_labels(labels) else {
            return Ok(false);
        };
        let parallel = parent.is_empty() && labels.contains_key(PARENT_CHAIN);
        if parallel || self.metadata.find(key)?.is_some() {
            return Ok(false);
        }
        if let Some(record) = self.metadata.find(target)? {
            return Ok(is_lazy(&record, parent));
        }
        // containerd's names of snapshots end in the chain ID.
        let chain_of = |name: &str| name.rsplit('/').next().and_then(|id| id.parse().ok());
        let (Some(chain), parent_chain) = (chain_of(target), chain_of(parent)) else {
            return Ok(false);
        };
        if !parent.is_empty() && parent_chain.is_none() {
            return Ok(false);
        }
        let parents = match self.metadata.chain(parent) {
            Err(error) if error.kind == ErrorKind::NotFound => return Ok(false),
            parents => parents?,
        };
        self.ensure_all_mounted(&parents)?;
        let places = self.sources.iter();
        let sources = places.filter_map(|place| layer.source(place, &chain, parent_chain.as_ref()));
        let guard = self.layers.guard(&layer.digest);
        for source in sources {
            // A layer that is in use stays with its SOURCE.
            let source = self.metadata.source(&layer.digest)?.unwrap_or(source);
            match guard.mount(&source) {
                Ok(()) => {
                    tracing::info!("layer {}: mounted from {source}", layer.digest);
                    return self.commit_layer(
                        &guard,
                        target,
                        parent,
                        labels,
                        (&layer.digest, &source),
                    );
                }
                Err(why) => tracing::info!("layer {}: {source}: {why}", layer.digest),
            }
        }
        Ok(false)
    }

    /// Commits a mounted layer as `target`. Returns whether that exists now.
    fn commit_layer(
        &self,
        guard: &LayerGuard<'_>,
        target: &str,
        parent: &str,
        labels: &Labels,
        layer: (&Digest, &str),
    ) -> Result<bool> {
        let mut labels = labels.clone();
        labels.insert(REMOTE.0.into(), REMOTE.1.into());
        let new = NewSnapshot {
            kind: Kind::Committed,
            name: target,
            parent,
            labels: &labels,
            layer: Some(layer),
        };
        let created = self
            .metadata
            .create(&new, |id, _| self.make_link(id, layer.0));
        let error = match created {
            Ok(_) => return Ok(true),
            Err(error) => error,
        };
        if self.metadata.source(layer.0)?.is_none() {
            guard
                .unmount()
                .map_err(|error| Error::new(ErrorKind::Internal, error))?;
        }
        match error.kind {
            // Another call committed it meanwhile.
            ErrorKind::AlreadyExists => Ok(is_lazy(&self.metadata.get(target)?, parent)),
            _ => Err(error),
        }
    }

    fn create(&self, kind: Kind, key: &str, parent: &str, labels: &Labels) -> Result<Vec<Mount>> {
        let chain = self.metadata.chain(parent)?;
        self.ensure_all_mounted(&chain)?;
        // Before the transaction, which all others wait for: a layer may not answer.
        let below = chain.first();
        let owner = match (mapped_root(labels)?, below) {
            (None, Some(below)) => Some(self.owner(below)?),
            (mapped, _) => mapped,
        };
        let new = NewSnapshot {
            kind,
            name: key,
            parent,
            labels,
            layer: None,
        };
        let make = |id, found: Option<&Record>| {
            if found.map(|found| found.id) != below.map(|below| below.id) {
                let message = format!("parent '{parent}' was replaced meanwhile");
                return Err(Error::new(ErrorKind::Unavailable, message));
            }
            self.make_directories(id, kind, owner)
        };
        let (record, parents) = self.metadata.create(&new, make)?;
        Ok(self.mounts_of(&record, &parents))
    }

    fn mounts_of(&self, record: &Record, parents: &[Record]) -> Vec<Mount> {
        let parents: Vec<_> = parents.iter().map(|parent| parent.id).collect();
        self.overlay.mounts(record.kind(), record.id, &parents)
    }

    fn disk_usage(&self, record: &Record) -> Result<UsageResponse> {
        let files = self.overlay.files(record.id);
        tree::usage(&files).map_err(|error| Error::io(&files, error))
    }

    /// Returns the user and group of the top of a snapshot's files. Blocks while the server of a
    /// layer does not answer.
    fn owner(&self, record: &Record) -> Result<(u32, u32)> {
        let files = self.overlay.files(record.id);
        let top = fs::metadata(&files).map_err(|error| Error::io(&files, error))?;
        Ok((top.uid(), top.gid()))
    }

    /// Makes the directories of a snapshot, with `owner` for the top of its files.
    fn make_directories(&self, id: u64, kind: Kind, owner: Option<(u32, u32)>) -> Result<()> {
        self.make(id, |dir| {
            let files = self.overlay.files(id);
            make_dir(&files, 0o755)?;
            if kind == Kind::Active {
                make_dir(&self.overlay.work(id), 0o711)?;
            }
            if let Some((uid, gid)) = owner {
                lchown(&files, Some(uid), Some(gid)).map_err(|error| Error::io(&files, error))?;
            }
            sync(dir)
        })
    }

    /// Makes the directory of a snapshot whose files are a layer's: a link, so that an overlay of
    /// many layers has short options.
    fn make_link(&self, id: u64, layer: &Digest) -> Result<()> {
        self.make(id, |dir| {
            let files = self.overlay.files(id);
            let target = format!("../../layers/{}", layer.hex());
            symlink(target, &files).map_err(|error| Error::io(&files, error))?;
            sync(dir)
        })
    }

    /// Makes the directory of a snapshot, with contents by `fill`.
    fn make(&self, id: u64, fill: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
        let dir = self.overlay.dir(id);
        make_dir(&dir, 0o700)?;
        fill(&dir).and_then(|()| sync(self.overlay.root()))
    }

    fn ensure_all_mounted(&self, snapshots: &[Record]) -> Result<()> {
        let mut layers = snapshots.iter().filter_map(Record::layer);
        layers.try_for_each(|layer| self.ensure_mounted(&layer))
    }

    /// Mounts a layer that snapshots use, unless it is mounted.
    fn ensure_mounted(&self, layer: &Digest) -> Result<()> {
        let guard = self.layers.guard(layer);
        let Some(source) = self.metadata.source(layer)? else {
            return Ok(());
        };
        guard.mount(&source).map_err(|why| {
            let message = format!("layer {layer}: cannot mount {source}: {why}");
            Error::new(ErrorKind::Unavailable, message)
        })
    }

    /// Unmounts a layer, unless a snapshot uses it.
    fn unmount_unused(&self, layer: &Digest) -> Result<()> {
        let guard = self.layers.guard(layer);
        if self.metadata.source(layer)?.is_some() {
            return Ok(());
        }
        guard
            .unmount()
            .map_err(|error| Error::new(ErrorKind::Internal, error))
    }

    /// Makes missing links to layers again, and reports other snapshots without files.
    fn check_directories(&self) -> Result<()> {
        for (name, record) in self.metadata.list()? {
            if fs::symlink_metadata(self.overlay.files(record.id)).is_ok() {
                continue;
            }
            match record.layer() {
                Some(layer) => {
                    let dir = self.overlay.dir(record.id);
                    tree::remove(&dir).map_err(|error| Error::io(&dir, error))?;
                    self.make_link(record.id, &layer)?;
                }
                None => tracing::error!("snapshot '{name}': its files are missing"),
            }
        }
        Ok(())
    }
}

/// Returns whether a snapshot is a lazy layer with this parent, as containerd then looks for it.
fn is_lazy(record: &Record, parent: &str) -> bool {
    record.layer().is_some() && record.parent == parent
}

/// Returns the host's user and group for root of the maps in `labels`, or `None` without maps.
fn mapped_root(labels: &Labels) -> Result<Option<(u32, u32)>> {
    let root = |label| {
        let Some(map) = labels.get(label) else {
            return Ok(0);
        };
        let ranges = map.split(',').map(|range| {
            let fields: Option<Vec<u32>> = range.split(':').map(|id| id.parse().ok()).collect();
            match fields.as_deref() {
                Some(&[container, host, count]) if count > 0 => Some((container, host)),
                _ => None,
            }
        });
        let ranges: Option<Vec<_>> = ranges.collect();
        let found = ranges.and_then(|ranges| ranges.into_iter().find(|&(id, _)| id == 0));
        let root = found.map(|(_, host)| host);
        root.ok_or_else(|| {
            Error::invalid(format!(
                "{label}: expected CONTAINER:HOST:COUNT with 0, got '{map}'"
            ))
        })
    };
    if [UID_MAP, GID_MAP]
        .iter()
        .all(|&label| !labels.contains_key(label))
    {
        return Ok(None);
    }
    Ok(Some((root(UID_MAP)?, root(GID_MAP)?)))
}

/// Returns the numbers that are names of entries of a directory.
fn numbers(dir: &Path) -> Result<Vec<u64>> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir(dir).map_err(|error| Error::io(dir, error))? {
        let entry = entry.map_err(|error| Error::io(dir, error))?;
        numbers.extend(
            entry
                .file_name()
                .to_str()
                .and_then(|name| name.parse::<u64>().ok()),
        );
    }
    Ok(numbers)
}

/// Creates a directory that only this user can enter, if there is none.
fn create_private_dir(dir: &Path) -> Result<()> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.and_then(|()| fs::set_permissions(dir, Permissions::from_mode(0o700)))
        .map_err(|error| Error::io(dir, error))
}

/// Creates a directory with this mode, whatever the umask.
fn make_dir(dir: &Path, mode: u32) -> Result<()> {
    let made = DirBuilder::new().mode(mode).create(dir);
    made.and_then(|()| fs::set_permissions(dir, Permissions::from_mode(mode)))
        .map_err(|error| Error::io(dir, error))
}

/// Writes the entries of a directory to disk.
fn sync(dir: &Path) -> Result<()> {
    let synced = File::open(dir).and_then(|dir| dir.sync_all());
    synced.map_err(|error| Error::io(dir, error))
}
