//! Messages that 9P2000 and 9P2000.u have instead of 9P2000.L's: Topen, Tcreate, Tstat, Twstat, and
//! reading directories as files.
//!
//! Deliberately absent: following symbolic links for clients of plain 9P2000, which has none (they
//! see files that cannot be opened); exclusive-use and append-only files, which sources do not
//! support: Tcreate and Twstat reject `DMEXCL` and `DMAPPEND` with `EOPNOTSUPP`, since programs
//! rely on them for locks and logs (stat(5)); temporary files: `DMTMP` is advice, and ignored.

mod create;
mod records;
mod stat;
mod wstat;

use vfs::{Errno, OpenFlags, Result, or_open_for_exec};

use super::fid::{OPEN_BYTES, State};
use super::open::{IOUNIT, wanted};
use super::qid::qid_of;
use super::request::RequestContext;
use crate::numbers::Omode;
use crate::{Dialect, Fid, Rmessage};

impl RequestContext<'_> {
    pub(super) fn open(&mut self, fid: Fid, mode: u8) -> Result<()> {
        let state = self.fid(fid)?;
        state.check_walked()?;
        let mode = Omode::from_bits_retain(mode);
        let flags = self.legacy_flags(mode);
        if state.is_directory() && flags != OpenFlags::READ {
            return Err(Errno::EISDIR);
        }
        let charge = state.reserve_memory(OPEN_BYTES)?;
        let cx = self.cx(&state.attach().caller);
        let node = state.node();
        let file = or_open_for_exec(node, &cx, flags, node.open(&cx, flags))?;
        let attr = file.attr(&cx, wanted(flags))?;
        let remove = mode.contains(Omode::RCLOSE);
        let writer = self.writer(&state, flags, attr.size);
        self.note_open(&cx, &state, flags);
        let opened = state.with_state(State::opened(&state, file, flags, (remove, writer), charge));
        self.connection.fids.replace(fid, &state, opened)?;
        self.reply(&Rmessage::Open {
            qid: qid_of(&attr),
            iounit: IOUNIT,
        })
    }

    fn legacy_flags(&self, mode: Omode) -> OpenFlags {
        let mut flags = match (mode & Omode::ACCESS).bits() {
            0 => OpenFlags::READ,
            1 => OpenFlags::WRITE,
            2 => OpenFlags::READ | OpenFlags::WRITE,
            _ => OpenFlags::EXEC,
        };
        flags.set(OpenFlags::TRUNC, mode.contains(Omode::TRUNC));
        let append = self.dialect == Dialect::Unix && mode.contains(Omode::APPEND);
        flags.set(OpenFlags::APPEND, append);
        flags
    }
}
