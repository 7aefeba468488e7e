//! Handles: identifiers of nodes that outlive the process.

use std::collections::HashSet;

use vfs::{Errno, Handle, Support};

use crate::context::{TestContext, ok, refused};
use crate::needs;

/// A handle resolves to its node, of whatever kind.
pub fn a_handle_leads_back(test: &TestContext) {
    needs!(test.caps.handles > Support::None, "handles");
    let root = test.root();
    let dir = ok(root.mkdir("dir", 0o755));
    for node in [
        root.clone(),
        dir.clone(),
        ok(dir.file("file", b"content")),
        ok(dir.symlink("link", b"x")),
        ok(dir.make("fifo", vfs::NewNode::Fifo, vfs::Mode::without_umask(0o600))),
    ] {
        let found = ok(test.resolve(&ok(node.handle())));
        assert_eq!((found.id(), found.kind()), (node.id(), node.kind()));
        assert_eq!(found.attr().generation, node.attr().generation);
    }
    let file = ok(test.resolve(&ok(ok(dir.lookup("file")).handle())));
    assert_eq!(ok(file.content()), b"content");
}

/// A node's handle is the same each time, and distinct from all others.
pub fn handles_tell_nodes_apart(test: &TestContext) {
    needs!(test.caps.handles > Support::None, "handles");
    let root = test.root();
    let a = ok(root.file("a", b""));
    ok(root.file("b", b""));
    let handles: HashSet<Handle> = [root.clone(), a.clone(), ok(root.lookup("b"))]
        .iter()
        .map(|node| ok(node.handle()))
        .collect();
    assert_eq!(handles.len(), 3);
    assert_eq!(ok(a.handle()), ok(ok(root.lookup("a")).handle()));
}

/// A handle remains valid when its node is renamed.
pub fn a_handle_follows_renames(test: &TestContext) {
    needs!(test.caps.handles > Support::None, "handles");
    let root = test.root();
    let dir = ok(root.mkdir("dir", 0o755));
    let file = ok(root.file("file", b""));
    let handle = ok(file.handle());
    ok(root.rename("file", &dir, "moved"));
    assert_eq!(ok(test.resolve(&handle)).id(), file.id());
    ok(root.rename("dir", &root, "elsewhere"));
    assert_eq!(ok(test.resolve(&handle)).id(), file.id());
}

/// A handle of a removed node is stale, also once the name is reused.
pub fn a_handle_of_nothing_is_estale(test: &TestContext) {
    needs!(test.caps.handles > Support::None, "handles");
    let root = test.root();
    let file = ok(root.file("file", b""));
    let handle = ok(file.handle());
    drop(file);
    ok(root.unlink("file"));
    refused(test.resolve(&handle), Errno::ESTALE);
    for i in 0..20 {
        ok(root.file(&format!("file-{i}"), b""));
    }
    ok(root.file("file", b""));
    refused(test.resolve(&handle), Errno::ESTALE);
}

/// A forged handle is refused.
pub fn a_forged_handle_is_estale(test: &TestContext) {
    needs!(test.caps.handles > Support::None, "handles");
    let handle = ok(ok(test.root().file("file", b"")).handle());
    let bytes = handle.bytes();
    let mut changed = bytes.to_vec();
    for byte in &mut changed {
        *byte ^= 0x5a;
    }
    for forged in [
        &b""[..],
        b"x",
        &[0; Handle::MAX],
        &[0xff; Handle::MAX],
        &bytes[..bytes.len() - 1],
        &changed,
    ] {
        refused(test.resolve(&ok(Handle::new(forged))), Errno::ESTALE);
    }
}
