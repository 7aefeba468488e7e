//! Durable metadata of snapshots and of the layers that they use, in the database
//! `metadata.redb`, whose lock also keeps a second process out of the directory.
//!
//! A transaction is on disk when its function returns. Only [`Metadata::create`] and
//! [`Metadata::with_ids`] run code of the caller within one; they exclude each other. The number of
//! uses of a layer is that of its entries in [`USES`], so that it cannot differ from the snapshots.
//!
//! After an error of the disk, such as a full one, redb refuses all transactions of the database
//! that was open. So it is closed then, and the next operation opens it again.

use std::collections::BTreeSet;
use std::fs::{OpenOptions, Permissions};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use parking_lot::Mutex;
use prost::Message;
use prost_types::Timestamp;
use redb::backends::FileBackend;
use redb::{Builder, Database, ReadTransaction, ReadableDatabase, ReadableTable, Table};
use redb::{TableDefinition, WriteTransaction};

use crate::api::{Info, Kind, Labels, UsageResponse};
use crate::digest::Digest;
use crate::error::{Error, ErrorKind, Result};

/// Snapshots by key or name, each an encoded [`Record`].
const SNAPSHOTS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("snapshots");

/// Pairs of parent and child, by number.
const CHILDREN: TableDefinition<'_, (u64, u64), ()> = TableDefinition::new("children");

/// SOURCE of each layer in use, by digest.
const LAYERS: TableDefinition<'_, &str, &str> = TableDefinition::new("layers");

/// Pairs of a layer and the number of a snapshot that uses it.
const USES: TableDefinition<'_, (&str, u64), ()> = TableDefinition::new("uses");

/// The number of the newest snapshot.
const NEWEST: TableDefinition<'_, (), u64> = TableDefinition::new("newest");

/// Cache size of the database in bytes, about that of 10,000 snapshots.
const CACHE_SIZE: usize = 8 << 20;

/// Longest key or name in bytes. containerd's own are shorter than 300.
const MAX_NAME: usize = 4096;

/// Largest size of all labels of a snapshot in bytes. containerd limits a label to 4,096.
const MAX_LABELS: usize = 256 << 10;

/// A snapshot as it is stored.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Record {
    /// Its number, which is its directory's name.
    #[prost(uint64, tag = "1")]
    pub(crate) id: u64,
    #[prost(enumeration = "Kind", tag = "2")]
    pub(crate) kind: i32,
    /// Name of the parent, or empty.
    #[prost(string, tag = "3")]
    pub(crate) parent: String,
    #[prost(message, optional, tag = "4")]
    created_at: Option<Timestamp>,
    #[prost(message, optional, tag = "5")]
    updated_at: Option<Timestamp>,
    #[prost(btree_map = "string, string", tag = "6")]
    labels: Labels,
    /// Disk usage of a committed snapshot.
    #[prost(message, required, tag = "7")]
    pub(crate) usage: UsageResponse,
    /// Hexadecimal digits of the digest of a layer that is mounted lazily, or empty.
    #[prost(string, tag = "8")]
    layer: String,
}

impl Record {
    /// Returns the layer that is mounted lazily, if this is one.
    pub(crate) fn layer(&self) -> Option<Digest> {
        Digest::from_hex(&self.layer)
    }

    /// Returns the snapshot's description for clients.
    pub(crate) fn info(&self, name: &str) -> Info {
        Info {
            name: name.into(),
            parent: self.parent.clone(),
            kind: self.kind,
            created_at: self.created_at,
            updated_at: self.updated_at,
            labels: self.labels.clone(),
        }
    }
}

/// A snapshot to create.
pub(crate) struct NewSnapshot<'a> {
    pub(crate) kind: Kind,
    /// Key, or name of a committed one.
    pub(crate) name: &'a str,
    /// Name of the parent, or empty.
    pub(crate) parent: &'a str,
    pub(crate) labels: &'a Labels,
    /// The layer of a committed one, and its SOURCE.
    pub(crate) layer: Option<(&'a Digest, &'a str)>,
}

/// The database.
pub(crate) struct Metadata {
    path: PathBuf,
    /// `None` after an error.
    database: Mutex<Option<Arc<Database>>>,
    /// The last number given to a snapshot, also if its creation failed.
    newest: AtomicU64,
}

