//! SOURCE of a layer for `barge mount`, from what containerd says about it in labels.
//!
//! Labels may have text that the author of an image wrote. A reference is parsed into the parts
//! that the distribution specification permits, and a digest into 64 digits, before either becomes
//! part of a URL.

use std::str::FromStr;

use crate::api::Labels;
use crate::digest::Digest;

/// Labels with the reference of the image: the CRI plugin's, nerdctl's and the transfer service's,
/// and stargz-snapshotter's.
const REFERENCE: [&str; 2] = [
    "containerd.io/snapshot/cri.image-ref",
    "containerd.io/snapshot/remote/stargz.reference",
];

/// Labels with the digest of the layer.
const LAYER: [&str; 2] = [
    "containerd.io/snapshot/cri.layer-digest",
    "containerd.io/snapshot/remote/stargz.digest",
];

/// The label with the digest of the image's manifest.
const MANIFEST: &str = "containerd.io/snapshot/cri.manifest-digest";

/// The part of a URL of `--layer-source` that stands for a layer's digest.
const PLACEHOLDER: &str = "{hex}";

/// Longest reference, bytes (the distribution specification's limit for names is 255, without
/// registry, tag and digest).
const MAX_REFERENCE: usize = 1024;

/// A place that has layers as EROFS images: an argument of `--layer-source`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LayerSource {
    /// The image's own registry has EROFS layers.
    Registry,
    /// A SOURCE with `{hex}` in place of the layer's digest.
    Url(String),
}

impl FromStr for LayerSource {
    type Err = String;

    fn from_str(text: &str) -> Result<LayerSource, String> {
        match text {
            "registry" => Ok(LayerSource::Registry),
            url if url.contains(PLACEHOLDER) && !url.starts_with('-') => {
                Ok(LayerSource::Url(url.into()))
            }
            _ => Err(format!("expected registry, or a SOURCE with {PLACEHOLDER}")),
        }
    }
}

/// A layer as containerd's labels describe it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LayerInfo {
    /// Digest of the layer's blob.
    pub(crate) digest: Digest,
    reference: Option<Reference>,
    manifest: Option<Digest>,
}

impl LayerInfo {
    /// Returns the layer that `labels` describe, or `None` if they describe none, or not validly.
    pub(crate) fn from_labels(labels: &Labels) -> Option<LayerInfo> {
        let first = |names: [&str; 2]| names.iter().find_map(|&name| labels.get(name));
        Some(LayerInfo {
            digest: first(LAYER)?.parse().ok()?,
            reference: first(REFERENCE).and_then(|text| Reference::parse(text)),
            manifest: labels.get(MANIFEST).and_then(|text| text.parse().ok()),
        })
    }

    /// Returns the argument SOURCE of `barge mount` for a layer that is mounted as part of the
    /// chain `target` on top of `parent`, or `None` if `place` cannot have the layer.
    ///
    /// A registry's EROFS layer is not compressed as a whole, so that its diff ID is its digest
    /// (OCI image specification): the chain ID then follows from both. That tells it from other
    /// layers without a request. It does not tell whether the registry sends the bytes of that
    /// digest: they are not compared with it before they are used, and a manifest may give a known
    /// digest with a root of hashes of its own.
    pub(crate) fn source(
        &self,
        place: &LayerSource,
        target: &Digest,
        parent: Option<&Digest>,
    ) -> Option<String> {
        match place {
            LayerSource::Url(url) => Some(url.replace(PLACEHOLDER, self.digest.hex())),
            LayerSource::Registry if self.digest.chain_id(parent) != *target => None,
            LayerSource::Registry => {
                let Reference { name, tag, digest } = self.reference.as_ref()?;
                let version = match (self.manifest.as_ref().or(digest.as_ref()), tag) {
                    (Some(digest), _) => format!("@{digest}"),
                    (None, Some(tag)) => format!(":{tag}"),
                    (None, None) => String::new(),
                };
                Some(format!("oci://{name}{version}?layer={}", self.digest))
            }
        }
    }
}

/// A reference of an image: `REGISTRY/REPO[:TAG][@DIGEST]`, as containerd normalizes it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Reference {
    /// Registry and repository.
    name: String,
    tag: Option<String>,
    digest: Option<Digest>,
}

impl Reference {
    fn parse(text: &str) -> Option<Reference> {
        if text.len() > MAX_REFERENCE {
            return None;
        }
        let (text, digest) = match text.split_once('@') {
            Some((text, digest)) => (text, Some(digest.parse().ok()?)),
            None => (text, None),
        };
        let (registry, path) = text.split_once('/')?;
        let (path, tag) = match path.split_once(':') {
            Some((path, tag)) => (path, Some(tag)),
            None => (path, None),
        };
        let is_valid = is_registry(registry)
            && path.split('/').all(is_path_component)
            && tag.is_none_or(is_tag);
        is_valid.then(|| Reference {
            name: format!("{registry}/{path}"),
            tag: tag.map(str::to_owned),
            digest,
        })
    }
}

/// Returns whether `text` is a host name, an IPv4 or a bracketed IPv6 address, with an optional
/// port.
fn is_registry(text: &str) -> bool {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (text, None),
    };
    let is_port = |port: &str| port.parse::<u16>().is_ok() && !port.starts_with('+');
    let is_host = match host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
    {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => host.split('.').all(|label| {
            !label.is_empty()
                && !label.starts_with('-')
                && label
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        }),
    };
    is_host && port.is_none_or(is_port)
}

