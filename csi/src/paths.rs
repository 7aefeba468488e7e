//! Paths that the orchestrator names, and names of directories that users choose.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use tonic::Status;

/// The longest path, bytes (`PATH_MAX` without its terminator).
const MAX_PATH: usize = 4095;

/// The longest name of a directory, bytes (`NAME_MAX`).
const MAX_NAME: usize = 255;

/// The most components of a `subDir`.
const MAX_COMPONENTS: usize = 16;

/// Checks a path to mount on: absolute, not the root, without `.` and `..`. `what` is the field's
/// name. Resolves the links of its directory, as the mount table has paths without links. The path
/// itself need not exist.
pub fn mount_point(what: &str, path: &str) -> Result<PathBuf, Status> {
    if path.is_empty() {
        return Err(Status::invalid_argument(format!("{what} is missing")));
    }
    let bad = |why: &str| Status::invalid_argument(format!("{what}: {why}"));
    if path.len() > MAX_PATH || path.contains('\0') {
        return Err(bad("expected a path of at most 4095 bytes without NUL"));
    }
    let plain = |part: &str| part != "." && part != "..";
    if !path.starts_with('/') || !path.split('/').all(plain) {
        return Err(bad("expected an absolute path without '.' and '..'"));
    }
    let path = Path::new(path);
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(bad("expected a directory other than the root"));
    };
    match fs::canonicalize(dir) {
        Ok(dir) => Ok(dir.join(name)),
        // The caller finds that it does not exist.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(path.to_owned()),
        Err(error) => Err(Status::internal(format!("{}: {error}", dir.display()))),
    }
}

/// Checks a directory's path beneath a shared directory: names without slashes at the ends, of
/// bounded length, none of them `.`, `..` or hidden, and without control characters. Returns the
/// names.
pub fn sub_dir(path: &str) -> Result<Vec<&str>, Status> {
    let names: Vec<&str> = path.split('/').collect();
    let good = |name: &&str| {
        !name.is_empty()
            && name.len() <= MAX_NAME
            && !name.starts_with('.')
            && !name.contains(|c: char| c.is_control() || "\\#?%&".contains(c))
    };
    if names.len() > MAX_COMPONENTS || !names.iter().all(good) {
        let text = format!(
            "bad directory '{}': expected at most {MAX_COMPONENTS} names of at most {MAX_NAME} bytes, which do not \
             begin with '.' and have no control characters, backslashes or any of #?%&",
            path.chars()
                .take(MAX_NAME)
                .collect::<String>()
                .escape_debug()
        );
        return Err(Status::invalid_argument(text));
    }
    Ok(names)
}

/// Returns the path relative to `base`, if it is beneath it or the same, and both are absolute
/// paths without `.` and `..`.
pub fn relative_to<'a>(path: &'a Path, base: &Path) -> Option<&'a Path> {
    let plain = |path: &Path| {
        let mut parts = path.components();
        parts.next() == Some(Component::RootDir)
            && parts.all(|part| matches!(part, Component::Normal(_)))
            && !path.as_os_str().as_bytes().contains(&0)
    };
    let relative = path.strip_prefix(base).ok()?;
    (plain(path) && plain(base)).then_some(relative)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_mount_points_are_refused() {
        for bad in ["", "relative", "/", "/a/../b", "/a/./b", "/..", "/a\0b"] {
            assert!(mount_point("target_path", bad).is_err(), "{bad:?}");
        }
        let long = format!("/{}", "x".repeat(5000));
        assert!(mount_point("target_path", &long).is_err());
        let path = mount_point("target_path", "/proc/self/x").expect("good");
        assert_eq!(
            path,
            PathBuf::from(format!("/proc/{}/x", std::process::id()))
        );
        assert!(mount_point("target_path", "/no/such/directory").is_ok());
    }

    #[test]
    fn hostile_directories_are_refused() {
        for bad in [
            "",
            "/",
            "/a",
            "a/",
            "a//b",
            ".",
            "..",
            "a/..",
            "../a",
            "a/../../b",
            ".hidden",
            "a\\b",
            "a\nb",
            "a\0",
            "a#b",
            "a?aname=x",
            "a%2e",
            "a&b",
        ] {
            assert!(sub_dir(bad).is_err(), "{bad:?}");
        }
        assert!(sub_dir(&"x".repeat(256)).is_err());
        assert!(sub_dir(&vec!["x"; 17].join("/")).is_err());
        assert_eq!(sub_dir("team-a/pvc 1").expect("good"), ["team-a", "pvc 1"]);
        assert!(sub_dir(&"x".repeat(255)).is_ok());
    }

    #[test]
    fn a_path_is_beneath_another_by_its_names() {
        let relative = |path: &'static str, base: &str| {
            relative_to(Path::new(path), Path::new(base)).map(|path| path.display().to_string())
        };
        assert_eq!(relative("/srv/a/b", "/srv").as_deref(), Some("a/b"));
        assert_eq!(relative("/srv", "/srv/").as_deref(), Some(""));
        for (path, base) in [
            ("/srv2/a", "/srv"),
            ("/srv/../etc", "/srv"),
            ("srv/a", "srv"),
            ("/etc", "/srv"),
        ] {
            assert_eq!(relative(path, base), None, "{path}");
        }
    }
}
