//! Checks of a reply against its request.

use vfs::Result;
use wire::Malformed;

use super::dir;
use super::error::errno_of;
use crate::message::Header;
use crate::{Dialect, Fid, Kind, Rmessage, Tmessage};

/// Returns whether a reply to Tversion rejects the version, even without the part after the last
/// period: `unknown`, by version(5), or an error, as diod sends.
pub(crate) fn rejects_version(reply: &[u8]) -> std::result::Result<bool, Malformed> {
    let errors = [Kind::Lerror.reply(), Kind::Error.reply()];
    if errors.contains(&Header::decode(reply)?.number) {
        return Ok(true);
    }
    let (_, reply) = Rmessage::decode(Dialect::Plan9, reply)?;
    Ok(matches!(reply, Rmessage::Version { version, .. } if version == b"unknown"))
}

/// The properties of a request that its reply is checked against.
#[derive(Clone, Copy)]
pub(super) struct ExpectedReply {
    kind: Kind,
    /// The most bytes or qids in the reply.
    max: u32,
    /// The fid that a clunk or removal releases, or that the request establishes.
    pub(super) fid: Fid,
    /// Whether the request establishes the fid.
    pub(super) establishes: bool,
}

impl ExpectedReply {
    #[inline]
    pub(super) fn of(request: &Tmessage<'_>) -> ExpectedReply {
        let (most, fid) = match request {
            Tmessage::Read { count, .. } | Tmessage::Readdir { count, .. } => (*count, Fid::NONE),
            Tmessage::Write { data, .. } => (data.0.len() as u32, Fid::NONE),
            // A walk to its own fid moves it, and a failed one leaves it.
            Tmessage::Walk { fid, newfid, names } if fid == newfid => {
                (names.len() as u32, Fid::NONE)
            }
            Tmessage::Walk { newfid, names, .. } => (names.len() as u32, *newfid),
            Tmessage::Clunk { fid } | Tmessage::Remove { fid } => (0, *fid),
            Tmessage::Attach { fid, .. } | Tmessage::Xattrwalk { newfid: fid, .. } => (0, *fid),
            _ => (0, Fid::NONE),
        };
        let kind = request.kind();
        ExpectedReply {
            kind,
            max: most,
            fid,
            establishes: fid != Fid::NONE && !matches!(kind, Kind::Clunk | Kind::Remove),
        }
    }

    /// Returns whether `reply` is that to a walk which has ended early, and established no fid.
    pub(super) fn is_partial(&self, reply: &Rmessage<'_>) -> bool {
        matches!(reply, Rmessage::Walk { qids } if qids.len() < self.max as usize)
    }

    /// Returns whether the request is a Tread that an Rread of `count` bytes may answer.
    pub(super) fn is_read(&self, count: u32) -> bool {
        self.kind == Kind::Read && count <= self.max
    }

    /// Returns the request's result if `reply` is a valid reply to it.
    #[inline]
    pub(super) fn check(&self, reply: &Rmessage<'_>) -> std::result::Result<Result<()>, Malformed> {
        if let Some(errno) = errno_of(reply) {
            return Ok(Err(errno));
        }
        if reply.kind() != self.kind {
            return Err(mismatch(self.kind, reply));
        }
        let got = match reply {
            Rmessage::Read { data } | Rmessage::Readdir { data } => data.0.len(),
            Rmessage::Write { count } => *count as usize,
            Rmessage::Walk { qids } => qids.len(),
            _ => 0,
        };
        if got > self.max as usize {
            return Err(Malformed::new(format!(
                "expected at most {} of R{}, got {got}",
                self.max,
                self.kind.name().to_ascii_lowercase()
            )));
        }
        Ok(Ok(()))
    }
}

#[cold]
pub(super) fn mismatch(expected: Kind, got: &Rmessage<'_>) -> Malformed {
    Malformed::new(format!(
        "expected R{}, got R{}",
        expected.name().to_ascii_lowercase(),
        got.kind().name().to_ascii_lowercase()
    ))
}

/// Decodes `reply` and checks that it is a valid reply to `request`, both of them whole messages:
/// it has the request's tag, is of its type or an error, holds no more than was requested, and is
/// complete. A request that cannot be decoded is only answered with an error.
///
/// Tests hold servers to this; a [`super::Client`] requires less.
pub fn check<'a>(
    dialect: Dialect,
    request: &[u8],
    reply: &'a [u8],
) -> std::result::Result<Rmessage<'a>, Malformed> {
    let (tag, reply) = Rmessage::decode(dialect, reply)?;
    let sound = tag == Header::decode(request)?.tag
        && match &reply {
            Rmessage::Lerror { errno } => (1..=4095).contains(errno),
            Rmessage::Error { text, .. } => !text.is_empty(),
            _ => is_complete(&Tmessage::decode(dialect, request)?.1, &reply)?,
        };
    match sound {
        true => Ok(reply),
        false => Err(Malformed::new(format!(
            "malformed reply {reply:?} with tag {}",
            tag.0
        ))),
    }
}

/// Returns whether a reply that is not an error is complete.
fn is_complete(
    request: &Tmessage<'_>,
    reply: &Rmessage<'_>,
) -> std::result::Result<bool, Malformed> {
    let succeeded = ExpectedReply::of(request).check(reply)?.is_ok();
    Ok(match (request, reply) {
        // If the first name is not found, the reply is an error: walk(5).
        (Tmessage::Walk { names, .. }, Rmessage::Walk { qids }) => {
            names.is_empty() || !qids.is_empty()
        }
        (_, Rmessage::Readdir { data }) => dir::entries(data.0).all(|entry| entry.is_ok()),
        _ => succeeded,
    })
}
