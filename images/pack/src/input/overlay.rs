//! Layers with the marks of Linux's overlayfs (`Documentation/filesystems/overlayfs.rst`): a
//! character device 0:0 hides the name in lower layers, an opaque directory their entries.
//!
//! Layers whose files continue in lower layers (`metacopy`, `redirect`) are refused.

use std::collections::HashMap;

use vfs::Device;

use super::tar::{Member, MemberContent, implicit_attributes};
use crate::error::{Error, Result};
use crate::plan::{Attributes, Kind, MAX_DEPTH, NodeId, Plan};

/// Prefix of the marks' names.
const PREFIX: &[u8] = b"trusted.overlay.";

/// The mark of an opaque directory, with the value `y`.
const OPAQUE: &[u8] = b"trusted.overlay.opaque";

/// Marks of files that continue in lower layers.
const REFERENCES: [&[u8]; 2] = [b"trusted.overlay.metacopy", b"trusted.overlay.redirect"];

/// Returns a whiteout, with an empty path.
pub(super) fn whiteout() -> Member {
    Member {
        path: Vec::new(),
        attributes: Attributes {
            mode: 0,
            ..implicit_attributes()
        },
        content: MemberContent::Node(Kind::CharDevice(Device { major: 0, minor: 0 })),
    }
}

/// Makes a directory opaque; has no effect on other nodes.
pub(super) fn mark_opaque(plan: &mut Plan, node: NodeId) {
    if let Kind::Directory(_) = plan.kind(node) {
        let mut attributes = plan.attributes(node).clone();
        attributes.xattrs.insert(OPAQUE.to_vec(), b"y".to_vec());
        plan.set_attributes(node, attributes);
    }
}

/// Puts the layer `upper` on the tree `plan`, which has no marks afterwards.
pub(super) fn stack(plan: &mut Plan, upper: &Plan) -> Result<()> {
    let is_opaque = |node| {
        let mark = upper.attributes(node).xattrs.get(OPAQUE);
        mark.is_some_and(|value| value == b"y")
    };
    let mut linked = HashMap::<NodeId, NodeId>::new();
    if is_opaque(NodeId::ROOT) {
        plan.clear(NodeId::ROOT);
    }
    plan.set_attributes(NodeId::ROOT, unmarked(upper.attributes(NodeId::ROOT))?);
    let mut pending = vec![(NodeId::ROOT, NodeId::ROOT, 0)];
    while let Some((lower_dir, upper_dir, level)) = pending.pop() {
        let Kind::Directory(entries) = upper.kind(upper_dir) else {
            continue;
        };
        if level > MAX_DEPTH {
            return Err(Error::new(format!(
                "more than {MAX_DEPTH} nested directories"
            )));
        }
        for (name, &node) in entries {
            let failed = |what| Error::with_path(name, what);
            let attributes = unmarked(upper.attributes(node)).map_err(failed)?;
            match upper.kind(node) {
                Kind::CharDevice(Device { major: 0, minor: 0 }) => plan.remove(lower_dir, name),
                Kind::Directory(_) => {
                    if is_opaque(node) {
                        plan.remove(lower_dir, name);
                    }
                    let dir = plan.add(lower_dir, name, attributes, Kind::empty_directory());
                    pending.push((dir, node, level + 1));
                }
                kind => match linked.get(&node) {
                    Some(&there) => plan.link(lower_dir, name, there),
                    None => {
                        let there = plan.add(lower_dir, name, attributes, kind.clone());
                        linked.insert(node, there);
                    }
                },
            }
        }
    }
    Ok(())
}

/// Returns attributes without marks, or an error if the node continues in lower layers.
fn unmarked(attributes: &Attributes) -> Result<Attributes> {
    let mut attributes = attributes.clone();
    if REFERENCES
        .iter()
        .any(|name| attributes.xattrs.contains_key(*name))
    {
        return Err(Error::new(
            "continues in a lower layer, which is not supported",
        ));
    }
    attributes
        .xattrs
        .retain(|name, _| !name.starts_with(PREFIX));
    Ok(attributes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(plan: &mut Plan, dir: NodeId, name: &str, kind: Kind) -> NodeId {
        plan.add(dir, name.as_bytes(), Attributes::default(), kind)
    }

    fn paths(plan: &Plan) -> Vec<String> {
        let visits = plan.walk().expect("a tree");
        let path = |at| crate::plan::visit_path(&visits, at);
        let paths = (0..visits.len()).map(path);
        paths
            .map(|path| String::from_utf8(path).expect("text"))
            .collect()
    }

    #[test]
    fn marks_hide_what_is_below() {
        let dir = Kind::empty_directory;
        let mut lower = Plan::new(Attributes::default());
        for name in ["merged", "opaque", "replaced"] {
            let node = entry(&mut lower, NodeId::ROOT, name, dir());
            entry(&mut lower, node, "old", Kind::file("old"));
        }
        entry(&mut lower, NodeId::ROOT, "gone", dir());
        let mut upper = Plan::new(Attributes::default());
        let whiteout = || Kind::CharDevice(Device { major: 0, minor: 0 });
        entry(&mut upper, NodeId::ROOT, "gone", whiteout());
        entry(&mut upper, NodeId::ROOT, "never", whiteout());
        entry(&mut upper, NodeId::ROOT, "replaced", Kind::file("x"));
        for name in ["merged", "opaque"] {
            let node = entry(&mut upper, NodeId::ROOT, name, dir());
            entry(&mut upper, node, "new", Kind::file("new"));
        }
        let opaque = upper.lookup(NodeId::ROOT, b"opaque").expect("there");
        mark_opaque(&mut upper, opaque);
        let new = upper.lookup(opaque, b"new").expect("there");
        upper.link(NodeId::ROOT, b"other-name", new);
        stack(&mut lower, &upper).expect("stacked");
        let expected = [
            "/",
            "/merged",
            "/merged/new",
            "/merged/old",
            "/opaque",
            "/opaque/new",
            "/replaced",
        ];
        assert_eq!(paths(&lower), expected);
        let opaque = lower.lookup(NodeId::ROOT, b"opaque").expect("there");
        assert!(lower.attributes(opaque).xattrs.is_empty());
        assert_eq!(
            lower.lookup(opaque, b"new"),
            lower.lookup(NodeId::ROOT, b"other-name")
        );
        let mut attributes = Attributes::default();
        attributes.xattrs.insert(REFERENCES[0].to_vec(), Vec::new());
        upper.add(NodeId::ROOT, b"x", attributes, Kind::file(""));
        let error = stack(&mut lower, &upper).expect_err("refused").to_string();
        assert!(error.contains("continues in a lower layer"), "{error}");
    }
}
