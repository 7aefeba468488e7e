//! Hidden paths are out of reach by every operation, also when they are moved meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use layers::hide::{PathList, Rules};
use layers::{Hide, stack};
use memory::Memory;
use vfs::{
    Call, Caller, Cx, DirEntry, DirSink, Errno, FileSystem, Mode, Name, NewNode, Node, OpenFlags,
    ReaddirMode, RenameFlags,
};
use vfs_testkit::clock;

const MODE: Mode = Mode::without_umask(0o755);

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).expect("a name")
}

static ROOT: Caller = Caller::ROOT;
static CALL: Call = Call::detached();

fn cx() -> Cx<'static> {
    Cx::new(&ROOT, &CALL)
}

/// Returns the node at `path`.
fn find(fs: &dyn FileSystem, path: &str) -> vfs::Result<Arc<dyn Node>> {
    let mut node = fs.root(&cx())?;
    for part in path.split('/').filter(|part| !part.is_empty()) {
        node = node.lookup(&cx(), name(part))?.node;
    }
    Ok(node)
}

/// Makes the directories of `path`, and returns the last.
fn make_dirs(fs: &dyn FileSystem, path: &str) -> Arc<dyn Node> {
    let mut node = fs.root(&cx()).expect("a root");
    for part in path.split('/') {
        node = match node.lookup(&cx(), name(part)) {
            Ok(entry) => entry.node,
            Err(_) => {
                let made = node.make(&cx(), name(part), NewNode::Directory, MODE);
                made.expect("made").node
            }
        };
    }
    node
}

fn names(dir: &dyn Node, mode: ReaddirMode) -> Vec<String> {
    struct Names(Vec<String>);
    impl DirSink for Names {
        fn entry(&mut self, entry: DirEntry<'_>) -> bool {
            self.0
                .push(String::from_utf8_lossy(entry.name).into_owned());
            true
        }
    }
    let mut found = Names(Vec::new());
    let file = dir.open(&cx(), OpenFlags::READ).expect("opened");
    file.readdir(&cx(), 0, mode, &mut found).expect("listed");
    found.0.sort();
    found.0
}

fn rules(patterns: &[&str], only: Option<&str>) -> Rules {
    let patterns = patterns.iter().map(|text| text.parse().expect("a pattern"));
    let only = only.map(|text| PathList::parse(text.as_bytes(), b"").expect("a list"));
    Rules::new(patterns.collect(), only)
}

/// A tree, and the same with hidden paths.
fn trees(patterns: &[&str], only: Option<&str>) -> (Arc<dyn FileSystem>, Arc<dyn FileSystem>) {
    let below: Arc<dyn FileSystem> = Memory::new(clock());
    for path in [
        "home/me/.ssh/keys",
        "home/me/work",
        "home/you/.ssh",
        "etc/private",
        "a/.ssh",
    ] {
        make_dirs(&*below, path);
    }
    let hidden = stack(below.clone(), Hide::new(rules(patterns, only)));
    (below, hidden)
}

#[test]
fn hidden_names_are_missing_and_cannot_be_made() {
    let (below, shown) = trees(&["/home/*/.ssh", "private"], None);
    let refused = |path: &str| find(&*shown, path).err();
    assert_eq!(refused("home/me/.ssh"), Some(Errno::ENOENT));
    assert_eq!(refused("etc/private"), Some(Errno::ENOENT));
    assert!(find(&*shown, "a/.ssh").is_ok());
    let me = find(&*shown, "home/me").expect("shown");
    for mode in [ReaddirMode::Names, ReaddirMode::Entries] {
        assert_eq!(names(&*me, mode), ["work"]);
    }
    let hidden = name(".ssh");
    let made = me.make(&cx(), hidden, NewNode::Directory, MODE);
    assert_eq!(made.err(), Some(Errno::EACCES));
    let flags = OpenFlags::READ | OpenFlags::WRITE;
    let created = me.create(&cx(), hidden, flags, MODE);
    assert_eq!(created.err(), Some(Errno::EACCES));
    assert_eq!(me.unlink(&cx(), hidden, true), Err(Errno::ENOENT));
    let plain = RenameFlags::empty();
    let out = me.rename(&cx(), hidden, &*me, name("out"), plain);
    assert_eq!(out, Err(Errno::ENOENT));
    for flags in [plain, RenameFlags::EXCHANGE] {
        let into = me.rename(&cx(), name("work"), &*me, hidden, flags);
        assert_eq!(into, Err(Errno::EACCES));
    }
    let file = me.create(&cx(), name("file"), flags, MODE).expect("made").0;
    let linked = me.link(&cx(), hidden, &*file.node);
    assert_eq!(linked.err(), Some(Errno::EACCES));
    // Below the layer, all is as it was.
    assert!(find(&*below, "home/me/.ssh/keys").is_ok());
}

