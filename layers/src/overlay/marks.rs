//! What is said of a file by extended attributes of it, and by what it is.

use vfs::{Attr, Cx, Device, Errno, Kind, Node, Result, XattrFlags};

/// Marks, by the namespace that can be written here: the super-user's as the kernel has it by itself, or users' as with its option
/// `userxattr`.
pub(super) struct Marks {
    prefix: &'static [u8],
}

/// What was found on something in `upper`.
#[derive(Default)]
pub(super) struct Marked {
    /// What is below by the same name has nothing to do with it.
    pub(super) opaque: bool,
    /// By what name it is below: one in the same directory, or a path from the root.
    pub(super) redirect: Option<Vec<u8>>,
    /// What it was below: a handle.
    pub(super) origin: Option<Vec<u8>>,
}

const PREFIXES: [&[u8]; 2] = [b"trusted.overlay.", b"user.overlay."];

const OPAQUE: &[u8] = b"opaque";
const REDIRECT: &[u8] = b"redirect";
const METACOPY: &[u8] = b"metacopy";
/// Ours: the kernel passes over what it does not know.
const ORIGIN: &[u8] = b"barge";

impl Marks {
    /// Those that can be written on `scratch`, which is of the same file system.
    pub(super) fn find(scratch: &dyn Node, cx: &Cx<'_>) -> Result<Marks> {
        let works = |prefix: &[u8]| {
            let name = [prefix, OPAQUE].concat();
            scratch.set_xattr(cx, &name, b"y", XattrFlags::empty())
        };
        match PREFIXES.into_iter().find(|prefix| works(prefix).is_ok()) {
            Some(prefix) => Ok(Marks { prefix }),
            None => Err(Errno::EOPNOTSUPP),
        }
    }

    /// Whether an attribute is nobody else's business.
    pub(super) fn is_ours(&self, name: &[u8]) -> bool {
        name.starts_with(self.prefix)
    }

    fn name(&self, what: &[u8]) -> Vec<u8> {
        [self.prefix, what].concat()
    }

    /// What `node` is marked as. `EIO` for what cannot be shown: a copy of attributes whose contents are still below.
    pub(super) fn of(&self, node: &dyn Node, cx: &Cx<'_>) -> Result<Marked> {
        let mut marked = Marked::default();
        let names = match node.xattrs(cx) {
            // Of this kind of file there are none.
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

    /// Tells what `node` was below. What cannot be marked, as a symbolic link by users' attributes, is another file from then on.
    pub(super) fn set_origin(&self, node: &dyn Node, cx: &Cx<'_>, origin: &[u8]) -> Result<()> {
        match node.set_xattr(cx, &self.name(ORIGIN), origin, XattrFlags::empty()) {
            Err(Errno::EPERM | Errno::EOPNOTSUPP) => Ok(()),
            set => set,
        }
    }
}

/// The device that a whiteout is.
pub(super) const WHITEOUT: Device = Device { major: 0, minor: 0 };

pub(super) fn is_whiteout(attr: &Attr) -> bool {
    attr.kind == Kind::CharDevice && attr.rdev == WHITEOUT
}
