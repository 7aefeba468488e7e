//! An overlay whose directory for changes has any files with any marks of overlayfs, as a program
//! that may write to it could leave them.
//!
//! A script is a list of steps, each with a byte for the action: first those that prepare the
//! directory, then changes through the overlay. Invariants: a walk ends, and what is created in a
//! directory is found there.

use std::sync::Arc;

use arbitrary::{Result, Unstructured};
use layers::Overlay;
use memory::Memory;
use vfs::{
    AttrMask, Device, FileSystem, Mode, Name, NewNode, Node, OpenFlags, RenameFlags, XattrFlags,
};
use vfs_testkit::clock;

use crate::files::{cut, lookup, names, with, write};

/// The names of files. Some exist in the lower tree.
const NAMES: [&[u8]; 6] = [b"file", b"dir", b"link", b"a", b"b", b"c"];

/// The marks of overlayfs and of barge, and another attribute.
const MARKS: [&[u8]; 6] = [
    b"trusted.overlay.opaque",
    b"trusted.overlay.redirect",
    b"trusted.overlay.metacopy",
    b"trusted.overlay.origin",
    b"trusted.overlay.barge",
    b"user.other",
];

/// Maximum number of nodes of a walk: more than any script creates.
const MAX_NODES: usize = 1 << 16;

/// Plays the script `data`.
pub fn directory(data: &[u8]) {
    let mut input = Unstructured::new(data);
    // The end of the input is the end of the script.
    let _ = play(&mut input);
}

fn play(input: &mut Unstructured<'_>) -> Result<()> {
    let (lower, over) = (Memory::new(clock()), Memory::new(clock()));
    let root = |fs: &Arc<Memory>| with(|cx| fs.root(cx)).expect("a root");
    let below = root(&lower);
    for name in NAMES.iter().take(3) {
        make(&*below, name, u8::from(*name == b"dir"));
    }
    let dir = lookup(&*below, b"dir").expect("made");
    make(&*dir, b"file", 0);
    make(&*dir, b"dir", 1);
    let top = root(&over);
    make(&*top, b"upper", 1);
    let upper = lookup(&*top, b"upper").expect("made");
    for _ in 0..input.arbitrary::<u8>()? % 32 {
        let node = find(&upper, input)?;
        match input.arbitrary::<u8>()? % 2 {
            0 => make(&*node, choose(&NAMES, input)?, input.arbitrary()?),
            _ => {
                let mark = choose(&MARKS, input)?;
                let len = usize::from(input.arbitrary::<u8>()? % 64).min(input.len());
                let value = match input.arbitrary::<u8>()? % 4 {
                    0 => b"y",
                    1 => choose(&NAMES, input)?,
                    2 => b"/dir/file",
                    _ => input.bytes(len)?,
                };
                with(|cx| node.set_xattr(cx, mark, value, XattrFlags::empty()));
            }
        }
    }
    let Ok(overlay) = Overlay::new(lower, over) else {
        return Ok(());
    };
    let root = with(|cx| overlay.root(cx)).expect("a root");
    walk(&root);
    while !input.is_empty() {
        let node = find(&root, input)?;
        let name = choose(&NAMES, input)?;
        match input.arbitrary::<u8>()? % 4 {
            0 => make(&*node, name, input.arbitrary()?),
            1 => {
                let directory = input.arbitrary()?;
                with(|cx| node.unlink(cx, Name::new(name)?, directory));
            }
            2 => {
                let (to, new) = (find(&root, input)?, choose(&NAMES, input)?);
                with(|cx| {
                    let (name, new) = (Name::new(name)?, Name::new(new)?);
                    node.rename(cx, name, &*to, new, RenameFlags::empty())
                });
            }
            _ => {
                let flags = OpenFlags::READ | OpenFlags::WRITE;
                if let Some(file) = with(|cx| node.open(cx, flags)) {
                    write(&*file, 3, b"written");
                    cut(&*file, 5);
                }
            }
        }
    }
    walk(&root);
    Ok(())
}

fn choose<'a>(all: &[&'a [u8]], input: &mut Unstructured<'_>) -> Result<&'a [u8]> {
    Ok(all[usize::from(input.arbitrary::<u8>()?) % all.len()])
}

/// Returns a node up to three levels below `root`.
fn find(root: &Arc<dyn Node>, input: &mut Unstructured<'_>) -> Result<Arc<dyn Node>> {
    let mut node = root.clone();
    for _ in 0..input.arbitrary::<u8>()? % 4 {
        let Some(next) = lookup(&*node, choose(&NAMES, input)?) else {
            break;
        };
        node = next;
    }
    Ok(node)
}

/// Creates an object of the kind that `kind` chooses, whiteouts among them. It is found then.
fn make(dir: &dyn Node, name: &[u8], kind: u8) {
    let what = match kind % 4 {
        0 => NewNode::File,
        1 => NewNode::Directory,
        2 => NewNode::Symlink(b"dir/file"),
        _ => NewNode::CharDevice(Device { major: 0, minor: 0 }),
    };
    let made = with(|cx| dir.make(cx, Name::new(name)?, what, Mode::without_umask(0o755)));
    // A whiteout hides itself.
    if made.is_some() && kind % 4 != 3 {
        assert!(lookup(dir, name).is_some(), "created, and not found");
    }
}

/// Visits all nodes.
fn walk(root: &Arc<dyn Node>) {
    let mut nodes = vec![(root.clone(), 0)];
    let mut visited = 0;
    while let Some((node, depth)) = nodes.pop() {
        visited += 1;
        assert!(visited < MAX_NODES, "a walk without an end");
        with(|cx| node.attr(cx, AttrMask::all()));
        with(|cx| node.readlink(cx));
        with(|cx| node.xattrs(cx));
        with(|cx| node.parent(cx));
        if depth < 16 {
            let names = names(&*node);
            let children = names.iter().filter_map(|name| lookup(&*node, name));
            nodes.extend(children.map(|child| (child, depth + 1)));
        }
    }
}
