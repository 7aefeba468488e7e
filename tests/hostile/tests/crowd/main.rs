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

use hostdir::HostDir;
use hostile::client::{FILE, SIZE};
use hostile::server::host_dir;
use hostile::user::run_as_other_user;
use tempfile::TempDir;
use vfs::memory::MemoryBudget;

/// A server with its tree and clients.
trait TestServer: Sync {
    type Client;

    /// Returns a client that is ready; `name` is unique among clients.
    fn client(&self, name: &str) -> Self::Client;

    /// Returns the memory budget of clients.
    fn budget(&self) -> Option<&MemoryBudget>;
}

/// A cell of the matrix.
struct TestCase<S: TestServer> {
    /// The protocol and the table.
    name: String,
    /// Starts the server with its limits.
    serve: Box<dyn Fn() -> S>,
    /// Fills the table, and returns a guard that keeps it full.
    fill: fn(&S) -> Guard,
    /// Performs the operation of an ordinary client.
    operation: fn(&mut S::Client),
}

type Guard = Box<dyn Any + Send>;

fn case<S: TestServer>(
    protocol: impl Debug,
    table: &str,
    serve: impl Fn() -> S + 'static,
    fill: fn(&S) -> Guard,
    ordinary: fn(&mut S::Client),
) -> TestCase<S> {
    TestCase {
        name: format!("{protocol:?}, {table}"),
        serve: Box::new(serve),
        fill,
        operation: ordinary,
    }
}

impl<S: TestServer> TestCase<S> {
    /// Returns `false` if the process lacks the privileges for the attack.
    fn run(&self) -> bool {
        let stage = (self.serve)();
        let mut early = stage.client("early");
        (self.operation)(&mut early);
        let fill = self.fill;
        let Some(attack) = run_as_other_user(|| fill(&stage)) else {
            return false;
        };
        (self.operation)(&mut early);
        (self.operation)(&mut stage.client("late"));
        (self.operation)(&mut early);
        if let Some(budget) = stage.budget() {
            // Four clients may each have a request beyond their share.
            let most = budget.limit() + 4 * (SIZE as usize + 100);
            assert!(budget.used() <= most, "{} bytes", budget.used());
        }
        drop(attack);
        (self.operation)(&mut early);
        (self.operation)(&mut stage.client("last"));
        true
    }
}

/// Runs rows, and panics if any fails.
#[track_caller]
fn assert_all_pass<S: TestServer>(rows: impl IntoIterator<Item = TestCase<S>>) {
    sys::limits::raise_descriptors();
    let mut failed = Vec::new();
    for row in rows {
        println!("{}", row.name);
        match catch_unwind(AssertUnwindSafe(|| row.run())) {
            Ok(true) => {}
            Ok(false) => return println!("skipped: not root"),
            Err(_) => failed.push(row.name),
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

/// Number of other files in a [`Tree`].
const FILES: usize = 1000;

/// Number of directories in a [`Tree`].
const DIRECTORIES: u32 = 20;

/// A directory of the host with [`FILE`], other files and directories, served with few file
/// descriptors.
struct Tree {
    host_dir: Arc<HostDir>,
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
            host_dir: host_dir(dir.path(), Some(Tree::DESCRIPTORS)),
            _dir: dir,
        }
    }
}

/// Returns the name of one of the other files.
fn file(number: usize) -> String {
    format!("file {}", number % FILES)
}