/// Returns whether `text` is a component of a repository's name (distribution specification,
/// *Pulling manifests*).
fn is_path_component(text: &str) -> bool {
    let is_alphanumeric = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_part = |byte: u8| is_alphanumeric(byte) || b"._-".contains(&byte);
    text.bytes().all(is_part)
        && text.bytes().next().is_some_and(is_alphanumeric)
        && text.bytes().last().is_some_and(is_alphanumeric)
}

fn is_tag(text: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let is_part = |byte: u8| is_word(byte) || b".-".contains(&byte);
    (1..=128).contains(&text.len()) && text.bytes().all(is_part) && is_word(text.as_bytes()[0])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn digest(digit: char) -> Digest {
        Digest::from_hex(&digit.to_string().repeat(64)).unwrap()
    }

    fn labels(reference: &str) -> Labels {
        let layer = digest('a').to_string();
        [(REFERENCE[0], reference), (LAYER[0], &layer)]
            .map(|(name, value)| (name.into(), value.into()))
            .into()
    }

    fn source(labels: &Labels) -> Option<String> {
        let layer = LayerInfo::from_labels(labels)?;
        layer.source(&LayerSource::Registry, &digest('a'), None)
    }

    #[test]
    fn sources_of_registries() {
        let layer = format!("?layer={}", digest('a'));
        for (reference, expected) in [
            (
                "docker.io/library/busybox:1.36",
                "docker.io/library/busybox:1.36",
            ),
            ("localhost:5000/a/b_c", "localhost:5000/a/b_c"),
            ("[::1]:5000/a:t", "[::1]:5000/a:t"),
        ] {
            let expected = format!("oci://{expected}{layer}");
            assert_eq!(source(&labels(reference)), Some(expected));
        }
        let manifest = digest('b');
        let expected = Some(format!("oci://quay.io/x@{manifest}{layer}"));
        assert_eq!(
            source(&labels(&format!("quay.io/x:tag@{manifest}"))),
            expected
        );
        let mut labels = labels("quay.io/x:tag");
        labels.insert(MANIFEST.into(), manifest.to_string());
        assert_eq!(source(&labels), expected);
    }

    #[test]
    fn labels_of_stargz_snapshotter() {
        let labels: Labels = [
            (REFERENCE[1], "ghcr.io/a:1"),
            (LAYER[1], &digest('a').to_string()),
        ]
        .map(|(name, value)| (name.into(), value.into()))
        .into();
        let expected = format!("oci://ghcr.io/a:1?layer={}", digest('a'));
        assert_eq!(source(&labels), Some(expected));
    }

    #[test]
    fn text_of_authors_is_refused() {
        for reference in [
            "",
            "busybox",
            "-o/a",
            "host/../a",
            "host/a?x=y",
            "host/a#b",
            "host/a b",
            "host/A",
            "user:pass@host/a",
            "host:99999/a",
            "host:+80/a",
            "/a",
            "host/",
            "host//a",
            "host/a:",
            "host/a:-t",
            "host/a@sha256:x",
            "[::1/a",
            "host/a%2f..",
            "host/a\n",
            ".host/a",
        ] {
            assert_eq!(source(&labels(reference)), None, "{reference}");
        }
        let mut labels = labels("host/a");
        labels.insert(LAYER[0].into(), "sha256:../../etc".into());
        assert_eq!(LayerInfo::from_labels(&labels), None);
    }

    /// A layer whose digest is not the diff ID of the chain is compressed, or of another image.
    #[test]
    fn the_chain_id_binds_a_registrys_layer() {
        let layer = LayerInfo::from_labels(&labels("host/a")).unwrap();
        let parent = digest('c');
        let chain = digest('a').chain_id(Some(&parent));
        let registry = &LayerSource::Registry;
        assert!(layer.source(registry, &chain, Some(&parent)).is_some());
        assert_eq!(layer.source(registry, &chain, None), None);
        assert_eq!(layer.source(registry, &digest('d'), Some(&parent)), None);
    }

    #[test]
    fn arguments_of_layer_source() {
        let url: LayerSource = "https://host/{hex}.erofs".parse().unwrap();
        let layer = LayerInfo::from_labels(&labels("host/a")).unwrap();
        let expected = format!("https://host/{}.erofs", digest('a').hex());
        assert_eq!(layer.source(&url, &digest('d'), None), Some(expected));
        assert_eq!("registry".parse(), Ok(LayerSource::Registry));
        assert!("https://host/".parse::<LayerSource>().is_err());
        assert!("-o{hex}".parse::<LayerSource>().is_err());
    }

    proptest! {
        #[test]
        fn sources_have_only_characters_of_urls(reference in "\\PC{0,20}/\\PC{0,20}") {
            if let Some(source) = source(&labels(&reference)) {
                let rest = source.strip_prefix("oci://").unwrap();
                let is_url = |c: char| c.is_ascii_alphanumeric() || ".-_:/[]@?=".contains(c);
                prop_assert!(rest.chars().all(is_url), "{}", rest);
            }
        }
    }
}
