//! Labels: what the client's security module calls what is made, kept as extended attributes.
//!
//! Making and labelling are two changes to the source. What cannot be labelled is taken away again; until
//! then others on the host may see it without.

use vfs::{Caller, Entry, Errno, Kind, Name, Node, Result, Want, XattrFlags};

use super::Turn;

impl Turn<'_> {
    /// Asked before what is to be labelled is made: neither change may be the other's trace.
    pub(super) fn may_label(&self) -> Result<()> {
        match self.labels.is_empty() {
            true => Ok(()),
            false => self.cx.may_wait(),
        }
    }

    /// Labels what was made as `name`, which is nothing if it has none, in `dir`.
    pub(super) fn label(
        &self,
        dir: &dyn Node,
        name: Option<Name<'_>>,
        mut made: Entry,
    ) -> Result<Entry> {
        if self.labels.is_empty() {
            return Ok(made);
        }
        match self.set_labels(&*made.node) {
            Ok(()) => {
                made.attr = made.node.attr(&self.cx, Want::STAT)?;
                Ok(made)
            }
            Err(errno) => {
                if let Some(name) = name {
                    let directory = made.node.kind() == Kind::Directory;
                    match dir.unlink(&self.cx, name, directory) {
                        Ok(()) | Err(Errno::ENOENT) => {}
                        Err(kept) => tracing::warn!(?name, "left without a label: {kept}"),
                    }
                }
                Err(errno)
            }
        }
    }

    /// The client's kernel sets them, not whoever makes the file.
    fn set_labels(&self, node: &dyn Node) -> Result<()> {
        let kernel = Caller::ROOT;
        let cx = self.cx.on_behalf_of(&kernel);
        self.labels.iter().try_for_each(|label| {
            self.check_name(label.name)?;
            node.set_xattr(&cx, label.name, label.value, XattrFlags::empty())
        })
    }
}
