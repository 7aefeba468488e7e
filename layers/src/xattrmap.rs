//! Renames extended attributes between clients and the source, by the rules of virtiofsd's
//! `--xattrmap` (`doc/xattr-mapping.md` there).
//!
//! A rule is `:TYPE:SCOPE:KEY:PREPEND:`; its first character is the separator of its fields, and
//! white space may stand between rules. The first rule that matches applies: it matches by `KEY`, a
//! prefix of the name that a client uses (scopes `client` and `all`), or by `PREPEND`, a prefix of
//! the name that the source lists (`server` and `all`). The types:
//!
//! | type | a client's name | a name in a listing |
//! |---|---|---|
//! | `prefix` | gets `PREPEND` before it | loses it |
//! | `ok` | stays | stays |
//! | `bad` | `EPERM` | is hidden |
//! | `unsupported` | `EOPNOTSUPP` | is hidden |
//!
//! `:map:KEY:PREPEND:`, which can only be the last, is an abbreviation of the rules that map `KEY`
//! safely: clients cannot reach the mapped names directly. A name that no rule matches is treated
//! as `bad`.
//!
//! Names that Linux protects stay protected when they are renamed: `trusted.` is for the super-user
//! alone, `security.` is readable for all and writable for the super-user. If `security.capability`
//! is renamed below, the source does not know that it must be removed when the file changes: this
//! layer removes it, except from the target of a copy, where the client does.

use std::borrow::Cow;
use std::str::FromStr;
use std::sync::Arc;

use vfs::acl;
use vfs::{
    AllocateMode, Attr, Caller, Capabilities, Cx, Entry, Errno, File, Kind, Mode, Name, Node,
    OpenFlags, Payload, Result, SetAttr, Support, XattrFlags,
};

use self::rules::Rules;
use crate::{BadMap, Layer, Opened, forward};

mod rules;

/// The rules, and the layer that applies them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XattrMap {
    rules: Rules,
    /// The name of file capabilities below, if it is a different one.
    capability: Option<Vec<u8>>,
}

/// File capabilities (capabilities(7)).
const CAPABILITY: &[u8] = b"security.capability";

impl FromStr for XattrMap {
    type Err = BadMap;

    fn from_str(text: &str) -> std::result::Result<XattrMap, BadMap> {
        let rules: Rules = text.parse()?;
        let capability = match rules.to_source(CAPABILITY) {
            Ok(Cow::Owned(name)) => Some(name),
            Ok(Cow::Borrowed(_)) | Err(_) => None,
        };
        Ok(XattrMap { rules, capability })
    }
}

impl XattrMap {
    /// Returns the name below for a client's `name` that `caller` changes.
    fn writable<'a>(&self, name: &'a [u8], caller: &Caller) -> Result<Cow<'a, [u8]>> {
        let guarded = name.starts_with(b"trusted.") || name.starts_with(b"security.");
        match self.rules.to_source(name)? {
            Cow::Owned(_) if guarded && caller.uid != 0 => Err(Errno::EPERM),
            below => Ok(below),
        }
    }

    /// Removes file capabilities that the source does not recognise by their name, as Linux does
    /// before a file changes (`fs/inode.c`, `file_remove_privs`).
    fn kill_capability(&self, node: &dyn Node, cx: &Cx<'_>) -> Result<()> {
        let Some(name) = &self.capability else {
            return Ok(());
        };
        if node.kind() != Kind::File {
            return Ok(());
        }
        let root = Caller::ROOT;
        let kernel = cx.on_behalf_of(&root);
        // Tries as the caller first: a writer may do it more often than the super-user, who may be
        // squashed below.
        let kill = |cx: &Cx<'_>| match node.xattr(cx, name) {
            Err(Errno::ENODATA | Errno::EOPNOTSUPP) => Ok(()),
            Err(errno) => Err(errno),
            Ok(_) => {
                // The operation itself may still answer `WOULD_BLOCK`, and must leave no trace
                // then.
                cx.check_may_block()?;
                match node.remove_xattr(cx, name) {
                    Err(Errno::ENODATA) => Ok(()),
                    removed => removed,
                }
            }
        };
        match kill(cx) {
            Err(Errno::EACCES | Errno::EPERM) => kill(&kernel),
            killed => killed,
        }
    }
}

/// Returns whether the attribute `name` is invisible to `caller` (`fs/xattr.c`,
/// `xattr_permission`).
fn hidden(name: &[u8], caller: &Caller) -> bool {
    name.starts_with(b"trusted.") && caller.uid != 0
}

