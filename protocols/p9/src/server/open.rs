//! Tlopen, Tlcreate, Thand and Tclunk: opening fids, passing their files, and releasing them.

use vfs::{AttrMask, Errno, Kind, Mode, Name, OpenFlags, Patience, Result, or_open_for_exec};

use super::fid::{FidState, OPEN_BYTES, State};
use super::qid::qid_of;
use super::request::RequestContext;
use super::step::STEP_BYTES;
use crate::numbers::Lopen;
use crate::{Fid, Rmessage};

/// `iounit` of every reply: 0, as much as msize allows. Linux limits reads, writes and Treaddir by
/// any other value.
pub(super) const IOUNIT: u32 = 0;

impl RequestContext<'_> {
    pub(super) fn lopen(&mut self, fid: Fid, flags: u32) -> Result<()> {
        let state = self.fid(fid)?;
        state.check_walked()?;
        let requested = Lopen::from_bits_retain(flags);
        let flags = open_flags(requested)?;
        match state.node().kind() {
            Kind::Directory if flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNC) => {
                return Err(Errno::EISDIR);
            }
            Kind::Directory => {}
            _ if requested.contains(Lopen::DIRECTORY) => return Err(Errno::ENOTDIR),
            _ => {}
        }
        let charge = state.reserve_memory(OPEN_BYTES)?;
        let cx = self.cx(&state.attach().caller);
        let node = state.node();
        let file = or_open_for_exec(node, &cx, flags, node.open(&cx, flags))?;
        let attr = file.attr(&cx, wanted(flags))?;
        let writer = self.writer(&state, flags, attr.size);
        self.note_open(&cx, &state, flags);
        let opened = state.with_state(State::opened(&state, file, flags, (false, writer), charge));
        self.connection.fids.replace(fid, &state, opened)?;
        self.reply(&Rmessage::Lopen {
            qid: qid_of(&attr),
            iounit: IOUNIT,
        })
    }

    pub(super) fn lcreate(
        &mut self,
        fid: Fid,
        name: &[u8],
        flags: u32,
        mode: u32,
        gid: u32,
    ) -> Result<()> {
        let state = self.fid(fid)?;
        state.check_walked()?;
        if !state.is_directory() {
            return Err(Errno::ENOTDIR);
        }
        let name = Name::new(name)?;
        let requested = Lopen::from_bits_retain(flags);
        let mut flags = open_flags(requested)?;
        flags.set(OpenFlags::EXCL, requested.contains(Lopen::EXCL));
        let caller = state.attach().caller_in(self.call, gid);
        let mode = Mode::without_umask(mode & 0o7777);
        let cx = self.cx(&caller);
        let (step, open) = (
            state.reserve_memory(STEP_BYTES)?,
            state.reserve_memory(OPEN_BYTES)?,
        );
        let (entry, file) = state.node().create(&cx, name, flags, mode)?;
        let child = state.child(name, entry.node, step);
        let writer = self.writer(&child, flags, entry.attr.size);
        self.note_open(&cx, &child, flags);
        let created = child.with_state(State::opened(&child, file, flags, (false, writer), open));
        self.connection.fids.replace(fid, &state, created)?;
        self.reply(&Rmessage::Lcreate {
            qid: qid_of(&entry.attr),
            iounit: IOUNIT,
        })
    }

    /// Passes an open file. Returns `EOPNOTSUPP` if it is not a file of the host or is not
    /// available.
    pub(super) fn hand(&mut self, fid: Fid) -> Result<()> {
        let fid = self.fid(fid)?;
        let open = fid.open()?;
        let attach = fid.attach();
        if open.directory || !attach.export.fd_passing {
            return Err(Errno::EOPNOTSUPP);
        }
        let Some(file) = open.file.backing(&self.cx(&attach.caller)) else {
            // The descriptor may have to be opened again.
            return Err(match self.patience {
                Patience::Full => Errno::EOPNOTSUPP,
                _ => Errno::WOULD_BLOCK,
            });
        };
        self.reply(&Rmessage::Hand {})?;
        match self.out.pass_file(file) {
            true => Ok(()),
            false => Err(Errno::EOPNOTSUPP),
        }
    }

    /// Releases a fid, even if the remaining work fails.
    pub(super) fn clunk(&mut self, fid: Fid) -> Result<()> {
        let state = self.fid(fid)?;
        let done = self.finish_clunk(&state);
        if let Err(errno) = done
            && errno.is_signal()
        {
            return Err(errno);
        }
        self.connection.fids.remove(fid, &state);
        done?;
        self.reply(&Rmessage::Clunk {})
    }

    fn finish_clunk(&self, fid: &FidState) -> Result<()> {
        let cx = self.cx(&fid.attach().caller);
        match fid.state() {
            State::Walked | State::XattrRead(_) => Ok(()),
            State::XattrWrite(draft) => draft.commit(&cx, fid.node()),
            State::Open(open) => {
                if open.flags.contains(OpenFlags::WRITE) {
                    open.file.flush(&cx)?;
                }
                if open.remove {
                    fid.unlink(&cx)?;
                }
                Ok(())
            }
        }
    }
}

/// Returns the attributes that opening a file needs: a network file system may have to request the
/// size.
pub(super) fn wanted(flags: OpenFlags) -> AttrMask {
    let mut want = AttrMask::BASIC | AttrMask::TIMES;
    want.set(AttrMask::SIZE, flags.contains(OpenFlags::WRITE));
    want
}

/// Converts Linux's open flags. The client handles flags that are not listed: `DIRECT` concerns its
/// own cache, and does not imply that the bytes it sends are aligned. A client usually truncates
/// with Tsetattr, but `TRUNC` is honoured.
fn open_flags(requested: Lopen) -> Result<OpenFlags> {
    let mut flags = match (requested & Lopen::ACCESS).bits() {
        0 => OpenFlags::READ,
        1 => OpenFlags::WRITE,
        2 => OpenFlags::READ | OpenFlags::WRITE,
        _ => return Err(Errno::EINVAL),
    };
    for (bit, flag) in [
        (Lopen::TRUNC, OpenFlags::TRUNC),
        (Lopen::APPEND, OpenFlags::APPEND),
        (Lopen::DSYNC, OpenFlags::DSYNC),
        (Lopen::SYNC, OpenFlags::SYNC),
        (Lopen::NOATIME, OpenFlags::NOATIME),
    ] {
        flags.set(flag, requested.contains(bit));
    }
    Ok(flags)
}
