//! SHA-256 digests of blobs, and chain IDs (OCI image specification, *Descriptors* and *Layer
//! ChainID*).

use std::fmt;
use std::str::FromStr;

use sha2::{Digest as _, Sha256};

/// A digest `sha256:HEX`. Its text is safe as a file name and in URLs.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Digest(String);

impl Digest {
    /// Parses the 64 lower-case hexadecimal digits after `sha256:`.
    pub(crate) fn from_hex(hex: &str) -> Option<Digest> {
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        (hex.len() == 64 && hex.bytes().all(is_digit)).then(|| Digest(hex.into()))
    }

    /// Returns the 64 digits.
    pub(crate) fn hex(&self) -> &str {
        &self.0
    }

    /// Returns the chain ID of a layer with the diff ID `self` on top of `parent`.
    pub(crate) fn chain_id(&self, parent: Option<&Digest>) -> Digest {
        let Some(parent) = parent else {
            return self.clone();
        };
        let hash = Sha256::digest(format!("{parent} {self}"));
        Digest(hex::encode(hash))
    }
}

impl FromStr for Digest {
    type Err = String;

    fn from_str(text: &str) -> Result<Digest, String> {
        let hex = text.strip_prefix("sha256:").and_then(Digest::from_hex);
        hex.ok_or_else(|| format!("expected sha256: and 64 hexadecimal digits, got '{text}'"))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_digests_parse() {
        let hex = "0123456789abcdef".repeat(4);
        assert_eq!(
            format!("sha256:{hex}").parse::<Digest>().unwrap().hex(),
            hex
        );
        let upper = hex.to_uppercase();
        for wrong in [
            "",
            "sha256:",
            &hex,
            &format!("sha512:{hex}"),
            &format!("sha256:{upper}"),
        ] {
            assert!(wrong.parse::<Digest>().is_err(), "{wrong}");
        }
        assert!(
            format!("sha256:../{}", &hex[3..])
                .parse::<Digest>()
                .is_err()
        );
    }

    /// The values are sha256sum's of the text that the specification defines.
    #[test]
    fn chain_ids() {
        let first = Digest::from_hex(&"a".repeat(64)).unwrap();
        let second = Digest::from_hex(&"b".repeat(64)).unwrap();
        assert_eq!(first.chain_id(None), first);
        assert_eq!(
            second.chain_id(Some(&first)).hex(),
            "ccd722928bd92476ba1745586fed6e45a102504185ad88cd89e01ff116fd146c"
        );
    }
}
