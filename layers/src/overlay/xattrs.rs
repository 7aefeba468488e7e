//! The attributes and file types with which overlayfs marks files.

use vfs::{Attr, Cx, Device, Errno, Kind, Node, Result, XattrFlags};

/// The namespace of the marks: `trusted.overlay.`, the kernel's default, or `user.overlay.`, as
/// with its option `userxattr`, whichever can be written here.
pub(super) struct OverlayXattrs {
    prefix: &'static [u8],
}

/// The marks of an upper file.
#[derive(Default)]
pub(super) struct UpperXattrs {
    /// It hides the lower directory of the same name.
    pub(super) opaque: bool,
    /// Its name in the lower tree: a name in the same directory, or a path from the root.
    pub(super) redirect: Option<Vec<u8>>,
    /// The handle of its lower origin.
    pub(super) origin: Option<Vec<u8>>,
}

const PREFIXES: [&[u8]; 2] = [b"trusted.overlay.", b"user.overlay."];

const OPAQUE: &[u8] = b"opaque";
const REDIRECT: &[u8] = b"redirect";
const METACOPY: &[u8] = b"metacopy";
/// An extension of barge: the kernel ignores unknown marks.
const ORIGIN: &[u8] = b"barge";

impl OverlayXattrs {
    /// Determines which marks can be written to `scratch`, which is on the same file system.
    pub(super) fn detect(scratch: &dyn Node, cx: &Cx<'_>) -> Result<OverlayXattrs> {
        let works = |prefix: &[u8]| {
            let name = [prefix, OPAQUE].concat();
            scratch.set_xattr(cx, &name, b"y", XattrFlags::empty())
        };
        match PREFIXES.into_iter().find(|prefix| works(prefix).is_ok()) {
            Some(prefix) => Ok(OverlayXattrs { prefix }),
            None => Err(Errno::EOPNOTSUPP),
        }
    }

    /// Returns whether an attribute is a mark, and hidden.
    pub(super) fn is_overlay_xattr(&self, name: &[u8]) -> bool {
        name.starts_with(self.prefix)
    }

    fn name(&self, what: &[u8]) -> Vec<u8> {
        [self.prefix, what].concat()
    }

    /// Reads the marks of `node`. Returns `EIO` for a metadata-only copy, which is not supported.
    pub(super) fn of(&self, node: &dyn Node, cx: &Cx<'_>) -> Result<UpperXattrs> {
        let mut marked = UpperXattrs::default();
        let names = match node.xattrs(cx) {
            // This kind of file has no attributes.
            Err(Errno::EOPNOTSUPP | Errno::EPERM | Errno::EACCES) => return Ok(marked),
            names => names?,
        };
        for name in names.split(|&byte| byte == 0) {
            let Some(what) = name.strip_prefix(self.prefix) else {
                continue;
            };
            match what {
                OPAQUE => marked.opaque = node.xattr(cx, name)? == b"y",
                REDIRECT => marked.redirect = Some(node.xattr(cx, name)?),
                ORIGIN => marked.origin = Some(node.xattr(cx, name)?),
                METACOPY => return Err(Errno::EIO),
                _ => {}
            }
        }
        Ok(marked)
    }

    pub(super) fn set_opaque(&self, dir: &dyn Node, cx: &Cx<'_>) -> Result<()> {
        dir.set_xattr(cx, &self.name(OPAQUE), b"y", XattrFlags::empty())
    }

    /// Records the lower origin of `node`. A file that cannot be marked, as a symbolic link with
    /// `user.` attributes, is a new file after the copy-up.
    pub(super) fn set_origin(&self, node: &dyn Node, cx: &Cx<'_>, origin: &[u8]) -> Result<()> {
        match node.set_xattr(cx, &self.name(ORIGIN), origin, XattrFlags::empty()) {
            Err(Errno::EPERM | Errno::EOPNOTSUPP) => Ok(()),
            set => set,
        }
    }
}

/// The device number of a whiteout.
pub(super) const WHITEOUT: Device = Device { major: 0, minor: 0 };

pub(super) fn is_whiteout(attr: &Attr) -> bool {
    attr.kind == Kind::CharDevice && attr.rdev == WHITEOUT
}
