//! LOOKUP, FORGET and BATCH_FORGET: look-up counts.

use vfs::{AttrMask, Entry, Errno, Name, Result};

use super::RequestContext;
use super::nodes::NodeRef;
use crate::layout::{EntryOut, ForgetOne};

impl RequestContext<'_> {
    pub(super) fn lookup(&mut self, name: &[u8]) -> Result<()> {
        self.check_room(EntryOut::SIZE)?;
        let up = self.node()?;
        let entry = match name {
            b"." => Entry {
                attr: up.node.attr(&self.cx, AttrMask::STAT)?,
                node: up.node.clone(),
            },
            b".." => up.node.parent(&self.cx)?,
            name => match up.node.lookup(&self.cx, Name::new(name)?) {
                Err(Errno::ENOENT) => return self.reply_absent(&up),
                found => found?,
            },
        };
        self.reply_entry(&up, &entry)
    }

    pub(super) fn reply_entry(&mut self, up: &NodeRef, entry: &Entry) -> Result<()> {
        let entry = self.entry_out(up, entry)?;
        self.reply(&[&entry.encode()])
    }

    /// Reports that a name does not exist. The client may cache that if the tree cannot change, or
    /// if it is notified of the name's creation.
    fn reply_absent(&mut self, up: &NodeRef) -> Result<()> {
        let validity = match self.session.is_immutable() {
            true => self.session.options.validity(),
            false => {
                let up_id = self.session.nodes.nodeid_of(up.node.id());
                let validity = self.notified_validity(up_id, up.device);
                validity.ok_or(Errno::ENOENT)?
            }
        };
        self.reply(&[&self.negative_entry(validity).encode()])
    }

    pub(super) fn forget(&mut self, lookups: u64) -> Result<()> {
        let nodes = &self.session.nodes;
        nodes.forget(self.incarnation, self.header.nodeid, lookups);
        Ok(())
    }

    /// The number of complete entries limits `count`, which the client chooses.
    pub(super) fn batch_forget(&mut self, count: u32, forgets: &[u8]) -> Result<()> {
        let whole = forgets.chunks_exact(ForgetOne::SIZE).take(count as usize);
        for forget in whole.filter_map(|bytes| ForgetOne::decode(bytes).ok()) {
            let nodes = &self.session.nodes;
            nodes.forget(self.incarnation, forget.nodeid, forget.nlookup);
        }
        Ok(())
    }
}