/// The tables of a transaction that writes.
struct Tables<'t> {
    snapshots: Table<'t, &'static str, &'static [u8]>,
    children: Table<'t, (u64, u64), ()>,
    layers: Table<'t, &'static str, &'static str>,
    uses: Table<'t, (&'static str, u64), ()>,
    newest: Table<'t, (), u64>,
}

impl Metadata {
    /// Opens or creates the database. New snapshots get numbers above `used` and above all earlier
    /// ones. Returns an error if another process has it open, or if it is damaged.
    pub(crate) fn open(path: &Path, used: u64) -> Result<Metadata> {
        let metadata = Metadata {
            path: path.to_owned(),
            database: Mutex::default(),
            newest: AtomicU64::new(used),
        };
        let stored = metadata.write(|tables| get_newest(tables))?;
        metadata.newest.fetch_max(stored, Ordering::Relaxed);
        Ok(metadata)
    }

    /// Returns the snapshot `name`, or `NotFound`.
    pub(crate) fn get(&self, name: &str) -> Result<Record> {
        self.find(name)?.ok_or_else(|| Error::not_found(name))
    }

    /// Returns the snapshot `name`, if it exists.
    pub(crate) fn find(&self, name: &str) -> Result<Option<Record>> {
        self.read(|transaction| {
            let snapshots = transaction.open_table(SNAPSHOTS).map_err(Error::database)?;
            lookup(&snapshots, name)
        })
    }

    /// Returns the snapshot `name`, which may be empty, and its parents, the nearest first.
    pub(crate) fn chain(&self, name: &str) -> Result<Vec<Record>> {
        self.read(|transaction| {
            let snapshots = transaction.open_table(SNAPSHOTS).map_err(Error::database)?;
            chain(&snapshots, name)
        })
    }

    /// Returns all snapshots in the order of their names.
    pub(crate) fn list(&self) -> Result<Vec<(String, Record)>> {
        self.read(|transaction| {
            let snapshots = transaction.open_table(SNAPSHOTS).map_err(Error::database)?;
            let entries = snapshots.iter().map_err(Error::database)?;
            let entry = |entry: std::result::Result<_, redb::StorageError>| {
                let (name, record): (redb::AccessGuard<'_, &str>, redb::AccessGuard<'_, &[u8]>) =
                    entry.map_err(Error::database)?;
                Ok((name.value().to_owned(), decode(record.value())?))
            };
            entries.map(entry).collect()
        })
    }

    /// Creates a snapshot. `make` gets its number and parent, and makes its directory; if it fails,
    /// there is no snapshot. Returns the snapshot and its parents.
    pub(crate) fn create(
        &self,
        new: &NewSnapshot<'_>,
        make: impl FnOnce(u64, Option<&Record>) -> Result<()>,
    ) -> Result<(Record, Vec<Record>)> {
        check_name(new.name)?;
        let labels = check_labels(new.labels)?;
        self.write(|tables| {
            let parents = chain(&tables.snapshots, new.parent)?;
            if parents
                .first()
                .is_some_and(|parent| parent.kind() != Kind::Committed)
            {
                let parent = new.parent;
                return Err(Error::invalid(format!(
                    "parent '{parent}' is not committed"
                )));
            }
            if lookup(&tables.snapshots, new.name)?.is_some() {
                return Err(Error::exists(new.name));
            }
            let now = Some(Timestamp::from(SystemTime::now()));
            let record = Record {
                id: self.newest.fetch_add(1, Ordering::Relaxed) + 1,
                kind: new.kind.into(),
                parent: new.parent.into(),
                created_at: now,
                updated_at: now,
                labels,
                usage: UsageResponse::default(),
                layer: new.layer.map_or("", |(layer, _)| layer.hex()).into(),
            };
            make(record.id, parents.first())?;
            tables
                .newest
                .insert((), record.id)
                .map_err(Error::database)?;
            tables.put(new.name, &record)?;
            if let Some(parent) = parents.first() {
                let pair = (parent.id, record.id);
                tables.children.insert(pair, ()).map_err(Error::database)?;
            }
            if let Some((layer, source)) = new.layer {
                let uses = &mut tables.uses;
                uses.insert((layer.hex(), record.id), ())
                    .map_err(Error::database)?;
                tables
                    .layers
                    .insert(layer.hex(), source)
                    .map_err(Error::database)?;
            }
            Ok((record, parents))
        })
    }

