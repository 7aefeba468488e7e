//! Indexes and manifests (image-spec, `image-index.md` and `manifest.md`), and those of Docker's
//! schema 2, which differ in their media types: untrusted input.

use std::fmt;

use serde_json::Value;

use super::{Digest, EROFS_LAYER, ROOT_ANNOTATION};
use crate::error::{Error, Result};

/// Maximum size in bytes of an index or manifest, as accepted by registries.
pub const MAX_DOCUMENT: u64 = 4 << 20;

/// Maximum number of layers: more than any builder makes, as kernels stack at most 500 of them.
pub const MAX_LAYERS: usize = 512;

/// Maximum number of indexes in indexes. In practice they are nested at most once.
pub const MAX_NESTING: usize = 3;

/// A reference to a blob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// The type of the blob; empty if it is not given.
    pub media_type: String,
    /// Its digest.
    pub digest: Digest,
    /// Its size in bytes.
    pub size: u64,
    /// The platform, for an entry of an index.
    pub platform: Option<Platform>,
    /// The root of the hashes of its EROFS image ([`ROOT_ANNOTATION`]).
    pub root: Option<sidecar::Hash>,
}

/// An index or a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Document {
    /// Manifests and indexes, for several platforms.
    Index(Vec<Descriptor>),
    /// One image.
    Manifest(Manifest),
}

/// An image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// The configuration, if there is one.
    pub config: Option<Descriptor>,
    /// The layers, the lowest first.
    pub layers: Vec<Descriptor>,
}

/// The format of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerFormat {
    /// A tar archive, plain or compressed.
    Tar,
    /// An EROFS image.
    Erofs,
    /// An EROFS image that is compressed with zstd as a whole, so that it cannot be read in ranges.
    ErofsZstd,
}

/// An operating system and an architecture, in Go's names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Platform {
    /// Operating system.
    pub os: String,
    /// Architecture.
    pub architecture: String,
}

impl Document {
    /// Parses an index or a manifest. A document that could be read as both is invalid
    /// (CVE-2021-41190).
    pub fn parse(text: &[u8]) -> Result<Document> {
        let value = parse_json(text)?;
        let array = |name: &str| value.get(name).map(|list| (name.to_owned(), list));
        let descriptors = |(name, list): (String, &Value)| {
            let list = list.as_array();
            let list = list.ok_or_else(|| Error::new(format!("'{name}' is not a list")))?;
            list.iter()
                .map(Descriptor::parse)
                .collect::<Result<Vec<_>>>()
        };
        match (array("manifests"), array("layers")) {
            (Some(_), Some(_)) => Err(Error::new("both an index and a manifest")),
            (Some(entries), None) => descriptors(entries).map(Document::Index),
            (None, Some(layers)) => {
                let layers = descriptors(layers)?;
                if layers.len() > MAX_LAYERS {
                    let got = layers.len();
                    let line = format!("expected at most {MAX_LAYERS} layers, got {got}");
                    return Err(Error::new(line));
                }
                let config = match &value["config"] {
                    Value::Null => None,
                    config => Some(Descriptor::parse(config)?),
                };
                Ok(Document::Manifest(Manifest { config, layers }))
            }
            (None, None) => Err(Error::new(
                "expected the manifest or index of an OCI image, got neither layers nor manifests",
            )),
        }
    }
}

/// Parses JSON of at most [`MAX_DOCUMENT`] bytes.
pub(super) fn parse_json(text: &[u8]) -> Result<Value> {
    if text.len() as u64 > MAX_DOCUMENT {
        let line = format!("expected at most {MAX_DOCUMENT} bytes of JSON, got more");
        return Err(Error::new(line));
    }
    serde_json::from_slice(text).map_err(Error::new)
}

impl Descriptor {
    pub(super) fn parse(value: &Value) -> Result<Descriptor> {
        let text = |name: &str| value[name].as_str();
        let digest = text("digest").ok_or_else(|| Error::new("a descriptor without a digest"))?;
        let digest: Digest = digest.parse()?;
        let size = value["size"].as_u64();
        let size =
            size.ok_or_else(|| Error::new(format!("{digest}: a descriptor without a size")))?;
        let root = match &value["annotations"][ROOT_ANNOTATION] {
            Value::Null => None,
            root => {
                let mut hash = sidecar::Hash::default();
                let digits = root.as_str().unwrap_or_default();
                hex::decode_to_slice(digits, &mut hash).map_err(|_| {
                    let expected = "expected 64 hexadecimal digits in";
                    Error::new(format!("{digest}: {expected} {ROOT_ANNOTATION}"))
                })?;
                Some(hash)
            }
        };
        let platform = &value["platform"];
        let part = |name: &str| Some(platform[name].as_str()?.to_owned());
        Ok(Descriptor {
            media_type: text("mediaType").unwrap_or_default().to_owned(),
            size,
            platform: part("os")
                .zip(part("architecture"))
                .map(|(os, architecture)| Platform { os, architecture }),
            root,
            digest,
        })
    }

    /// Returns the format of the layer, according to its media type.
    pub fn layer_format(&self) -> Result<LayerFormat> {
        let media_type = &*self.media_type;
        let (base, suffix) = media_type.split_once('+').unwrap_or((media_type, ""));
        // containerd also accepts a type that ends in .erofs.
        let is_erofs = base == EROFS_LAYER || base.ends_with(".erofs");
        let is_tar = base.ends_with(".tar") || base.ends_with(".tar.gzip");
        match suffix {
            "" if is_erofs => Ok(LayerFormat::Erofs),
            "zstd" if is_erofs => Ok(LayerFormat::ErofsZstd),
            "" | "gzip" | "zstd" if is_tar => Ok(LayerFormat::Tar),
            _ => Err(Error::new(format!(
                "{}: expected a layer of tar (plain, gzip or zstd) or EROFS, got the media type '{}'",
                self.digest,
                media_type.escape_debug()
            ))),
        }
    }
}

