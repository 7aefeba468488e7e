//! Tcreate: makes files of all types.

use std::sync::Arc;

use vfs::{AttrMask, Cx, Device, Entry, Errno, Mode, Name, NewNode, OpenFlags, Portion, Result};

use crate::numbers::{Dm, Omode};
use crate::server::fid::{FidState, OPEN_BYTES, State};
use crate::server::make::check_target;
use crate::server::open::IOUNIT;
use crate::server::qid::qid_of;
use crate::server::request::RequestContext;
use crate::server::step::STEP_BYTES;
use crate::{Dialect, Fid, Rmessage};

/// The file types that 9P2000.u adds.
const SPECIAL: Dm = Dm::SYMLINK
    .union(Dm::LINK)
    .union(Dm::DEVICE)
    .union(Dm::NAMEDPIPE)
    .union(Dm::SOCKET);

impl RequestContext<'_> {
    pub(in crate::server) fn create(
        &mut self,
        fid: Fid,
        name: &[u8],
        perm: u32,
        mode: u8,
        extension: &[u8],
    ) -> Result<()> {
        let dir = self.fid(fid)?;
        dir.check_walked()?;
        if !dir.is_directory() {
            return Err(Errno::ENOTDIR);
        }
        let name = Name::new(name)?;
        let perm = Dm::from_bits_retain(perm);
        let mode = Omode::from_bits_retain(mode);
        check_supported(perm)?;
        if self.dialect == Dialect::Plan9 && perm.intersects(SPECIAL) {
            return Err(Errno::EINVAL);
        }
        let cx = self.cx(&dir.attach().caller);
        let bits = self.permissions(&cx, &dir, perm)?;
        let (step, open) = (
            dir.reserve_memory(STEP_BYTES)?,
            dir.reserve_memory(OPEN_BYTES)?,
        );
        let (qid, made) = if perm.contains(Dm::DIR) {
            self.create_directory(&cx, &dir, name, bits, (mode, step, open))?
        } else if perm.intersects(SPECIAL) {
            let entry = self.create_special(&cx, &dir, name, perm, bits, extension)?;
            (qid_of(&entry.attr), dir.child(name, entry.node, step))
        } else {
            let flags = self.legacy_flags(mode) | OpenFlags::EXCL;
            let (entry, file) = dir.node().create(&cx, name, flags, bits)?;
            let child = dir.child(name, entry.node, step);
            let remove = mode.contains(Omode::RCLOSE);
            let writer = self.writer(&child, flags, entry.attr.size);
            self.note_open(&cx, &child, flags);
            let opened = State::opened(&child, file, flags, (remove, writer), open);
            (qid_of(&entry.attr), child.with_state(opened))
        };
        self.connection.fids.replace(fid, &dir, made)?;
        self.reply(&Rmessage::Create {
            qid,
            iounit: IOUNIT,
        })
    }

    /// Returns the permissions of a new file: in 9P2000 limited by its directory's (open(5)); a
    /// 9P2000.u client has applied a umask.
    fn permissions(&self, cx: &Cx<'_>, dir: &FidState, perm: Dm) -> Result<Mode> {
        let bits = mode_bits(self.dialect, perm);
        if self.dialect != Dialect::Plan9 {
            return Ok(Mode::without_umask(bits));
        }
        let mask = if perm.contains(Dm::DIR) { 0o777 } else { 0o666 };
        let parent = dir.attr(cx, AttrMask::BASIC)?.mode;
        Ok(Mode::without_umask(bits & (!mask | parent & mask)))
    }

    fn create_directory(
        &self,
        cx: &Cx<'_>,
        dir: &FidState,
        name: Name<'_>,
        bits: Mode,
        (mode, step, open): (Omode, Portion, Portion),
    ) -> Result<(crate::Qid, FidState)> {
        let flags = self.legacy_flags(mode);
        if flags != OpenFlags::READ {
            return Err(Errno::EISDIR);
        }
        // Two steps: an operation that would block must not stop between them.
        cx.check_may_block()?;
        let entry = dir.node().make(cx, name, NewNode::Directory, bits)?;
        let qid = qid_of(&entry.attr);
        let child = dir.child(name, entry.node, step);
        let file = child.node().open(cx, flags)?;
        let remove = mode.contains(Omode::RCLOSE);
        let opened = State::opened(&child, file, flags, (remove, None), open);
        Ok((qid, child.with_state(opened)))
    }

    /// Makes a file that cannot be opened; the fid then refers to it, unopened.
    fn create_special(
        &self,
        cx: &Cx<'_>,
        dir: &FidState,
        name: Name<'_>,
        perm: Dm,
        bits: Mode,
        extension: &[u8],
    ) -> Result<Entry> {
        let what = if perm.contains(Dm::SYMLINK) {
            check_target(extension)?;
            NewNode::Symlink(extension)
        } else if perm.contains(Dm::LINK) {
            let target = self.fid(Fid(number(extension)?))?;
            target.check_file()?;
            if !Arc::ptr_eq(&target.attach().export, &dir.attach().export) {
                return Err(Errno::EXDEV);
            }
            return dir.node().link(cx, name, target.node());
        } else if perm.contains(Dm::DEVICE) {
            device(extension)?
        } else if perm.contains(Dm::NAMEDPIPE) {
            NewNode::Fifo
        } else {
            NewNode::Socket
        };
        dir.node().make(cx, name, what, bits)
    }
}

