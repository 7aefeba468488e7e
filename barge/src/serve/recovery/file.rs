//! The state of a server in a file, a redb database that is locked against other processes.

use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::ops::Deref;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;

use redb::backends::FileBackend;
use redb::{Builder, Database, ReadableDatabase, ReadableTable, TableDefinition};

use super::store::{Boot, RecordList, StateStore};
use super::{create_private_dir, new_name, next_boot};
use crate::private_file;

/// The server's name and last boot number.
const SERVER: TableDefinition<'_, (), (&str, u32)> = TableDefinition::new("server");

/// The clients that may reclaim.
const CLIENTS: Table = TableDefinition::new("clients");

/// The clients to notify of a restart.
const MONITORED: Table = TableDefinition::new("monitored");

type Table = TableDefinition<'static, &'static [u8], ()>;

/// Cache size of the database in bytes; the records of a thousand clients are a tenth of it.
const CACHE_SIZE: usize = 1 << 20;

/// A database file. It is locked against other processes.
pub(super) struct StateFile(OpenDatabase);

/// An open database.
struct OpenDatabase(Option<Database>);

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

impl<E: Into<redb::Error>> From<E> for OpenError {
    fn from(error: E) -> OpenError {
        match error.into() {
            redb::Error::DatabaseAlreadyOpen => OpenError::InUse,
            other => OpenError::Failed(other.to_string()),
        }
    }
}

/// Calls a function that uses a database, and returns an error if that panics, as the database does
/// with some damaged files.
pub(super) fn unless_damaged<T, E: From<redb::Error>>(
    access: impl FnOnce() -> Result<T, E>,
) -> Result<T, E> {
    // A panic leaves the database as a crash would.
    panic::catch_unwind(AssertUnwindSafe(access))
        .unwrap_or_else(|_| Err(redb::Error::Corrupted("the file is damaged".into()).into()))
}

impl StateFile {
    /// Opens or creates the database at `path`.
    pub(super) fn open(path: &Path) -> Result<StateFile, OpenError> {
        let made = path.parent().map_or(Ok(()), create_private_dir);
        made.map_err(redb::Error::Io)?;
        let file = open_private(path).map_err(redb::Error::Io)?;
        let records = Builder::new()
            .set_cache_size(CACHE_SIZE)
            .create_with_backend(FileBackend::new(file)?)?;
        let records = StateFile(OpenDatabase(Some(records)));
        let sync = |dir: &Path| File::open(dir)?.sync_all();
        path.parent()
            .map_or(Ok(()), sync)
            .map_err(redb::Error::Io)?;
        Ok(records)
    }

    fn update(&self, list: RecordList, record: &[u8], keep: bool) -> io::Result<()> {
        checked(|| {
            let change = self.0.begin_write()?;
            {
                let mut records = change.open_table(table(list))?;
                match keep {
                    true => records.insert(record, ())?,
                    false => records.remove(record)?,
                };
            }
            Ok(change.commit()?)
        })
    }
}

fn table(list: RecordList) -> Table {
    match list {
        RecordList::Clients => CLIENTS,
        RecordList::Monitored => MONITORED,
    }
}

fn checked<T>(access: impl FnOnce() -> Result<T, redb::Error>) -> io::Result<T> {
    unless_damaged(access).map_err(|error| match error {
        redb::Error::Io(error) => error,
        other => io::Error::other(other),
    })
}

impl StateStore for StateFile {
    fn begin(&self) -> io::Result<Boot> {
        checked(|| {
            let start = self.0.begin_write()?;
            start.open_table(CLIENTS)?;
            start.open_table(MONITORED)?;
            let boot = {
                let mut server = start.open_table(SERVER)?;
                let (name, last) = match server.get(())? {
                    Some(stored) => (stored.value().0.to_owned(), stored.value().1),
                    None => (new_name(), 0),
                };
                let number = next_boot(last);
                server.insert((), (name.as_str(), number))?;
                Boot { name, number }
            };
            start.commit()?;
            Ok(boot)
        })
    }

    fn list(&self, list: RecordList) -> io::Result<Vec<Box<[u8]>>> {
        checked(|| {
            let records = self.0.begin_read()?.open_table(table(list))?;
            let keys = records.iter()?;
            keys.map(|entry| Ok(entry?.0.value().into())).collect()
        })
    }

    fn put(&self, list: RecordList, record: &[u8]) -> io::Result<()> {
        self.update(list, record, true)
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
