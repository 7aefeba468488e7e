//! The contents of files that options of shares name, such as `--only`: they are read once, and
//! then belong to the configuration, whatever is in the files later.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::prelude::{BASE64_STANDARD, Engine};
use parking_lot::Mutex;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Maximum size of a file in bytes.
const MAX_FILE: u64 = 256 << 20;

/// The contents of files by their paths. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Files(Arc<Contents>);

#[derive(Debug, Default)]
struct Contents {
    /// Whether they come from another process: no further file is read.
    is_complete: bool,
    all: Mutex<BTreeMap<PathBuf, Arc<[u8]>>>,
}

impl Files {
    /// Returns the contents of the file at `path`, which is read if it is not known. Returns
    /// `NotFound` if another process has read all files, and not this one.
    pub(crate) fn read(&self, path: &Path) -> io::Result<Arc<[u8]>> {
        if let Some(known) = self.0.all.lock().get(path) {
            return Ok(known.clone());
        }
        if self.0.is_complete {
            return Err(io::ErrorKind::NotFound.into());
        }
        let mut contents = Vec::new();
        let mut file = File::open(path)?.take(MAX_FILE + 1);
        if file.read_to_end(&mut contents)? as u64 > MAX_FILE {
            let why = format!("expected at most {MAX_FILE} bytes");
            return Err(io::Error::other(why));
        }
        let mut all = self.0.all.lock();
        Ok(all
            .entry(path.to_owned())
            .or_insert(contents.into())
            .clone())
    }

    /// Returns those of both, which read further files.
    pub(super) fn with(&self, others: &Files) -> Files {
        let mut all = self.0.all.lock().clone();
        all.extend(others.0.all.lock().clone());
        Files(Arc::new(Contents {
            is_complete: self.0.is_complete && others.0.is_complete,
            all: Mutex::new(all),
        }))
    }
}

impl Serialize for Files {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let all = self.0.all.lock();
        let coded = all
            .iter()
            .map(|(path, contents)| (path, BASE64_STANDARD.encode(contents)));
        to.collect_map(coded)
    }
}

impl<'a> Deserialize<'a> for Files {
    fn deserialize<D: Deserializer<'a>>(from: D) -> Result<Files, D::Error> {
        let coded = BTreeMap::<PathBuf, String>::deserialize(from)?;
        let decoded = coded.into_iter().map(|(path, contents)| {
            let contents = BASE64_STANDARD.decode(contents);
            Ok((path, contents.map_err(D::Error::custom)?.into()))
        });
        Ok(Files(Arc::new(Contents {
            is_complete: true,
            all: Mutex::new(decoded.collect::<Result<_, _>>()?),
        })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_once_and_by_no_other_process() {
        let dir = tempfile::tempdir().expect("a directory");
        let [path, other] = ["list", "other"].map(|name| dir.path().join(name));
        std::fs::write(&path, b"a\xff").expect("written");
        let files = Files::default();
        assert_eq!(*files.read(&path).expect("contents"), *b"a\xff");
        for path in [&path, &other] {
            std::fs::write(path, "b").expect("written");
        }
        assert_eq!(*files.read(&path).expect("contents"), *b"a\xff");
        let text = serde_json::to_string(&files).expect("JSON");
        let passed: Files = serde_json::from_str(&text).expect("files");
        assert_eq!(*passed.read(&path).expect("contents"), *b"a\xff");
        let error = passed.read(&other).expect_err("none");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert_eq!(*files.with(&passed).read(&other).expect("contents"), *b"b");
    }
}
