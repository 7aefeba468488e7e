//! Configuration files, which are read as a whole.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Reads a file. Returns `InvalidData` if it has more than `max` bytes; errors name the path.
pub fn read_bounded(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    let failed =
        |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(failed)?;
    file.take(max + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > max {
        let line = format!("expected a file of at most {max} bytes, got more");
        return Err(failed(io::Error::new(io::ErrorKind::InvalidData, line)));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_beyond_its_limit_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("ca.pem");
        std::fs::write(&path, b"12345").expect("written");
        assert_eq!(read_bounded(&path, 5).expect("read"), b"12345");
        let refused = read_bounded(&path, 4).expect_err("too large");
        assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
        let refused = refused.to_string();
        assert!(
            refused.contains("ca.pem: expected a file of at most 4"),
            "{refused}"
        );
        let missing = read_bounded(&dir.path().join("none"), 4).expect_err("missing");
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }
}
