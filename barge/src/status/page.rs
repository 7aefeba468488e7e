//! The status page: one file with its style and script. A browser may use no others with it.

use std::sync::LazyLock;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use sha2::{Digest, Sha256};

use super::http::Response;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");
const FRAME: &str = include_str!("page.html");

static PAGE: LazyLock<String> =
    LazyLock::new(|| FRAME.replace("{style}", STYLE).replace("{script}", SCRIPT));

/// A policy that permits only this style and script, no other resources, and no embedding in other
/// pages.
static POLICY: LazyLock<String> = LazyLock::new(|| {
    let hash = |text: &str| BASE64_STANDARD.encode(Sha256::digest(text));
    format!(
        "Content-Security-Policy: default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; img-src data:; \
         connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        hash(SCRIPT),
        hash(STYLE)
    )
});

pub(super) fn response() -> Response {
    Response::new("text/html; charset=utf-8", PAGE.as_str())
        .header(&POLICY)
        .header("Referrer-Policy: no-referrer")
}
