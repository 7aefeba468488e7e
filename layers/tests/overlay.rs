//! An overlay compared with a writable tree: random operations on both, and the results, also after
//! the overlay is created again over the same directories.

use std::sync::Arc;

use layers::{Overlay, ReadOnly, stack};
use memory::Memory;
use proptest::prelude::*;
use vfs::{
    Attr, AttrMask, Call, Caller, Cx, DirEntry, DirSink, Errno, FileSystem, Handle, Kind, Mode,
    Name, NewNode, Node, OpenFlags, ReaddirMode, RenameFlags, Result, SetAttr,
};
use vfs_testkit::clock;
use vfs_testkit::payload::{ReplyBuffer, TestPayload};

fn with<T>(act: impl FnOnce(&Cx<'_>) -> T) -> T {
    let call = Call::detached();
    act(&Cx::new(&Caller::ROOT, &call))
}

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).expect("a name")
}

fn walk(fs: &dyn FileSystem, path: &str) -> Result<Arc<dyn Node>> {
    with(|cx| {
        let mut node = fs.root(cx)?;
        for part in path.split('/').filter(|part| !part.is_empty()) {
            node = node.lookup(cx, name(part))?.node;
        }
        Ok(node)
    })
}

/// Returns the directory that contains `path`, and the last name.
fn place<'a>(fs: &dyn FileSystem, path: &'a str) -> Result<(Arc<dyn Node>, Name<'a>)> {
    let (dir, last) = path.rsplit_once('/').unwrap_or(("", path));
    Ok((walk(fs, dir)?, name(last)))
}

fn write(fs: &dyn FileSystem, path: &str, data: &[u8]) -> Result<()> {
    let (dir, name) = place(fs, path)?;
    with(|cx| {
        let flags = OpenFlags::WRITE | OpenFlags::TRUNC;
        let (_, file) = dir.create(cx, name, flags, Mode::without_umask(0o644))?;
        let mut payload = TestPayload::new(data);
        file.write(cx, 0, &mut payload).map(drop)
    })
}

fn read(node: &dyn Node) -> Result<Vec<u8>> {
    with(|cx| {
        let file = node.open(cx, OpenFlags::READ)?;
        let mut room = ReplyBuffer::new(1 << 16);
        file.read(cx, 0, 1 << 16, &mut room)?;
        Ok(room.into_data())
    })
}

fn make(fs: &dyn FileSystem, path: &str, what: NewNode<'_>) -> Result<()> {
    let (dir, name) = place(fs, path)?;
    with(|cx| {
        dir.make(cx, name, what, Mode::without_umask(0o755))
            .map(drop)
    })
}

fn remove(fs: &dyn FileSystem, path: &str, is_dir: bool) -> Result<()> {
    let (dir, name) = place(fs, path)?;
    with(|cx| dir.unlink(cx, name, is_dir))
}

#[derive(Default)]
struct Names(Vec<(Vec<u8>, u64, Option<Kind>, u64)>);

impl DirSink for Names {
    fn entry(&mut self, entry: DirEntry<'_>) -> bool {
        let said = (entry.name.to_vec(), entry.id, entry.kind, entry.cookie);
        self.0.push(said);
        true
    }
}

fn list(dir: &dyn Node) -> Result<Names> {
    let mut names = Names::default();
    with(|cx| {
        let listing = dir.open(cx, OpenFlags::READ)?;
        listing.readdir(cx, 0, ReaddirMode::Names, &mut names)
    })?;
    Ok(names)
}

/// Returns every path with its kind, permissions, contents or target.
fn dump(fs: &dyn FileSystem) -> Vec<String> {
    fn below(dir: &dyn Node, path: &str, all: &mut Vec<String>) {
        let mut names = list(dir).expect("lists").0;
        names.sort_by(|one, other| one.0.cmp(&other.0));
        for (bytes, id, kind, _) in names {
            let text = String::from_utf8(bytes).expect("we made it");
            let entry = with(|cx| dir.lookup(cx, name(&text))).expect("what is listed is there");
            assert_eq!(
                (entry.node.id(), Some(entry.node.kind())),
                (id, kind),
                "{path}/{text}"
            );
            let Attr { mode, size, .. } = entry.attr;
            let path = format!("{path}/{text}");
            let what = match entry.node.kind() {
                Kind::Directory => String::new(),
                Kind::File => {
                    let data = read(&*entry.node).expect("reads");
                    format!("{size} {}", data.escape_ascii())
                }
                Kind::Symlink => {
                    let target = with(|cx| entry.node.readlink(cx)).expect("a target");
                    target.escape_ascii().to_string()
                }
                _ => "?".into(),
            };
            all.push(format!("{path} {:?} {mode:o} {what}", entry.node.kind()));
            if entry.node.kind() == Kind::Directory {
                below(&*entry.node, &path, all);
            }
        }
    }
    let mut all = Vec::new();
    below(&*walk(fs, "").expect("a root"), "", &mut all);
    all
}

