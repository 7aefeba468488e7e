//! Opens an image: from a reference to the bytes of one EROFS image.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use image::{DerivedImage, DiskCacheEntry, DiskCacheOptions, Hash, LazyName, RangeSource};
use objects::Tuning;
use pack::oci::{Config, Descriptor, LayerFormat, Manifest, Platform};

use crate::Url;
use crate::blob::{blob, small_blob};
use crate::client::{Repository, invalid};
use crate::convert::{Merged, convert, convert_into, fetch_whole, fetch_whole_into};
use crate::cosign;
use crate::credentials;

/// The bytes of an EROFS image.
pub struct Image {
    /// The bytes, through the disk cache if the URL has one.
    pub source: Arc<dyn RangeSource>,
    /// The root that the hashes of the image must have, according to the manifest.
    pub root: Option<Hash>,
}

/// The environment of an image that is opened.
#[derive(Clone, Debug)]
pub struct Options {
    /// Retry limits and timeouts.
    pub tuning: Tuning,
    /// Docker's `config.json` with credentials, if there is one.
    pub docker_config: Option<PathBuf>,
}

impl Default for Options {
    /// Returns the usual timeouts, and the credentials of the user who runs this program.
    fn default() -> Options {
        Options {
            tuning: Tuning::default(),
            docker_config: credentials::default_file(),
        }
    }
}

/// An image for a local file that is filled when it is read.
pub enum LazyImage {
    /// A layer, read in ranges, with the name of its file, and the root that its hashes must have.
    Layer(Arc<dyn RangeSource>, LazyName, Option<Hash>),
    /// A file that has the whole image.
    Whole(DerivedImage),
}

/// The layers of an image, and how they are read.
enum Layers {
    /// One EROFS image, in ranges.
    Ranges(Descriptor),
    /// One EROFS image, as a whole: only its digest verifies it.
    Whole(Descriptor),
    /// Layers that are converted into one image.
    Converted(Vec<Descriptor>, Merged),
}

/// Opens the image that `url` names, or one layer of it. A single EROFS layer is read in ranges, or
/// downloaded if nothing else verifies it against a digest in the URL; other layers are converted
/// into one image. One layer alone keeps its whiteouts, as the marks of overlayfs.
pub fn open(url: &Url, options: &Options) -> io::Result<Image> {
    let repository = Arc::new(Repository::new(url, options)?);
    match layers(url, &repository)? {
        Layers::Ranges(layer) => ranges(url, &repository, &layer),
        Layers::Whole(layer) => Ok(Image {
            source: fetch_whole(&repository, &layer, url.image().disk_cache())?,
            root: None,
        }),
        Layers::Converted(layers, merged) => Ok(Image {
            source: convert(&repository, &layers, merged, url.image().disk_cache())?,
            root: None,
        }),
    }
}

/// Opens the image that `url` names, as [`open`] does, for a local file in `cache`.
pub fn open_lazy(url: &Url, options: &Options, cache: &DiskCacheOptions) -> io::Result<LazyImage> {
    let repository = Arc::new(Repository::new(url, options)?);
    match layers(url, &repository)? {
        Layers::Ranges(layer) => {
            let name = LazyName {
                location: cache_name(url, &repository, &layer),
                identity: layer.digest.to_string().into(),
            };
            let object = Arc::new(blob(&repository, &layer));
            Ok(LazyImage::Layer(object, name, layer.root))
        }
        Layers::Whole(layer) => {
            let whole = fetch_whole_into(cache, &repository, &layer)?;
            Ok(LazyImage::Whole(whole))
        }
        Layers::Converted(layers, merged) => {
            let converted = convert_into(cache, &repository, &layers, merged)?;
            Ok(LazyImage::Whole(converted))
        }
    }
}

/// Returns `url` with the digest of what it names at present: all uses of it are of one image.
pub fn resolve(url: &Url, options: &Options) -> io::Result<Url> {
    let mut url = url.clone();
    if url.reference().digest().is_none() {
        let (digest, _) = Repository::new(&url, options)?.named_document()?;
        url.set_digest(digest);
    }
    Ok(url)
}

/// Returns the manifest of the image that `url` names, with the signature that `url` requires.
fn manifest(url: &Url, repository: &Arc<Repository>) -> io::Result<Manifest> {
    let (digest, document) = repository.named_document()?;
    if !url.cosign_keys().is_empty() {
        cosign::verify(repository, &digest, url.cosign_keys())?;
    }
    repository.manifest(document, &Platform::host())
}

/// Returns the layers of the image that `url` names.
fn layers(url: &Url, repository: &Arc<Repository>) -> io::Result<Layers> {
    let manifest = manifest(url, repository)?;
    let layers = match url.layer() {
        None => manifest.layers,
        Some(digest) => {
            let mut layers = manifest.layers.into_iter();
            let layer = layers.find(|layer| layer.digest == *digest);
            let missing = || {
                let line = format!("the image has no layer {digest}");
                io::Error::new(io::ErrorKind::NotFound, line)
            };
            vec![layer.ok_or_else(missing)?]
        }
    };
    let formats = layers.iter().map(Descriptor::layer_format);
    let formats: Vec<_> = formats.collect::<pack::Result<_>>().map_err(invalid)?;
    // Whether a digest vouches for the manifest, and so for layers.
    let is_pinned = url.reference().digest().is_some() || !url.cosign_keys().is_empty();
    match &layers[..] {
        [] => Err(invalid("expected an image with layers, got one without")),
        [layer] if formats == [LayerFormat::Erofs] => {
            let is_signed = !url.image().keys().is_empty();
            if is_signed && !url.cosign_keys().is_empty() && layer.root.is_none() {
                return Err(invalid(
                    "expected the root of the image's hashes in the manifest, got none: the \
                     signature of the manifest does not cover the signed image",
                ));
            }
            if layer.root.is_some() || is_signed {
                return Ok(Layers::Ranges(layer.clone()));
            }
            if is_pinned || url.layer().is_some() {
                return Ok(Layers::Whole(layer.clone()));
            }
            tracing::info!(
                "{url}: the manifest has no root of the image's hashes: the connection alone \
                 protects the image"
            );
            Ok(Layers::Ranges(layer.clone()))
        }
        _ if !url.image().keys().is_empty() => Err(invalid(
            "expected one signed EROFS layer, got layers to convert, which have no signature",
        )),
        _ => {
            let merged = match url.layer() {
                Some(_) => Merged::Alone,
                None => Merged::Image,
            };
            Ok(Layers::Converted(layers, merged))
        }
    }
}