/// A source that ignores the case of ASCII letters and takes a name with an accent in either normal
/// form, and whose files have short names, as on vfat.
struct IgnoresCase;

impl IgnoresCase {
    fn equate(name: &[u8]) -> String {
        let text = String::from_utf8_lossy(name).to_ascii_lowercase();
        let composed = text.replace("e\u{301}", "\u{e9}");
        match composed.as_str() {
            "secret~1.key" => "secret of many letters.key".into(),
            _ => composed.trim_end_matches('.').into(),
        }
    }

    /// Returns the name that is stored in place of `name`.
    fn stored(&self, dir: &dyn Node, cx: &Cx<'_>, name: Name<'_>) -> vfs::Result<Vec<u8>> {
        let wanted = IgnoresCase::equate(name.bytes());
        let file = dir.open(&cx.on_behalf_of(&ROOT), OpenFlags::READ)?;
        let mut found = name.bytes().to_vec();
        vfs::listing::for_each_entry(cx, &*file, ReaddirMode::Names, |entry| {
            if IgnoresCase::equate(entry.name) == wanted {
                found = entry.name.to_vec();
            }
        })?;
        Ok(found)
    }
}

impl layers::Layer for IgnoresCase {
    fn lookup(&self, inner: &dyn Node, cx: &Cx<'_>, name: Name<'_>) -> vfs::Result<vfs::Entry> {
        inner.lookup(cx, Name::new(&self.stored(inner, cx, name)?)?)
    }

    fn unlink(&self, inner: &dyn Node, cx: &Cx<'_>, name: Name<'_>, dir: bool) -> vfs::Result<()> {
        inner.unlink(cx, Name::new(&self.stored(inner, cx, name)?)?, dir)
    }

    fn rename(
        &self,
        inner: &dyn Node,
        cx: &Cx<'_>,
        name: Name<'_>,
        to: &dyn Node,
        to_name: Name<'_>,
        flags: RenameFlags,
    ) -> vfs::Result<()> {
        let (from, into) = (self.stored(inner, cx, name)?, self.stored(to, cx, to_name)?);
        inner.rename(cx, Name::new(&from)?, to, Name::new(&into)?, flags)
    }

    layers::forward! { capabilities id above }

    layers::forward! { all but lookup unlink rename }
}