impl Platform {
    /// Returns the platform of this host.
    pub fn host() -> Platform {
        Platform {
            os: "linux".into(),
            architecture: match std::env::consts::ARCH {
                "x86_64" => "amd64",
                "aarch64" => "arm64",
                "x86" => "386",
                "powerpc64" if cfg!(target_endian = "little") => "ppc64le",
                other => other,
            }
            .into(),
        }
    }

    /// Returns the only entry of an index, or the first one for this platform: where several fit,
    /// the first is the preferred one (image-spec, `image-index.md`).
    pub fn select<'a>(&self, entries: &'a [Descriptor]) -> Result<&'a Descriptor> {
        if let [only] = entries {
            return Ok(only);
        }
        let fitting = entries
            .iter()
            .find(|entry| entry.platform.as_ref() == Some(self));
        fitting.ok_or_else(|| {
            let got = entries.len();
            Error::new(format!("expected an image for {self}, got {got} others"))
        })
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(value: &Value) -> Result<Document> {
        Document::parse(value.to_string().as_bytes())
    }

    fn layer(media_type: &str, root: Option<&str>) -> Value {
        let digest = Digest::sha256(b"").to_string();
        let annotations = root.map(|root| json!({ ROOT_ANNOTATION: root }));
        json!({"mediaType": media_type, "digest": digest, "size": 0, "annotations": annotations})
    }

    #[test]
    fn a_layer_has_the_format_of_its_media_type() {
        let tar = Some(LayerFormat::Tar);
        let erofs = Some(LayerFormat::Erofs);
        for (media_type, format) in [
            ("application/vnd.oci.image.layer.v1.tar", tar),
            ("application/vnd.oci.image.layer.v1.tar+gzip", tar),
            ("application/vnd.oci.image.layer.v1.tar+zstd", tar),
            ("application/vnd.docker.image.rootfs.diff.tar.gzip", tar),
            (
                "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip",
                tar,
            ),
            ("application/vnd.erofs.layer.v1", erofs),
            ("application/vnd.oci.image.layer.v1.erofs", erofs),
            (
                "application/vnd.erofs.layer.v1+zstd",
                Some(LayerFormat::ErofsZstd),
            ),
            ("application/vnd.erofs.layer.v1+gzip", None),
            ("application/vnd.oci.image.layer.v1.tar+encrypted", None),
            ("application/vnd.oci.image.config.v1+json", None),
            ("", None),
        ] {
            let root = "ab".repeat(32);
            let parsed = parse(&json!({"layers": [layer(media_type, Some(&root))]}));
            let Ok(Document::Manifest(Manifest { layers, .. })) = parsed else {
                panic!("{media_type}: {parsed:?}");
            };
            assert_eq!(layers[0].layer_format().ok(), format, "{media_type}");
            assert_eq!(layers[0].root, Some([0xab; 32]));
        }
    }

    #[test]
    fn what_is_no_document_says_what_was_expected() {
        let many = vec![layer("", None); MAX_LAYERS + 1];
        for (value, part) in [
            (json!({"manifests": [], "layers": []}), "both"),
            (json!({"schemaVersion": 1, "fsLayers": []}), "neither"),
            (json!([]), "neither"),
            (json!({"layers": {}}), "not a list"),
            (json!({"layers": [{}]}), "without a digest"),
            (json!({"layers": [], "config": {}}), "without a digest"),
            (json!({"layers": many}), "at most 512 layers"),
            (
                json!({"layers": [layer("", Some("0g"))]}),
                "64 hexadecimal digits",
            ),
            (
                json!({"layers": [layer("", Some("00"))]}),
                "64 hexadecimal digits",
            ),
            (
                json!({"layers": [{"digest": "sha256:x", "size": 1}]}),
                "sha256",
            ),
            (
                json!({"layers": [{"digest": Digest::sha256(b"").to_string(), "size": -1}]}),
                "without a size",
            ),
        ] {
            let error = parse(&value).expect_err("invalid").to_string();
            assert!(error.contains(part), "{error}");
        }
        let long = vec![b' '; MAX_DOCUMENT as usize + 1];
        assert!(Document::parse(&long).is_err());
    }

    #[test]
    fn an_index_has_one_entry_or_one_for_the_platform() {
        let entry = |architecture: &str, text: &[u8]| {
            let digest = Digest::sha256(text).to_string();
            json!({
                "digest": digest, "size": 1,
                "platform": {"os": "linux", "architecture": architecture},
            })
        };
        let index = |entries: &[Value]| match parse(&json!({"manifests": entries})) {
            Ok(Document::Index(entries)) => entries,
            other => panic!("{other:?}"),
        };
        let arm = Platform {
            os: "linux".into(),
            architecture: "arm64".into(),
        };
        let [amd64, arm64, second] = [
            entry("amd64", b"1"),
            entry("arm64", b"2"),
            entry("arm64", b"3"),
        ];
        let entries = index(&[amd64.clone(), arm64, second]);
        let chosen = arm.select(&entries).expect("one");
        assert_eq!(chosen.digest, Digest::sha256(b"2"));
        let only = index(std::slice::from_ref(&amd64));
        assert!(arm.select(&only).is_ok());
        let error = arm
            .select(&index(&[amd64.clone(), amd64]))
            .expect_err("none");
        assert!(error.to_string().contains("linux/arm64"), "{error}");
        assert!(arm.select(&[]).is_err());
    }
}
