//! `hostile-server 9p|virtiofs|nfs DIR|mem: [DESCRIPTORS]`: serves a tree, prints the address, and
//! exits at the end of its input. The environment variable `HOSTILE_CONNECTIONS` sets the maximum
//! number of connections per client.

use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;

use hostile::server::{Server, Transport, host_dir, nfs, tree, tuning};
use p9::server::Options;
use vfs::FileSystem;

fn main() -> io::Result<()> {
    sys::limits::limit_heaps();
    sys::limits::raise_descriptors();
    let mut args = std::env::args().skip(1);
    let protocol = args.next();
    let source = args.next().unwrap_or_else(|| "mem:".into());
    let descriptors = args.next().and_then(|number| number.parse().ok());
    let fs: Arc<dyn FileSystem> = match source.as_str() {
        "mem:" => tree(),
        dir => host_dir(Path::new(dir), descriptors),
    };
    let mut tuning = tuning();
    let connections = std::env::var("HOSTILE_CONNECTIONS").ok();
    if let Some(connections) = connections.and_then(|number| number.parse().ok()) {
        tuning.connections = connections;
        tuning.connections_per_client = Some(connections);
    }
    let server = match protocol.as_deref() {
        Some("virtiofs") => Server::virtiofs(fs),
        Some("nfs") => Server::with_service(Transport::Unix, tuning, Arc::new(nfs(fs))),
        _ => Server::with(Transport::Unix, fs, Options::default(), tuning),
    };
    let mut stdout = io::stdout();
    writeln!(stdout, "{}", server.addr)?;
    stdout.flush()?;
    io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