/// Returns `EOPNOTSUPP` for unsupported modes: append-only and exclusive use.
pub(super) fn check_supported(mode: Dm) -> Result<()> {
    match mode.intersects(Dm::APPEND | Dm::EXCL) {
        true => Err(Errno::EOPNOTSUPP),
        false => Ok(()),
    }
}

/// Returns the permission bits of a mode, with the set-id and sticky bits of 9P2000.u.
pub(super) fn mode_bits(dialect: Dialect, mode: Dm) -> u32 {
    let mut bits = mode.bits() & 0o777;
    if dialect == Dialect::Unix {
        for (dm, bit) in SET_BITS {
            if mode.contains(dm) {
                bits |= bit;
            }
        }
    }
    bits
}

/// The set-id and sticky bits in 9P2000.u.
pub(super) const SET_BITS: [(Dm, u32); 3] = [
    (Dm::SETUID, 0o4000),
    (Dm::SETGID, 0o2000),
    (Dm::SETVTX, 0o1000),
];

/// Parses `b 8 1` or `c 1 3`.
fn device(extension: &[u8]) -> Result<NewNode<'static>> {
    let mut words = extension
        .split(u8::is_ascii_whitespace)
        .filter(|word| !word.is_empty());
    let mut word = || words.next().ok_or(Errno::EINVAL);
    let kind = word()?;
    let device = Device {
        major: number(word()?)?,
        minor: number(word()?)?,
    };
    match kind {
        b"b" => Ok(NewNode::BlockDevice(device)),
        b"c" => Ok(NewNode::CharDevice(device)),
        _ => Err(Errno::EINVAL),
    }
}

fn number(word: &[u8]) -> Result<u32> {
    let text = std::str::from_utf8(word.trim_ascii());
    text.ok()
        .and_then(|text| text.parse().ok())
        .ok_or(Errno::EINVAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_a_letter_and_two_numbers() {
        let (major, minor) = (8, 1);
        let block = NewNode::BlockDevice(Device { major, minor });
        assert_eq!(device(b"b 8 1"), Ok(block));
        assert_eq!(device(b" b  8 1\n"), Ok(block));
        for wrong in [
            &b""[..],
            b"b",
            b"b 8",
            b"x 8 1",
            b"c -1 1",
            b"c 1 99999999999",
        ] {
            assert_eq!(device(wrong), Err(Errno::EINVAL));
        }
    }
}
