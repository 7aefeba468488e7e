//! Extended attributes, including POSIX ACLs.
//!
//! All namespaces pass through, within the caller's privileges. The kernel checks two of them by
//! capabilities that a thread keeps while it acts for an ordinary user ([`crate::identity`]), so
//! barge checks those itself: such a user cannot see `trusted.` at all, and can only read
//! `security.`.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::XattrFlags as RawFlags;
use rustix::io::Errno as Raw;
use sys::errno;
use vfs::{Cx, Errno, Result, XattrFlags};

use crate::identity::CallerIdentity;
use crate::proc_fd::ProcPath;

/// The largest value and the longest list in Linux (`XATTR_SIZE_MAX`, `XATTR_LIST_MAX`).
const MAX_SIZE: usize = 65536;

/// A size that most values fit in: a label, an ACL with a dozen entries.
const TYPICAL_SIZE: usize = 256;

pub(crate) fn get(
    identity: &CallerIdentity,
    cx: &Cx<'_>,
    fd: BorrowedFd<'_>,
    name: &[u8],
) -> Result<Vec<u8>> {
    if is_hidden(identity, cx, name) {
        return Err(Errno::ENODATA);
    }
    identity.assume(cx)?;
    read(fd, name)
}

pub(crate) fn list(identity: &CallerIdentity, cx: &Cx<'_>, fd: BorrowedFd<'_>) -> Result<Vec<u8>> {
    identity.assume(cx)?;
    let path = ProcPath::of(fd);
    let mut names = fetch(|buffer| rustix::fs::listxattr(path.as_c_str(), buffer))?;
    if names
        .split(|&b| b == 0)
        .any(|name| is_hidden(identity, cx, name))
    {
        names = names
            .split_inclusive(|&b| b == 0)
            .filter(|name| !is_hidden(identity, cx, name))
            .flatten()
            .copied()
            .collect();
    }
    Ok(names)
}

pub(crate) fn set(
    identity: &CallerIdentity,
    cx: &Cx<'_>,
    fd: BorrowedFd<'_>,
    name: &[u8],
    value: &[u8],
    flags: XattrFlags,
) -> Result<()> {
    require_writable(identity, cx, name)?;
    identity.assume(cx)?;
    write(fd, name, value, flags)
}

pub(crate) fn remove(
    identity: &CallerIdentity,
    cx: &Cx<'_>,
    fd: BorrowedFd<'_>,
    name: &[u8],
) -> Result<()> {
    require_writable(identity, cx, name)?;
    identity.assume(cx)?;
    erase(fd, name)
}

/// Returns the value of `name`, with the thread's identity.
pub(crate) fn read(fd: BorrowedFd<'_>, name: &[u8]) -> Result<Vec<u8>> {
    let path = ProcPath::of(fd);
    fetch(|buffer| rustix::fs::getxattr(path.as_c_str(), name, buffer))
}

/// Sets `name`, with the thread's identity.
pub(crate) fn write(
    fd: BorrowedFd<'_>,
    name: &[u8],
    value: &[u8],
    flags: XattrFlags,
) -> Result<()> {
    let flags = RawFlags::from_bits_retain(flags.bits());
    rustix::fs::setxattr(ProcPath::of(fd).as_c_str(), name, value, flags).map_err(errno)
}

/// Removes `name`, with the thread's identity.
pub(crate) fn erase(fd: BorrowedFd<'_>, name: &[u8]) -> Result<()> {
    rustix::fs::removexattr(ProcPath::of(fd).as_c_str(), name).map_err(errno)
}

/// Returns whether new files in the directory `dir` get their permissions from a default ACL.
pub(crate) fn has_default_acl(dir: BorrowedFd<'_>) -> Result<bool> {
    match rustix::fs::getxattr(
        ProcPath::of(dir.as_fd()).as_c_str(),
        c"system.posix_acl_default",
        &mut [0u8; 0][..],
    ) {
        Ok(_) => Ok(true),
        Err(Raw::NODATA | Raw::OPNOTSUPP) => Ok(false),
        Err(error) => Err(errno(error)),
    }
}

fn is_hidden(identity: &CallerIdentity, cx: &Cx<'_>, name: &[u8]) -> bool {
    identity.is_ordinary(cx.caller) && name.starts_with(b"trusted.")
}

fn require_writable(identity: &CallerIdentity, cx: &Cx<'_>, name: &[u8]) -> Result<()> {
    if identity.is_ordinary(cx.caller) && is_privileged(name) {
        return Err(Errno::EPERM);
    }
    Ok(())
}

/// Returns whether only root may change `name`.
pub(crate) fn is_privileged(name: &[u8]) -> bool {
    name.starts_with(b"trusted.") || name.starts_with(b"security.")
}

/// Calls `call` with a buffer of the usual size, and with the largest if that is too short.
fn fetch(call: impl Fn(&mut [u8]) -> rustix::io::Result<usize>) -> Result<Vec<u8>> {
    let mut buffer = vec![0; TYPICAL_SIZE];
    let len = match call(&mut buffer) {
        Err(Raw::RANGE) => {
            buffer.resize(MAX_SIZE, 0);
            call(&mut buffer)
        }
        answer => answer,
    }
    .map_err(errno)?;
    buffer.truncate(len);
    buffer.shrink_to_fit();
    Ok(buffer)
}
