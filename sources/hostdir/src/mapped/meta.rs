//! The attributes on the disk.

use std::ffi::CStr;
use std::os::fd::BorrowedFd;

use rustix::io::Errno as Raw;
use vfs::{Attr, Errno, Kind, Result, XattrFlags};

use crate::proc_path::ProcPath;
use crate::xattr;

/// What all of their names begin with.
pub(super) const PREFIX: &[u8] = b"user.virtfs.";
const UID: &CStr = c"user.virtfs.uid";
const GID: &CStr = c"user.virtfs.gid";
const MODE: &CStr = c"user.virtfs.mode";
const RDEV: &CStr = c"user.virtfs.rdev";

/// Permissions on the disk of what is no directory, as QEMU gives them.
pub(super) const FILE_MODE: u32 = 0o600;
/// Permissions on the disk of directories, as QEMU gives them.
pub(super) const DIR_MODE: u32 = 0o700;

/// Puts what is kept with `fd`, whose own attributes are in `attr`, into `attr`.
pub(super) fn read(fd: BorrowedFd<'_>, attr: &mut Attr) -> Result<()> {
    // Only these can have such attributes.
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
        // A directory is one whatever stands there, and nothing else can be.
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

/// What is kept under `name`, if it has the right length.
fn number<const N: usize>(fd: BorrowedFd<'_>, name: &CStr) -> Result<Option<[u8; N]>> {
    let mut bytes = [0; N];
    match rustix::fs::getxattr(ProcPath::of(fd).as_c_str(), name, &mut bytes[..]) {
        Ok(len) => Ok((len == N).then_some(bytes)),
        // Or not readable for the process, who sees what it is as an outsider then.
        Err(Raw::NODATA | Raw::OPNOTSUPP | Raw::RANGE | Raw::ACCESS | Raw::PERM) => Ok(None),
        Err(error) => Err(sys::errno(error)),
    }
}

/// Keeps owner, group, kind and permissions (and the device of a device node) of `attr`.
pub(super) fn write(fd: BorrowedFd<'_>, attr: &Attr) -> Result<()> {
    write_owner(fd, Some(attr.uid), Some(attr.gid))?;
    write_mode(fd, attr)?;
    if matches!(attr.kind, Kind::CharDevice | Kind::BlockDevice) {
        let rdev = rustix::fs::makedev(attr.rdev.major, attr.rdev.minor);
        set(fd, RDEV, &rdev.to_le_bytes())?;
    }
    Ok(())
}

/// Keeps the owner and the group that are given.
pub(super) fn write_owner(fd: BorrowedFd<'_>, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
    if let Some(uid) = uid {
        set(fd, UID, &uid.to_le_bytes())?;
    }
    if let Some(gid) = gid {
        set(fd, GID, &gid.to_le_bytes())?;
    }
    Ok(())
}

/// Keeps kind and permissions of `attr`.
pub(super) fn write_mode(fd: BorrowedFd<'_>, attr: &Attr) -> Result<()> {
    set(fd, MODE, &attr.st_mode().to_le_bytes())
}

fn set(fd: BorrowedFd<'_>, name: &CStr, value: &[u8]) -> Result<()> {
    xattr::write(fd, name.to_bytes(), value, XattrFlags::empty())
}

/// Refuses names of ours, and those whose meaning nobody here enforces.
pub(super) fn check_name(name: &[u8], hidden: Errno) -> Result<()> {
    if name.starts_with(PREFIX) {
        return Err(hidden);
    }
    if name.starts_with(b"system.") {
        return Err(Errno::EOPNOTSUPP);
    }
    Ok(())
}
