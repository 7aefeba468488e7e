//! The paths of fids from a tree's root: moving a directory moves everything below it.

use std::collections::HashMap;

use crate::Qid;

/// A position in a tree, reference-counted.
pub(super) type Position = usize;

/// The positions of fids, and those on the path to them.
#[derive(Default)]
pub(super) struct Names {
    nodes: Vec<Node>,
    free: Vec<Position>,
    by_name: HashMap<(Position, Vec<u8>), Position>,
    /// By the `aname` of an attach.
    roots: HashMap<Vec<u8>, Position>,
}

struct Node {
    parent: Option<Position>,
    /// The name; a root's is its `aname`.
    name: Vec<u8>,
    qid: Qid,
    /// The number of fids and positions below it.
    references: usize,
    /// Whether it has lost its name.
    unlinked: bool,
}

impl Names {
    /// Returns the root of an attach, with a reference for the caller.
    pub(super) fn root(&mut self, aname: &[u8], qid: Qid) -> Position {
        match self.roots.get(aname) {
            Some(&root) => self.retain(root),
            None => {
                let root = self.add(None, aname, qid);
                self.roots.insert(aname.to_vec(), root);
                root
            }
        }
    }

    /// Returns the position `name` below `dir` for `qid`, with a reference for the caller. A
    /// different file there before has lost its name.
    pub(super) fn child(&mut self, dir: Position, name: &[u8], qid: Qid) -> Position {
        match self.by_name.get(&(dir, name.to_vec())) {
            Some(&position) if is_same_file(self.nodes[position].qid, qid) => self.retain(position),
            _ => {
                self.unlink(dir, name);
                self.retain(dir);
                let position = self.add(Some(dir), name, qid);
                self.by_name.insert((dir, name.to_vec()), position);
                position
            }
        }
    }

    /// Returns the parent directory's position, for a root its own, with a reference for the
    /// caller.
    pub(super) fn parent(&mut self, position: Position) -> Position {
        let up = self.nodes[position].parent.unwrap_or(position);
        self.retain(up)
    }

    pub(super) fn retain(&mut self, position: Position) -> Position {
        self.nodes[position].references += 1;
        position
    }

    pub(super) fn release(&mut self, position: Position) {
        let mut next = Some(position);
        while let Some(position) = next.take() {
            let node = &mut self.nodes[position];
            node.references -= 1;
            if node.references > 0 {
                return;
            }
            let (up, unlinked, name) = (node.parent, node.unlinked, std::mem::take(&mut node.name));
            match up {
                Some(up) if !unlinked => drop(self.by_name.remove(&(up, name))),
                Some(_) => {}
                None => drop(self.roots.remove(&name)),
            }
            self.free.push(position);
            next = up;
        }
    }

    /// Returns the qid recorded for `name` below `dir`.
    pub(super) fn qid_of(&self, dir: Position, name: &[u8]) -> Option<Qid> {
        let position = self.by_name.get(&(dir, name.to_vec()))?;
        Some(self.nodes[*position].qid)
    }

    /// Removes `name` below `dir`.
    pub(super) fn unlink(&mut self, dir: Position, name: &[u8]) {
        if let Some(position) = self.by_name.remove(&(dir, name.to_vec())) {
            self.nodes[position].unlinked = true;
        }
    }

    /// Removes a position's name.
    pub(super) fn remove(&mut self, position: Position) {
        if let (Some(up), false) = (self.nodes[position].parent, self.nodes[position].unlinked) {
            let name = self.nodes[position].name.clone();
            self.unlink(up, &name);
        }
    }

    /// Moves `name` below `dir` to `to_name` below `to`.
    pub(super) fn rename(&mut self, dir: Position, name: &[u8], to: Position, to_name: &[u8]) {
        if let Some(&position) = self.by_name.get(&(dir, name.to_vec())) {
            self.move_to(position, to, to_name);
        } else {
            self.unlink(to, to_name);
        }
    }

    /// Moves a position to `name` below `dir`.
    pub(super) fn move_to(&mut self, position: Position, dir: Position, name: &[u8]) {
        let Some(up) = self.nodes[position].parent else {
            return;
        };
        if up == dir && self.nodes[position].name == name {
            return;
        }
        self.remove(position);
        if self.is_within(dir, position) {
            // A directory cannot be below itself: the server does not serve a tree, and the path is
            // lost.
            return;
        }
        self.unlink(dir, name);
        self.retain(dir);
        let node = &mut self.nodes[position];
        (node.parent, node.name, node.unlinked) = (Some(dir), name.to_vec(), false);
        self.by_name.insert((dir, name.to_vec()), position);
        self.release(up);
    }

