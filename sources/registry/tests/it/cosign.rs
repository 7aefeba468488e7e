//! Signatures of cosign: by each type of key, and refused if they are of another digest or key, or
//! damaged.

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use pack::oci::{Digest, ROOT_ANNOTATION, cosign};
use registry::{CosignKey, Image, Url};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::server::Server;
use crate::{EROFS, TAR, erofs, error, options, tree};

const PAYLOAD: &str = "application/vnd.dev.cosign.simplesigning.v1+json";

/// A key of a signer, with its public part in a file.
enum Key {
    P256(EcdsaKeyPair),
    Ed25519(Ed25519KeyPair),
}

impl Key {
    fn p256() -> Key {
        let random = SystemRandom::new();
        let algorithm = &ECDSA_P256_SHA256_ASN1_SIGNING;
        let key = EcdsaKeyPair::generate_pkcs8(algorithm, &random).expect("a key");
        Key::P256(EcdsaKeyPair::from_pkcs8(algorithm, key.as_ref(), &random).expect("a key"))
    }

    fn ed25519() -> Key {
        let key = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).expect("a key");
        Key::Ed25519(Ed25519KeyPair::from_pkcs8(key.as_ref()).expect("a key"))
    }

    fn sign(&self, message: &[u8]) -> Vec<u8> {
        match self {
            Key::P256(key) => {
                let signature = key.sign(&SystemRandom::new(), message);
                signature.expect("signed").as_ref().to_vec()
            }
            Key::Ed25519(key) => key.sign(message).as_ref().to_vec(),
        }
    }

    /// Returns the public key in PEM.
    fn pem(&self) -> String {
        let (prefix, key): (&[u8], _) = match self {
            Key::P256(key) => (
                b"\x30\x59\x30\x13\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x08\x2a\x86\x48\xce\
                  \x3d\x03\x01\x07\x03\x42\x00",
                key.public_key().as_ref(),
            ),
            Key::Ed25519(key) => (
                b"\x30\x2a\x30\x05\x06\x03\x2b\x65\x70\x03\x21\x00",
                key.public_key().as_ref(),
            ),
        };
        let base64 = STANDARD.encode([prefix, key].concat());
        let (first, rest) = base64.split_at(base64.len().min(64));
        format!("-----BEGIN PUBLIC KEY-----\n{first}\n{rest}\n-----END PUBLIC KEY-----\n")
    }
}

/// A registry, and files of keys.
struct Place {
    server: Server,
    dir: TempDir,
}

impl Place {
    fn new() -> Place {
        Place {
            server: Server::new(),
            dir: tempfile::tempdir().expect("a directory"),
        }
    }

    /// Adds the manifest of an image with one EROFS layer, and returns its digest.
    fn image(&self) -> Digest {
        let (bytes, root) = erofs(self.dir.path(), b"contents");
        let mut layer = self.server.blob(EROFS, &bytes);
        let hex: String = root.iter().map(|byte| format!("{byte:02x}")).collect();
        layer["annotations"] = json!({ ROOT_ANNOTATION: hex });
        digest_of(&self.server.image(&[layer]))
    }

    /// Returns a layer with a signature of `payload`.
    fn signature(&self, payload: &[u8], key: &Key) -> Value {
        let mut layer = self.server.blob(PAYLOAD, payload);
        let signature = STANDARD.encode(key.sign(payload));
        layer["annotations"] = json!({"dev.cosignproject.cosign/signature": signature});
        layer
    }

    /// Makes `layers` the signatures of `digest`.
    fn put_signatures(&self, digest: &Digest, layers: &[Value]) {
        let tag = cosign::signature_tag(digest);
        self.server.document(&tag, &json!({ "layers": layers }));
    }

    /// Makes a file with the public key of `key`.
    fn file(&self, key: &Key) -> PathBuf {
        let path = self.dir.path().join("key.pem");
        fs::write(&path, key.pem()).expect("written");
        path
    }

    fn url(&self, rest: &str, keys: &[PathBuf]) -> Url {
        let url = format!(
            "oci://{}/dir/image{rest}?hosts_dir=/none",
            self.server.host()
        );
        let mut url: Url = url.parse().expect("a URL");
        url.require_cosign_signature(keys);
        url
    }

    fn open(&self, rest: &str, key: &Key) -> std::io::Result<Image> {
        registry::open(&self.url(rest, &[self.file(key)]), &options())
    }

    /// Returns the message for an image that is refused. Its layer was not requested.
    fn refused(&self, key: &Key) -> String {
        self.server.requests();
        let error = error(self.open("", key));
        let layer = Digest::sha256(&erofs(self.dir.path(), b"contents").0).to_string();
        let requests = self.server.requests();
        assert!(
            requests
                .iter()
                .all(|request| !request.path.contains(&layer))
        );
        error.to_string()
    }
}

fn digest_of(descriptor: &Value) -> Digest {
    let digest = descriptor["digest"].as_str().expect("text");
    digest.parse().expect("a digest")
}

fn payload(digest: &Digest, reference: &str) -> Vec<u8> {
    let payload = json!({
        "critical": {
            "identity": {"docker-reference": reference},
            "image": {"docker-manifest-digest": digest.to_string()},
            "type": "cosign container image signature",
        },
        "optional": {"creator": "a test"},
    });
    payload.to_string().into_bytes()
}

