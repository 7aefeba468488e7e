//! Images in registries that demand credentials, redirect, lie and fail.

mod authorization;
mod contents;
mod cosign;
mod faults;
mod server;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use image::{Hash, ImageFs, Piece, RangeSource, Trust};
use objects::Tuning;
use pack::{Attributes, Kind, NodeId, Output, Plan};
use registry::{Image, Options, Url};

use crate::server::Server;

const EROFS: &str = pack::oci::EROFS_LAYER;
const TAR: &str = "application/vnd.oci.image.layer.v1.tar";

/// Returns the default configuration with short pauses, and without credentials.
fn options() -> Options {
    Options {
        tuning: Tuning {
            attempts: 4,
            initial_backoff: Duration::from_millis(2),
            max_backoff: Duration::from_millis(10),
            request_timeout: Duration::from_secs(5),
            ..Tuning::default()
        },
        docker_config: None,
    }
}

/// Opens the image `dir/image` of `server`, with `rest` after that.
fn open_with(server: &Server, rest: &str, options: &Options) -> io::Result<Image> {
    // Hosts of this machine's containerd are not for tests.
    let (rest, query) = rest.split_once('?').unwrap_or((rest, "hosts_dir=/none"));
    let url = format!("oci://{}/dir/image{rest}?{query}", server.host());
    let url: Url = url.parse().expect("a URL");
    registry::open(&url, options)
}

fn open(server: &Server, rest: &str) -> io::Result<Image> {
    open_with(server, rest, &options())
}

/// Returns the message of an image that cannot be opened.
fn error(opened: io::Result<Image>) -> io::Error {
    opened.err().expect("not opened")
}

/// Returns all bytes.
fn read(source: &dyn RangeSource) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; source.len() as usize];
    source.read(&mut [Piece {
        offset: 0,
        buffer: &mut bytes,
    }])?;
    Ok(bytes)
}

/// Returns an EROFS image with one file, and the root of its hashes.
fn erofs(dir: &Path, contents: &[u8]) -> (Vec<u8>, Hash) {
    let mut plan = Plan::new(Attributes::default());
    plan.add(
        NodeId::ROOT,
        b"file",
        Attributes::default(),
        Kind::file(contents),
    );
    let path: PathBuf = dir.join("image");
    let mut output = Output::to_file(&path).expect("created").with_hashes();
    pack::erofs::write(&plan, &Default::default(), &mut output, &()).expect("written");
    let root = output
        .write_sidecar(&[], None)
        .expect("written")
        .expect("hashes");
    output.finish().expect("finished");
    (std::fs::read(path).expect("read"), root)
}

/// Opens the tree of an image as a program does.
fn tree(image: Image) -> Result<ImageFs, String> {
    let trust = match image.root {
        Some(root) => Trust::Root(root, Vec::new()),
        None => Trust::Hashes,
    };
    let opened = ImageFs::from_devices(vec![image.source], 1 << 20, &trust);
    opened.map_err(|error| error.to_string())
}
