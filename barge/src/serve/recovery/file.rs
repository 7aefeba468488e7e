//! The state of a server in a file, a redb database that is locked against other processes.
//!
//! The records are also in memory, as the file shall have them. After an error of the disk the
//! database cannot be used any more, even if the disk works again: it is closed, and a thread tries
//! once a second to open it and to write all records, or a new file if it is damaged.
//!
//! Lock order: the only mutex, held while the file is written.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::ops::Deref;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use redb::backends::FileBackend;
use redb::{
    Builder, Database, ReadTransaction, ReadableDatabase, ReadableTable, TableDefinition,
    TableError, WriteTransaction,
};

use super::store::{Boot, RecordList, StateStore};
use super::{create_private_dir, new_name, next_boot};
use crate::private_file;
use crate::status::Problem;

/// The server's name and last boot number.
const SERVER: TableDefinition<'_, (), (&str, u32)> = TableDefinition::new("server");

/// The clients that may reclaim.
const CLIENTS: Table = TableDefinition::new("clients");

/// The clients to notify of a restart.
const MONITORED: Table = TableDefinition::new("monitored");

type Table = TableDefinition<'static, &'static [u8], ()>;

/// Time between attempts to write a file again that could not be written.
const RETRY: Duration = Duration::from_secs(1);

/// Cache size of the database in bytes; the records of a thousand clients are a tenth of it.
const CACHE_SIZE: usize = 1 << 20;

/// A database file. It is locked against other processes as long as it can be written.
pub(super) struct StateFile(Arc<Shared>);

struct Shared {
    path: PathBuf,
    state: Mutex<State>,
    /// Whether the file lacks records, for the health check.
    problem: Problem,
}

struct State {
    records: Records,
    /// `None` after an error, until all records are written.
    database: Option<OpenDatabase>,
    /// Whether a thread tries to write the records.
    is_retrying: bool,
}

/// The contents of a file.
#[derive(Default)]
struct Records {
    /// `None` before the first run.
    boot: Option<Boot>,
    clients: BTreeSet<Box<[u8]>>,
    monitored: BTreeSet<Box<[u8]>>,
}

impl Records {
    /// Reads them from a database, which may be new.
    fn read(database: &Database) -> Result<Records, redb::Error> {
        let reader = database.begin_read()?;
        let boot = match existing(reader.open_table(SERVER))? {
            None => None,
            Some(server) => server.get(())?.map(|stored| Boot {
                name: stored.value().0.to_owned(),
                number: stored.value().1,
            }),
        };
        Ok(Records {
            boot,
            clients: read_list(&reader, CLIENTS)?,
            monitored: read_list(&reader, MONITORED)?,
        })
    }

    /// Makes them the contents of a database, in one transaction.
    fn write(&self, database: &Database) -> Result<(), redb::Error> {
        let change = database.begin_write()?;
        if let Some(Boot { name, number }) = &self.boot {
            let mut server = change.open_table(SERVER)?;
            server.insert((), (name.as_str(), *number))?;
        }
        write_list(&change, CLIENTS, &self.clients)?;
        write_list(&change, MONITORED, &self.monitored)?;
        Ok(change.commit()?)
    }

    fn list(&mut self, list: RecordList) -> &mut BTreeSet<Box<[u8]>> {
        match list {
            RecordList::Clients => &mut self.clients,
            RecordList::Monitored => &mut self.monitored,
        }
    }
}

