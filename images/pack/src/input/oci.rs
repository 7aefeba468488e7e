//! OCI image layouts (image-spec, `image-layout.md`): the stacked layers of one image.
//!
//! `.wh.NAME` removes NAME of the lower layers, `.wh..wh..opq` all entries of its directory in
//! them; neither affects entries of its own layer. Every blob is verified against its digest.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::decompress::decompress;
use super::tar::{Member, add, find, implicit_attributes, members};
use crate::error::{Error, Result};
use crate::plan::{Kind, Plan};

/// Maximum size in bytes of an index or manifest, as accepted by registries.
const MAX_JSON: u64 = 4 << 20;

/// Prefix of a whiteout's name.
const WHITEOUT: &[u8] = b".wh.";

/// The name that hides the lower entries of a directory.
const OPAQUE: &[u8] = b".wh..wh..opq";

/// Returns the tree of the image in the layout at `dir`: the only one, or the one for this
/// architecture. `scratch` creates unnamed files for decompressed layers.
pub fn oci_layout(dir: &Path, scratch: impl Fn() -> io::Result<File>) -> Result<Plan> {
    let index = read_json(File::open(dir.join("index.json")), "index.json")?;
    let manifest = manifest(dir, index)?;
    let layers = manifest["layers"].as_array();
    let layers = layers.ok_or_else(|| Error::new("the manifest has no layers"))?;
    let mut plan = Plan::new(implicit_attributes());
    for layer in layers {
        let digest = digest(layer)?;
        let failed = |error: io::Error| Error::new(format!("layer {digest}: {error}"));
        let layer = decompress(blob(dir, digest)?, &scratch).map_err(failed)?;
        apply_layer(&mut plan, members(layer)?)?;
    }
    Ok(plan)
}

/// Resolves an index, possibly through nested ones, to a manifest.
fn manifest(dir: &Path, mut index: Value) -> Result<Value> {
    // In practice indexes are nested at most once.
    for _ in 0..4 {
        let Some(entries) = index["manifests"].as_array() else {
            return Ok(index);
        };
        let digest = digest(select_manifest(entries)?)?;
        index = read_json(Ok(blob(dir, digest)?), digest)?;
    }
    Err(Error::new("image indexes without a manifest"))
}

fn select_manifest(entries: &[Value]) -> Result<&Value> {
    if let [only] = entries {
        return Ok(only);
    }
    // The architecture's name in Go.
    let machine = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let fits = |entry: &&Value| {
        let platform = &entry["platform"];
        platform["os"] == "linux" && platform["architecture"] == machine
    };
    let mut fitting = entries.iter().filter(fits);
    match (fitting.next(), fitting.next()) {
        (Some(one), None) => Ok(one),
        (None, _) => Err(Error::new(format!(
            "expected an image for linux/{machine}, got {} others",
            entries.len()
        ))),
        _ => Err(Error::new(format!(
            "expected one image for linux/{machine}, got several"
        ))),
    }
}

fn digest(descriptor: &Value) -> Result<&str> {
    let digest = descriptor["digest"].as_str();
    digest.ok_or_else(|| Error::new("a descriptor without a digest"))
}

/// Opens a blob and verifies its digest.
fn blob(dir: &Path, digest: &str) -> Result<File> {
    let hex = digest.strip_prefix("sha256:").filter(|hex| {
        let digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        hex.len() == 64 && hex.bytes().all(digit)
    });
    let hex = hex.ok_or_else(|| Error::new(format!("expected a sha256 digest, got '{digest}'")))?;
    let path: PathBuf = dir.join("blobs/sha256").join(hex);
    let failed = |error: io::Error| Error::new(format!("{}: {error}", path.display()));
    let mut file = File::open(&path).map_err(failed)?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer).map_err(failed)? {
            0 => break,
            read => hasher.update(&buffer[..read]),
        }
    }
    let found: String = hasher
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    if found != hex {
        return Err(Error::new(format!("{}: digest mismatch", path.display())));
    }
    file.seek(SeekFrom::Start(0)).map_err(failed)?;
    Ok(file)
}

fn read_json(file: io::Result<File>, shown: &str) -> Result<Value> {
    let failed = |error: io::Error| Error::new(format!("{shown}: {error}"));
    let mut text = Vec::new();
    let file = file.map_err(failed)?;
    file.take(MAX_JSON).read_to_end(&mut text).map_err(failed)?;
    serde_json::from_slice(&text).map_err(|error| Error::new(format!("{shown}: {error}")))
}

/// Applies a layer: first its whiteouts, then its entries.
fn apply_layer(plan: &mut Plan, members: Vec<Member>) -> Result<()> {
    let is_whiteout = |member: &Member| {
        let name = member.path.last();
        name.is_some_and(|name| name.starts_with(WHITEOUT))
    };
    let (whiteouts, members): (Vec<_>, Vec<_>) = members.into_iter().partition(is_whiteout);
    for whiteout in whiteouts {
        let Some((name, above)) = whiteout.path.split_last() else {
            continue;
        };
        let dir = find(plan, above).filter(|&dir| matches!(plan.kind(dir), Kind::Directory(_)));
        let Some(dir) = dir else { continue };
        match &name[..] {
            OPAQUE => plan.clear(dir),
            name => plan.remove(dir, &name[WHITEOUT.len()..]),
        }
    }
    members.into_iter().try_for_each(|member| add(plan, member))
}
