//! Copies between directories of this host, and to and from trees of a 9P server.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::ExitCode;

use engine::{Engine, Tuning};
use p9::server::{ExportList, NumericUsers, Options, Server};
use transports::{Addr, Listener};

use super::*;

fn args(operands: &[String], archive: bool) -> CpArgs {
    CpArgs {
        operands: operands
            .iter()
            .map(|operand| operand.parse().expect("an operand"))
            .collect(),
        recursive: false,
        preserve: false,
        archive,
        jobs: 4,
        quiet: true,
        json: false,
        disk_cache: DiskCacheArgs::default(),
    }
}

fn operand(dir: &Path, path: &str) -> String {
    format!("dir:{}", dir.join(path).display())
}

fn succeeded(done: CommandResult) -> bool {
    format!("{:?}", done.expect("done")) == format!("{:?}", ExitCode::SUCCESS)
}

#[test]
fn a_tree_is_copied_with_all_it_has() {
    let dir = tempfile::tempdir().expect("a directory");
    let from = dir.path().join("from");
    fs::create_dir_all(from.join("sub/deep")).expect("made");
    for count in 0..50 {
        let data = vec![count as u8; count * 1000];
        fs::write(from.join(format!("sub/file-{count}")), data).expect("written");
    }
    fs::hard_link(from.join("sub/file-7"), from.join("again")).expect("linked");
    symlink("sub/nowhere", from.join("link")).expect("linked");
    let sparse = fs::File::create(from.join("sparse")).expect("made");
    sparse.write_all_at(b"begin", 0).expect("written");
    sparse.write_all_at(b"end", 20 << 20).expect("written");
    sparse.set_len(30 << 20).expect("cut");
    fs::set_permissions(from.join("sub/deep"), fs::Permissions::from_mode(0o511)).expect("set");

    let operands = [operand(dir.path(), "from"), operand(dir.path(), "to")];
    assert!(succeeded(cp(&args(&operands, true))));
    let to = dir.path().join("to");
    for count in 0..50 {
        let name = format!("sub/file-{count}");
        assert_eq!(
            fs::read(to.join(&name)).expect("there"),
            fs::read(from.join(&name)).expect("there")
        );
        let (one, other) = (fs::metadata(from.join(&name)), fs::metadata(to.join(&name)));
        let (one, other) = (one.expect("there"), other.expect("there"));
        assert_eq!(
            (one.mtime(), one.mtime_nsec()),
            (other.mtime(), other.mtime_nsec())
        );
    }
    assert_eq!(
        fs::metadata(to.join("again")).expect("there").ino(),
        fs::metadata(to.join("sub/file-7")).expect("there").ino()
    );
    let target = fs::read_link(to.join("link")).expect("a link");
    assert_eq!(target, Path::new("sub/nowhere"));
    let mode = fs::metadata(to.join("sub/deep")).expect("there").mode();
    assert_eq!(mode & 0o7777, 0o511);
    let copy = fs::read(to.join("sparse")).expect("there");
    assert!(copy == fs::read(from.join("sparse")).expect("there"));
    let (one, other) = (sparse.metadata(), fs::metadata(to.join("sparse")));
    let (one, other) = (one.expect("there").blocks(), other.expect("there").blocks());
    assert!(other <= one.max(64), "{other} blocks of {one}");
}

#[test]
fn a_file_goes_into_a_directory_or_gets_a_name() {
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("a"), "one").expect("written");
    fs::create_dir(dir.path().join("d")).expect("made");
    let copy = |from: &str, to: &str| {
        cp(&args(
            &[operand(dir.path(), from), operand(dir.path(), to)],
            false,
        ))
    };
    assert!(succeeded(copy("a", "d")));
    assert!(succeeded(copy("a", "b")));
    fs::write(dir.path().join("a"), "two").expect("written");
    assert!(succeeded(copy("a", "b")));
    let read = |path: &str| fs::read_to_string(dir.path().join(path)).expect("there");
    assert_eq!((read("d/a").as_str(), read("b").as_str()), ("one", "two"));

    assert!(!succeeded(copy("a", "a")), "onto itself");
    assert_eq!(read("a"), "two");
    assert!(
        !succeeded(copy("d", "e")),
        "a directory without --recursive"
    );
    assert!(copy("a", "none/b").is_err());
    let mut into_itself = args(&[operand(dir.path(), "d"), operand(dir.path(), "d")], true);
    assert!(!succeeded(cp(&into_itself)));
    into_itself.operands = [operand(dir.path(), "none"), operand(dir.path(), "x")]
        .map(|operand| operand.parse().expect("an operand"))
        .to_vec();
    assert!(!succeeded(cp(&into_itself)));
}