/// Fills the lower tree.
fn fill(fs: &dyn FileSystem) {
    for dir in ["a", "a/b", "a/b/c", "d", "empty"] {
        make(fs, dir, NewNode::Directory).expect("made");
    }
    for file in ["x", "a/x", "a/y", "a/b/x", "d/x", "d/y"] {
        write(fs, file, file.as_bytes()).expect("written");
    }
    make(fs, "d/link", NewNode::Symlink(b"x")).expect("made");
    make(fs, "a/pipe", NewNode::Fifo).expect("made");
}

#[derive(Clone, Debug)]
enum Op {
    Write(String, u8),
    Append(String, u8),
    Make(String),
    Link(String, String),
    Symlink(String),
    Unlink(String),
    Rmdir(String),
    Rename(String, String, u32),
    Chmod(String, u32),
    Cut(String, u64),
}

fn paths() -> impl Strategy<Value = String> {
    let part = prop::sample::select(vec!["a", "b", "c", "d", "x", "y", "empty", "link", "pipe"]);
    prop::collection::vec(part, 1..4).prop_map(|parts| parts.join("/"))
}

fn ops() -> impl Strategy<Value = Op> {
    prop_oneof![
        (paths(), any::<u8>()).prop_map(|(path, byte)| Op::Write(path, byte)),
        (paths(), any::<u8>()).prop_map(|(path, byte)| Op::Append(path, byte)),
        paths().prop_map(Op::Make),
        (paths(), paths()).prop_map(|(from, to)| Op::Link(from, to)),
        paths().prop_map(Op::Symlink),
        paths().prop_map(Op::Unlink),
        paths().prop_map(Op::Rmdir),
        (paths(), paths(), 0u32..3).prop_map(|(from, to, flags)| Op::Rename(from, to, flags)),
        (paths(), 0u32..0o1000).prop_map(|(path, mode)| Op::Chmod(path, mode)),
        (paths(), 0u64..100).prop_map(|(path, size)| Op::Cut(path, size)),
    ]
}

fn run(fs: &dyn FileSystem, op: &Op) -> Result<()> {
    let set = |path: &str, set: SetAttr| {
        let node = walk(fs, path)?;
        with(|cx| node.setattr(cx, &set).map(drop))
    };
    match op {
        Op::Write(path, byte) => write(fs, path, &[*byte; 5]),
        Op::Append(path, byte) => {
            let node = walk(fs, path)?;
            with(|cx| {
                let file = node.open(cx, OpenFlags::WRITE | OpenFlags::APPEND)?;
                let data = [*byte; 3];
                let mut payload = TestPayload::new(&data);
                file.write(cx, 0, &mut payload).map(drop)
            })
        }
        Op::Make(path) => make(fs, path, NewNode::Directory),
        Op::Link(from, to) => {
            let (dir, name) = place(fs, to)?;
            let target = walk(fs, from)?;
            with(|cx| dir.link(cx, name, &*target).map(drop))
        }
        Op::Symlink(path) => make(fs, path, NewNode::Symlink(b"elsewhere")),
        Op::Unlink(path) => remove(fs, path, false),
        Op::Rmdir(path) => remove(fs, path, true),
        Op::Rename(from, to, flags) => {
            let ((dir, name), (onto, new)) = (place(fs, from)?, place(fs, to)?);
            let flags = RenameFlags::from_bits_truncate(*flags);
            with(|cx| dir.rename(cx, name, &*onto, new, flags))
        }
        Op::Chmod(path, mode) => set(
            path,
            SetAttr {
                mode: Some(*mode),
                ..SetAttr::default()
            },
        ),
        Op::Cut(path, size) => set(
            path,
            SetAttr {
                size: Some(*size),
                ..SetAttr::default()
            },
        ),
    }
}

fn overlay(lower: &Arc<dyn FileSystem>, over: &Arc<dyn FileSystem>) -> Arc<dyn FileSystem> {
    Overlay::new(stack(lower.clone(), ReadOnly), over.clone()).expect("an overlay")
}

