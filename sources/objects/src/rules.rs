//! The rules of stores for the parts of an address and of a request.

use url::Url;

/// A rule: what was expected instead of a text that does not follow it.
pub(crate) type Rule = fn(&str) -> Result<(), &'static str>;

/// The maximum length in bytes of an option.
const MAX_OPTION: usize = 16 << 10;

fn expect(follows: bool, expected: &'static str) -> Result<(), &'static str> {
    if follows { Ok(()) } else { Err(expected) }
}

fn is_word(text: &str, max: usize, others: &[u8]) -> bool {
    let alphanumeric = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
    let mut bytes = text.bytes();
    text.len() <= max
        && alphanumeric(text.bytes().next())
        && alphanumeric(text.bytes().next_back())
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || others.contains(&byte))
}

/// Parses a URL. Its host is plain ASCII: the parser has no tables of Unicode, and asserts that
/// it needs none.
pub fn parse_url(text: &str) -> Option<Url> {
    let (_, rest) = text.split_once("://")?;
    let authority = rest.split(['/', '?', '#', '\\']).next().unwrap_or_default();
    let host = authority.rsplit('@').next().unwrap_or_default();
    if host.is_empty() || !host.is_ascii() || host.contains('%') {
        return None;
    }
    Url::parse(text).ok()
}

/// The name of a bucket of S3 or of Google Cloud Storage. Old buckets and other servers of S3 have
/// capitals, underscores and longer names than new ones.
pub(crate) fn is_bucket(text: &str) -> Result<(), &'static str> {
    let follows = is_word(text, 255, b".-_") && !text.contains("..");
    expect(
        follows,
        "a bucket of letters, digits, '.', '-' and '_', 255 at most",
    )
}

/// The name of a container of Azure.
pub(crate) fn is_container(text: &str) -> Result<(), &'static str> {
    let system = matches!(text, "$root" | "$web" | "$logs" | "$blobchangefeed");
    let follows = is_word(text, 63, b"-") && !text.bytes().any(|byte| byte.is_ascii_uppercase());
    expect(
        system || follows,
        "a container of lower-case letters, digits and '-', 63 at most",
    )
}

/// The name of a storage account of Azure. It is a label of a host's name.
pub(crate) fn is_account(text: &str) -> Result<(), &'static str> {
    let follows = is_word(text, 63, b"-") && !text.bytes().any(|byte| byte.is_ascii_uppercase());
    expect(
        follows,
        "expected an account of lower-case letters and digits",
    )
}

/// A region of S3. It is a label of a host's name.
pub(crate) fn is_region(text: &str) -> Result<(), &'static str> {
    expect(
        is_word(text, 63, b"-_"),
        "expected a region of letters, digits and '-'",
    )
}

/// A client or a tenant of Azure: a UUID or a domain. The latter is a part of a path.
pub(crate) fn is_identifier(text: &str) -> Result<(), &'static str> {
    expect(
        is_word(text, 253, b".-") && !text.contains(".."),
        "expected a UUID or a domain",
    )
}

/// The address of a server.
pub(crate) fn is_endpoint(text: &str) -> Result<(), &'static str> {
    let printable = text.bytes().all(|byte| byte.is_ascii_graphic());
    // The parser of URLs drops blanks and takes backslashes for slashes.
    let plain = printable && !text.contains(['\\', '#', '?', '@', '%']) && text.len() <= 2048;
    let authority = text
        .strip_prefix("https://")
        .or_else(|| text.strip_prefix("http://"));
    let named = authority.is_some_and(|rest| !rest.is_empty() && !rest.starts_with('/'));
    let follows = plain && named && Url::parse(text).is_ok_and(|url| url.has_host());
    expect(
        follows,
        "expected a URL such as https://HOST:PORT, without user, query or fragment",
    )
}

/// A key, token or the like.
pub(crate) fn is_credential(text: &str) -> Result<(), &'static str> {
    if text.is_empty() {
        return Err("expected a value, got an empty one");
    }
    if text.ends_with(['\n', '\r']) {
        return Err("expected a value without the line break at its end");
    }
    let printable = text.bytes().all(|byte| byte.is_ascii_graphic());
    expect(
        printable && text.len() <= MAX_OPTION,
        "expected visible ASCII characters without blanks, 16384 at most",
    )
}

/// Another option.
pub(crate) fn is_line(text: &str) -> Result<(), &'static str> {
    expect(
        text.len() <= MAX_OPTION && !text.contains(|c: char| c.is_control()),
        "expected at most 16384 bytes without control characters",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Characters that end a label of a host's name, or a part of a URL, in some parser.
    const HOSTILE: &[&str] = &[
        "",
        " ",
        "a b",
        "a\n",
        "\ta",
        "a/b",
        "a\\b",
        "a#",
        "a?b",
        "a@b",
        "a:b",
        "a%2f",
        "..",
        ".",
        "a..b",
        "-a",
        "a-",
        "ä",
        "[a]",
        "a;b",
        "a,b",
        "a\0",
        "host.example:443/#",
        "@host/#",
    ];

    #[test]
    fn what_ends_a_name_is_no_part_of_one() {
        let rules: [(&str, Rule); 5] = [
            ("bucket", is_bucket),
            ("container", is_container),
            ("account", is_account),
            ("region", is_region),
            ("identifier", is_identifier),
        ];
        for (name, rule) in rules {
            for text in HOSTILE {
                assert!(rule(text).is_err(), "{name}: {text:?}");
            }
            assert!(rule(&"a".repeat(256)).is_err(), "{name}");
        }
        for text in ["a.b", "A"] {
            assert!(is_account(text).is_err() && is_container(text).is_err());
        }
        assert!(is_region("a.b").is_err());
        is_bucket("my.bucket-1").expect("a bucket");
        is_bucket("Old_Bucket").expect("a bucket");
        is_container("$web").expect("a container");
        is_account("account1").expect("an account");
        is_region("eu-central-1").expect("a region");
        is_identifier("contoso.onmicrosoft.com").expect("a domain");
    }

    #[test]
    fn an_endpoint_is_a_host_and_nothing_that_hides_one() {
        for text in [
            "",
            "minio:9000",
            "minio",
            "//minio",
            "http://",
            "http:///x",
            "https:minio",
            "ftp://minio",
            "http://a@b",
            "http://a%c3%a4B",
            "http://a:b@c",
            "http://a?b",
            "http://a#b",
            "http://a\\b",
            " http://a",
            "http://a\n",
            "http://a b",
            "http://a:99999",
            "http://[::1",
        ] {
            assert!(is_endpoint(text).is_err(), "{text:?}");
        }
        for text in [
            "http://minio:9000",
            "https://a.example/",
            "http://[::1]:9000",
            "http://127.0.0.1:10000/devstoreaccount1",
        ] {
            is_endpoint(text).expect(text);
        }
    }
}