/// Returns whether Linux removes file capabilities along with this change.
fn kills_capability(set: &SetAttr) -> bool {
    set.kill_priv || set.size.is_some() || set.uid.is_some() || set.gid.is_some()
}

impl Layer for XattrMap {
    fn capabilities(&self, inner: Capabilities) -> Capabilities {
        let stays = |name: &&[u8]| {
            matches!(self.rules.to_source(name), Ok(Cow::Borrowed(_)))
                && self.rules.to_client(name) == Some(*name)
        };
        Capabilities {
            acl: match [acl::ACCESS, acl::DEFAULT].iter().all(stays) {
                true => inner.acl,
                false => Support::None,
            },
            ..inner
        }
    }

    fn xattr(&self, inner: &dyn Node, cx: &Cx<'_>, name: &[u8]) -> Result<Vec<u8>> {
        let root = Caller::ROOT;
        match self.rules.to_source(name)? {
            Cow::Owned(_) if hidden(name, cx.caller) => Err(Errno::ENODATA),
            // Reads as root: the file's permissions apply to the name below, but not to this one.
            Cow::Owned(below) if !name.starts_with(b"user.") => {
                inner.xattr(&cx.on_behalf_of(&root), &below)
            }
            below => inner.xattr(cx, &below),
        }
    }

    fn xattrs(&self, inner: &dyn Node, cx: &Cx<'_>) -> Result<Vec<u8>> {
        let names = inner.xattrs(cx)?;
        let mut shown = Vec::with_capacity(names.len());
        for name in names
            .split(|&byte| byte == 0)
            .filter(|name| !name.is_empty())
        {
            if let Some(above) = self.rules.to_client(name)
                && (above == name || !hidden(above, cx.caller))
            {
                shown.extend_from_slice(above);
                shown.push(0);
            }
        }
        Ok(shown)
    }

    fn set_xattr(
        &self,
        inner: &dyn Node,
        cx: &Cx<'_>,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        inner.set_xattr(cx, &self.writable(name, cx.caller)?, value, flags)
    }

    fn remove_xattr(&self, inner: &dyn Node, cx: &Cx<'_>, name: &[u8]) -> Result<()> {
        inner.remove_xattr(cx, &self.writable(name, cx.caller)?)
    }

    fn setattr(&self, inner: &dyn Node, cx: &Cx<'_>, set: &SetAttr) -> Result<Attr> {
        if kills_capability(set) {
            self.kill_capability(inner, cx)?;
        }
        inner.setattr(cx, set)
    }

    fn file_setattr(&self, inner: Opened<'_>, cx: &Cx<'_>, set: &SetAttr) -> Result<Attr> {
        if kills_capability(set) {
            self.kill_capability(inner.node, cx)?;
        }
        inner.setattr(cx, set)
    }

    fn open(&self, inner: &dyn Node, cx: &Cx<'_>, flags: OpenFlags) -> Result<Arc<dyn File>> {
        if flags.contains(OpenFlags::TRUNC) && self.capability.is_some() {
            // Removes nothing unless the caller may open the file.
            inner.open(cx, flags - OpenFlags::TRUNC)?;
            self.kill_capability(inner, cx)?;
        }
        inner.open(cx, flags)
    }

    fn create(
        &self,
        inner: &dyn Node,
        cx: &Cx<'_>,
        name: Name<'_>,
        flags: OpenFlags,
        mode: Mode,
    ) -> Result<(Entry, Arc<dyn File>)> {
        let cuts = flags.contains(OpenFlags::TRUNC) && self.capability.is_some();
        if cuts {
            cx.check_may_block()?;
        }
        let made = inner.create(cx, name, flags, mode)?;
        if cuts {
            self.kill_capability(&*made.0.node, cx)?;
        }
        Ok(made)
    }

    fn write(
        &self,
        inner: Opened<'_>,
        cx: &Cx<'_>,
        offset: u64,
        data: &mut dyn Payload,
    ) -> Result<usize> {
        self.kill_capability(inner.node, cx)?;
        inner.write(cx, offset, data)
    }

    fn allocate(
        &self,
        inner: Opened<'_>,
        cx: &Cx<'_>,
        how: AllocateMode,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        self.kill_capability(inner.node, cx)?;
        inner.allocate(cx, how, offset, len)
    }

    forward! {
        id above
        root resolve sync
        handle attr access statfs readlink lookup parent make tmpfile link unlink rename
        host_lock host_lock_holder
        file_attr read readdir fsync flush seek extents copy lease
    }
}