fn trees() -> (Arc<dyn FileSystem>, Arc<dyn FileSystem>) {
    let lower: Arc<dyn FileSystem> = Memory::new(clock());
    fill(&*lower);
    (lower, Memory::new(clock()))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..Default::default() })]

    #[test]
    fn agrees_with_a_tree_that_is_written(ops in prop::collection::vec(ops(), 1..60)) {
        let model: Arc<dyn FileSystem> = Memory::new(clock());
        fill(&*model);
        let (lower, over) = trees();
        let before = dump(&*lower);
        let fs = overlay(&lower, &over);
        for op in &ops {
            let got = run(&*fs, op);
            // A directory that exists in the lower tree cannot be renamed.
            if got == Err(Errno::EXDEV) {
                prop_assert!(matches!(op, Op::Rename(..)), "{op:?}");
                continue;
            }
            let wanted = run(&*model, op);
            prop_assert_eq!(got, wanted, "{:?}", op);
        }
        prop_assert_eq!(dump(&*fs), dump(&*model));
        prop_assert_eq!(dump(&*lower), before);
        drop(fs);
        let anew = overlay(&lower, &over);
        prop_assert_eq!(dump(&*anew), dump(&*model));
        prop_assert!(list(&*walk(&*over, "barge").expect("there")).expect("lists").0.is_empty());
    }
}

/// Numbers and handles survive a copy-up and a restart, as long as the names do not change.
#[test]
fn a_copy_is_the_same_file() {
    let (lower, over) = trees();
    let known: Vec<(&str, u64, Handle)> = {
        let fs = overlay(&lower, &over);
        ["a/b/x", "a/b", "d/y", "d/link", "d/y-not", "new"]
            .into_iter()
            .map(|path| {
                if path.contains('n') && !path.contains("link") {
                    write(&*fs, path, b"new").expect("written");
                }
                let node = walk(&*fs, path).expect("there");
                let handle = with(|cx| node.handle(cx)).expect("a handle");
                if path == "a/b/x" {
                    let open = with(|cx| node.open(cx, OpenFlags::READ)).expect("opens");
                    write(&*fs, path, b"changed").expect("written");
                    // The file that was opened before shows the copy.
                    let mut room = ReplyBuffer::new(64);
                    with(|cx| open.read(cx, 0, 64, &mut room)).expect("reads");
                    assert_eq!(room.into_data(), b"changed");
                }
                let again = walk(&*fs, path).expect("there");
                assert_eq!(again.id(), node.id(), "{path}");
                assert_eq!(with(|cx| again.handle(cx)), Ok(handle), "{path}");
                (path, node.id(), handle)
            })
            .collect()
    };
    let fs = overlay(&lower, &over);
    for (path, id, handle) in known {
        let found = with(|cx| fs.resolve(cx, &handle)).expect(path);
        assert_eq!(found.id(), id, "{path}");
        assert_eq!(walk(&*fs, path).expect("there").id(), id, "{path}");
        let mut forged = handle.bytes().to_vec();
        forged[3] ^= 1;
        let forged = Handle::new(&forged).expect("as long");
        assert!(with(|cx| fs.resolve(cx, &forged)).is_err(), "{path}");
    }
}

/// Hard links in the lower tree are two files, as in the kernel without an index.
#[test]
fn names_below_part() {
    let (lower, over) = trees();
    let target = walk(&*lower, "x").expect("there");
    let root = walk(&*lower, "").expect("a root");
    with(|cx| root.link(cx, name("second"), &*target)).expect("linked");
    let fs = overlay(&lower, &over);
    let id = |path| walk(&*fs, path).expect("there").id();
    assert_ne!(id("x"), id("second"));
    write(&*fs, "x", b"changed").expect("written");
    let second = walk(&*fs, "second").expect("there");
    assert_eq!(read(&*second).expect("reads"), b"x");
}

/// A copy-up does not change the times of the directory.
#[test]
fn copying_up_keeps_times() {
    let (lower, over) = trees();
    let fs = overlay(&lower, &over);
    let times = |path: &str| {
        let attr = with(|cx| walk(&*fs, path)?.attr(cx, AttrMask::STAT)).expect("attributes");
        (attr.mtime, attr.atime)
    };
    let before = ["a", "a/b", "a/b/x"].map(times);
    let set = SetAttr {
        mode: Some(0o600),
        ..SetAttr::default()
    };
    let node = walk(&*fs, "a/b/x").expect("there");
    with(|cx| node.setattr(cx, &set)).expect("set");
    assert_eq!(["a", "a/b", "a/b/x"].map(times), before);
}