    /// Turns the active snapshot `key` into the committed one `name`. `labels` replace its own, and
    /// `parent`, if not empty, becomes the parent of a snapshot without one.
    pub(crate) fn commit(
        &self,
        key: &str,
        name: &str,
        parent: &str,
        labels: &Labels,
        usage: UsageResponse,
    ) -> Result<()> {
        check_name(name)?;
        let labels = check_labels(labels)?;
        self.write(|tables| {
            if lookup(&tables.snapshots, name)?.is_some() {
                return Err(Error::exists(name));
            }
            let mut record = tables.get(key)?;
            if record.kind() != Kind::Active {
                return Err(Error::precondition(format!(
                    "snapshot '{key}' is not active"
                )));
            }
            if record.parent.is_empty() && !parent.is_empty() {
                let found = tables.get(parent)?;
                if found.kind() != Kind::Committed {
                    return Err(Error::precondition(format!(
                        "parent '{parent}' is not committed"
                    )));
                }
                record.parent = parent.into();
                let pair = (found.id, record.id);
                tables.children.insert(pair, ()).map_err(Error::database)?;
            } else if !parent.is_empty() && parent != record.parent {
                return Err(Error::invalid(format!(
                    "snapshot '{key}' has another parent"
                )));
            }
            record.kind = Kind::Committed.into();
            record.created_at = Some(SystemTime::now().into());
            record.updated_at = record.created_at;
            record.labels = labels;
            record.usage = usage;
            tables.snapshots.remove(key).map_err(Error::database)?;
            tables.put(name, &record)
        })
    }

    /// Changes labels: those of `paths` (`labels`, or `labels.NAME`), or all without paths. An
    /// empty value removes a label.
    pub(crate) fn update(&self, name: &str, labels: &Labels, paths: &[String]) -> Result<Info> {
        self.write(|tables| {
            let mut record = tables.get(name)?;
            if paths.is_empty() {
                record.labels = labels.clone();
            }
            for path in paths {
                match path.strip_prefix("labels.") {
                    Some(label) => {
                        let value = labels.get(label).cloned().unwrap_or_default();
                        record.labels.insert(label.into(), value);
                    }
                    None if path == "labels" => record.labels = labels.clone(),
                    None => {
                        return Err(Error::invalid(format!("field '{path}' cannot be changed")));
                    }
                }
            }
            record.labels = check_labels(&record.labels)?;
            record.updated_at = Some(SystemTime::now().into());
            tables.put(name, &record)?;
            Ok(record.info(name))
        })
    }

    /// Removes a snapshot without children. Returns its layer if no snapshot uses that any more.
    pub(crate) fn remove(&self, name: &str) -> Result<Option<Digest>> {
        self.write(|tables| {
            let record = tables.get(name)?;
            let mut children = tables
                .children
                .range((record.id, 0)..=(record.id, u64::MAX))
                .map_err(Error::database)?;
            if children.next().is_some() {
                return Err(Error::precondition(format!(
                    "cannot remove snapshot '{name}': it has children"
                )));
            }
            drop(children);
            if let Some(parent) = lookup(&tables.snapshots, &record.parent)? {
                let pair = (parent.id, record.id);
                tables.children.remove(pair).map_err(Error::database)?;
            }
            tables.snapshots.remove(name).map_err(Error::database)?;
            let Some(layer) = record.layer() else {
                return Ok(None);
            };
            let hex = layer.hex();
            tables
                .uses
                .remove((hex, record.id))
                .map_err(Error::database)?;
            let mut others = tables
                .uses
                .range((hex, 0)..=(hex, u64::MAX))
                .map_err(Error::database)?;
            if others.next().is_some() {
                return Ok(None);
            }
            drop(others);
            tables.layers.remove(hex).map_err(Error::database)?;
            Ok(Some(layer))
        })
    }

    /// Returns the SOURCE of a layer, or `None` if no snapshot uses it.
    pub(crate) fn source(&self, layer: &Digest) -> Result<Option<String>> {
        self.read(|transaction| {
            let layers = transaction.open_table(LAYERS).map_err(Error::database)?;
            let source = layers.get(layer.hex()).map_err(Error::database)?;
            Ok(source.map(|source| source.value().to_owned()))
        })
    }

    /// Returns the layers in use, with their SOURCE.
    pub(crate) fn layers(&self) -> Result<Vec<(Digest, String)>> {
        self.read(|transaction| {
            let layers = transaction.open_table(LAYERS).map_err(Error::database)?;
            let mut all = Vec::new();
            for entry in layers.iter().map_err(Error::database)? {
                let (digest, source) = entry.map_err(Error::database)?;
                let digest = Digest::from_hex(digest.value());
                all.extend(digest.map(|digest| (digest, source.value().to_owned())));
            }
            Ok(all)
        })
    }

