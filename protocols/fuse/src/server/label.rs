//! Security labels that the client's LSM assigns to new files, stored as extended attributes.
//!
//! Making a file and labelling it are two changes to the source. A file that cannot be labelled is
//! removed again; until then other processes on the host may see it without its label.

use vfs::{AttrMask, Caller, Entry, Errno, Kind, Name, Node, Result, XattrFlags};

use super::RequestContext;

impl RequestContext<'_> {
    /// Called before a file that needs a label is made: an operation that would block must leave
    /// neither change as a trace.
    pub(super) fn check_may_label(&self) -> Result<()> {
        match self.labels.is_empty() {
            true => Ok(()),
            false => self.cx.check_may_block(),
        }
    }

    /// Labels the new file `name` in `dir`; an unnamed file has no `name`. A file that the call
    /// notes as existing keeps its label.
    pub(super) fn label(
        &self,
        dir: &dyn Node,
        name: Option<Name<'_>>,
        mut made: Entry,
    ) -> Result<Entry> {
        if self.labels.is_empty() || self.cx.call.is_existing() {
            return Ok(made);
        }
        match self.set_labels(&*made.node) {
            Ok(()) => {
                made.attr = made.node.attr(&self.cx, AttrMask::STAT)?;
                Ok(made)
            }
            Err(errno) => {
                if let Some(name) = name {
                    let directory = made.node.kind() == Kind::Directory;
                    match dir.unlink(&self.cx, name, directory) {
                        Ok(()) | Err(Errno::ENOENT) => {}
                        Err(failure) => tracing::warn!(
                            ?name,
                            "cannot remove a new file without a label: {failure}"
                        ),
                    }
                }
                Err(errno)
            }
        }
    }

    /// The client's kernel sets the labels, not the process that makes the file.
    fn set_labels(&self, node: &dyn Node) -> Result<()> {
        let kernel = Caller::ROOT;
        let cx = self.cx.on_behalf_of(&kernel);
        self.labels.iter().try_for_each(|label| {
            self.check_name(label.name)?;
            node.set_xattr(&cx, label.name, label.value, XattrFlags::empty())
        })
    }
}
