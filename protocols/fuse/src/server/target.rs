//! The object of a request, for the log of slow requests.

use wire::RequestTarget;

use super::Session;
use super::init::Negotiated;
use crate::WireFormat;
use crate::message::{Header, Request};

impl Session {
    /// Returns the object of the request in `message`: the inode number of its node, and the name
    /// in the request, if there is one. `export` is the number that the request noted
    /// ([`vfs::Call::note_export`]).
    pub(super) fn request_target(&self, export: u64, message: &[u8]) -> RequestTarget {
        let Ok(header) = Header::decode(message) else {
            return RequestTarget::default();
        };
        let format = self
            .negotiated()
            .map_or(WireFormat::default(), Negotiated::wire_format);
        let request = Request::decode(format, message).ok();
        let (name, offset) = request.map_or((None, None), |(_, request)| details(&request));
        RequestTarget {
            share: self.export.share_name(export),
            // Of INIT, for example, there is none.
            inode: Some(header.nodeid).filter(|&nodeid| nodeid != 0),
            name: name.map(|name| String::from_utf8_lossy(name).into_owned()),
            offset,
        }
    }
}

/// Returns the name and the offset that a request has.
fn details<'a>(request: &Request<'a>) -> (Option<&'a [u8]>, Option<u64>) {
    use Request as R;
    match *request {
        R::Read { args } => (None, Some(args.offset)),
        R::Write { args } => (None, Some(args.offset)),
        R::Lookup { name }
        | R::Symlink { name, .. }
        | R::Mknod { name, .. }
        | R::Mkdir { name, .. }
        | R::Unlink { name }
        | R::Rmdir { name }
        | R::Rename { name, .. }
        | R::Rename2 { name, .. }
        | R::Link { name, .. }
        | R::Create { name, .. } => (Some(name.0), None),
        _ => (None, None),
    }
}