    /// Calls `look` with the numbers of all snapshots, while none is created.
    pub(crate) fn with_ids<T>(&self, look: impl FnOnce(&BTreeSet<u64>) -> Result<T>) -> Result<T> {
        self.write(|tables| {
            let mut ids = BTreeSet::new();
            for entry in tables.snapshots.iter().map_err(Error::database)? {
                let (_, record) = entry.map_err(Error::database)?;
                ids.insert(decode(record.value())?.id);
            }
            look(&ids)
        })
    }

    fn read<T>(&self, run: impl FnOnce(&ReadTransaction) -> Result<T>) -> Result<T> {
        self.with_database(|database| run(&database.begin_read().map_err(Error::database)?))
    }

    /// Runs a transaction, and commits it if `run` succeeds.
    fn write<T>(&self, run: impl FnOnce(&mut Tables<'_>) -> Result<T>) -> Result<T> {
        self.with_database(|database| {
            let transaction = database.begin_write().map_err(Error::database)?;
            let result = run(&mut Tables::open(&transaction)?)?;
            transaction.commit().map_err(Error::database)?;
            Ok(result)
        })
    }

    /// Calls `run` with the database, which is closed if that fails for an internal reason.
    fn with_database<T>(&self, run: impl FnOnce(&Database) -> Result<T>) -> Result<T> {
        let database = self.opened()?;
        let result = unless_damaged(|| run(&database));
        let is_internal = |error: &Error| error.kind == ErrorKind::Internal;
        if result.as_ref().is_err_and(is_internal) {
            let mut current = self.database.lock();
            // Another operation may have opened it again.
            let closed = current.take_if(|current| Arc::ptr_eq(current, &database));
            let _ = unless_damaged(|| {
                drop((closed, database));
                Ok(())
            });
        }
        result
    }

    /// Returns the database, opened again after an error.
    fn opened(&self) -> Result<Arc<Database>> {
        let mut database = self.database.lock();
        if let Some(database) = &*database {
            return Ok(database.clone());
        }
        let opened = Arc::new(open(&self.path)?);
        *database = Some(opened.clone());
        Ok(opened)
    }
}

/// Opens or creates the database at `path`.
fn open(path: &Path) -> Result<Database> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    let file = options
        .mode(0o600)
        .open(path)
        .map_err(|error| Error::io(path, error))?;
    file.set_permissions(Permissions::from_mode(0o600))
        .map_err(|error| Error::io(path, error))?;
    unless_damaged(|| {
        let backend = FileBackend::new(file);
        let mut builder = Builder::new();
        let database =
            backend.and_then(|file| builder.set_cache_size(CACHE_SIZE).create_with_backend(file));
        database.map_err(|error| match error.into() {
            redb::Error::DatabaseAlreadyOpen => {
                let path = path.display();
                Error::precondition(format!("{path}: in use by another barge-snapshotter"))
            }
            other => Error::database(other),
        })
    })
}