    /// Returns whether `position` is `dir` or below it.
    fn is_within(&self, position: Position, dir: Position) -> bool {
        let mut next = Some(position);
        while let Some(position) = next {
            if position == dir {
                return true;
            }
            next = self.nodes[position].parent;
        }
        false
    }

    /// Returns the names from the root to a position, or `None` if it or a directory on the path
    /// has lost its name.
    pub(super) fn path(&self, position: Position) -> Option<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        let mut node = &self.nodes[position];
        while let Some(up) = node.parent {
            if node.unlinked {
                return None;
            }
            names.push(node.name.clone());
            node = &self.nodes[up];
        }
        names.reverse();
        Some(names)
    }

    fn add(&mut self, up: Option<Position>, name: &[u8], qid: Qid) -> Position {
        let node = Node {
            parent: up,
            name: name.to_vec(),
            qid,
            references: 1,
            unlinked: false,
        };
        match self.free.pop() {
            Some(position) => {
                self.nodes[position] = node;
                position
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() - 1
            }
        }
    }
}

/// Returns whether two qids are of the same file. The version only shows changes of it.
pub(super) fn is_same_file(one: Qid, other: Qid) -> bool {
    (one.path, one.kind) == (other.path, other.kind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::QidType;

    fn qid(path: u64) -> Qid {
        Qid {
            kind: QidType::empty(),
            version: 0,
            path,
        }
    }

    fn path(names: &Names, position: Position) -> Option<String> {
        let path = names.path(position)?.join(&b'/');
        Some(String::from_utf8(path).expect("text"))
    }

    #[test]
    fn what_is_below_a_directory_moves_with_it() {
        let mut names = Names::default();
        let root = names.root(b"", qid(1));
        let a = names.child(root, b"a", qid(2));
        let f = names.child(a, b"f", qid(3));
        let b = names.child(root, b"b", qid(4));
        names.rename(root, b"a", b, b"c");
        assert_eq!(path(&names, f).as_deref(), Some("b/c/f"));
        // Over another file, which loses its name.
        let g = names.child(a, b"g", qid(5));
        names.rename(a, b"f", a, b"g");
        assert_eq!(path(&names, f).as_deref(), Some("b/c/g"));
        assert_eq!(path(&names, g), None);
        // Files below a removed directory cannot be found.
        names.remove(a);
        assert_eq!(path(&names, f), None);
    }

    #[test]
    fn a_directory_that_is_said_to_be_below_itself_is_lost() {
        let mut names = Names::default();
        let root = names.root(b"", qid(1));
        let a = names.child(root, b"a", qid(2));
        let b = names.child(a, b"b", qid(3));
        names.rename(root, b"a", b, b"c");
        assert_eq!((path(&names, a), path(&names, b)), (None, None));
        names.move_to(a, a, b"d");
        assert_eq!(path(&names, a), None);
        // It can come back.
        names.move_to(a, root, b"e");
        assert_eq!(path(&names, b).as_deref(), Some("e/b"));
        for position in [b, a, root] {
            names.release(position);
        }
        assert_eq!(names.nodes.len(), names.free.len());
    }

    #[test]
    fn another_file_at_a_name_takes_it() {
        let mut names = Names::default();
        let root = names.root(b"", qid(1));
        let old = names.child(root, b"f", qid(2));
        assert_eq!(names.child(root, b"f", qid(2)), old);
        let new = names.child(root, b"f", qid(3));
        assert_eq!(path(&names, old), None);
        assert_eq!(path(&names, new).as_deref(), Some("f"));
    }

    #[test]
    fn nothing_is_kept_that_nobody_holds() {
        let mut names = Names::default();
        let root = names.root(b"", qid(1));
        for round in 0..3 {
            let dir = names.child(root, b"d", qid(2));
            let file = names.child(dir, b"f", qid(3));
            names.release(dir);
            if round == 1 {
                names.remove(file);
            }
            names.release(file);
        }
        names.release(root);
        assert_eq!(names.nodes.len(), names.free.len());
        assert!(names.by_name.is_empty() && names.roots.is_empty());
    }
}