/// Returns a table, or `None` if the database does not have it yet.
fn existing<T>(opened: Result<T, TableError>) -> Result<Option<T>, redb::Error> {
    match opened {
        Ok(table) => Ok(Some(table)),
        Err(TableError::TableDoesNotExist(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn read_list(reader: &ReadTransaction, table: Table) -> Result<BTreeSet<Box<[u8]>>, redb::Error> {
    let Some(records) = existing(reader.open_table(table))? else {
        return Ok(BTreeSet::new());
    };
    let keys = records.iter()?;
    keys.map(|entry| Ok(entry?.0.value().into())).collect()
}

fn write_list(
    change: &WriteTransaction,
    table: Table,
    wanted: &BTreeSet<Box<[u8]>>,
) -> Result<(), redb::Error> {
    let mut records = change.open_table(table)?;
    records.retain(|record, ()| wanted.contains(record))?;
    for record in wanted {
        records.insert(&record[..], ())?;
    }
    Ok(())
}

/// An open database.
struct OpenDatabase(Option<Database>);

impl OpenDatabase {
    /// Opens or creates the database at `path`.
    fn open(path: &Path) -> Result<OpenDatabase, redb::Error> {
        let file = open_private(path)?;
        let database = Builder::new()
            .set_cache_size(CACHE_SIZE)
            .create_with_backend(FileBackend::new(file)?)?;
        Ok(OpenDatabase(Some(database)))
    }
}

impl Deref for OpenDatabase {
    type Target = Database;

    fn deref(&self) -> &Database {
        self.0.as_ref().expect("it is open until it is dropped")
    }
}

impl Drop for OpenDatabase {
    fn drop(&mut self) {
        let database = self.0.take();
        // The next start reports a damaged file.
        let _ = unless_damaged::<_, redb::Error>(|| {
            drop(database);
            Ok(())
        });
    }
}

/// The reason why a file cannot be used.
pub(super) enum OpenError {
    /// Another server has it open.
    InUse,
    Failed(String),
}

impl From<redb::Error> for OpenError {
    fn from(error: redb::Error) -> OpenError {
        match error {
            redb::Error::DatabaseAlreadyOpen => OpenError::InUse,
            other => OpenError::Failed(other.to_string()),
        }
    }
}

/// Calls a function that uses a database, and returns an error if that panics, as the database does
/// with some damaged files.
fn unless_damaged<T, E: From<redb::Error>>(access: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    // A panic leaves the database as a crash would.
    panic::catch_unwind(AssertUnwindSafe(access))
        .unwrap_or_else(|_| Err(redb::Error::Corrupted("the file is damaged".into()).into()))
}

impl StateFile {
    /// Opens or creates the database at `path`, and reads it. `problem` becomes that of the file.
    pub(super) fn open(path: &Path, problem: &Problem) -> Result<StateFile, OpenError> {
        let made = path.parent().map_or(Ok(()), create_private_dir);
        made.map_err(redb::Error::Io)?;
        let (database, records) = unless_damaged(|| {
            let database = OpenDatabase::open(path)?;
            let records = Records::read(&database)?;
            sync_dir(path)?;
            Ok::<_, redb::Error>((database, records))
        })?;
        Ok(StateFile(Arc::new(Shared {
            path: path.to_owned(),
            state: Mutex::new(State {
                records,
                database: Some(database),
                is_retrying: false,
            }),
            problem: problem.clone(),
        })))
    }

    /// Changes the database, in which the records in memory were changed already. Returns an error
    /// if that has to wait for the next attempt.
    fn write(
        &self,
        mut state: MutexGuard<'_, State>,
        change: impl FnOnce(&State, &Database) -> Result<(), redb::Error>,
    ) -> io::Result<()> {
        let written = match &state.database {
            Some(database) => unless_damaged(|| change(&state, database)),
            None => Err(redb::Error::PreviousIo),
        };
        let Err(error) = written else {
            return Ok(());
        };
        if state.database.take().is_some() {
            let path = self.0.path.display();
            self.0.problem.begin(&format!("{path}: {error}"));
        }
        if !state.is_retrying {
            state.is_retrying = Shared::start_retries(&self.0);
        }
        Err(io::Error::other(error))
    }

    fn update(&self, list: RecordList, record: &[u8], keep: bool) -> io::Result<()> {
        let mut state = self.0.state.lock();
        let records = state.records.list(list);
        if keep {
            records.insert(record.into());
        } else {
            records.remove(record);
        }
        self.write(state, |_, database| {
            let change = database.begin_write()?;
            {
                let mut records = change.open_table(table(list))?;
                if keep {
                    records.insert(record, ())?;
                } else {
                    records.remove(record)?;
                }
            }
            Ok(change.commit()?)
        })
    }
}

impl Shared {
    /// Starts a thread that tries to write the records until that succeeds or nobody needs them
    /// any more. Returns whether it was started.
    fn start_retries(this: &Arc<Shared>) -> bool {
        let this: Weak<Shared> = Arc::downgrade(this);
        let retry = move || {
            loop {
                thread::sleep(RETRY);
                if this.upgrade().is_none_or(|this| this.rewrite()) {
                    return;
                }
            }
        };
        let thread = thread::Builder::new().name("barge-state-file".into());
        thread.spawn(retry).is_ok()
    }

    /// Opens the file again and writes all records. Returns whether that succeeded.
    fn rewrite(&self) -> bool {
        let mut state = self.state.lock();
        match open_with(&self.path, &state.records) {
            Ok(database) => {
                state.database = Some(database);
                state.is_retrying = false;
                self.problem.end();
                true
            }
            Err(error) => {
                tracing::debug!("{}: {error}", self.path.display());
                false
            }
        }
    }
}

/// Opens the database at `path` and makes `records` its contents. Replaces a damaged file.
fn open_with(path: &Path, records: &Records) -> Result<OpenDatabase, redb::Error> {
    let open = |path: &Path| {
        unless_damaged(|| {
            let database = OpenDatabase::open(path)?;
            records.write(&database)?;
            Ok::<_, redb::Error>(database)
        })
    };
    match open(path) {
        Err(error) if !is_temporary(&error) => {
            // A damaged file stays until there is another one.
            let new = path.with_extension("new");
            let database = open(&new)?;
            fs::rename(&new, path)?;
            sync_dir(path)?;
            Ok(database)
        }
        opened => opened,
    }
}

/// Returns whether the file may be used when the disk works again, or another process has ended.
fn is_temporary(error: &redb::Error) -> bool {
    match error {
        // A file that begins with other bytes than a database's, or that is cut off.
        redb::Error::Io(error) => !matches!(
            error.kind(),
            io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof
        ),
        redb::Error::PreviousIo | redb::Error::DatabaseAlreadyOpen => true,
        _ => false,
    }
}

fn sync_dir(path: &Path) -> io::Result<()> {
    path.parent()
        .map_or(Ok(()), |dir| File::open(dir)?.sync_all())
}

fn table(list: RecordList) -> Table {
    match list {
        RecordList::Clients => CLIENTS,
        RecordList::Monitored => MONITORED,
    }
}

impl StateStore for StateFile {
    /// If the file cannot be written, the run begins nevertheless: its number follows the time.
    fn begin(&self) -> io::Result<Boot> {
        let mut state = self.0.state.lock();
        let boot = match state.records.boot.take() {
            Some(Boot { name, number }) => Boot {
                name,
                number: next_boot(number),
            },
            None => Boot {
                name: new_name(),
                number: next_boot(0),
            },
        };
        state.records.boot = Some(boot.clone());
        // The health check has the error.
        let _ = self.write(state, |state, database| state.records.write(database));
        Ok(boot)
    }

    fn list(&self, list: RecordList) -> io::Result<Vec<Box<[u8]>>> {
        let mut state = self.0.state.lock();
        Ok(state.records.list(list).iter().cloned().collect())
    }

    /// Succeeds also if the record will be written later: until then a restart loses it.
    fn put(&self, list: RecordList, record: &[u8]) -> io::Result<()> {
        let _ = self.update(list, record, true);
        Ok(())
    }

    fn remove(&self, list: RecordList, record: &[u8]) -> io::Result<()> {
        self.update(list, record, false)
    }
}

/// Opens or creates a file, and makes it accessible to this user only, also if it existed.
fn open_private(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    let file = options.mode(private_file::MODE).open(path)?;
    file.set_permissions(Permissions::from_mode(private_file::MODE))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: RecordList = RecordList::Clients;

    fn open(path: &Path, problem: &Problem) -> StateFile {
        let opened = StateFile::open(path, problem);
        opened.unwrap_or_else(|_| panic!("{} cannot be opened", path.display()))
    }

    fn records(file: &StateFile) -> Vec<Box<[u8]>> {
        file.list(CLIENT).expect("read")
    }

    /// Does what an error of the disk does. No thread tries to write the file.
    fn break_database(file: &StateFile) {
        let mut state = file.0.state.lock();
        (state.database, state.is_retrying) = (None, true);
        file.0.problem.begin("No space left on device");
    }

    #[test]
    fn what_was_changed_while_the_file_could_not_be_written_is_written_afterwards() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("state.redb");
        let problem = Problem::unobserved();
        let file = open(&path, &problem);
        let Boot { name, number } = file.begin().expect("begun");
        for record in [b"one", b"two"] {
            assert!(file.put(CLIENT, record).is_ok());
        }
        for damage in [false, true] {
            break_database(&file);
            assert!(file.put(CLIENT, b"three").is_ok());
            assert!(file.remove(CLIENT, b"one").is_err(), "it may be stored");
            assert!(problem.is_present());
            if damage {
                fs::write(&path, [7; 9000]).expect("written");
            }
            assert!(file.0.rewrite());
            assert!(!problem.is_present());
            assert!(file.remove(CLIENT, b"none").is_ok());
        }
        drop(file);
        let file = open(&path, &problem);
        assert_eq!(records(&file), [b"three"[..].into(), b"two"[..].into()]);
        let next = file.begin().expect("begun");
        assert_eq!(next.name, name);
        assert!(next.number > number);
    }
}
