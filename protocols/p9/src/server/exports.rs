//! The exports that clients may attach to, by name.

use std::sync::Arc;

use vfs::Export;

/// The trees that clients may attach to.
pub trait Exports: Send + Sync {
    /// Returns the export that `aname` (Tattach) names, and the remaining path below its root:
    /// names separated and surrounded by slashes, possibly none.
    fn resolve<'a>(&self, aname: &'a [u8]) -> Option<(Arc<Export>, &'a [u8])>;
}

/// Exports by name. An `aname` is an export's name, optionally with a slash and a path below its
/// root; if several exports match, the longest name wins. A name may contain slashes; leading and
/// trailing ones are ignored. The unnamed export matches if no other does. An empty `aname` means
/// the only export, whatever its name.
#[derive(Clone, Default)]
pub struct ExportList(pub Vec<Arc<Export>>);

impl Exports for ExportList {
    fn resolve<'a>(&self, aname: &'a [u8]) -> Option<(Arc<Export>, &'a [u8])> {
        let aname = trim_slashes(aname);
        if let ([only], []) = (self.0.as_slice(), aname) {
            return Some((only.clone(), aname));
        }
        let below = |export: &Arc<Export>| {
            let name = trim_slashes(export.name.as_bytes());
            let rest = aname.strip_prefix(name)?;
            let whole = name.is_empty() || rest.is_empty() || rest[0] == b'/';
            whole.then(|| (name.len(), export.clone(), rest))
        };
        let found = self.0.iter().filter_map(below);
        let (_, export, rest) = found.max_by_key(|(len, ..)| *len)?;
        Some((export, rest))
    }
}

fn trim_slashes(mut path: &[u8]) -> &[u8] {
    while let Some(rest) = path.strip_prefix(b"/") {
        path = rest;
    }
    while let Some(rest) = path.strip_suffix(b"/") {
        path = rest;
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slashes_around_a_path_do_not_count() {
        assert_eq!(trim_slashes(b"//a/b/"), b"a/b");
        assert_eq!(trim_slashes(b"/"), b"");
    }
}
