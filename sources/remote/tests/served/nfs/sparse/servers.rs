//! The servers that the suite runs over.

use std::any::Any;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use hostdir::{HostDir, Identity, Options as Shown};
use remote::nfs::{Dial, Mount, Options, Url, mount};
use tempfile::TempDir;
use transports::StreamLink;
use vfs::FileSystem;

use super::super::ganesha;
use super::super::net::Served;
use super::asker::Asker;
use super::disk::Disk;

type Connect = Arc<dyn Fn() -> std::io::Result<StreamLink> + Send + Sync>;

/// A server, and a directory on it for the tests' files.
pub(super) struct Subject {
    connect: Connect,
    path: String,
    tree: Arc<dyn FileSystem>,
    /// Whether large holes have to be reported as holes.
    pub(super) tells_holes: bool,
    /// Whether it must follow the RFC where other servers may deviate.
    pub(super) is_barge: bool,
    _keep: Box<dyn Any>,
}

impl Subject {
    fn new(connect: Connect, path: String, is_barge: bool, keep: Box<dyn Any>) -> Subject {
        let dial = connect.clone();
        let (tree, _) = mount(&Mount {
            dial: Arc::new(move |_| Ok(Box::new(dial()?))),
            path: &path,
            require_full_path: true,
            options: Options {
                version: Some((4, 2)),
                no_read_plus: true,
                ..Options::default()
            },
        })
        .expect("mounted");
        Subject {
            connect,
            path,
            tree,
            tells_holes: is_barge,
            is_barge,
            _keep: keep,
        }
    }

    /// The tree that the files are created in.
    pub(super) fn tree(&self) -> &Arc<dyn FileSystem> {
        &self.tree
    }

    /// A new client.
    pub(super) fn asker(&self) -> Asker {
        self.asker_with((1 << 20) + 4096)
    }

    /// A new client with replies of at most `most` bytes.
    pub(super) fn asker_with(&self, most: u32) -> Asker {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("asker {} {next}", std::process::id());
        let connect = self.connect.clone();
        let dial: Dial = Box::new(move || Ok(Box::new(connect()?)));
        Asker::new(dial, name.as_bytes(), most)
    }

    /// Looks up the handle of a file.
    pub(super) fn handle(&self, name: &str) -> Vec<u8> {
        self.asker().look_up(&format!("{}/{name}", self.path))
    }
}

fn served(served: Arc<Served>, keep: Box<dyn Any>) -> Subject {
    let connect = Arc::new(move || Ok(served.link()));
    Subject::new(connect, String::new(), true, keep)
}

pub(super) fn memory() -> Option<Subject> {
    Some(served(Served::new(), Box::new(())))
}

/// A server of a new directory below `dir`.
pub(super) fn directory(dir: &Path) -> Option<Subject> {
    Some(below(dir, Box::new(())))
}

fn below(dir: &Path, keep: Box<dyn Any>) -> Subject {
    let dir = TempDir::new_in(dir).expect("a directory");
    let options = Shown {
        identity: Identity::Fixed,
        ..Shown::default()
    };
    let fs = HostDir::open(dir.path(), options).expect("exported");
    // In this order: the directory must be removed before its file system.
    served(Served::over(fs), Box::new((dir, keep)))
}

/// A server of a separate file system of this type.
pub(super) fn disk(kind: &'static str) -> Option<Subject> {
    match Disk::get(kind) {
        Ok(disk) => Some(below(&disk.path(), Box::new(disk))),
        Err(why) => {
            eprintln!("skipped over {kind}: {why}");
            None
        }
    }
}

/// The server named in the environment.
pub(super) fn named() -> Option<Subject> {
    let Ok(text) = std::env::var("BARGE_SPARSE_SERVER") else {
        eprintln!("skipped: BARGE_SPARSE_SERVER names no server");
        return None;
    };
    let url: Url = text.parse().expect("a URL");
    // Each case has a directory of its own.
    let whole = url.connect().expect("mounted");
    let tests = std::process::id();
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("sparse-{tests}-{}", NEXT.fetch_add(1, Ordering::Relaxed));
    super::file::directory(&whole, &name);
    let path = format!("{}/{name}", url.path);
    let connect = Arc::new(move || transports::dial(&url.addr));
    let mut subject = Subject::new(connect, path, false, Box::new(whole));
    subject.tells_holes = std::env::var("BARGE_SPARSE_HOLES").as_deref() != Ok("no");
    Some(subject)
}

pub(super) fn ganesha() -> Option<Subject> {
    let (connect, path, keep) = ganesha::directory()?;
    Some(Subject::new(connect, path, false, keep))
}