#[test]
fn another_spelling_of_a_hidden_name_is_hidden_where_the_source_takes_it() {
    let below: Arc<dyn FileSystem> = stack(Memory::new(clock()), IgnoresCase);
    for path in [
        "home/me/.ssh/keys",
        "Keys/OLD.KEY",
        "Keys/new.key",
        "Keys/secret of many letters.key",
        "Keys/cl\u{e9}",
        "Keys/notes",
        "Keys/caf\u{e9}",
    ] {
        make_dirs(&*below, path);
    }
    let patterns = ["*.key", "/home/*/.ssh", "cl\u{e9}"];
    let shown = stack(below.clone(), Hide::new(rules(&patterns, None)));
    for path in [
        "home/me/.SSH",
        "HOME/ME/.Ssh",
        "Home/me/.ssh/keys",
        "keys/NEW.KEY",
        "keys/New.key",
        "keys/old.key",
        "keys/OLD.KEY",
        "Keys/SECRET~1.KEY",
        "Keys/new.key.",
        "Keys/CL\u{e9}",
        "Keys/cle\u{301}",
    ] {
        assert!(find(&*below, path).is_ok(), "{path}");
        assert_eq!(find(&*shown, path).err(), Some(Errno::ENOENT), "{path}");
    }
    for path in ["home/ME", "KEYS/Notes", "Keys/notes", "Keys/caf\u{e9}"] {
        assert!(find(&*shown, path).is_ok(), "{path}");
    }
    let keys = find(&*shown, "keys").expect("shown");
    for mode in [ReaddirMode::Names, ReaddirMode::Entries] {
        assert_eq!(names(&*keys, mode), ["caf\u{e9}", "notes"]);
    }
    let plain = RenameFlags::empty();
    for alias in ["NEW.KEY", "SECRET~1.KEY", "cle\u{301}"] {
        let (alias, out) = (name(alias), name("out"));
        assert_eq!(keys.unlink(&cx(), alias, true), Err(Errno::ENOENT));
        let moved = keys.rename(&cx(), alias, &*keys, out, plain);
        assert_eq!(moved, Err(Errno::ENOENT));
        let over = keys.rename(&cx(), name("notes"), &*keys, alias, plain);
        assert_eq!(over, Err(Errno::EACCES));
    }
}

/// A name that the source did not have was compared with regard to case.
#[test]
fn a_new_name_is_refused_in_another_case_where_the_source_ignores_it() {
    let below: Arc<dyn FileSystem> = stack(Memory::new(clock()), IgnoresCase);
    let patterns = ["*.key", "/home/secret"];
    let shown = stack(below, Hide::new(rules(&patterns, None)));
    let root = make_dirs(&*shown, "dir")
        .parent(&cx())
        .expect("a root")
        .node;
    let (plain, flags) = (RenameFlags::empty(), OpenFlags::READ | OpenFlags::WRITE);
    let file = root
        .create(&cx(), name("file"), flags, MODE)
        .expect("made")
        .0;
    for hidden in ["A.KEY", "a.Key"] {
        let hidden = name(hidden);
        let created = root.create(&cx(), hidden, flags, MODE);
        assert_eq!(created.err(), Some(Errno::EACCES));
        let made = root.make(&cx(), hidden, NewNode::Directory, MODE);
        assert_eq!(made.err(), Some(Errno::EACCES));
        let linked = root.link(&cx(), hidden, &*file.node);
        assert_eq!(linked.err(), Some(Errno::EACCES));
        let moved = root.rename(&cx(), name("file"), &*root, hidden, plain);
        assert_eq!(moved, Err(Errno::EACCES));
    }
    let moved = root.rename(&cx(), name("dir"), &*root, name("HOME"), plain);
    assert_eq!(moved, Err(Errno::EXDEV), "it has other rules there");
    make_dirs(&*shown, "A.KEYS");
}

/// A directory that was made or moved into an empty one had the rules of its name as it was
/// spelled, and showed what is hidden in it.
#[test]
fn a_new_directory_has_the_rules_of_its_name_without_regard_to_case() {
    for is_moved in [false, true] {
        let below: Arc<dyn FileSystem> = stack(Memory::new(clock()), IgnoresCase);
        let shown = stack(below.clone(), Hide::new(rules(&["/a/home/secret"], None)));
        let empty = make_dirs(&*shown, "a");
        let home = match is_moved {
            false => make_dirs(&*shown, "a/HOME"),
            true => {
                let dir = make_dirs(&*shown, "dir");
                let root = dir.parent(&cx()).expect("a root").node;
                let plain = RenameFlags::empty();
                let moved = root.rename(&cx(), name("dir"), &*empty, name("HOME"), plain);
                moved.expect("nothing there says that case is ignored");
                dir
            }
        };
        make_dirs(&*below, "a/home/secret");
        let found = home.lookup(&cx(), name("secret"));
        assert_eq!(found.err(), Some(Errno::ENOENT), "moved: {is_moved}");
        assert!(names(&*home, ReaddirMode::Names).is_empty());
        assert!(find(&*shown, "a/HOME/secret").is_err());
    }
}

