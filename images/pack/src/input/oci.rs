//! OCI image layouts (image-spec, `image-layout.md`): the stacked layers of one image.
//!
//! `.wh.NAME` removes NAME of the lower layers, `.wh..wh..opq` all entries of its directory in
//! them; neither affects entries of its own layer. Every blob is verified against its digest.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use vfs::Name;

use super::decompress::decompress;
use super::overlay;
use super::tar::{Member, MemberContent, add, archive_limit, find, implicit_attributes, members};
use crate::TreeLimit;
use crate::error::{Error, Result};
use crate::oci::{
    Config, Descriptor, Digest, Document, MAX_DOCUMENT, MAX_NESTING, Manifest, Platform,
};
use crate::plan::{Kind, Plan};

/// Prefix of a whiteout's name.
const WHITEOUT: &[u8] = b".wh.";

/// The name that hides the lower entries of a directory.
const OPAQUE: &[u8] = b".wh..wh..opq";

/// Prefix of the names of AUFS itself, such as `.wh..wh.plnk`, which hide nothing.
const AUFS: &[u8] = b".wh..wh.";

/// The image in a layout: the only one, or the one for this architecture.
pub struct OciLayout {
    dir: PathBuf,
    manifest: Manifest,
}

impl OciLayout {
    /// Finds the image in the layout at `dir`. A later change of the index has no effect on it.
    pub fn open(dir: &Path) -> Result<OciLayout> {
        Ok(OciLayout {
            dir: dir.into(),
            manifest: manifest(dir)?,
        })
    }

    /// Returns the tree of the image. `scratch` creates unnamed files for decompressed layers.
    pub fn tree(&self, scratch: impl Fn() -> io::Result<File>) -> Result<Plan> {
        let (mut layers, mut size) = (Vec::new(), 0_u64);
        for Descriptor { digest, .. } in &self.manifest.layers {
            let failed = |error: io::Error| Error::from(error).of(format_args!("layer {digest}"));
            let archive = decompress(blob(&self.dir, digest)?, &scratch, u64::MAX);
            let archive = archive.map_err(failed)?;
            size = size.saturating_add(archive.metadata().map_err(failed)?.len());
            layers.push(Ok(Layer::Archive(archive)));
        }
        merge_layers(layers, &archive_limit(size))
    }

    /// Returns the configuration of the image, if it has one.
    pub fn config(&self) -> Result<Option<Config>> {
        let Some(Descriptor { digest, .. }) = &self.manifest.config else {
            return Ok(None);
        };
        let mut text = Vec::new();
        blob(&self.dir, digest)?
            .take(MAX_DOCUMENT + 1)
            .read_to_end(&mut text)
            .map_err(|error| Error::from(error).of(digest))?;
        let config = Config::parse(&text).map_err(|error| error.of(digest))?;
        Ok(Some(config))
    }
}

/// A layer of an image.
pub enum Layer {
    /// An uncompressed archive.
    Archive(File),
    /// A tree with the marks of overlayfs.
    Tree(Plan),
}

/// Returns the tree of an image from its layers, the lowest first. Archives are within `limit`.
pub fn merge_layers(
    layers: impl IntoIterator<Item = Result<Layer>>,
    limit: &TreeLimit,
) -> Result<Plan> {
    let mut plan = Plan::new(implicit_attributes());
    for layer in layers {
        match layer? {
            Layer::Archive(archive) => apply_layer(&mut plan, members(archive, limit)?, limit)?,
            Layer::Tree(tree) => overlay::stack(&mut plan, &tree)?,
        }
    }
    Ok(plan)
}

/// Returns the tree of one layer, from its uncompressed archive, with the marks of overlayfs in
/// place of whiteouts. It is within `limit`.
pub fn single_layer(archive: File, limit: &TreeLimit) -> Result<Plan> {
    let (whiteouts, members) = split_whiteouts(members(archive, limit)?)?;
    let mut plan = Plan::new(implicit_attributes());
    members
        .into_iter()
        .try_for_each(|member| add(&mut plan, member, limit))?;
    for Whiteout { dir, name } in whiteouts {
        let Some(name) = name else {
            if find(&plan, &dir).is_none() {
                let path = dir.clone();
                add(
                    &mut plan,
                    Member {
                        path,
                        ..implicit_directory()
                    },
                    limit,
                )?;
            }
            if let Some(node) = find(&plan, &dir) {
                overlay::mark_opaque(&mut plan, node);
            }
            continue;
        };
        // The layer's own entry takes the place of the one that it hides.
        let path = [dir, vec![name]].concat();
        match find(&plan, &path) {
            Some(node) => overlay::mark_opaque(&mut plan, node),
            None => add(
                &mut plan,
                Member {
                    path,
                    ..overlay::whiteout()
                },
                limit,
            )?,
        }
    }
    Ok(plan)
}

