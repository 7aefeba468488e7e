//! The environment of object stores: any URL and variables are refused with a line, or lead to the
//! store that the URL names. No request is sent.
//!
//! An input is a URL and variables `NAME=VALUE`, with a zero byte between them.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use objects::{Environment, Url, rehearse};
use url::Url as Address;

/// The beginning of an error that was a panic of the client library.
const PANIC: &str = "the library of the store failed";

/// Prepares a request for an input: with the variables, and with those of them that a tenant may
/// have.
pub fn environment(data: &[u8]) {
    let mut parts = data.split(|byte| *byte == 0);
    let url = String::from_utf8_lossy(parts.next().unwrap_or_default());
    let Ok(url) = url.parse::<Url>() else {
        return;
    };
    let variables: Vec<(OsString, OsString)> = parts.filter_map(variable).collect();
    attempt(&url, variables.clone());
    let tenant = (Environment::TENANT.into(), "tenant".into());
    let variables = variables.into_iter().chain([tenant]);
    for address in attempt(&url, variables.collect()) {
        assert!(is_of_store(&url, &address), "{url}: {address}");
    }
}

/// Returns a variable, unless it names a file or a program of this host.
fn variable(text: &[u8]) -> Option<(OsString, OsString)> {
    let at = text.iter().position(|byte| *byte == b'=')?;
    let (name, value) = (&text[..at], &text[at + 1..]);
    let shown = String::from_utf8_lossy(name).to_ascii_uppercase();
    let is_file = ["FILE", "APPLICATION_CREDENTIALS", "ACCOUNT_PATH", "CLI"]
        .iter()
        .any(|part| shown.contains(part));
    let is_path = matches!(&*shown, "SERVICE_ACCOUNT" | "GOOGLE_SERVICE_ACCOUNT");
    let own = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
    (!is_file && !is_path).then(|| (own(name), own(value)))
}

fn attempt(url: &Url, variables: Vec<(OsString, OsString)>) -> Vec<String> {
    rehearse(url, &Environment::new(variables)).unwrap_or_else(|error| {
        let line = error.to_string();
        assert!(!line.contains('\n') && !line.starts_with(PANIC), "{line}");
        Vec::new()
    })
}

/// Returns whether an address is one of the stores that `url` can name.
fn is_of_store(url: &Url, address: &str) -> bool {
    let Ok(address) = Address::parse(address) else {
        return false;
    };
    let text = url.to_string();
    let host = address.host_str().unwrap_or_default();
    let label = |prefix: &str, suffix: &str| {
        let label = host
            .strip_prefix(prefix)
            .and_then(|host| host.strip_suffix(suffix));
        label.is_some_and(|label| !label.is_empty() && !label.contains('.'))
    };
    let is_expected = match text.split_once("://").unwrap_or_default() {
        ("s3", _) => label("s3.", ".amazonaws.com"),
        ("gs", _) => host == "storage.googleapis.com",
        ("az", _) => label("", ".blob.core.windows.net") || host == "login.microsoftonline.com",
        _ => {
            let own = Address::parse(&text);
            return own.is_ok_and(|own| own.origin() == address.origin());
        }
    };
    is_expected && address.scheme() == "https" && address.port().is_none()
}