#[test]
fn other_names_than_the_hidden_ones_are_shown_where_case_counts() {
    let (below, shown) = trees(&["*.key", "/home/*/.ssh", "cl\u{e9}"], None);
    for path in [
        "a/A.KEY",
        "HOME/me/.ssh",
        "a/x~1",
        "a/CL\u{c9}",
        "a/cle\u{301}",
    ] {
        make_dirs(&*below, path);
        assert!(find(&*shown, path).is_ok(), "{path}");
    }
    let dir = find(&*shown, "a").expect("shown");
    let expected = [".ssh", "A.KEY", "CL\u{c9}", "cle\u{301}", "x~1"];
    assert_eq!(names(&*dir, ReaddirMode::Names), expected);
}

#[test]
fn a_client_moves_nothing_to_a_place_with_other_rules() {
    let (_, shown) = trees(&["/home/*/.ssh", "/etc/private/key"], None);
    let root = shown.root(&cx()).expect("a root");
    let at = |path: &str| find(&*shown, path).expect("shown");
    make_dirs(&*shown, "b/sub");
    make_dirs(&*shown, "etc/private/sub");
    let flags = OpenFlags::READ | OpenFlags::WRITE;
    let file = at("home").create(&cx(), name("file"), flags, MODE);
    file.expect("made");
    for flags in [RenameFlags::empty(), RenameFlags::EXCHANGE] {
        for (from, old, to, new) in [
            // A hidden object would be shown, or the other way round.
            ("home", "me", "", "b"),
            ("home", "file", "", "b"),
            ("etc", "private", "etc", "public"),
            ("", "home", "", "b"),
            ("", "b", "home", "me"),
        ] {
            let moved = at(from).rename(&cx(), name(old), &*at(to), name(new), flags);
            assert_eq!(moved, Err(Errno::EXDEV), "{from}/{old} {flags:?}");
        }
    }
    // Within equal rules all is as without.
    let home = at("home");
    let plain = RenameFlags::empty();
    let moved = home.rename(&cx(), name("me"), &*home, name("us"), plain);
    moved.expect("moved");
    assert_eq!(find(&*shown, "home/us/.ssh").err(), Some(Errno::ENOENT));
    let moved = root.rename(&cx(), name("b"), &*at("a"), name("c"), plain);
    moved.expect("moved");
    assert!(find(&*shown, "a/c/sub").is_ok());
}

#[test]
fn a_new_directory_has_the_rules_of_its_place_whatever_its_number() {
    let (below, shown) = trees(&["/home/*/.ssh"], None);
    let root = shown.root(&cx()).expect("a root");
    let home = find(&*shown, "home").expect("shown");
    for _ in 0..20 {
        make_dirs(&*shown, "old");
        root.unlink(&cx(), name("old"), true).expect("removed");
        let made = home.make(&cx(), name("new"), NewNode::Directory, MODE);
        let made = made.expect("made").node;
        let hidden = find(&*below, "home/new").expect("there");
        let hidden = hidden.make(&cx(), name(".ssh"), NewNode::Directory, MODE);
        hidden.expect("made");
        assert_eq!(made.lookup(&cx(), name(".ssh")).err(), Some(Errno::ENOENT));
        let there = find(&*below, "home/new").expect("there");
        there.unlink(&cx(), name(".ssh"), true).expect("removed");
        home.unlink(&cx(), name("new"), true).expect("removed");
    }
}