fn implicit_directory() -> Member {
    Member {
        path: Vec::new(),
        attributes: implicit_attributes(),
        content: MemberContent::Node(Kind::empty_directory()),
    }
}

/// Resolves the index, possibly through nested ones, to a manifest.
fn manifest(dir: &Path) -> Result<Manifest> {
    let parse = |file: io::Result<File>, shown: &str| {
        let mut text = Vec::new();
        let read = file.and_then(|file| file.take(MAX_DOCUMENT + 1).read_to_end(&mut text));
        read.map_err(|error| Error::from(error).of(shown))?;
        Document::parse(&text).map_err(|error| error.of(shown))
    };
    let mut document = parse(File::open(dir.join("index.json")), "index.json")?;
    for _ in 0..=MAX_NESTING {
        match document {
            Document::Manifest(manifest) => return Ok(manifest),
            Document::Index(entries) => {
                let Descriptor { digest, .. } = Platform::host().select(&entries)?;
                document = parse(Ok(blob(dir, digest)?), &digest.to_string())?;
            }
        }
    }
    Err(Error::new("image indexes without a manifest"))
}

/// Opens a blob and verifies its digest.
fn blob(dir: &Path, digest: &Digest) -> Result<File> {
    let path = dir.join(digest.blob_path());
    let failed = |error: io::Error| Error::from(error).of(path.display());
    let mut file = File::open(&path).map_err(failed)?;
    if digest.algorithm().digest_of(&mut file).map_err(failed)? != *digest {
        return Err(Error::new(format!("{}: digest mismatch", path.display())));
    }
    file.seek(SeekFrom::Start(0)).map_err(failed)?;
    Ok(file)
}

/// A mark that hides entries of the lower layers.
struct Whiteout {
    /// The path of the directory.
    dir: Vec<Vec<u8>>,
    /// The name that is hidden, which is valid; all of the directory if absent.
    name: Option<Vec<u8>>,
}

/// Divides the members of a layer into whiteouts and entries, without those of AUFS itself. Returns
/// an error if a whiteout hides what cannot be a name.
fn split_whiteouts(members: Vec<Member>) -> Result<(Vec<Whiteout>, Vec<Member>)> {
    let (mut whiteouts, mut entries) = (Vec::new(), Vec::new());
    for member in members {
        let hidden = member
            .path
            .split_last()
            .and_then(|(name, dir)| Some((name, name.strip_prefix(WHITEOUT)?, dir)));
        let Some((name, hidden, dir)) = hidden else {
            entries.push(member);
            continue;
        };
        let hidden = match &name[..] {
            OPAQUE => None,
            name if name.starts_with(AUFS) => continue,
            _ => {
                let valid = Name::new(hidden).map_err(|_| {
                    let path = member.path.join(&b'/');
                    Error::with_path(&path, "is a whiteout of an invalid name")
                })?;
                Some(valid.bytes().to_vec())
            }
        };
        whiteouts.push(Whiteout {
            dir: dir.to_vec(),
            name: hidden,
        });
    }
    Ok((whiteouts, entries))
}

/// Applies a layer: first its whiteouts, then its entries.
fn apply_layer(plan: &mut Plan, members: Vec<Member>, limit: &TreeLimit) -> Result<()> {
    let (whiteouts, members) = split_whiteouts(members)?;
    for Whiteout { dir, name } in whiteouts {
        let dir = find(plan, &dir).filter(|&dir| matches!(plan.kind(dir), Kind::Directory(_)));
        let Some(dir) = dir else { continue };
        match name {
            None => plan.clear(dir),
            Some(name) => plan.remove(dir, &name),
        }
    }
    (members.into_iter()).try_for_each(|member| add(plan, member, limit))
}
