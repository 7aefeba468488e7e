//! A tree for programs: paths and listings, on behalf of this process. Results are nodes and files
//! of the file-system traits ([`vfs`]).

use std::sync::Arc;

use vfs::listing::{NamedEntry, list};
use vfs::{
    Attr, AttrMask, Call, Caller, Cx, Entry, Errno, FileSystem, Groups, Kind, Name, Node, Result,
};

/// A tree. Cheap to clone.
#[derive(Clone)]
pub struct Tree {
    /// The file system.
    pub fs: Arc<dyn FileSystem>,
    caller: Arc<Caller>,
}

impl Tree {
    /// The most symbolic links to follow in one path, as in Linux (`MAXSYMLINKS`).
    const MAX_SYMLINKS: usize = 40;

    /// Creates a tree of a file system.
    pub fn new(fs: Arc<dyn FileSystem>) -> Tree {
        let caller = Arc::new(process_caller());
        Tree { fs, caller }
    }

    /// Returns the credentials of this process, on whose behalf the tree is used.
    pub fn caller(&self) -> &Arc<Caller> {
        &self.caller
    }

    /// Runs `operation` on behalf of this process.
    pub fn with<T>(&self, operation: impl FnOnce(&Cx<'_>) -> T) -> T {
        with_cx(&self.caller, operation)
    }

    /// Resolves `path`. Symbolic links are followed within the tree, the last one only with
    /// `follow`.
    pub fn resolve(&self, path: &[u8], follow: bool) -> Result<Entry> {
        self.with(|cx| {
            let root = entry(cx, self.fs.root(cx)?)?;
            let mut at = vec![root];
            let mut links = 0;
            // The remaining names, the next one last.
            let mut left: Vec<Vec<u8>> = names(path).rev().map(<[u8]>::to_vec).collect();
            while let Some(name) = left.pop() {
                let here = at.last().expect("the root stays").clone();
                if here.attr.kind != Kind::Directory {
                    return Err(Errno::ENOTDIR);
                }
                if name == b"." {
                    continue;
                }
                if name == b".." {
                    if at.len() > 1 {
                        at.pop();
                    }
                    continue;
                }
                let found = here.node.lookup(cx, Name::new(&name)?)?;
                if found.attr.kind != Kind::Symlink || (left.is_empty() && !follow) {
                    at.push(found);
                    continue;
                }
                links += 1;
                if links > Tree::MAX_SYMLINKS {
                    return Err(Errno::ELOOP);
                }
                let target = found.node.readlink(cx)?;
                if target.starts_with(b"/") {
                    at.truncate(1);
                }
                left.extend(names(&target).rev().map(<[u8]>::to_vec));
            }
            Ok(at.pop().expect("the root stays"))
        })
    }

    /// Returns the directory of `path`, and the name in it. Returns `EINVAL` for the root.
    pub fn parent_of(&self, path: &[u8]) -> Result<(Entry, Vec<u8>)> {
        let names: Vec<&[u8]> = names(path).collect();
        let (last, before) = names.split_last().ok_or(Errno::EINVAL)?;
        Name::new(last)?;
        Ok((self.resolve(&before.join(&b'/'), true)?, last.to_vec()))
    }

    /// Lists a directory, sorted by name.
    pub fn list(&self, dir: &dyn Node) -> Result<Vec<NamedEntry>> {
        self.with(|cx| list(cx, dir))
    }

    /// Reads the target of a symbolic link.
    pub fn readlink(&self, node: &dyn Node) -> Result<Vec<u8>> {
        self.with(|cx| node.readlink(cx))
    }
}

/// The credentials of this process.
fn process_caller() -> Caller {
    Caller {
        uid: sys::process::user(),
        gid: sys::process::group(),
        groups: Groups::Known(sys::process::groups().into()),
    }
}

/// Runs `operation` on behalf of this process, without a deadline.
fn with_cx<T>(caller: &Caller, operation: impl FnOnce(&Cx<'_>) -> T) -> T {
    let call = Call::detached();
    operation(&Cx::new(caller, &call))
}

fn entry(cx: &Cx<'_>, node: Arc<dyn Node>) -> Result<Entry> {
    let attr: Attr = node.attr(cx, AttrMask::STAT)?;
    Ok(Entry { node, attr })
}

fn names(path: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    path.split(|&byte| byte == b'/')
        .filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use vfs::{Mode, NewNode, Time};

    #[test]
    fn links_are_followed_within_the_tree_and_not_for_ever() {
        let clock = Arc::new(Time::default);
        let tree = Tree::new(memory::Memory::new(clock));
        let make = |dir: &str, name: &str, what| {
            let dir = tree.resolve(dir.as_bytes(), true).expect(dir).node;
            let name = Name::new(name.as_bytes()).expect("a name");
            let root = Caller::ROOT;
            with_cx(&root, |cx| {
                dir.make(cx, name, what, Mode::without_umask(0o755))
            })
            .expect("made")
        };
        make("", "a", NewNode::Directory);
        let file = make("a", "file", NewNode::File).attr.id;
        make("", "up", NewNode::Symlink(b"a/../../../a/file"));
        make("a", "absolute", NewNode::Symlink(b"/a/"));
        make("", "loop", NewNode::Symlink(b"loop"));
        for path in [
            "a/file",
            "/a//./file",
            "up",
            "a/absolute/file",
            "a/../a/file",
        ] {
            let found = tree.resolve(path.as_bytes(), true).expect(path);
            assert_eq!(found.attr.id, file, "{path}");
        }
        let link = tree.resolve(b"up", false).expect("a link");
        assert_eq!(link.attr.kind, Kind::Symlink);
        assert_eq!(tree.resolve(b"loop", true).err(), Some(Errno::ELOOP));
        assert_eq!(tree.resolve(b"a/file/x", true).err(), Some(Errno::ENOTDIR));
        let (dir, name) = tree.parent_of(b"a/new").expect("a parent");
        assert_eq!((dir.attr.kind, &name[..]), (Kind::Directory, &b"new"[..]));
        assert_eq!(tree.parent_of(b"/").err(), Some(Errno::EINVAL));
    }
}
