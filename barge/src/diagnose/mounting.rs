//! Errors of mounting on a directory.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use rustix::io::Errno;

use crate::Failure;

/// Checks whether `dir` can be a mount point, before any other work. Logs if the mount will hide
/// files.
pub(crate) fn check_mount_point(dir: &Path) -> Result<(), Failure> {
    let shown = dir.display();
    let failed = |why: String| Err(Failure::new(format!("{shown}: {why}")));
    let found = match fs::metadata(dir) {
        Ok(found) => found,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return failed(format!("no such directory: mkdir -p {shown}"));
        }
        Err(error) if error.raw_os_error() == Some(Errno::NOTCONN.raw_os_error()) => {
            return failed(format!(
                "a mount whose server has ended is in the way: umount -l {shown} (as a user: fusermount3 -uz {shown})"
            ));
        }
        Err(error) => return failed(error.to_string()),
    };
    if !found.is_dir() {
        return failed("expected a directory to mount on, got a file".into());
    }
    if fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some()) {
        tracing::info!(
            "{shown}: the directory is not empty; its files are hidden until the unmount"
        );
    }
    Ok(())
}

/// Returns why the file system `kind` cannot be mounted on `dir`, and a remedy.
pub(crate) fn mount_error(dir: &Path, kind: &str, error: &io::Error) -> String {
    let known = match kind {
        "fuse" => check_fuse_device().err().map(str::to_owned),
        _ => None,
    };
    let known = known.or_else(|| by_errno(kind, error));
    format!(
        "{}: {}",
        dir.display(),
        known.unwrap_or_else(|| error.to_string())
    )
}

fn by_errno(kind: &str, error: &io::Error) -> Option<String> {
    let errno = error.raw_os_error().map(Errno::from_raw_os_error)?;
    match errno {
        Errno::NODEV => Some(format!(
            "this kernel does not support {kind}: modprobe {kind}"
        )),
        Errno::PERM | Errno::ACCESS => Some(
            "mounting requires CAP_SYS_ADMIN, which this process lacks: add it to the container \
             (docker run --cap-add SYS_ADMIN --device /dev/fuse), or use a namespace \
             (unshare --user --map-root-user --mount)"
                .into(),
        ),
        Errno::BUSY => {
            Some("the mount point is busy: unmount it first (findmnt shows the mounts)".into())
        }
        _ => None,
    }
}

/// Checks whether /dev/fuse can be opened. The error is a remedy.
fn check_fuse_device() -> Result<(), &'static str> {
    match sys::fuse::open_device() {
        Ok(_) => Ok(()),
        Err(Errno::ACCESS | Errno::PERM) => Err(
            "this user cannot open /dev/fuse: chmod 666 /dev/fuse as root; in a container, start it with --device /dev/fuse",
        ),
        Err(_) => Err(
            "there is no /dev/fuse, which the mount requires: modprobe fuse as root; in a container, start it with --device /dev/fuse",
        ),
    }
}
