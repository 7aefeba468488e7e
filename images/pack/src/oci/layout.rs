//! Writer of an image layout (image-spec, `image-layout.md`) with one image of one EROFS layer.
//!
//! The layout is complete at any time: blobs are named when they are whole, and the index is
//! replaced last. Blobs of a replaced image remain.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use humantime::format_rfc3339_seconds;
use serde_json::{Value, json};
use sidecar::{Hash, SecretKey};
use tempfile::{NamedTempFile, TempPath};

use super::cosign::{self, SIGNATURE_DIR};
use super::{Algorithm, Config, Digest, EROFS_LAYER, Platform, ROOT_ANNOTATION};
use crate::permissions;

/// The first second of the year 10000 since the Unix epoch.
const YEAR_10000: u64 = 253_402_300_800;

/// The contents of `oci-layout`.
const MARKER: &str = r#"{"imageLayoutVersion":"1.0.0"}"#;

/// Media types of the specification.
pub(super) const CONFIG_TYPE: &str = "application/vnd.oci.image.config.v1+json";
pub(super) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(super) const INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// A layout to which an image is written.
pub struct Layout {
    dir: PathBuf,
    /// The unfinished layer, with a name of its own: others may write to the layout.
    layer: TempPath,
}

impl Layout {
    /// Creates the layout at `dir`, unless there is one. Returns an error if the directory has
    /// other files.
    pub fn create(dir: &Path) -> io::Result<Layout> {
        let blobs = create_layout(dir)?;
        Ok(Layout {
            dir: dir.into(),
            layer: NamedTempFile::with_prefix_in(".barge-pack-", blobs)?.into_temp_path(),
        })
    }

    /// Returns the path at which the EROFS image is to be written.
    pub fn layer_path(&self) -> &Path {
        &self.layer
    }

    /// Makes the file at [`Layout::layer_path`], whose hashes have the root `root`, the only layer
    /// of the only image, with the configuration `config` apart from its layers. `created` is in
    /// seconds since the Unix epoch. Returns the digest of the manifest.
    ///
    /// With `key`, a signature of the manifest in the format of cosign is another layout, in the
    /// directory [`SIGNATURE_DIR`]: tools that copy the only image of a layout still can.
    pub fn finish(
        self,
        config: Config,
        root: Option<&Hash>,
        created: Option<i64>,
        key: Option<&SecretKey>,
    ) -> io::Result<Digest> {
        let Layout { dir, layer: path } = self;
        let mut file = File::open(&path)?;
        let size = file.metadata()?.len();
        let layer = Algorithm::Sha256.digest_of(&mut file)?;
        path.persist(dir.join(layer.blob_path()))
            .map_err(|error| error.error)?;
        let platform = config.platform().unwrap_or_else(Platform::host);
        let config = config.with_layer(&layer, created.and_then(rfc3339));
        let config = write_document(&dir, CONFIG_TYPE, &config)?;
        let mut layer =
            json!({"mediaType": EROFS_LAYER, "digest": layer.to_string(), "size": size});
        if let Some(root) = root {
            layer["annotations"] = json!({ ROOT_ANNOTATION: hex::encode(root) });
        }
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": config,
            "layers": [layer],
        });
        let text = manifest.to_string();
        let digest = Digest::sha256(text.as_bytes());
        let mut entry = write_document(&dir, MANIFEST, &manifest)?;
        entry["platform"] = json!({"architecture": platform.architecture, "os": platform.os});
        let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry]});
        replace(&dir, &dir.join("index.json"), index.to_string().as_bytes())?;
        let signature = dir.join(SIGNATURE_DIR);
        match key {
            Some(key) => cosign::write(&signature, &digest, key)?,
            // An earlier one is of another image.
            None => cosign::remove(&signature)?,
        }
        Ok(digest)
    }
}

/// Creates a layout without an index at `dir`, unless there is one, and returns the directory of
/// its blobs. Returns an error if the directory has other files.
pub(super) fn create_layout(dir: &Path) -> io::Result<PathBuf> {
    fs::create_dir_all(dir)?;
    if !is_layout(dir) {
        if fs::read_dir(dir)?.next().is_some() {
            let line = "expected an empty directory, or that of an OCI image layout";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, line));
        }
        fs::write(dir.join("oci-layout"), MARKER)?;
    }
    let blobs = dir.join("blobs/sha256");
    fs::create_dir_all(&blobs)?;
    Ok(blobs)
}

/// Returns whether `dir` is a layout.
pub(super) fn is_layout(dir: &Path) -> bool {
    dir.join("oci-layout").is_file()
}

