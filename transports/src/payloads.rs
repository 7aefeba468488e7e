//! Payload transfer preferences of a connection: `docs/notes/zerocopy.md` has the measurements.

#[cfg(target_os = "linux")]
mod of_descriptor;

/// The maximum of payload bytes in flight, and the sizes in bytes from which on payloads are
/// transferred apart from their messages. It has no preference for their alignment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Payloads {
    /// Received directly into their destination, after the header: costs one more receive call.
    pub direct_receive: usize,
    /// Sent from their place: costs one more buffer in a system call.
    pub gather: usize,
    /// Sent as pages of the page cache: costs some more system calls.
    pub pages: usize,
    /// The maximum in flight at a time, requested or sent: beyond it, a transfer continues when
    /// some of it has arrived. One message may always be in flight.
    pub in_flight: usize,
}

impl Payloads {
    /// All payloads are copied from and to the buffers of messages.
    pub const INLINE: Payloads = Payloads {
        direct_receive: usize::MAX,
        gather: usize::MAX,
        pages: usize::MAX,
        in_flight: IN_FLIGHT,
    };

    /// Preferences of a byte stream that does not support pages.
    pub(crate) const STREAM: Payloads = Payloads {
        direct_receive: DIRECT_RECEIVE,
        gather: GATHER,
        ..Payloads::INLINE
    };

    /// Returns the same with another limit on bytes in flight, if given.
    pub fn with_in_flight(self, in_flight: Option<usize>) -> Payloads {
        Payloads {
            in_flight: in_flight.unwrap_or(self.in_flight),
            ..self
        }
    }
}

/// 13 ms at 10 Gbit/s: more than any path within a data centre holds.
const IN_FLIGHT: usize = 16 << 20;

/// The size from which on a copy costs more than a receive call.
const DIRECT_RECEIVE: usize = 32 << 10;

/// The size at which a copy costs about as much as one more buffer in a system call.
const GATHER: usize = 8 << 10;
