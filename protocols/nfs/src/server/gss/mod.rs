//! RPCSEC_GSS (RFC 2203): who calls is shown by a mechanism of GSS-API, which is the program's; here are the contexts that
//! it makes, which calls they let through, and what is signed and encrypted.
//!
//! - A context is known by a handle of ours. The table is bounded: the one that has not been used for longest makes
//!   place, and its client, told `CREDPROBLEM`, makes another (section 5.3.3.3). So it does after a restart.
//! - A call counts if its head is signed and its sequence number has not come before; else it is dropped without a
//!   word (section 5.3.3.1). One that is served again with more patience has not come twice.
//! - Calls whose bodies are signed or encrypted are served with full patience at once, so that they are opened once, and no
//!   lane waits for a cipher. Signed arguments stay where they came, so a WRITE's data are copied no more than without;
//!   encrypted ones are a message of their own then. The results are put together in memory, and sealed.
//! - What is kept to be answered again (`server/replay.rs`, v4's slots) is kept as it was before it was sealed.
//!
//! Not there: channel bindings, RPCSEC_GSS v2 and v3 (RFC 5403, RFC 7861), callbacks under it (Linux asks for AUTH_SYS).
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

use self::table::{Established, Table};
use crate::rpc::{Service, flavor};

/// A mechanism of GSS-API, and memory for messages that are opened and sealed.
pub trait Mechanism: Send + Sync {
    /// A context that a client asks for. Nothing of it is there yet.
    fn begin(&self) -> Box<dyn Context>;

    /// Lends `to` the message that `bytes` are.
    fn message(&self, bytes: &[u8], to: &mut dyn FnMut(&dyn Incoming));

    /// Lends `write` an empty message, and if that answers so, `then` what was written.
    fn draft(&self, write: &mut dyn FnMut(&mut dyn Outgoing) -> bool, then: &mut dyn FnMut(&[u8]));
}

/// A security context, as the server has it (RFC 2743). One call at a time.
pub trait Context: Send {
    /// Takes a client's next token. May wait.
    fn accept(&mut self, token: &[u8]) -> Accepted;

    /// Whether `mic` is what the client signs `bytes` with.
    fn verify_mic(&mut self, bytes: &[u8], mic: &[u8]) -> bool;

    /// What the server signs `bytes` with; nothing if the context is of no use any more.
    fn get_mic(&mut self, bytes: &[u8]) -> Option<Vec<u8>>;

    /// `bytes`, encrypted; nothing as for [`Context::get_mic`].
    fn wrap(&mut self, bytes: &[u8]) -> Option<Vec<u8>>;

    /// What the client encrypted; nothing if it was not encrypted, or not by the client.
    fn unwrap(&mut self, sealed: &[u8]) -> Option<Vec<u8>>;
}

/// What a token comes to.
pub enum Accepted {
    /// The client is to send another, for this one.
    Continue(Vec<u8>),
    /// The context is there, once the client has this token.
    Complete(Vec<u8>, Principal),
    /// No context comes of it: GSS-API's major and minor status.
    Failed(u32, u32),
}

/// Whom a context is with.
#[derive(Clone, Debug)]
pub struct Principal {
    /// Its name, as `alice@EXAMPLE.ORG`.
    pub name: String,
    /// As whom it calls, if it is known here; else the anonymous user.
    pub caller: Option<Caller>,
    /// For how long the context is good.
    pub lifetime: Duration,
}

/// How callers may say who they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavor {
    /// By ids that are taken at their word (AUTH_SYS), or not at all (AUTH_NONE).
    Sys,
    /// By Kerberos.
    Krb5,
    /// By Kerberos, calls and replies signed.
    Krb5i,
    /// By Kerberos, calls and replies encrypted.
    Krb5p,
}

impl Flavor {
    /// Kerberos 5's object identifier (RFC 1964 section 1).
    pub(crate) const KRB5: &'static [u8] = b"\x2a\x86\x48\x86\xf7\x12\x01\x02\x02";

    /// The service that it is of RPCSEC_GSS.
    pub(crate) fn service(self) -> Option<Service> {
        match self {
            Flavor::Sys => None,
            Flavor::Krb5 => Some(Service::None),
            Flavor::Krb5i => Some(Service::Integrity),
            Flavor::Krb5p => Some(Service::Privacy),
        }
    }

    /// The number that MOUNT calls it by (RFC 2623 section 2.2.3).
    pub(crate) fn pseudo(self) -> u32 {
        match self {
            Flavor::Sys => flavor::SYS,
            Flavor::Krb5 => 390_003,
            Flavor::Krb5i => 390_004,
            Flavor::Krb5p => 390_005,
        }
    }
}

/// Who a caller has shown to be, and how its call goes.
pub(crate) struct Shown<'a> {
    pub(crate) principal: &'a str,
    pub(crate) service: Service,
}

/// The contexts of a server's clients.
pub(super) struct Gss {
    mechanism: Arc<dyn Mechanism>,
    /// What tells this run's handles from others'.
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

    /// Lets go of what is too old.
    pub(super) fn tend(&self) {
        self.table.expire((self.clock)());
    }

    /// The next context's number.
    fn number(&self) -> u32 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// What a client calls a context by.
    fn handle(&self, number: u32) -> [u8; 8] {
        (u64::from(self.boot) << 32 | u64::from(number)).to_be_bytes()
    }

    /// The number of the context that a client calls so.
    fn numbered(&self, handle: &[u8]) -> Option<u32> {
        let both = u64::from_be_bytes(handle.try_into().ok()?);
        ((both >> 32) as u32 == self.boot).then_some(both as u32)
    }

    fn find(&self, handle: &[u8]) -> Option<Arc<Established>> {
        self.table.find(self.numbered(handle)?, (self.clock)())
    }
}