/// Writes a document to the layout at `dir`, and returns its descriptor.
pub(super) fn write_document(dir: &Path, media_type: &str, document: &Value) -> io::Result<Value> {
    write_blob(dir, media_type, document.to_string().as_bytes())
}

/// Writes a blob to the layout at `dir`, and returns its descriptor.
pub(super) fn write_blob(dir: &Path, media_type: &str, bytes: &[u8]) -> io::Result<Value> {
    let digest = Digest::sha256(bytes);
    replace(dir, &dir.join(digest.blob_path()), bytes)?;
    Ok(json!({"mediaType": media_type, "digest": digest.to_string(), "size": bytes.len()}))
}

/// Writes a file, which replaces an existing one when it is complete.
pub(super) fn replace(dir: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = NamedTempFile::with_prefix_in(".barge-pack-", dir)?;
    file.write_all(bytes)?;
    permissions::publish(file.as_file())?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

/// Formats a time in seconds as RFC 3339 requires; nothing before the year 1970 or after 9999.
fn rfc3339(seconds: i64) -> Option<String> {
    let since = Duration::from_secs(seconds.try_into().ok()?);
    let time = UNIX_EPOCH.checked_add(since)?;
    // The crate panics for other years.
    (since.as_secs() < YEAR_10000).then(|| format_rfc3339_seconds(time).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oci::{Document, LayerFormat};

    #[test]
    fn two_images_are_written_to_one_layout_at_once() {
        let dir = tempfile::tempdir().expect("a directory");
        let layouts = [b"first", b"other"].map(|bytes| {
            let layout = Layout::create(dir.path()).expect("created");
            fs::write(layout.layer_path(), bytes).expect("written");
            (layout, bytes)
        });
        for (layout, bytes) in layouts {
            let config = Config::new(&Platform::host());
            layout.finish(config, None, None, None).expect("finished");
            let blob = dir.path().join(Digest::sha256(bytes).blob_path());
            assert_eq!(fs::read(blob).expect("a layer"), bytes);
        }
        // An image that is not finished leaves nothing.
        let blobs = || {
            fs::read_dir(dir.path().join("blobs/sha256"))
                .expect("listed")
                .count()
        };
        let before = blobs();
        drop(Layout::create(dir.path()).expect("created"));
        assert_eq!(blobs(), before);
    }

    #[test]
    fn a_layout_names_its_blobs_by_their_digests() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = dir.path().join("layout");
        let mut digests = Vec::new();
        for bytes in [b"first", b"other"] {
            let layout = Layout::create(&at).expect("created");
            fs::write(layout.layer_path(), bytes).expect("written");
            let config = Config::new(&Platform::host());
            let digest = layout.finish(config, Some(&[7; 32]), Some(0), None);
            digests.push(digest.expect("finished"));
            let index = fs::read(at.join("index.json")).expect("an index");
            let Ok(Document::Index(entries)) = Document::parse(&index) else {
                panic!("no index");
            };
            let [entry] = &entries[..] else {
                panic!("{entries:?}");
            };
            assert_eq!(Some(&entry.digest), digests.last());
            let manifest = fs::read(at.join(entry.digest.blob_path())).expect("a manifest");
            assert!(entry.digest.matches(&manifest) && entry.size == manifest.len() as u64);
            let Ok(Document::Manifest(manifest)) = Document::parse(&manifest) else {
                panic!("no manifest");
            };
            let [layer] = &manifest.layers[..] else {
                panic!("{manifest:?}");
            };
            assert_eq!(layer.layer_format().expect("known"), LayerFormat::Erofs);
            assert_eq!((layer.size, layer.root), (5, Some([7; 32])));
            let stored = fs::read(at.join(layer.digest.blob_path())).expect("a layer");
            assert!(layer.digest.matches(&stored) && stored == bytes);
        }
        assert_ne!(digests[0], digests[1]);
        fs::write(dir.path().join("file"), b"").expect("written");
        assert!(Layout::create(dir.path()).is_err());
    }

    #[test]
    fn times_are_dates() {
        for (seconds, date) in [
            (0, Some("1970-01-01T00:00:00Z")),
            (951_827_696, Some("2000-02-29T12:34:56Z")),
            (1_735_689_599, Some("2024-12-31T23:59:59Z")),
            (253_402_300_799, Some("9999-12-31T23:59:59Z")),
            (253_402_300_800, None),
            (-1, None),
        ] {
            assert_eq!(rfc3339(seconds).as_deref(), date);
        }
    }
}
