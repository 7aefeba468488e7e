//! Conversion of layers into one EROFS image: of tar archives, and of several EROFS images.
//!
//! The layers are downloaded to unnamed files, verified and decompressed one after the other, then
//! merged with their whiteouts. So the disk holds them all, and the image, for a while. A single
//! layer keeps its whiteouts, as the marks of overlayfs, for a mount over others.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::Arc;

use image::{DerivedImage, DiskCacheOptions, FileRanges, Hash, ImageFs, RangeSource, Trust};
use pack::oci::{Descriptor, LayerFormat};
use pack::{Output, Plan, TreeLimit, input};
use vfs::{AttrMask, Call, Caller, Cx, Entry, FileSystem};

use crate::blob::blob;
use crate::client::{Repository, invalid};

/// Bytes per read of a download: a few concurrent requests.
const READ_SIZE: u64 = 8 << 20;

/// Maximum size in bytes of the tree in memory, without contents: millions of files.
const MAX_TREE: u64 = 2 << 30;

/// Maximum size of all files, holes included, as a multiple of the limit of their data.
const MAX_SPARSENESS: u64 = 16;

/// Size in bytes of the cache of an EROFS layer while it is read once.
const LAYER_CACHE: u64 = 2 << 20;

/// The converter's version. Images of another version are converted again.
const CONVERTER: &str = concat!("converted by barge ", env!("CARGO_PKG_VERSION"), ", 1");

/// The use of converted layers, which decides about whiteouts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Merged {
    /// The layers are a whole image: whiteouts are applied.
    Image,
    /// The layer is for a mount over others: whiteouts stay, as marks of overlayfs.
    Alone,
}

/// Returns the image of `layers`, the lowest first: from the disk cache if it has one, or else in a
/// temporary file. The layers, and what they decompress to, may be as large as the disk cache.
pub(crate) fn convert(
    repository: &Arc<Repository>,
    layers: &[Descriptor],
    merged: Merged,
    disk_cache: Option<&DiskCacheOptions>,
) -> io::Result<Arc<dyn RangeSource>> {
    if let Some(options) = disk_cache {
        return Ok(Arc::new(convert_into(options, repository, layers, merged)?));
    }
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("image");
    write_image(repository, layers, merged, DiskCacheOptions::SIZE, &path)?;
    // The directory is removed with the name of the file.
    Ok(Arc::new(FileRanges::open(&path)?))
}

/// Returns the image of `layers`, as [`convert`] does, from the disk cache.
pub(crate) fn convert_into(
    options: &DiskCacheOptions,
    repository: &Arc<Repository>,
    layers: &[Descriptor],
    merged: Merged,
) -> io::Result<DerivedImage> {
    let digests: Vec<_> = layers
        .iter()
        .map(|layer| layer.digest.to_string())
        .collect();
    let name = format!("layers, {merged:?}: {}", digests.join(" "));
    DerivedImage::open(options, &name, CONVERTER.as_bytes(), |path| {
        write_image(repository, layers, merged, options.limit(), path)
    })
}

/// Returns the EROFS image `layer` as a whole, verified against its digest: from the disk cache if
/// it has one, or else in a temporary file. It may be as large as the disk cache.
pub(crate) fn fetch_whole(
    repository: &Arc<Repository>,
    layer: &Descriptor,
    disk_cache: Option<&DiskCacheOptions>,
) -> io::Result<Arc<dyn RangeSource>> {
    if let Some(options) = disk_cache {
        return Ok(Arc::new(fetch_whole_into(options, repository, layer)?));
    }
    check_sizes(std::slice::from_ref(layer), DiskCacheOptions::SIZE)?;
    let file = download(repository, layer, tempfile::tempfile()?)?;
    Ok(Arc::new(FileRanges::new(file)?))
}

/// Returns the EROFS image `layer`, as [`fetch_whole`] does, from the disk cache.
pub(crate) fn fetch_whole_into(
    options: &DiskCacheOptions,
    repository: &Arc<Repository>,
    layer: &Descriptor,
) -> io::Result<DerivedImage> {
    check_sizes(std::slice::from_ref(layer), options.limit())?;
    let name = format!("whole layer: {}", layer.digest);
    DerivedImage::open(options, &name, b"verified", |path| {
        tracing::info!("{}: downloading layer {}", repository.name(), layer.digest);
        let dir = path.parent().unwrap_or(Path::new("."));
        let file = tempfile::Builder::new()
            .prefix(DerivedImage::TEMPORARY)
            .tempfile_in(dir)?;
        download(repository, layer, file.as_file().try_clone()?)?.sync_all()?;
        file.persist(path).map_err(|error| error.error)?;
        Ok(())
    })
}

