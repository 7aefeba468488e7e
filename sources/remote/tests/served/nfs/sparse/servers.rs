//! The servers that the suite goes over.

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

/// A server, and a directory on it to make files in.
pub(super) struct Subject {
    connect: Connect,
    path: String,
    tree: Arc<dyn FileSystem>,
    /// Whether a hole of some size has to be told as one.
    pub(super) tells_holes: bool,
    /// Whether it is to do as the RFC says where others do as they like.
    pub(super) is_barge: bool,
    _keep: Box<dyn Any>,
}

impl Subject {
    fn new(connect: Connect, path: String, is_barge: bool, keep: Box<dyn Any>) -> Subject {
        let dial = connect.clone();
        let (tree, _) = mount(&Mount {
            dial: Arc::new(move |_| Ok(Box::new(dial()?))),
            path: &path,
            whole: true,
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

    /// Where the files are made.
    pub(super) fn tree(&self) -> &Arc<dyn FileSystem> {
        &self.tree
    }

    /// A client.
    pub(super) fn asker(&self) -> Asker {
        self.asker_with((1 << 20) + 4096)
    }

    /// A client whose replies may have `most` bytes.
    pub(super) fn asker_with(&self, most: u32) -> Asker {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("asker {} {next}", std::process::id());
        let connect = self.connect.clone();
        let dial: Dial = Box::new(move || Ok(Box::new(connect()?)));
        Asker::new(dial, name.as_bytes(), most)
    }

    /// The handle of a file.
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

/// Over a directory below `dir`.
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
    // In this order: the directory goes before what it lies on.
    served(Served::over(fs), Box::new((dir, keep)))
}

/// Over a file system of its own of this kind.
pub(super) fn disk(kind: &'static str) -> Option<Subject> {
    match Disk::get(kind) {
        Ok(disk) => Some(below(&disk.path(), Box::new(disk))),
        Err(why) => {
            eprintln!("skipped over {kind}: {why}");
            None
        }
    }
}

/// Over the server that the environment names.
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