struct Service(Server);

impl engine::Service for Service {
    fn session(&self) -> Box<dyn wire::Session> {
        Box::new(self.0.session())
    }
}

/// Serves an empty tree at a socket in `dir` until dropped.
struct Served(Arc<Engine>);

impl Served {
    fn at(dir: &Path) -> Served {
        let tree = memory::Memory::new(Arc::new(vfs::Time::default));
        let exports = ExportList(vec![Arc::new(vfs::Export::new("", tree))]);
        let server = Server::new(
            Arc::new(exports),
            Arc::new(NumericUsers),
            Options::default(),
        );
        let engine = Engine::new(Tuning::default()).expect("an engine");
        let listener = Listener::bind(&Addr::Unix(dir.join("socket"))).expect("bound");
        engine
            .listen(listener, Arc::new(Service(server)))
            .expect("listens");
        Served(engine)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.0.stop();
    }
}

#[test]
fn a_tree_goes_to_a_server_within_it_and_back() {
    let dir = tempfile::tempdir().expect("a directory");
    let from = dir.path().join("from");
    fs::create_dir_all(from.join("sub")).expect("made");
    for count in 0..40 {
        let data = vec![count as u8; count * 3000];
        fs::write(from.join(format!("sub/{count}")), data).expect("written");
    }
    // More data than is in flight at once, so that both threads take part.
    let large: Vec<u8> = (0..20u32 << 20).map(|at| (at / 251) as u8).collect();
    fs::write(from.join("large"), &large).expect("written");
    fs::hard_link(from.join("sub/7"), from.join("again")).expect("linked");
    symlink("sub/7", from.join("link")).expect("linked");

    let _served = Served::at(dir.path());
    let remote = |path: &str| {
        let socket = dir.path().join("socket");
        format!("9p+unix:{}?uid=0&aname={path}", socket.display())
    };
    let copy = |from: String, to: String| succeeded(cp(&args(&[from, to], true)));
    assert!(copy(operand(dir.path(), "from"), remote("/there")));
    assert!(copy(remote("/there"), remote("/again")));
    assert!(copy(remote("/again"), operand(dir.path(), "back")));

    let back = dir.path().join("back");
    for count in 0..40 {
        let copied = fs::read(back.join(format!("sub/{count}"))).expect("there");
        assert!(copied == vec![count as u8; count * 3000], "{count}");
    }
    assert!(fs::read(back.join("large")).expect("there") == large);
    let number = |path: &str| fs::metadata(back.join(path)).expect("there").ino();
    assert_eq!(number("again"), number("sub/7"));
    assert_eq!(
        fs::read_link(back.join("link")).expect("a link"),
        Path::new("sub/7")
    );
    assert!(!copy(remote("/none"), operand(dir.path(), "nowhere")));
}

/// A directory of this host was copied into itself through a server.
#[test]
fn a_copy_by_another_way_into_itself_ends() {
    let dir = tempfile::tempdir().expect("a directory");
    let _served = Served::at(dir.path());
    let socket = dir.path().join("socket");
    let remote = |path: &str| format!("9p+unix:{}?uid=0&aname={path}", socket.display());
    let copy = |from: String, to: String| cp(&args(&[from, to], true));
    fs::create_dir_all(dir.path().join("from/sub")).expect("made");
    assert!(succeeded(copy(operand(dir.path(), "from"), remote("/a"))));
    // Below `a`, whose own parents the server does not show.
    assert!(!succeeded(copy(remote("/a"), remote("/a/sub/copy"))));
    assert!(succeeded(copy(remote("/a"), operand(dir.path(), "back"))));
    assert!(dir.path().join("back/sub/copy/sub").exists());
    assert!(!dir.path().join("back/sub/copy/sub/copy").exists());
    // Into itself, within one tree.
    assert!(!succeeded(copy(remote("/"), remote("/into"))));
}
