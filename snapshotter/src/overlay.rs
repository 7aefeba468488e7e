//! Mounts of snapshots, the same as those of containerd's overlayfs snapshotter
//! (`plugins/snapshots/overlay`): an overlay, or a bind mount where there is only one layer.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::statfs;

use crate::api::{Kind, Mount};
use crate::error::{Error, Result};

/// `f_type` of tmpfs (statfs(2)).
const TMPFS_MAGIC: i128 = 0x0102_1994;

/// The directories of snapshots, and options of each overlay.
pub(crate) struct Overlay {
    /// ROOT/snapshots.
    dir: String,
    options: Vec<String>,
}

impl Overlay {
    /// Prepares for the directory `dir`, which exists, and detects the options that the kernel
    /// needs. Returns an error if overlayfs cannot take its path as an option.
    pub(crate) fn new(dir: &Path) -> Result<Overlay> {
        let text = dir.to_str().filter(|text| !text.contains([',', ':', '\\']));
        let Some(text) = text else {
            let dir = dir.display();
            return Err(Error::invalid(format!(
                "{dir}: overlayfs needs a path in UTF-8 without ',', ':' and '\\'"
            )));
        };
        let mut options = Vec::new();
        // Attributes of trusted.* need the initial user namespace; tmpfs has none of user.*.
        if in_user_namespace() && !is_on_tmpfs(dir) {
            options.push("userxattr".into());
        }
        if Path::new("/sys/module/overlay/parameters/index").exists() {
            options.push("index=off".into());
        }
        Ok(Overlay {
            dir: text.into(),
            options,
        })
    }

    /// Returns the directory that has those of all snapshots.
    pub(crate) fn root(&self) -> &Path {
        Path::new(&self.dir)
    }

    /// Returns the directory of a snapshot.
    pub(crate) fn dir(&self, id: u64) -> PathBuf {
        format!("{}/{id}", self.dir).into()
    }

    /// Returns the directory with the files of a snapshot, or the link to its layer.
    pub(crate) fn files(&self, id: u64) -> PathBuf {
        self.upper(id).into()
    }

    /// Returns overlayfs's working directory of a snapshot.
    pub(crate) fn work(&self, id: u64) -> PathBuf {
        self.dir(id).join("work")
    }

    fn upper(&self, id: u64) -> String {
        format!("{}/{id}/fs", self.dir)
    }

    /// Returns the mounts of an active snapshot or a view, with `parents`, the nearest first.
    pub(crate) fn mounts(&self, kind: Kind, id: u64, parents: &[u64]) -> Vec<Mount> {
        let bind = |id, access: &str| Mount {
            r#type: "bind".into(),
            source: self.upper(id),
            options: vec![access.into(), "rbind".into()],
            ..Mount::default()
        };
        let mount = match (kind, parents) {
            (Kind::View, []) => bind(id, "ro"),
            (Kind::View, [parent]) => bind(*parent, "ro"),
            (_, []) => bind(id, "rw"),
            _ => self.overlay(kind, id, parents),
        };
        vec![mount]
    }

    fn overlay(&self, kind: Kind, id: u64, parents: &[u64]) -> Mount {
        let mut options = Vec::new();
        if kind == Kind::Active {
            options.push(format!("workdir={}/{id}/work", self.dir));
            options.push(format!("upperdir={}", self.upper(id)));
        }
        let lower: Vec<_> = parents.iter().map(|&parent| self.upper(parent)).collect();
        options.push(format!("lowerdir={}", lower.join(":")));
        options.extend(self.options.iter().cloned());
        Mount {
            r#type: "overlay".into(),
            source: "overlay".into(),
            options,
            ..Mount::default()
        }
    }
}

/// Returns whether this process is in another user namespace than the initial one, which maps all
/// ids to themselves (user_namespaces(7)).
fn in_user_namespace() -> bool {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let fields: Vec<_> = map.split_whitespace().collect();
    !fields.is_empty() && fields != ["0", "0", "4294967295"]
}

fn is_on_tmpfs(dir: &Path) -> bool {
    statfs(dir).is_ok_and(|found| i128::from(found.f_type) == TMPFS_MAGIC)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(kind: Kind, parents: &[u64]) -> (String, String, Vec<String>) {
        let overlay = Overlay {
            dir: "/r/snapshots".into(),
            options: vec!["index=off".into()],
        };
        let mut mounts = overlay.mounts(kind, 9, parents);
        assert_eq!(mounts.len(), 1);
        let Mount {
            r#type,
            source,
            options,
            ..
        } = mounts.remove(0);
        (r#type, source, options)
    }

    /// The expected values are those of containerd's overlayfs snapshotter.
    #[test]
    fn mounts_are_overlayfs_snapshotters() {
        let expected = |kind: &str, source: &str, options: &[&str]| {
            let options = options.iter().map(|&option| option.to_owned()).collect();
            (kind.to_owned(), source.to_owned(), options)
        };
        assert_eq!(
            options(Kind::Active, &[]),
            expected("bind", "/r/snapshots/9/fs", &["rw", "rbind"])
        );
        assert_eq!(
            options(Kind::View, &[]),
            expected("bind", "/r/snapshots/9/fs", &["ro", "rbind"])
        );
        assert_eq!(
            options(Kind::View, &[3]),
            expected("bind", "/r/snapshots/3/fs", &["ro", "rbind"])
        );
        assert_eq!(
            options(Kind::View, &[3, 1]),
            expected(
                "overlay",
                "overlay",
                &["lowerdir=/r/snapshots/3/fs:/r/snapshots/1/fs", "index=off"]
            )
        );
        assert_eq!(
            options(Kind::Active, &[3]),
            expected(
                "overlay",
                "overlay",
                &[
                    "workdir=/r/snapshots/9/work",
                    "upperdir=/r/snapshots/9/fs",
                    "lowerdir=/r/snapshots/3/fs",
                    "index=off"
                ]
            )
        );
    }

    #[test]
    fn separators_of_options_are_refused() {
        for path in ["/a:b", "/a,b", "/a\\b"] {
            assert!(Overlay::new(Path::new(path)).is_err(), "{path}");
        }
    }
}
