//! Digests of blobs (image-spec, `descriptor.md`).

use std::fmt;
use std::io::{self, Read};
use std::path::PathBuf;
use std::str::FromStr;

use sha2::{Digest as _, Sha256, Sha512};

use crate::error::Error;

/// A registered algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum Algorithm {
    Sha256,
    Sha512,
}

/// A digest: `ALGORITHM:HEX`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest {
    algorithm: Algorithm,
    /// Lower-case digits, as many as the algorithm has.
    hex: String,
}

/// Computes a digest.
pub struct Hasher(State);

enum State {
    Sha256(Sha256),
    Sha512(Sha512),
}

impl Algorithm {
    fn name(self) -> &'static str {
        match self {
            Algorithm::Sha256 => "sha256",
            Algorithm::Sha512 => "sha512",
        }
    }

    fn digits(self) -> usize {
        match self {
            Algorithm::Sha256 => 64,
            Algorithm::Sha512 => 128,
        }
    }

    /// Returns a hasher without bytes.
    pub fn hasher(self) -> Hasher {
        Hasher(match self {
            Algorithm::Sha256 => State::Sha256(Sha256::new()),
            Algorithm::Sha512 => State::Sha512(Sha512::new()),
        })
    }

    /// Returns the digest of all bytes that `reader` yields.
    pub fn digest_of(self, reader: &mut dyn Read) -> io::Result<Digest> {
        let mut hasher = self.hasher();
        let mut buffer = vec![0; 1 << 20];
        loop {
            match reader.read(&mut buffer)? {
                0 => return Ok(hasher.finish()),
                read => hasher.update(&buffer[..read]),
            }
        }
    }
}

impl Hasher {
    /// Appends bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        match &mut self.0 {
            State::Sha256(hasher) => hasher.update(bytes),
            State::Sha512(hasher) => hasher.update(bytes),
        }
    }

    /// Returns the digest of the bytes so far.
    pub fn finish(self) -> Digest {
        let (algorithm, hex) = match self.0 {
            State::Sha256(hasher) => (Algorithm::Sha256, hex::encode(hasher.finalize())),
            State::Sha512(hasher) => (Algorithm::Sha512, hex::encode(hasher.finalize())),
        };
        Digest { algorithm, hex }
    }
}

impl Digest {
    /// Returns the SHA-256 of `bytes`.
    pub fn sha256(bytes: &[u8]) -> Digest {
        let mut hasher = Algorithm::Sha256.hasher();
        hasher.update(bytes);
        hasher.finish()
    }

    /// Returns the algorithm.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Returns the path of the blob in an image layout.
    pub fn blob_path(&self) -> PathBuf {
        let dir = PathBuf::from("blobs").join(self.algorithm.name());
        dir.join(&self.hex)
    }

    /// Returns whether `bytes` have this digest.
    pub fn matches(&self, bytes: &[u8]) -> bool {
        let mut hasher = self.algorithm.hasher();
        hasher.update(bytes);
        hasher.finish() == *self
    }
}

impl FromStr for Digest {
    type Err = Error;

    fn from_str(text: &str) -> Result<Digest, Error> {
        let parsed = text.split_once(':').and_then(|(name, hex)| {
            let algorithm = match name {
                "sha256" => Algorithm::Sha256,
                "sha512" => Algorithm::Sha512,
                _ => return None,
            };
            let digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
            let valid = hex.len() == algorithm.digits() && hex.bytes().all(digit);
            valid.then(|| Digest {
                algorithm,
                hex: hex.to_owned(),
            })
        });
        parsed.ok_or_else(|| {
            let got: String = text.chars().take(150).collect();
            let got = got.escape_debug();
            Error::new(format!("expected a sha256 or sha512 digest, got '{got}'"))
        })
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.algorithm.name(), self.hex)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_has_an_algorithm_and_as_many_digits() {
        let empty = Digest::sha256(b"");
        assert!(empty.to_string().starts_with("sha256:e3b0c442"));
        let long = Algorithm::Sha512.digest_of(&mut &b"abc"[..]).expect("read");
        assert!(long.to_string().starts_with("sha512:ddaf35a1"));
        for digest in [empty, long] {
            assert_eq!(
                digest.to_string().parse::<Digest>().expect("parsed"),
                digest
            );
        }
        for text in [
            "",
            "sha256:",
            "sha256:E3B0",
            "md5:00",
            "sha256:../../etc/passwd",
        ] {
            let error = text.parse::<Digest>().expect_err(text).to_string();
            assert!(error.contains("expected"), "{error}");
        }
    }
}
