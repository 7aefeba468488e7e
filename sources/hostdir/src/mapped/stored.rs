//! The attributes on disk.

use std::ffi::CStr;
use std::os::fd::BorrowedFd;

use rustix::io::Errno as Raw;
use vfs::{Attr, Errno, Kind, Result, XattrFlags};

use crate::proc_fd::ProcPath;
use crate::xattr;

/// The prefix of all of their names.
pub(super) const PREFIX: &[u8] = b"user.virtfs.";
const UID: &CStr = c"user.virtfs.uid";
const GID: &CStr = c"user.virtfs.gid";
const MODE: &CStr = c"user.virtfs.mode";
const RDEV: &CStr = c"user.virtfs.rdev";

/// Permissions on disk of everything but directories, as in QEMU.
pub(super) const FILE_MODE: u32 = 0o600;
/// Permissions on disk of directories, as in QEMU.
pub(super) const DIR_MODE: u32 = 0o700;

/// Replaces the attributes of `fd` in `attr` with the stored ones.
pub(super) fn read(fd: BorrowedFd<'_>, attr: &mut Attr) -> Result<()> {
    // Other types cannot have such attributes.
    if !matches!(attr.kind, Kind::File | Kind::Directory) {
        return Ok(());
    }
    if let Some(uid) = number(fd, UID)? {
        attr.uid = u32::from_le_bytes(uid);
    }
    if let Some(gid) = number(fd, GID)? {
        attr.gid = u32::from_le_bytes(gid);
    }
    if let Some(mode) = number(fd, MODE)? {
        let mode = u32::from_le_bytes(mode);
        attr.mode = mode & 0o7777;
        // A directory stays one in any case, and a file cannot become one.
        if attr.kind == Kind::File
            && let Some(kind) = Kind::from_mode(mode).filter(|&kind| kind != Kind::Directory)
        {
            attr.kind = kind;
        }
    }
    if matches!(attr.kind, Kind::CharDevice | Kind::BlockDevice)
        && let Some(rdev) = number(fd, RDEV)?
    {
        let rdev = u64::from_le_bytes(rdev);
        attr.rdev.major = rustix::fs::major(rdev);
        attr.rdev.minor = rustix::fs::minor(rdev);
    }
    Ok(())
}

/// Returns the attribute `name`, if it has the right length.
fn number<const N: usize>(fd: BorrowedFd<'_>, name: &CStr) -> Result<Option<[u8; N]>> {
    let mut bytes = [0; N];
    match rustix::fs::getxattr(ProcPath::of(fd).as_c_str(), name, &mut bytes[..]) {
        Ok(len) => Ok((len == N).then_some(bytes)),
        // Or the process may not read it; the file's own attributes are shown then.
        Err(Raw::NODATA | Raw::OPNOTSUPP | Raw::RANGE | Raw::ACCESS | Raw::PERM) => Ok(None),
        Err(error) => Err(sys::errno(error)),
    }
}

/// Stores owner, group, type and permissions (and the device of a device node) of `attr`.
pub(super) fn write(fd: BorrowedFd<'_>, attr: &Attr) -> Result<()> {
    write_owner(fd, Some(attr.uid), Some(attr.gid))?;
    write_mode(fd, attr)?;
    if matches!(attr.kind, Kind::CharDevice | Kind::BlockDevice) {
        let rdev = rustix::fs::makedev(attr.rdev.major, attr.rdev.minor);
        set(fd, RDEV, &rdev.to_le_bytes())?;
    }
    Ok(())
}

/// Stores the given owner and group.
pub(super) fn write_owner(fd: BorrowedFd<'_>, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
    if let Some(uid) = uid {
        set(fd, UID, &uid.to_le_bytes())?;
    }
    if let Some(gid) = gid {
        set(fd, GID, &gid.to_le_bytes())?;
    }
    Ok(())
}

/// Stores type and permissions of `attr`.
pub(super) fn write_mode(fd: BorrowedFd<'_>, attr: &Attr) -> Result<()> {
    set(fd, MODE, &attr.st_mode().to_le_bytes())
}

fn set(fd: BorrowedFd<'_>, name: &CStr, value: &[u8]) -> Result<()> {
    xattr::write(fd, name.to_bytes(), value, XattrFlags::empty())
}

/// Rejects the names of the stored attributes, and names with semantics that are not enforced here.
pub(super) fn check_name(name: &[u8], hidden: Errno) -> Result<()> {
    if name.starts_with(PREFIX) {
        return Err(hidden);
    }
    if name.starts_with(b"system.") {
        return Err(Errno::EOPNOTSUPP);
    }
    Ok(())
}