#[test]
fn only_listed_paths_are_shown_with_the_way_to_them() {
    let (_, shown) = trees(&[], Some("/home/me/work\netc\n"));
    let listed = |path: &str| names(&*find(&*shown, path).expect("shown"), ReaddirMode::Entries);
    assert_eq!(listed(""), ["etc", "home"]);
    assert_eq!(listed("home"), ["me"]);
    assert_eq!(listed("home/me"), ["work"]);
    assert_eq!(listed("etc"), ["private"]);
    assert_eq!(find(&*shown, "a").err(), Some(Errno::ENOENT));
    let home = find(&*shown, "home").expect("shown");
    let made = home.make(&cx(), name("new"), NewNode::Directory, MODE);
    assert_eq!(made.err(), Some(Errno::EACCES));
    let work = find(&*shown, "home/me/work").expect("shown");
    work.make(&cx(), name("new"), NewNode::Directory, MODE)
        .expect("made");
    assert_eq!(listed("home/me/work"), ["new"]);
}

#[test]
fn neither_a_handle_nor_a_parent_leads_to_a_hidden_directory() {
    let (below, shown) = trees(&["/home/*/.ssh", "private"], None);
    let handle = |path: &str| {
        let node = find(&*below, path).expect("there");
        node.handle(&cx()).expect("a handle")
    };
    for path in ["home/me/.ssh", "home/me/.ssh/keys", "etc/private"] {
        let resolved = shown.resolve(&cx(), &handle(path));
        assert_eq!(resolved.err(), Some(Errno::ESTALE), "{path}");
    }
    // The place of a directory that was never looked up is that of its names.
    let me = shown.resolve(&cx(), &handle("home/me")).expect("shown");
    assert_eq!(me.lookup(&cx(), name(".ssh")).err(), Some(Errno::ENOENT));
    assert_eq!(names(&*me, ReaddirMode::Names), ["work"]);
    let root = me.parent(&cx()).and_then(|home| home.node.parent(&cx()));
    assert_eq!(
        root.expect("shown").node.id(),
        shown.root(&cx()).expect("a root").id()
    );
    // A program of the host moves a directory that a client has found.
    let work = find(&*shown, "home/me/work").expect("shown");
    let (from, to) = (
        find(&*below, "home/me").expect("there"),
        find(&*below, "home/me/.ssh").expect("there"),
    );
    let moved = from.rename(
        &cx(),
        name("work"),
        &*to,
        name("work"),
        RenameFlags::empty(),
    );
    moved.expect("moved");
    assert_eq!(work.parent(&cx()).err(), Some(Errno::ESTALE));
}

#[test]
fn a_directory_that_is_moved_all_the_time_never_shows_what_is_hidden() {
    let (below, shown) = trees(&["/home/*/.ssh"], None);
    make_dirs(&*below, "home/t/.ssh");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // One client exchanges names, and another one tries to move what they lead to elsewhere.
        scope.spawn(|| {
            let home = find(&*shown, "home").expect("shown");
            let flags = OpenFlags::READ | OpenFlags::WRITE;
            home.create(&cx(), name("u"), flags, MODE).expect("made");
            while !stop.load(Ordering::Relaxed) {
                let flags = RenameFlags::EXCHANGE;
                let moved = home.rename(&cx(), name("t"), &*home, name("u"), flags);
                moved.expect("moved");
            }
        });
        let attackers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let root = shown.root(&cx()).expect("a root");
                    let home = find(&*shown, "home").expect("shown");
                    for _ in 0..20_000 {
                        let flags = RenameFlags::empty();
                        let moved = home.rename(&cx(), name("t"), &*root, name("t"), flags);
                        assert_eq!(moved, Err(Errno::EXDEV));
                        for path in ["home/t/.ssh", "home/u/.ssh", "home/me/.ssh"] {
                            assert!(find(&*shown, path).is_err(), "{path}");
                        }
                    }
                })
            })
            .collect();
        let failed = attackers.into_iter().any(|thread| thread.join().is_err());
        stop.store(true, Ordering::Relaxed);
        assert!(!failed);
    });
}
