//! The object of a request, for the log of slow requests.

use wire::RequestTarget;

use super::connection::Connection;
use super::step::Step;
use crate::message::HEADER;
use crate::{Dialect, Fid, Kind, Tmessage};

/// The maximum length in bytes of a path that is reported; a longer one begins with `...`.
const MAX_PATH: usize = 512;

impl Connection {
    /// Returns the object of the request in `message`: the path of its first fid, with the name in
    /// the request, if there is one. `export` is the number that the request noted
    /// ([`vfs::Call::note_export`]).
    pub(super) fn request_target(&self, export: u64, message: &[u8]) -> RequestTarget {
        let dialect = self
            .negotiated()
            .map_or(Dialect::Plan9, |agreed| agreed.dialect);
        let request = Tmessage::decode(dialect, message)
            .ok()
            .map(|(_, request)| request);
        let (names, offset) = request.as_ref().map_or((Vec::new(), None), details);
        let mut target = RequestTarget {
            name: (!names.is_empty()).then(|| joined(None, &names)),
            offset,
            ..RequestTarget::default()
        };
        let Some(fid) = first_fid(message) else {
            return target;
        };
        // A Tclunk or Tremove has released it.
        let Ok(state) = self.fids.get(fid) else {
            return target;
        };
        let step = state.step();
        target.share = step.attach.export.share_name(export);
        target.inode = Some(step.node.id());
        target.name = Some(joined(Some(step), &names));
        target
    }
}

/// Returns the first fid of a message, which most begin with.
fn first_fid(message: &[u8]) -> Option<Fid> {
    let kind = Kind::of(*message.get(4)?)?;
    if matches!(kind, Kind::Version | Kind::Auth | Kind::Flush) {
        return None;
    }
    let fid = message.get(HEADER..)?.first_chunk()?;
    Some(Fid(u32::from_le_bytes(*fid)))
}

/// Returns the names below the first fid that a request has, and its offset.
fn details<'a>(request: &Tmessage<'a>) -> (Vec<&'a [u8]>, Option<u64>) {
    use Tmessage as T;
    match *request {
        T::Read { offset, .. } | T::Write { offset, .. } => (Vec::new(), Some(offset)),
        T::Walk { names, .. } => (names.iter().collect(), None),
        T::Lcreate { name, .. }
        | T::Create { name, .. }
        | T::Symlink { name, .. }
        | T::Mknod { name, .. }
        | T::Link { name, .. }
        | T::Mkdir { name, .. }
        | T::Unlinkat { name, .. }
        | T::Renameat { oldname: name, .. } => (vec![name], None),
        _ => (Vec::new(), None),
    }
}

/// Returns the path of `step` below its attach's root, if given, followed by `names`.
fn joined(step: Option<&Step>, names: &[&[u8]]) -> String {
    let mut parts: Vec<String> = Vec::new();
    let mut bytes = 0;
    let mut cut = false;
    let mut push = |name: &[u8]| {
        bytes += name.len() + 1;
        match bytes <= MAX_PATH {
            true => parts.push(String::from_utf8_lossy(name).into_owned()),
            false => cut = true,
        }
        bytes <= MAX_PATH
    };
    let mut fits = names.iter().rev().all(|name| push(name));
    let mut at = step.and_then(|step| step.name_in_parent.as_ref());
    while let Some(place) = at.filter(|_| fits) {
        fits = place.name().is_ok_and(|name| push(name.bytes()));
        at = place.parent.name_in_parent.as_ref();
    }
    if cut {
        parts.push("...".into());
    }
    parts.reverse();
    match step {
        Some(_) if !cut => format!("/{}", parts.join("/")),
        _ => parts.join("/"),
    }
}
