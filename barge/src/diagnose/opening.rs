//! Errors of opening a source.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use sources::{Source, suggest};

/// Returns why `source` cannot be opened, and a remedy. The name of the source is not included.
pub(crate) fn open_error(source: &Source, error: &io::Error) -> String {
    let known = match (source, error.kind()) {
        (Source::HostDir(path), ErrorKind::NotFound) => Some(not_found_error(path)),
        (Source::HostDir(_) | Source::Image(_), ErrorKind::InvalidData) => {
            Some(format!("{error}; 'barge pack DIR IMAGE' creates one"))
        }
        (Source::Remote(_), ErrorKind::ConnectionRefused) => Some(format!(
            "{error}; no server listens at this address: is it running, and on this port?"
        )),
        _ => None,
    };
    known.unwrap_or_else(|| error.to_string())
}

fn not_found_error(path: &Path) -> String {
    // A mount has absolute paths; what was written may be the address of a server.
    let dir = std::env::current_dir().unwrap_or_default();
    let text = path.strip_prefix(&dir).unwrap_or(path).to_string_lossy();
    if let Some((host, rest)) = text.split_once(':')
        && !host.contains('/')
    {
        return match host {
            "http" | "https" | "s3" | "gs" | "az" | "oci" | "nfs" | "9p" => format!(
                "no such file or directory; for another server: {host}://{}",
                rest.trim_start_matches('/')
            ),
            host => format!(
                "no such file or directory; for another server: nfs://{host}/{0} or 9p://{host}/{0}",
                rest.trim_start_matches('/')
            ),
        };
    }
    // The first component that does not exist.
    let parts: Vec<&Path> = path.ancestors().collect();
    let missing = parts
        .iter()
        .rev()
        .find(|part| !part.as_os_str().is_empty() && fs::symlink_metadata(part).is_err());
    let missing = missing.copied().unwrap_or(path);
    let mut line = match (missing == path, path.is_absolute()) {
        (true, true) => "no such file or directory".to_owned(),
        (true, false) => format!("no such file or directory{}", in_current_dir()),
        (false, _) => format!("{} does not exist", missing.display()),
    };
    if let Some(close) = similar_name(missing) {
        line.push_str(&format!("; did you mean {close}?"));
    }
    line
}

/// Returns the directory that relative paths start from, as text after an error.
fn in_current_dir() -> String {
    let dir = std::env::current_dir();
    dir.map_or(String::new(), |dir| format!(" in {}", dir.display()))
}

/// Returns the entry in the directory of `path` whose name is most similar, if any.
fn similar_name(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    let dir = path.parent()?;
    let listed = match dir.as_os_str().is_empty() {
        true => Path::new("."),
        false => dir,
    };
    // Bounds the time in huge directories.
    let entries = fs::read_dir(listed).ok()?.flatten().take(10_000);
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    suggest(name, names).map(|best| dir.join(best).display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named_with_what_is_close() {
        let dir = tempfile::tempdir().expect("a directory");
        let base = dir.path();
        fs::create_dir(base.join("documents")).expect("made");
        let message = |path: &str| not_found_error(&base.join(path));
        let close = base.join("documents").display().to_string();
        for path in ["document", "Documents", "documnets/deep/below"] {
            assert!(
                message(path).ends_with(&format!("; did you mean {close}?")),
                "{}",
                message(path)
            );
        }
        assert_eq!(message("xyz"), "no such file or directory");
        let deep = base.join("xyz").display().to_string();
        assert_eq!(message("xyz/a"), format!("{deep} does not exist"));
        assert!(
            not_found_error(Path::new("host:/srv")).contains("nfs://host/srv or 9p://host/srv")
        );
        assert!(not_found_error(Path::new("nfs:host/srv")).contains("nfs://host/srv"));
        assert!(not_found_error(Path::new("no-such-thing")).contains(" in /"));
    }
}
