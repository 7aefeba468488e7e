//! The client half: the part of a FUSE client that concerns messages.
//!
//! A [`Client`] holds the result of INIT. It encodes requests and checks reply headers; a transport
//! moves the bytes. [`request`] and [`attr`] convert between `vfs` types and FUSE's.
//!
//! Deliberately absent: caches, and permission checks, which a server may leave to its client.

pub mod attr;
pub mod request;

use std::sync::atomic::{AtomicU64, Ordering};

use vfs::{Caller, Errno, Result};

use crate::WireFormat;
use crate::layout::{InitOut, OutHeader};
use crate::message::{Header, InitIn, REPLY_HEADER, Request};
use crate::numbers::{InitFlags, MAJOR, MAX_ERRNO, MINOR, OLDEST_MINOR, PAGE};

/// A client's side of a session. May be used by many threads at once.
pub struct Client {
    flags: InitFlags,
    minor: u32,
    max_write: u32,
    next: AtomicU64,
}

impl Client {
    /// The `unique` of the INIT request that [`Client::init_request`] returns.
    const INIT_UNIQUE: u64 = 2;

    /// The size in bytes of the INIT reply that [`Client::from_init_reply`] expects.
    pub const INIT_REPLY_SIZE: usize = REPLY_HEADER + InitOut::SIZE;

    /// The largest payload offered and accepted, in bytes.
    pub const MAX_WRITE: u32 = 1 << 20;

    /// Returns the INIT request.
    pub fn init_request() -> Vec<u8> {
        let args = InitIn {
            major: MAJOR,
            minor: MINOR,
            max_readahead: Client::MAX_WRITE,
            flags: InitFlags::ASYNC_READ
                | InitFlags::POSIX_LOCKS
                | InitFlags::ATOMIC_O_TRUNC
                | InitFlags::EXPORT_SUPPORT
                | InitFlags::BIG_WRITES
                | InitFlags::DONT_MASK
                | InitFlags::FLOCK_LOCKS
                | InitFlags::DO_READDIRPLUS
                | InitFlags::PARALLEL_DIROPS
                | InitFlags::POSIX_ACL
                | InitFlags::MAX_PAGES
                | InitFlags::SETXATTR_EXT
                | InitFlags::HANDLE_KILLPRIV_V2
                | InitFlags::INIT_EXT,
        };
        let mut bytes = Vec::new();
        let header = header(&Caller::ROOT, 0, Client::INIT_UNIQUE);
        Request::Init { args }.encode(WireFormat::default(), header, &mut bytes);
        bytes
    }

    /// Starts a session from the whole reply to [`Client::init_request`]. Returns the server's
    /// error, `EPROTO` if the server's version is not supported, or `EIO` if the bytes are not a
    /// reply.
    pub fn from_init_reply(reply: &[u8]) -> Result<Client> {
        let head = reply.get(..REPLY_HEADER).ok_or(Errno::EIO)?;
        let body = body(Client::INIT_UNIQUE, head, reply.len())?;
        // A server with another major version sends the version fields only.
        let answer = InitOut::decode(&reply[REPLY_HEADER..][..body]).map_err(|_| Errno::EIO)?;
        if answer.major != MAJOR || answer.minor < OLDEST_MINOR {
            return Err(Errno::EPROTO);
        }
        let mut flags = InitFlags::from_bits_retain(answer.flags.into());
        if flags.contains(InitFlags::INIT_EXT) {
            flags |= InitFlags::from_bits_retain(u64::from(answer.flags2) << 32);
        }
        let pages = match flags.contains(InitFlags::MAX_PAGES) {
            true => u32::from(answer.max_pages.max(1)),
            // FUSE_DEFAULT_MAX_PAGES_PER_REQ
            false => 32,
        };
        Ok(Client {
            flags,
            minor: answer.minor.min(MINOR),
            max_write: answer
                .max_write
                .min(pages * PAGE)
                .clamp(PAGE, Client::MAX_WRITE),
            next: AtomicU64::new(Client::INIT_UNIQUE + 2),
        })
    }

    /// Returns whether both sides support `flag`.
    pub fn has(&self, flag: InitFlags) -> bool {
        self.flags.contains(flag)
    }

    /// Returns the negotiated minor version.
    pub fn minor(&self) -> u32 {
        self.minor
    }

    /// Returns the largest READ or WRITE, in bytes.
    pub fn max_write(&self) -> usize {
        self.max_write as usize
    }

    /// Appends the encoded message to `to`, except for the payload of a WRITE, and returns its
    /// `unique`.
    pub fn request(
        &self,
        caller: &Caller,
        node: u64,
        request: &Request<'_>,
        to: &mut Vec<u8>,
    ) -> u64 {
        // Even, as Linux's: an odd `unique` is an INTERRUPT's.
        let unique = self.next.fetch_add(2, Ordering::Relaxed);
        let form = WireFormat {
            setxattr_ext: self.has(InitFlags::SETXATTR_EXT),
        };
        request.encode(form, header(caller, node, unique), to);
        unique
    }

