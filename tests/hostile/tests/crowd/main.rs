//! Every table of every protocol: a client that fills it does not make other clients fail.
//!
//! A row names a protocol, a table and its limits, an attack that fills it, and an ordinary
//! operation of a bystander. The attacker is another user of this host, and so another peer on TCP
//! and Unix sockets alike; each virtiofs device is a peer of its own.
//!
//! A row must fail when its limit is removed, so that no other limit hides it: try that when you
//! add a row.

#![forbid(unsafe_code)]

mod http;
mod nfs3;
mod nfs4;
mod p9;
mod sockets;
mod virtiofs;

use std::any::Any;
use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hostdir::HostDir;
use hostile::client::{FILE, SIZE};
use hostile::server::host_dir;
use hostile::user::as_another;
use tempfile::TempDir;
use vfs::memory::MemoryBudget;

/// A server with its tree and clients.
trait Stage: Sync {
    type Client;

    /// Returns a client that is ready; `name` is unique among clients.
    fn client(&self, name: &str) -> Self::Client;

    /// Returns the memory budget of clients.
    fn budget(&self) -> Option<&MemoryBudget>;
}

/// A cell of the matrix.
struct Row<S: Stage> {
    /// The protocol and the table.
    name: String,
    /// Starts the server with its limits.
    serve: Box<dyn Fn() -> S>,
    /// Fills the table, and returns a guard that keeps it full.
    fill: fn(&S) -> Held,
    /// Performs the operation of an ordinary client.
    ordinary: fn(&mut S::Client),
}

type Held = Box<dyn Any + Send>;

fn row<S: Stage>(
    protocol: impl Debug,
    table: &str,
    serve: impl Fn() -> S + 'static,
    fill: fn(&S) -> Held,
    ordinary: fn(&mut S::Client),
) -> Row<S> {
    Row {
        name: format!("{protocol:?}, {table}"),
        serve: Box::new(serve),
        fill,
        ordinary,
    }
}

impl<S: Stage> Row<S> {
    /// Returns `false` if the process lacks the privileges for the attack.
    fn holds(&self) -> bool {
        let stage = (self.serve)();
        let mut early = stage.client("early");
        (self.ordinary)(&mut early);
        let fill = self.fill;
        let Some(attack) = as_another(|| fill(&stage)) else {
            return false;
        };
        (self.ordinary)(&mut early);
        (self.ordinary)(&mut stage.client("late"));
        (self.ordinary)(&mut early);
        if let Some(budget) = stage.budget() {
            // Four clients may each have a request beyond their share.
            let most = budget.limit() + 4 * (SIZE as usize + 100);
            assert!(budget.used() <= most, "{} bytes", budget.used());
        }
        drop(attack);
        (self.ordinary)(&mut early);
        (self.ordinary)(&mut stage.client("last"));
        true
    }
}

/// Runs rows, and panics if any fails.
#[track_caller]
fn assert_hold<S: Stage>(rows: impl IntoIterator<Item = Row<S>>) {
    sys::limits::raise_descriptors();
    let mut failed = Vec::new();
    for row in rows {
        println!("{}", row.name);
        match catch_unwind(AssertUnwindSafe(|| row.holds())) {
            Ok(true) => {}
            Ok(false) => return println!("skipped: not root"),
            Err(_) => failed.push(row.name),
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

/// Waits until a table is full.
#[track_caller]
fn until(full: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !full() {
        assert!(Instant::now() < deadline, "the table does not fill");
        std::thread::yield_now();
    }
}

/// Number of other files in a [`Tree`].
const FILES: usize = 1000;

/// Number of directories in a [`Tree`].
const DIRECTORIES: u32 = 20;

/// A directory of the host with [`FILE`], other files and directories, served with few file
/// descriptors.
struct Tree {
    served: Arc<HostDir>,
    _dir: TempDir,
}

impl Tree {
    const DESCRIPTORS: usize = 64;

    fn new() -> Tree {
        let dir = tempfile::tempdir().expect("a directory");
        let write = |name: &str, contents: &[u8]| {
            std::fs::write(dir.path().join(name), contents).expect("written");
        };
        write(FILE, &vec![7; SIZE as usize]);
        for number in 0..FILES {
            write(&file(number), b"");
        }
        for number in 0..DIRECTORIES {
            let path: &Path = &dir.path().join(number.to_string());
            std::fs::create_dir(path).expect("made");
        }
        Tree {
            served: host_dir(dir.path(), Some(Tree::DESCRIPTORS)),
            _dir: dir,
        }
    }
}

/// Returns the name of one of the other files.
fn file(number: usize) -> String {
    format!("file {}", number % FILES)
}
