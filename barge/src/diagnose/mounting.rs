//! Errors of mounting on a directory.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use rustix::io::Errno;

use crate::Failure;

/// Checks whether `dir` can be a mount point, before any other work. Logs if the mount will hide
/// files.
pub(crate) fn mount_point(dir: &Path) -> Result<(), Failure> {
    let shown = dir.display();
    let failed = |why: String| Err(Failure::new(format!("{shown}: {why}")));
    let found = match fs::metadata(dir) {
        Ok(found) => found,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return failed(format!("there is no such directory: mkdir -p {shown}"));
        }
        Err(error) if error.raw_os_error() == Some(Errno::NOTCONN.raw_os_error()) => {
            return failed(format!(
                "a mount is there whose server has ended: umount -l {shown} (fusermount3 -uz {shown} for users) takes it away"
            ));
        }
        Err(error) => return failed(error.to_string()),
    };
    if !found.is_dir() {
        return failed("expected a directory to mount on, got a file".into());
    }
    if fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some()) {
        tracing::info!("{shown}: what is in it is hidden until it is unmounted");
    }
    Ok(())
}

/// Returns why the file system `kind` cannot be mounted on `dir`, and a remedy.
pub(crate) fn mounting(dir: &Path, kind: &str, error: &io::Error) -> String {
    let known = match kind {
        "fuse" => fuse_device().err().map(str::to_owned),
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
        Errno::NODEV => Some(format!("this kernel has no file system {kind}: modprobe {kind}")),
        Errno::PERM | Errno::ACCESS => Some(
            "mounting takes CAP_SYS_ADMIN, which this process lacks: give it to the container (docker run --cap-add SYS_ADMIN --device \
             /dev/fuse), or use a namespace (unshare --user --map-root-user --mount)"
                .into(),
        ),
        Errno::BUSY => Some("it is busy: umount it first (findmnt shows what is there)".into()),
        _ => None,
    }
}

/// Checks whether /dev/fuse can be opened. The error is a remedy.
fn fuse_device() -> Result<(), &'static str> {
    match sys::fuse::open_device() {
        Ok(_) => Ok(()),
        Err(Errno::ACCESS | Errno::PERM) => Err(
            "this user may not open /dev/fuse: chmod 666 /dev/fuse (as root), as systems have it; in a container, start that with --device /dev/fuse",
        ),
        Err(_) => Err(
            "there is no /dev/fuse, by which this would be mounted: modprobe fuse (as root); in a container, start that with --device /dev/fuse",
        ),
    }
}
