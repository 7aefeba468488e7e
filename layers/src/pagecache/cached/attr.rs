//! Attributes: requested and changed below, after dirty data is written.

use vfs::{Attr, AttrMask, Cx, Result, SetAttr};

use super::Cached;

impl Cached {
    /// Returns the attributes that `fetch` requests. Dirty data is written first, for it changes
    /// times and space.
    pub(in crate::pagecache) fn attr(
        &self,
        cx: &Cx<'_>,
        want: AttrMask,
        fetch: impl FnOnce() -> Result<Attr>,
    ) -> Result<Attr> {
        if want.intersects(AttrMask::SIZE | AttrMask::TIMES) {
            self.flush(cx)?;
        }
        let since = self.core.write_epoch();
        let mut attr = fetch()?;
        self.revalidate(&mut attr, since);
        Ok(attr)
    }

    /// Changes attributes with `change`, after dirty data is written.
    pub(in crate::pagecache) fn setattr(
        &self,
        cx: &Cx<'_>,
        set: &SetAttr,
        change: impl FnOnce() -> Result<Attr>,
    ) -> Result<Attr> {
        let _exclusive = self.exclusive(cx)?;
        let attr = change()?;
        match set.size {
            Some(_) => self.truncated(attr.size),
            None => self.lock().change = None,
        }
        Ok(attr)
    }
}
