//! The memory use of live nodes. In a process of its own, so that only they count.

use std::sync::Arc;

use hostdir::{HostDir, Identity, Options};
use vfs::{Call, Caller, Cx, FileSystem, Name, Node};

/// A million live nodes have to fit into 200 MiB, with the rest of a program.
const BYTES_A_NODE: usize = 150;

#[test]
fn a_node_takes_few_bytes() {
    const NODES: usize = 100_000;
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: without kernel handles nodes keep their names");
    }
    let dir = tempfile::tempdir_in("/dev/shm").expect("tmpfs");
    for n in 0..NODES {
        std::fs::write(dir.path().join(n.to_string()), "").expect("writes");
    }
    let options = Options {
        identity: Identity::Fixed,
        descriptors: Some(256),
        ..Options::default()
    };
    let fs = HostDir::open(dir.path(), options).expect("exports");
    let call = Call::detached();
    let cx = Cx::new(&Caller::ROOT, &call);
    let root = fs.root(&cx).expect("a root");
    let mut nodes: Vec<Arc<dyn Node>> = Vec::with_capacity(NODES);
    let before = resident();
    for n in 0..NODES {
        let name = n.to_string();
        let name = Name::new(name.as_bytes()).expect("a name");
        nodes.push(root.lookup(&cx, name).expect("there").node);
    }
    // The list's own 16 bytes per node are touched only now.
    let each = (resident() - before) / NODES - 16;
    eprintln!("{each} bytes a node");
    assert!(each < BYTES_A_NODE, "{each} bytes a node");
    assert!(fs.open_descriptors() <= 256);
}

/// Returns the resident memory of this process in bytes.
fn resident() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").expect("proc");
    let pages = pages
        .split(' ')
        .nth(1)
        .and_then(|n| n.parse::<usize>().ok());
    pages.expect("a number") * rustix::param::page_size()
}