#[test]
fn a_signature_by_a_key_of_either_type_is_accepted() {
    for key in [Key::p256(), Key::ed25519()] {
        let place = Place::new();
        let digest = place.image();
        // The repository is informational, as with cosign.
        for reference in ["registry.example/dir/image", "registry.example/another", ""] {
            let signature = place.signature(&payload(&digest, reference), &key);
            place.put_signatures(&digest, &[signature]);
            for rest in ["", &format!("@{digest}")] {
                tree(place.open(rest, &key).expect("opened")).expect("a tree");
            }
        }
        // One of several keys, and one of several signatures.
        let good = place.signature(&payload(&digest, ""), &key);
        let bad = place.signature(&payload(&digest, "x"), &Key::p256());
        let other = place.server.blob("text/plain", b"x");
        place.put_signatures(&digest, &[bad, other, good]);
        tree(place.open("", &key).expect("opened")).expect("a tree");
        let first = place.dir.path().join("first.pem");
        fs::write(&first, Key::ed25519().pem()).expect("written");
        let url = place.url("", &[first, place.file(&key)]);
        tree(registry::open(&url, &options()).expect("opened")).expect("a tree");
        assert!(
            registry::config(&url, &options())
                .expect("verified")
                .is_none()
        );
    }
}

#[test]
fn a_signature_of_something_else_is_refused() {
    let place = Place::new();
    let digest = place.image();
    let key = Key::p256();
    let none = error(place.open("", &key));
    assert_eq!(none.kind(), ErrorKind::PermissionDenied);
    assert!(
        none.to_string().contains("got none: no tag sha256-"),
        "{none}"
    );
    let good = payload(&digest, "");
    let of_other = payload(&Digest::sha256(b"another manifest"), "");
    let mut damaged = place.signature(&good, &key);
    damaged["annotations"]["dev.cosignproject.cosign/signature"] = json!("AAAA");
    let mut unsigned = damaged.clone();
    unsigned["annotations"] = json!({});
    let mut lying = place.signature(&good, &key);
    lying["digest"] = json!(Digest::sha256(b"lie").to_string());
    place.server.put(
        format!("/v2/dir/image/blobs/{}", Digest::sha256(b"lie")),
        good.clone(),
    );
    let signed = |text: &[u8]| vec![place.signature(text, &key)];
    let large = vec![b' '; cosign::MAX_PAYLOAD as usize + 1];
    for (layers, part) in [
        (signed(&of_other), "it is of sha256:"),
        (vec![place.signature(&good, &Key::p256())], "another key"),
        (vec![place.signature(&good, &Key::ed25519())], "another key"),
        (vec![damaged], "another key"),
        (vec![unsigned], "expected a signature in base64"),
        (vec![lying], "expected a payload with the digest"),
        (signed(&good[..good.len() - 1]), "EOF"),
        (signed(b"{}"), "of the type"),
        (signed(&large), "at most 65536 bytes"),
        (
            vec![place.signature(&good, &key); 1000],
            "at most 128 signatures",
        ),
        (Vec::new(), "got 0 others"),
    ] {
        place.put_signatures(&digest, &layers);
        let refused = place.refused(&key);
        assert!(refused.contains(part), "{part}: {refused}");
        assert!(!refused.contains('\n'));
    }
    // Another manifest under the tag has no signature.
    place.put_signatures(&digest, &signed(&good));
    place.open("", &key).expect("opened");
    place.server.image(&[place.server.blob(TAR, b"x")]);
    let refused = place.refused(&key);
    assert!(refused.contains("got none"), "{refused}");
}

#[test]
fn a_signed_digest_vouches_for_layers() {
    let place = Place::new();
    let key = Key::ed25519();
    let (bytes, _) = erofs(place.dir.path(), b"contents");
    let layer = place.server.blob(EROFS, &bytes);
    let manifest = place.server.image(std::slice::from_ref(&layer));
    let index = place
        .server
        .document("latest", &json!({"manifests": [manifest]}));
    let digest = digest_of(&index);
    let signature = place.signature(&payload(&digest, ""), &key);
    place.put_signatures(&digest, &[signature]);
    tree(place.open("", &key).expect("opened")).expect("a tree");
    // A signed index does not vouch for its manifest in place of it.
    let alone = format!("@{}", digest_of(&manifest));
    let refused = error(place.open(&alone, &key)).to_string();
    assert!(refused.contains("got none"), "{refused}");
    // Without a root in the manifest, the layer is downloaded, and compared with its digest.
    let mut changed = bytes;
    changed[2000] ^= 1;
    let blob = layer["digest"].as_str().expect("text");
    place
        .server
        .put(format!("/v2/dir/image/blobs/{blob}"), changed);
    let refused = error(place.open("", &key)).to_string();
    assert!(
        refused.contains("expected a blob with the digest"),
        "{refused}"
    );
}

#[test]
fn other_keys_are_refused() {
    let place = Place::new();
    place.image();
    let path = place.dir.path().join("key.pem");
    for text in [
        "",
        "no key",
        "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n",
    ] {
        assert!(CosignKey::from_pem(text.as_bytes()).is_err());
        fs::write(&path, text).expect("written");
        let refused = registry::open(&place.url("", std::slice::from_ref(&path)), &options());
        let refused = error(refused).to_string();
        assert!(refused.contains("expected a public key"), "{refused}");
    }
    assert!(CosignKey::from_pem(Key::p256().pem().as_bytes()).is_ok());
}