    /// Returns the number of bytes that follow the header `head` in a reply of `len` bytes to
    /// request `unique`. Returns the server's error, `EIO` if the bytes are not a reply to that
    /// request, or `EOPNOTSUPP` if the server does not implement the request.
    pub fn check_reply(&self, unique: u64, head: &[u8], len: usize) -> Result<usize> {
        body(unique, head, len)
    }
}

fn header(caller: &Caller, node: u64, unique: u64) -> Header {
    Header {
        nodeid: node,
        unique,
        uid: caller.uid,
        gid: caller.gid,
        pid: std::process::id(),
        ..Header::default()
    }
}

fn body(unique: u64, head: &[u8], len: usize) -> Result<usize> {
    let header = OutHeader::decode(head).map_err(|_| Errno::EIO)?;
    let body = len.checked_sub(REPLY_HEADER).ok_or(Errno::EIO)?;
    if header.unique != unique || header.len as usize != len {
        return Err(Errno::EIO);
    }
    if header.error == 0 {
        return Ok(body);
    }
    Err(match header.error.checked_neg() {
        Some(raw) if (1..=MAX_ERRNO.into()).contains(&raw) => match Errno::from_raw(raw) {
            Errno::ENOSYS => Errno::EOPNOTSUPP,
            errno => errno,
        },
        _ => Errno::EIO,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn welcome(answer: InitOut) -> Vec<u8> {
        let header = OutHeader {
            len: Client::INIT_REPLY_SIZE as u32,
            error: 0,
            unique: Client::INIT_UNIQUE,
        };
        [&header.encode()[..], &answer.encode()].concat()
    }

    fn ordinary() -> InitOut {
        InitOut {
            major: MAJOR,
            minor: 38,
            flags: (InitFlags::MAX_PAGES | InitFlags::INIT_EXT).bits() as u32,
            max_write: 1 << 20,
            max_pages: 32,
            ..InitOut::default()
        }
    }

    #[test]
    fn what_was_agreed_bounds_what_is_sent() {
        let client = Client::from_init_reply(&welcome(ordinary())).expect("agreed");
        assert_eq!((client.minor(), client.max_write()), (38, 32 * 4096));
        assert!(client.has(InitFlags::MAX_PAGES) && !client.has(InitFlags::POSIX_LOCKS));
        let mut bytes = Vec::new();
        let first = client.request(&Caller::new(7, 8), 9, &Request::Statfs {}, &mut bytes);
        let (header, request) = Request::decode(WireFormat::default(), &bytes).expect("a message");
        assert_eq!(request, Request::Statfs {});
        assert_eq!((header.uid, header.gid, header.nodeid), (7, 8, 9));
        assert_eq!(header.unique, first);
        assert_ne!(
            client.request(&Caller::ROOT, 1, &Request::Statfs {}, &mut bytes),
            first
        );
    }

    #[test]
    fn a_server_of_another_time_is_refused() {
        for (major, minor) in [(8, 0), (6, 45), (MAJOR, 26)] {
            let answer = InitOut {
                major,
                minor,
                ..ordinary()
            };
            assert_eq!(
                Client::from_init_reply(&welcome(answer)).map(drop),
                Err(Errno::EPROTO),
                "{major}.{minor}"
            );
        }
        let whole = welcome(ordinary());
        for len in 0..whole.len() {
            assert_eq!(
                Client::from_init_reply(&whole[..len]).map(drop),
                Err(Errno::EIO)
            );
        }
    }

    #[test]
    fn a_reply_is_to_its_request_or_none() {
        let client = Client::from_init_reply(&welcome(ordinary())).expect("agreed");
        let head = |len, error, unique| OutHeader { len, error, unique }.encode();
        for (head, len, result) in [
            (head(20, 0, 6), 20, Ok(4)),
            (head(16, -2, 6), 16, Err(Errno::ENOENT)),
            (head(16, -38, 6), 16, Err(Errno::EOPNOTSUPP)),
            (head(20, 0, 8), 20, Err(Errno::EIO)),
            (head(24, 0, 6), 20, Err(Errno::EIO)),
            (head(8, 0, 6), 8, Err(Errno::EIO)),
            (head(16, 2, 6), 16, Err(Errno::EIO)),
            (head(16, i32::MIN, 6), 16, Err(Errno::EIO)),
        ] {
            assert_eq!(client.check_reply(6, &head, len), result);
        }
    }

    proptest! {
        #[test]
        fn no_bytes_are_more_than_a_reply(bytes in proptest::collection::vec(any::<u8>(), 0..96)) {
            let _ = Client::from_init_reply(&bytes);
            let client = Client::from_init_reply(&welcome(ordinary())).expect("agreed");
            if let Ok(body) = client.check_reply(6, &bytes, bytes.len()) {
                prop_assert_eq!(body + REPLY_HEADER, bytes.len());
            }
        }
    }
}