/// Returns the name of a layer in the disk cache. A root verifies the bytes of any registry that
/// has the same root for the digest. Other bytes are shared only by connections to the same
/// registry with the same protection, and by those of tenants not at all, unless the image is
/// signed.
fn cache_name(url: &Url, repository: &Repository, layer: &Descriptor) -> String {
    let digest = &layer.digest;
    match &layer.root {
        Some(root) => format!("layer {digest} root {}", hex::encode(root)),
        None => {
            let (host, protection) = (url.reference().host(), repository.protection());
            let name = format!("layer {digest} {host} {protection:?}");
            match repository.tenant() {
                Some(tenant) if url.image().keys().is_empty() => {
                    format!("{name} tenant {}", tenant.escape_default())
                }
                _ => name,
            }
        }
    }
}

/// Opens a layer that is read in ranges, through the disk cache if the URL has one.
fn ranges(url: &Url, repository: &Arc<Repository>, layer: &Descriptor) -> io::Result<Image> {
    let object = Arc::new(blob(repository, layer));
    let digest = layer.digest.to_string();
    let source: Arc<dyn RangeSource> = match url.image().disk_cache() {
        None => object,
        Some(options) => match DiskCacheEntry::open(options, &cache_name(url, repository, layer)) {
            Ok(entry) => entry.over_if_free(object, digest.as_bytes(), &url.to_string())?,
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                tracing::warn!("{url}: no disk cache, because another process opens it");
                object
            }
            Err(error) => return Err(error),
        },
    };
    Ok(Image {
        source,
        root: layer.root,
    })
}

/// Returns the configuration of the image that `url` names, if it has one, verified against its
/// digest.
pub fn config(url: &Url, options: &Options) -> io::Result<Option<Config>> {
    let repository = Arc::new(Repository::new(url, options)?);
    let Some(descriptor) = manifest(url, &repository)?.config else {
        return Ok(None);
    };
    let text = small_blob(&repository, &descriptor, "a configuration")?;
    Config::parse(&text).map(Some).map_err(invalid)
}

#[cfg(test)]
mod tests {
    use pack::oci::Digest;

    use super::*;

    #[test]
    fn the_disk_cache_tells_connections_of_other_protection_apart() {
        let dir = tempfile::tempdir().expect("a directory");
        let mirrors = |name: &str, text: &str| {
            let dir = dir.path().join(name);
            std::fs::create_dir_all(dir.join("_default")).expect("created");
            std::fs::write(dir.join("_default/hosts.toml"), text).expect("written");
            format!("hosts_dir={}", dir.display())
        };
        let skipping = mirrors("skipping", "[host.'https://m']\nskip_verify = true");
        let plain = mirrors("plain", "[host.'http://m']");
        let resolving = "[host.'http://m']\ncapabilities = ['resolve']";
        let resolving = mirrors("resolving", resolving);
        let layer = Descriptor {
            media_type: String::new(),
            digest: Digest::sha256(b"layer"),
            size: 5,
            root: None,
            platform: None,
        };
        let name = |query: &str, layer: &Descriptor| {
            let url: Url = format!("oci://h/r?{query}").parse().expect("a URL");
            let options = Options {
                docker_config: None,
                ..Options::default()
            };
            let repository = Repository::new(&url, &options).expect("a repository");
            cache_name(&url, &repository, layer)
        };
        let of = |query: &str| name(query, &layer);
        let verified = of("hosts_dir=/none");
        assert_eq!(of("hosts_dir=/none&plain_http=true"), of(&plain));
        assert_eq!(verified, of(&resolving));
        assert_ne!(verified, of(&plain));
        assert_ne!(verified, of(&skipping));
        assert_ne!(of(&plain), of(&skipping));
        // The data of tenants are apart, unless a signature fixes them.
        let of_tenant = |tenant: &str, query: &str, keys: &[PathBuf]| {
            let mut url: Url = format!("oci://h/r?{query}").parse().expect("a URL");
            url.image_mut().require_signature(keys);
            let options = Options {
                docker_config: None,
                ..Options::default()
            };
            let tenant = Some(tenant.to_owned());
            let repository = Repository::of(&url, &options, tenant).expect("a repository");
            cache_name(&url, &repository, &layer)
        };
        let (none, keys) = ("hosts_dir=/none", [PathBuf::from("key.pem")]);
        assert_ne!(of_tenant("a", none, &[]), of_tenant("b", none, &[]));
        assert_ne!(of_tenant("a", none, &[]), verified);
        assert_eq!(of_tenant("a", none, &keys), verified);
        // The root verifies all bytes, from wherever they come.
        let rooted = |root| Descriptor {
            root: Some(root),
            ..layer.clone()
        };
        let (one, other) = (rooted([1; 32]), rooted([2; 32]));
        assert_eq!(name("hosts_dir=/none", &one), name(&plain, &one));
        assert_ne!(name(&plain, &one), name(&plain, &other));
    }
}
