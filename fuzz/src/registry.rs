//! Text of registries and their configuration: references, documents, signatures of cosign and
//! their payloads, keys, `hosts.toml`, `config.json` and challenges are refused with a line, or
//! within bounds.
//!
//! The first byte of an input selects the parser.

use std::path::Path;

use pack::oci::{Document, MAX_LAYERS, Platform, cosign};
use registry::credentials::Login;
use registry::hosts::Host;
use registry::{Challenge, CosignKey, Url};

/// Parses an input.
pub fn text(data: &[u8]) {
    let Some((&parser, data)) = data.split_first() else {
        return;
    };
    let text = String::from_utf8_lossy(data);
    match parser {
        b'r' => reference(&text),
        b'd' => document(data),
        b's' => signatures(data),
        b'p' => payload(data),
        b'k' => {
            if let Ok(key) = CosignKey::from_pem(data) {
                assert!(!key.verifies(data, &[0; 64]));
            }
        }
        b'h' => hosts(&text),
        b'c' => {
            // A registry's own name is found or nothing.
            if let Err(message) = Login::parse(data, "registry:5000") {
                one_line(&message);
            }
        }
        _ => {
            if let Some(Challenge::Bearer { realm, .. }) = Challenge::parse(&text) {
                assert!(realm.len() <= text.len());
            }
        }
    }
}

fn reference(text: &str) {
    match text.parse::<Url>() {
        Ok(url) => {
            let shown = url.to_string();
            let again: Url = shown.parse().expect("what is shown is a URL");
            assert_eq!(again.to_string(), shown);
            let reference = url.reference();
            assert!(
                !reference
                    .repository()
                    .split('/')
                    .any(|part| part.trim_matches('.').is_empty())
            );
            assert!(!reference.host().contains(['/', '@', '?', '#', '\\']));
            assert!(!reference.tag().contains('/'));
            assert!(Host::origin(reference.host(), None).is_none_or(|host| host.base.has_host()));
        }
        Err(bad) => one_line(&bad.to_string()),
    }
}

fn document(data: &[u8]) {
    match Document::parse(data) {
        Ok(Document::Index(entries)) => {
            if let Ok(entry) = Platform::host().select(&entries) {
                assert!(entries.contains(entry));
            }
        }
        Ok(Document::Manifest(manifest)) => {
            assert!(manifest.layers.len() <= MAX_LAYERS);
            for layer in manifest.layers {
                let path = layer.digest.blob_path();
                assert_eq!(path.components().count(), 3, "{}", path.display());
                if let Err(error) = layer.layer_format() {
                    one_line(&error.to_string());
                }
            }
        }
        Err(error) => one_line(&error.to_string()),
    }
}

fn signatures(data: &[u8]) {
    match cosign::parse_signatures(data) {
        Ok(signatures) => {
            assert!(signatures.len() <= cosign::MAX_SIGNATURES);
            let payloads = signatures.iter().map(|signature| &signature.payload);
            assert!(
                payloads
                    .into_iter()
                    .all(|payload| payload.size <= cosign::MAX_PAYLOAD)
            );
        }
        Err(error) => one_line(&error.to_string()),
    }
}

fn payload(data: &[u8]) {
    match cosign::parse_payload(data) {
        Ok(digest) => {
            let tag = cosign::signature_tag(&digest);
            assert!(format!("oci://h/r:{tag}").parse::<Url>().is_ok());
        }
        Err(error) => one_line(&error.to_string()),
    }
}

fn hosts(text: &str) {
    let origin = Host::origin("registry:5000", None).expect("a host");
    match Host::parse(text, Path::new("/certs"), &origin) {
        Ok(hosts) => {
            assert!(hosts.last().is_some_and(|host| host.is_origin));
            assert!(
                hosts
                    .iter()
                    .all(|host| matches!(host.base.scheme(), "http" | "https"))
            );
        }
        Err(message) => one_line(&message),
    }
}

fn one_line(message: &str) {
    assert!(
        !message.is_empty() && !message.contains('\n'),
        "{message:?}"
    );
}
