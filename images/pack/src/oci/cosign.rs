//! Signatures of cosign 2: an image next to the signed one, with a layer for each signature.
//!
//! The payload of a signature is a document of JSON that names the digest of the signed manifest or
//! index ("simple signing"). It also names a repository, which is informational: as with cosign, a
//! signature is valid in each repository that has the manifest.
//!
//! Deliberately absent: certificates, transparency logs, and the bundles of cosign 3.

use std::fs;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sidecar::SecretKey;

use super::document::parse_json;
use super::layout::{
    CONFIG_TYPE, INDEX, MANIFEST, create_layout, is_layout, replace, write_blob, write_document,
};
use super::{Descriptor, Digest};
use crate::error::{Error, Result};

/// Maximum size in bytes of a payload; those of cosign have some hundred.
pub const MAX_PAYLOAD: u64 = 64 << 10;

/// Maximum number of signatures of one image. More than a few are rare, and each takes a request.
pub const MAX_SIGNATURES: usize = 128;

/// Maximum size in bytes of a signature: that of the largest RSA keys, which are not supported.
const MAX_SIGNATURE: usize = 1024;

/// The directory of the signature's layout, in that of the image.
pub const SIGNATURE_DIR: &str = "cosign";

/// Media type of a payload.
const PAYLOAD: &str = "application/vnd.dev.cosign.simplesigning.v1+json";

/// Annotation of a layer: the signature of its payload, in base64.
const SIGNATURE_ANNOTATION: &str = "dev.cosignproject.cosign/signature";

/// Annotation of an entry of an index: the tag of the image.
const NAME_ANNOTATION: &str = "org.opencontainers.image.ref.name";

/// `critical.type` of each payload.
const TYPE: &str = "cosign container image signature";

/// A signature by a key that is not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    /// The signed payload.
    pub payload: Descriptor,
    /// The signature of the payload's bytes.
    pub signature: Vec<u8>,
}

/// Returns the tag of the image with the signatures of the manifest or index `digest`.
pub fn signature_tag(digest: &Digest) -> String {
    format!("{}.sig", digest.to_string().replace(':', "-"))
}

/// Parses the manifest of an image with signatures. Layers of other types are ignored.
pub fn parse_signatures(text: &[u8]) -> Result<Vec<Signature>> {
    let manifest = parse_json(text)?;
    let layers = manifest["layers"].as_array().ok_or_else(|| {
        Error::new("expected the manifest of cosign's signatures, got one without layers")
    })?;
    if layers.len() > MAX_SIGNATURES {
        let got = layers.len();
        let line = format!("expected at most {MAX_SIGNATURES} signatures, got {got}");
        return Err(Error::new(line));
    }
    let is_payload = |layer: &&Value| layer["mediaType"] == PAYLOAD;
    layers.iter().filter(is_payload).map(parse_layer).collect()
}

fn parse_layer(layer: &Value) -> Result<Signature> {
    let payload = Descriptor::parse(layer)?;
    if payload.size > MAX_PAYLOAD {
        let got = payload.size;
        let line = format!("expected a payload of at most {MAX_PAYLOAD} bytes, got {got}");
        return Err(Error::new(line));
    }
    let text = layer["annotations"][SIGNATURE_ANNOTATION].as_str();
    // Base64 has four characters for three bytes.
    let text = text.filter(|text| text.len() <= MAX_SIGNATURE * 4 / 3 + 4);
    let signature = text.and_then(|text| STANDARD.decode(text).ok());
    let signature = signature.ok_or_else(|| {
        let line = format!("expected a signature in base64 in {SIGNATURE_ANNOTATION}");
        Error::new(line)
    })?;
    Ok(Signature { payload, signature })
}

/// Returns the digest of the manifest or index that a payload names.
pub fn parse_payload(text: &[u8]) -> Result<Digest> {
    if text.len() as u64 > MAX_PAYLOAD {
        let line = format!("expected a payload of at most {MAX_PAYLOAD} bytes, got more");
        return Err(Error::new(line));
    }
    let payload = parse_json(text)?;
    let critical = &payload["critical"];
    if critical["type"] != TYPE {
        return Err(Error::new(format_args!(
            "expected a payload of the type '{TYPE}', got another one"
        )));
    }
    let digest = critical["image"]["docker-manifest-digest"].as_str();
    let missing = || Error::new("expected the digest of a manifest in the payload, got none");
    digest.ok_or_else(missing)?.parse()
}

