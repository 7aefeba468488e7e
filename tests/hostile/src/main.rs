//! `hostile-server 9p|virtiofs DIR|mem: [DESCRIPTORS]`: serves a tree, prints where, and ends when its input does.

use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;

use hostile::server::{Server, Via, host_dir, tree};
use vfs::FileSystem;

fn main() -> io::Result<()> {
    sys::limits::raise_descriptors();
    let mut args = std::env::args().skip(1);
    let virtiofs = args.next().is_some_and(|protocol| protocol == "virtiofs");
    let source = args.next().unwrap_or_else(|| "mem:".into());
    let descriptors = args.next().and_then(|number| number.parse().ok());
    let fs: Arc<dyn FileSystem> = match source.as_str() {
        "mem:" => tree(),
        dir => host_dir(Path::new(dir), descriptors),
    };
    let server = match virtiofs {
        true => Server::virtiofs(fs),
        false => Server::new(Via::Unix, fs),
    };
    let mut stdout = io::stdout();
    writeln!(stdout, "{}", server.addr)?;
    stdout.flush()?;
    io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
