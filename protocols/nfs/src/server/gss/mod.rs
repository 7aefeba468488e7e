//! RPCSEC_GSS (RFC 2203). A GSS-API mechanism, which the program supplies, verifies callers. This
//! module manages the contexts that it creates, checks calls against them, and signs and encrypts
//! arguments and results.
//!
//! - The server chooses the handle of a context. The table is bounded: it evicts the least recently
//!   used context, whose client then gets `CREDPROBLEM` and creates another (section 5.3.3.3), as
//!   after a restart.
//! - A call whose header is not signed by the context's client is rejected with `CREDPROBLEM`, and
//!   one with an old or duplicate sequence number is dropped without a reply (section 5.3.3.1).
//!   Serving a call again with more patience does not count as a duplicate.
//! - Calls with signed or encrypted bodies are served with full patience only, so that they are
//!   unwrapped once and no lane runs a cipher. Signed arguments stay in place, so a WRITE's data
//!   are copied no more often than without signatures; encrypted ones are decrypted into a message
//!   of their own. Results are composed in memory, then signed or encrypted.
//! - Cached replies (`server/duplicate_request_cache.rs`, v4's slots) are kept in plain text.
//!
//! Not implemented: channel bindings, RPCSEC_GSS v2 and v3 (RFC 5403, RFC 7861), and callbacks with
//! RPCSEC_GSS (Linux asks for AUTH_SYS).
//!
//! Lock order: the table's mutex and a context's are taken one at a time.

mod call;
mod table;
#[cfg(test)]
mod tests;
mod window;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use vfs::Caller;
use wire::{Incoming, Outgoing};

use self::table::{GssContext, Table};
use crate::rpc::{Service, flavor};

/// A GSS-API mechanism, and buffers for decrypted and composed messages.
pub trait Mechanism: Send + Sync {
    /// Creates a context that has not accepted any token yet.
    fn begin(&self) -> Box<dyn Context>;

    /// Calls `to` with a message that contains `bytes`.
    fn message(&self, bytes: &[u8], to: &mut dyn FnMut(&dyn Incoming));

    /// Calls `write` with an empty message and, if it returns true, `then` with the bytes written.
    fn compose(
        &self,
        write: &mut dyn FnMut(&mut dyn Outgoing) -> bool,
        then: &mut dyn FnMut(&[u8]),
    );
}

/// The acceptor's side of a security context (RFC 2743). One call at a time.
pub trait Context: Send {
    /// Accepts the client's next token. May block.
    fn accept(&mut self, token: &[u8]) -> Accepted;

    /// Returns whether `mic` is the client's signature of `bytes`.
    fn verify_mic(&mut self, bytes: &[u8], mic: &[u8]) -> bool;

    /// Returns the server's signature of `bytes`; `None` if the context is no longer valid.
    fn get_mic(&mut self, bytes: &[u8]) -> Option<Vec<u8>>;

    /// Returns `bytes` encrypted; `None` if the context is no longer valid.
    fn wrap(&mut self, bytes: &[u8]) -> Option<Vec<u8>>;

    /// Decrypts `sealed`. Returns `None` if it is not encrypted, or not by the client.
    fn unwrap(&mut self, sealed: &[u8]) -> Option<Vec<u8>>;
}

/// The result of accepting a token.
pub enum Accepted {
    /// The client must send another token in response to this one.
    Continue(Vec<u8>),
    /// The context is established when the client has this token.
    Complete(Vec<u8>, Principal),
    /// The token is refused, with the GSS-API major and minor status.
    Failed(u32, u32),
}

/// The initiator of a context.
#[derive(Clone, Debug)]
pub struct Principal {
    /// Its name, such as `alice@EXAMPLE.ORG`.
    pub name: String,
    /// Its user, if known here; otherwise calls run as the anonymous user.
    pub caller: Option<Caller>,
    /// The lifetime of the context.
    pub lifetime: Duration,
}

/// The security flavors of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavor {
    /// No ids (AUTH_NONE): the caller is the anonymous user.
    None,
    /// Unverified ids (AUTH_SYS).
    Sys,
    /// Kerberos authentication.
    Krb5,
    /// Kerberos with signed calls and replies.
    Krb5i,
    /// Kerberos with encrypted calls and replies.
    Krb5p,
}

impl Flavor {
    /// The object identifier of Kerberos 5 (RFC 1964 section 1).
    pub(crate) const KRB5: &'static [u8] = b"\x2a\x86\x48\x86\xf7\x12\x01\x02\x02";

    /// Returns its RPCSEC_GSS service; `None` for AUTH_NONE and AUTH_SYS.
    pub(crate) fn service(self) -> Option<Service> {
        match self {
            Flavor::None | Flavor::Sys => None,
            Flavor::Krb5 => Some(Service::None),
            Flavor::Krb5i => Some(Service::Integrity),
            Flavor::Krb5p => Some(Service::Privacy),
        }
    }

    /// Returns its pseudo-flavor in MOUNT (RFC 2623 section 2.2.3).
    pub(crate) fn pseudo(self) -> u32 {
        match self {
            Flavor::None => flavor::NONE,
            Flavor::Sys => flavor::SYS,
            Flavor::Krb5 => 390_003,
            Flavor::Krb5i => 390_004,
            Flavor::Krb5p => 390_005,
        }
    }
}

/// The verified identity of a caller, and the protection of its call.
pub(crate) struct Authenticated<'a> {
    pub(crate) principal: &'a str,
    pub(crate) service: Service,
}

/// The RPCSEC_GSS contexts of a server.
pub(super) struct Gss {
    mechanism: Arc<dyn Mechanism>,
    /// Distinguishes the handles of this run from those of others.
    boot: u32,
    next: AtomicU32,
    clock: Arc<dyn Fn() -> Duration + Send + Sync>,
    table: Table,
}

impl Gss {
    pub(super) fn new(
        mechanism: Arc<dyn Mechanism>,
        boot: u32,
        clock: Arc<dyn Fn() -> Duration + Send + Sync>,
    ) -> Gss {
        Gss {
            mechanism,
            boot,
            next: AtomicU32::new(1),
            clock,
            table: Table::default(),
        }
    }

    /// Removes expired contexts.
    pub(super) fn maintain(&self) {
        self.table.expire((self.clock)());
    }

    /// Returns the next context's number.
    fn number(&self) -> u32 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the handle of a context.
    fn handle(&self, number: u32) -> [u8; 8] {
        (u64::from(self.boot) << 32 | u64::from(number)).to_be_bytes()
    }

    /// Returns the number of the context with this handle; `None` if it is of another run.
    fn numbered(&self, handle: &[u8]) -> Option<u32> {
        let both = u64::from_be_bytes(handle.try_into().ok()?);
        ((both >> 32) as u32 == self.boot).then_some(both as u32)
    }

    fn find(&self, handle: &[u8]) -> Option<Arc<GssContext>> {
        self.table.find(self.numbered(handle)?, (self.clock)())
    }
}