/// Returns the payload for the manifest `digest`. The repository is not known before an upload.
fn payload(digest: &Digest) -> Vec<u8> {
    let payload = json!({
        "critical": {
            "identity": {"docker-reference": ""},
            "image": {"docker-manifest-digest": digest.to_string()},
            "type": TYPE,
        },
        "optional": null,
    });
    payload.to_string().into_bytes()
}

/// Writes a signature of the manifest `digest`, as an image layout at `dir` with the only image
/// that [`signature_tag`] names. It replaces an earlier one.
pub(super) fn write(dir: &Path, digest: &Digest, key: &SecretKey) -> std::io::Result<()> {
    create_layout(dir)?;
    let payload = payload(digest);
    let mut layer = write_blob(dir, PAYLOAD, &payload)?;
    let signature = STANDARD.encode(key.sign(&payload));
    layer["annotations"] = json!({ SIGNATURE_ANNOTATION: signature });
    let config = json!({
        "architecture": "", "os": "", "config": {},
        "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]},
    });
    let config = write_document(dir, CONFIG_TYPE, &config)?;
    let manifest = json!({
        "schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": [layer],
    });
    let mut entry = write_document(dir, MANIFEST, &manifest)?;
    entry["annotations"] = json!({ NAME_ANNOTATION: signature_tag(digest) });
    let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry]});
    replace(dir, &dir.join("index.json"), index.to_string().as_bytes())
}

/// Removes the layout of a signature at `dir`, if there is one.
pub(super) fn remove(dir: &Path) -> std::io::Result<()> {
    match is_layout(dir) {
        true => fs::remove_dir_all(dir),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(size: u64, signature: &str) -> Value {
        json!({
            "mediaType": PAYLOAD, "digest": Digest::sha256(b"").to_string(), "size": size,
            "annotations": {SIGNATURE_ANNOTATION: signature},
        })
    }

    fn parse(value: &Value) -> Result<Vec<Signature>> {
        parse_signatures(value.to_string().as_bytes())
    }

    #[test]
    fn a_payload_names_a_digest() {
        let digest = Digest::sha256(b"manifest");
        let text = payload(&digest);
        assert_eq!(parse_payload(&text).expect("a payload"), digest);
        for len in 0..text.len() {
            assert!(parse_payload(&text[..len]).is_err(), "{len} bytes");
        }
        // As cosign 2.4 writes it.
        let cosign = format!(
            r#"{{"critical":{{"identity":{{"docker-reference":"h:5000/r"}},"image":{{"docker-manifest-digest":"{digest}"}},"type":"cosign container image signature"}},"optional":null}}"#
        );
        assert_eq!(parse_payload(cosign.as_bytes()).expect("a payload"), digest);
        let named = |name: &str| json!({"critical": {"type": TYPE, "image": name}}).to_string();
        let other = cosign.replace("cosign container", "atomic container");
        let large = vec![b' '; MAX_PAYLOAD as usize + 1];
        for (text, part) in [
            (other.as_bytes(), "of the type"),
            (b"[]", "of the type"),
            (named("x").as_bytes(), "expected the digest"),
            (cosign.replace("sha256", "md5").as_bytes(), "got 'md5:"),
            (&large, "at most 65536 bytes"),
        ] {
            let error = parse_payload(text).expect_err("refused").to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn signatures_are_bounded() {
        let other = json!({"mediaType": "text/plain"});
        let parsed = parse(&json!({"layers": [other, layer(9, "AAEC")]})).expect("signatures");
        assert_eq!(parsed[0].signature, [0, 1, 2]);
        assert_eq!((parsed.len(), parsed[0].payload.size), (1, 9));
        let many = vec![layer(9, "AAEC"); 1000];
        for (layers, part) in [
            (json!(many), "at most 128 signatures, got 1000"),
            (json!([layer(MAX_PAYLOAD + 1, "AAEC")]), "at most 65536"),
            (json!([layer(9, "A")]), "in base64"),
            (json!([layer(9, &"AAEC".repeat(1000))]), "in base64"),
            (json!([{"mediaType": PAYLOAD}]), "without a digest"),
            (json!({}), "without layers"),
        ] {
            let error = parse(&json!({ "layers": layers })).expect_err("refused");
            assert!(error.to_string().contains(part), "{error}");
        }
        for text in [&b"{"[..], b"[]", b"{}", b"null"] {
            assert!(parse_signatures(text).is_err());
        }
    }

    #[test]
    fn the_tag_has_the_digest() {
        let tag = signature_tag(&Digest::sha256(b""));
        assert!(tag.starts_with("sha256-e3b0c442") && tag.ends_with("55.sig"));
    }
}