/// Returns an error if the layers together are larger than `limit`.
fn check_sizes(layers: &[Descriptor], limit: u64) -> io::Result<()> {
    let sizes = layers
        .iter()
        .try_fold(0_u64, |sum, layer| sum.checked_add(layer.size));
    if sizes.is_none_or(|bytes| bytes > limit) {
        let line = format!("expected layers of at most {limit} bytes, the size of the disk cache");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, line));
    }
    Ok(())
}

/// Writes the image of `layers` to `path`.
fn write_image(
    repository: &Arc<Repository>,
    layers: &[Descriptor],
    merged: Merged,
    limit: u64,
    path: &Path,
) -> io::Result<()> {
    check_sizes(layers, limit)?;
    tracing::info!("{}: converting layers: {}", repository.name(), layers.len());
    let mut output = Output::to_file(path)?.with_limit(limit);
    let mut remaining = limit;
    let memory = TreeLimit::new(MAX_TREE);
    let mut opened = layers.iter().map(|layer| {
        let scratch = || output.temp_file();
        let mut open = || -> io::Result<input::Layer> {
            let format = layer.layer_format().map_err(invalid)?;
            let file = download(repository, layer, scratch()?)?;
            let file = match format {
                LayerFormat::Tar => input::decompress(file, scratch, remaining)?,
                LayerFormat::ErofsZstd => input::decompress_zstd(file, scratch, remaining)?,
                LayerFormat::Erofs => file,
            };
            remaining = remaining.saturating_sub(file.metadata()?.len());
            match format {
                LayerFormat::Tar => Ok(input::Layer::Archive(file)),
                _ => tree(file, layer.root, &memory).map(input::Layer::Tree),
            }
        };
        open().map_err(|error| pack::Error::from(error).of(format_args!("layer {}", layer.digest)))
    });
    let plan = match (layers.len(), merged) {
        (1, Merged::Alone) => match opened.next().expect("one")? {
            input::Layer::Archive(file) => input::single_layer(file, &memory),
            input::Layer::Tree(plan) => Ok(plan),
        },
        _ => input::merge_layers(&mut opened, &memory),
    };
    drop(opened);
    let plan = plan?;
    // Holes take no space, but their maps take memory.
    let visits = plan.walk()?;
    if plan.contents_size(&visits) > limit.saturating_mul(MAX_SPARSENESS) {
        let line = "expected files of a size that is similar to that of their layers";
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, line));
    }
    let options = pack::erofs::Options {
        threads: std::thread::available_parallelism().map_or(1, usize::from),
        ..Default::default()
    };
    pack::erofs::write(&plan, &options, &mut output, &())?;
    output.finish()?;
    Ok(())
}

/// Returns the tree of the EROFS image in `file`, whose hashes have the root `root` if it is given.
fn tree(file: File, root: Option<Hash>, limit: &TreeLimit) -> io::Result<Plan> {
    let trust = root.map_or(Trust::Hashes, |root| Trust::Root(root, Vec::new()));
    let source = Arc::new(FileRanges::new(file)?);
    let fs = ImageFs::from_devices(vec![source], LAYER_CACHE, &trust).map_err(invalid)?;
    let (caller, call) = (Caller::new(0, 0), Call::detached());
    let cx = Cx::new(&caller, &call);
    let node = fs.root(&cx)?;
    let attr = node.attr(&cx, AttrMask::STAT)?;
    let root = Entry { node, attr };
    Ok(input::file_system(
        Arc::new(fs),
        Arc::new(caller.clone()),
        root,
        limit,
    )?)
}

/// Writes a blob to `file`. Returns an error unless it has its digest.
pub(crate) fn download(
    repository: &Arc<Repository>,
    descriptor: &Descriptor,
    mut file: File,
) -> io::Result<File> {
    let object = blob(repository, descriptor);
    let mut hasher = descriptor.digest.algorithm().hasher();
    let mut buffer = vec![0; READ_SIZE.min(object.len()) as usize];
    let mut at = 0;
    while at < object.len() {
        let part = &mut buffer[..READ_SIZE.min(object.len() - at) as usize];
        object.read_at(at, part)?;
        hasher.update(part);
        file.write_all(part)?;
        at += part.len() as u64;
    }
    let got = hasher.finish();
    if got != descriptor.digest {
        let expected = &descriptor.digest;
        return Err(invalid(format_args!(
            "expected a blob with the digest {expected}, got {got}"
        )));
    }
    file.seek(SeekFrom::Start(0))?;
    Ok(file)
}