impl<'t> Tables<'t> {
    fn open(transaction: &'t WriteTransaction) -> Result<Tables<'t>> {
        Ok(Tables {
            snapshots: transaction.open_table(SNAPSHOTS).map_err(Error::database)?,
            children: transaction.open_table(CHILDREN).map_err(Error::database)?,
            layers: transaction.open_table(LAYERS).map_err(Error::database)?,
            uses: transaction.open_table(USES).map_err(Error::database)?,
            newest: transaction.open_table(NEWEST).map_err(Error::database)?,
        })
    }

    fn get(&self, name: &str) -> Result<Record> {
        lookup(&self.snapshots, name)?.ok_or_else(|| Error::not_found(name))
    }

    fn put(&mut self, name: &str, record: &Record) -> Result<()> {
        let bytes = record.encode_to_vec();
        self.snapshots
            .insert(name, bytes.as_slice())
            .map_err(Error::database)?;
        Ok(())
    }
}

fn get_newest(tables: &Tables<'_>) -> Result<u64> {
    let newest = tables.newest.get(()).map_err(Error::database)?;
    Ok(newest.map_or(0, |newest| newest.value()))
}

fn lookup(
    snapshots: &impl ReadableTable<&'static str, &'static [u8]>,
    name: &str,
) -> Result<Option<Record>> {
    let found = snapshots.get(name).map_err(Error::database)?;
    found.map(|record| decode(record.value())).transpose()
}

/// Returns the snapshot `name` and its parents; a parent is older than its child.
fn chain(
    snapshots: &impl ReadableTable<&'static str, &'static [u8]>,
    name: &str,
) -> Result<Vec<Record>> {
    let mut chain = Vec::<Record>::new();
    let mut next = name.to_owned();
    while !next.is_empty() {
        let record = lookup(snapshots, &next)?.ok_or_else(|| Error::not_found(&next))?;
        next.clone_from(&record.parent);
        chain.push(record);
    }
    Ok(chain)
}

fn decode(bytes: &[u8]) -> Result<Record> {
    let damaged = |error| format!("metadata.redb: damaged snapshot: {error}");
    Record::decode(bytes).map_err(|error| Error::new(ErrorKind::Internal, damaged(error)))
}

fn check_name(name: &str) -> Result<()> {
    match name.len() {
        0 => Err(Error::invalid(
            "expected a name of a snapshot, got an empty one",
        )),
        1..=MAX_NAME => Ok(()),
        length => Err(Error::invalid(format!(
            "expected a name of at most {MAX_NAME} bytes, got {length}"
        ))),
    }
}

/// Returns the labels without those of an empty value, as containerd stores them.
fn check_labels(labels: &Labels) -> Result<Labels> {
    let size: usize = labels
        .iter()
        .map(|(name, value)| name.len() + value.len())
        .sum();
    if size > MAX_LABELS {
        let message = format!("expected labels of at most {MAX_LABELS} bytes, got {size}");
        return Err(Error::invalid(message));
    }
    let mut labels = labels.clone();
    labels.retain(|_, value| !value.is_empty());
    Ok(labels)
}

/// Calls a function that uses the database, and returns an error if that panics, as redb does with
/// some damaged files.
fn unless_damaged<T>(access: impl FnOnce() -> Result<T>) -> Result<T> {
    // A panic leaves the database as a crash would.
    panic::catch_unwind(AssertUnwindSafe(access)).unwrap_or_else(|_| {
        Err(Error::new(
            ErrorKind::Internal,
            "metadata.redb: the file is damaged",
        ))
    })
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::io::Write;
    use std::process::Command;

    use super::*;

    /// A small file system in memory, which is unmounted when it is dropped.
    struct SmallDisk(tempfile::TempDir);

    impl SmallDisk {
        fn new() -> SmallDisk {
            let dir = tempfile::tempdir().expect("a directory");
            let mut mount = Command::new("mount");
            mount.args(["-t", "tmpfs", "-o", "size=4m", "tmpfs"]);
            assert!(mount.arg(dir.path()).status().expect("runs").success());
            SmallDisk(dir)
        }
    }

    impl Drop for SmallDisk {
        fn drop(&mut self) {
            let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
        }
    }

    fn create(metadata: &Metadata, name: &str) -> Result<()> {
        let label = ("label".to_owned(), "x".repeat(60_000));
        let new = NewSnapshot {
            kind: Kind::Active,
            name,
            parent: "",
            labels: &[label].into_iter().collect(),
            layer: None,
        };
        metadata.create(&new, |_, _| Ok(())).map(|_| ())
    }

    #[test]
    fn a_full_disk_ends_no_later_operation() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: this takes root, to mount a small file system");
            return;
        }
        let disk = SmallDisk::new();
        let metadata = Metadata::open(&disk.0.path().join("metadata.redb"), 0);
        let metadata = metadata.expect("opened");
        let filler = disk.0.path().join("filler");
        let mut file = File::create(&filler).expect("made");
        while file.write_all(&[7; 4096]).is_ok() {}
        let created = (0..1000)
            .take_while(|number| create(&metadata, &number.to_string()).is_ok())
            .count();
        assert!(created < 1000, "the database always finds room");
        // An open file would keep its space.
        drop(file);
        fs::remove_file(&filler).expect("removed");
        create(&metadata, "late").expect("created");
        let names = metadata.list().expect("read");
        let names: BTreeSet<_> = names.into_iter().map(|(name, _)| name).collect();
        let expected = (0..created).map(|number| number.to_string());
        assert_eq!(names, expected.chain(["late".into()]).collect());
    }
}
