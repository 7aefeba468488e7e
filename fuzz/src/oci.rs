//! OCI image layouts: they yield a plan, or an error message.
//!
//! A script is a byte for the kind of layout. Layers of any contents, with digests and checksums
//! that fit, are stacked; or the rest of the input is the index.

use std::fs;
use std::path::Path;

use arbitrary::{Result, Unstructured};
use pack::input::OciLayout;
use sha2::{Digest, Sha256};

use crate::tar::{read, scratch, with_checksums};

/// Maximum number of layers.
const MAX_LAYERS: u8 = 4;

/// Plans a layout.
pub fn layout(data: &[u8]) {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    // The end of the input is the end of the script.
    let _ = create(dir.path(), &mut Unstructured::new(data));
    let layout = OciLayout::open(dir.path());
    if let Ok(plan) = layout.and_then(|layout| layout.tree(|| Ok(scratch()))) {
        read(&plan);
    }
}

fn create(dir: &Path, input: &mut Unstructured<'_>) -> Result<()> {
    let blobs = dir.join("blobs/sha256");
    fs::create_dir_all(&blobs).expect("made");
    let put = |bytes: &[u8]| {
        let digest = hex::encode(Sha256::digest(bytes));
        fs::write(blobs.join(&digest), bytes).expect("written");
        format!("sha256:{digest}")
    };
    let layers = match input.arbitrary::<u8>()? % (MAX_LAYERS + 1) {
        0 => {
            let index = input.bytes(input.len())?;
            fs::write(dir.join("index.json"), index).expect("written");
            return Ok(());
        }
        layers => layers,
    };
    let mut descriptors = Vec::new();
    for _ in 0..layers {
        let len = usize::from(input.arbitrary::<u16>()?).min(input.len());
        let digest = put(&with_checksums(input.bytes(len)?));
        descriptors.push(format!(r#"{{"digest":"{digest}"}}"#));
    }
    let manifest = format!(r#"{{"layers":[{}]}}"#, descriptors.join(","));
    let digest = put(manifest.as_bytes());
    let index = format!(r#"{{"manifests":[{{"digest":"{digest}"}}]}}"#);
    fs::write(dir.join("index.json"), index).expect("written");
    Ok(())
}
