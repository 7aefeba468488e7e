//! Files of the state directory after arbitrary damage: the records of NFS clients, and the names
//! of nodes on file systems without kernel handles.
//!
//! A script is a byte for the file, followed by changes: an offset and the bytes to write there, or
//! a new length.
//!
//! Invariants: a damaged file is refused with a message, or used.

use std::fs;
use std::os::unix::fs::FileExt;
use std::panic;
use std::path::Path;
use std::sync::{Arc, Once, OnceLock};

use arbitrary::{Result, Unstructured};
use hostdir::HostDir;
use tempfile::TempDir;
use vfs::{FileSystem, Handle, Name};

use crate::files::with;

/// Lets panics of the database pass, which the program catches: a fuzzer would abort.
fn expect_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let hook = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let place = info.location().map_or("", |location| location.file());
            if !place.contains("redb") {
                hook(info);
            }
        }));
    });
}

/// Damages a file and opens it.
pub fn file(data: &[u8]) {
    expect_panics();
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let mut input = Unstructured::new(data);
    let of_clients = input.arbitrary().unwrap_or_default();
    let (name, contents) = match of_clients {
        true => clients(),
        false => ("index", &served().names[..]),
    };
    let path = dir.path().join(name);
    fs::write(&path, contents).expect("written");
    // The end of the input is the end of the changes.
    let _ = damage(&mut input, &path);
    match of_clients {
        true => open_clients(dir.path()),
        false => open_handle_index(&path),
    }
}

/// Changes a file.
fn damage(input: &mut Unstructured<'_>, path: &Path) -> Result<()> {
    let file = fs::OpenOptions::new().write(true).open(path);
    let file = file.expect("it exists");
    while !input.is_empty() {
        // Pages and headers of both kinds of files begin at multiples of it.
        let at =
            u64::from(input.arbitrary::<u16>()?) * 64 + u64::from(input.arbitrary::<u8>()? % 64);
        match input.arbitrary::<u8>()? % 8 {
            0 => file.set_len(at).expect("changed"),
            len => {
                let bytes = input.bytes(usize::from(len).min(input.len()))?;
                file.write_all_at(bytes, at).expect("written");
            }
        }
    }
    Ok(())
}

/// Returns the name and the contents of a valid file of clients.
fn clients() -> (&'static str, &'static [u8]) {
    static CONTENTS: OnceLock<Vec<u8>> = OnceLock::new();
    const NAME: &str = "nfs-tcp:127.0.0.1:2049.redb";
    let contents = CONTENTS.get_or_init(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let clients = barge::fuzzing::clients(dir.path()).expect("opened");
        for record in 0..40u8 {
            clients.put(&[record; 90]).expect("stored");
        }
        drop(clients);
        fs::read(dir.path().join(NAME)).expect("read")
    });
    (NAME, contents)
}

fn open_clients(dir: &Path) {
    let Ok(clients) = barge::fuzzing::clients(dir) else {
        return;
    };
    let all = clients.list();
    // Errors are replies to clients.
    let _ = clients.put(b"another");
    if let Some(first) = all.first() {
        let _ = clients.remove(first);
    }
    clients.list();
}

/// A directory, and the handle of a file in it.
struct Served {
    dir: TempDir,
    handle: Handle,
    /// The contents of the file of names.
    names: Vec<u8>,
}

/// Opens a directory, with its file of names at `index`.
fn open(dir: &Path, index: &Path) -> Arc<dyn FileSystem> {
    let options = hostdir::Options {
        no_kernel_handles: true,
        handle_index: Some(index.to_owned()),
        ..Default::default()
    };
    HostDir::open(dir, options).expect("a directory")
}

fn served() -> &'static Served {
    static SERVED: OnceLock<Served> = OnceLock::new();
    SERVED.get_or_init(|| {
        let (dir, state) = (tempfile::tempdir(), tempfile::tempdir());
        let (dir, state) = (dir.expect("a directory"), state.expect("a directory"));
        fs::create_dir_all(dir.path().join("a/b")).expect("made");
        fs::write(dir.path().join("a/b/file"), "").expect("written");
        let index = state.path().join("index");
        let tree = open(dir.path(), &index);
        let handle = with(|cx| {
            let mut node = tree.root(cx)?;
            for name in [&b"a"[..], b"b", b"file"] {
                node = node.lookup(cx, Name::new(name)?)?.node;
            }
            node.handle(cx)
        });
        drop(tree);
        let names = fs::read(index).expect("read");
        let handle = handle.expect("a handle");
        Served { dir, handle, names }
    })
}

fn open_handle_index(path: &Path) {
    let served = served();
    let tree = open(served.dir.path(), path);
    let handle = with(|cx| tree.resolve(cx, &served.handle)?.handle(cx));
    // It is stale if its names are lost.
    assert!(handle.is_none_or(|handle| handle == served.handle));
}
