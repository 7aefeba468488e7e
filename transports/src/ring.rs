use std::any::Any;
use std::io;
use std::os::fd::BorrowedFd;

use wire::{Incoming, Outgoing};

/// A queue of requests from a peer, each with memory for its reply: the device side of a virtqueue.
/// One thread pops requests; any thread may return replies.
pub trait Ring: Send + Sync {
    /// Pops the next request, if any. `frame` returns how many bytes of a request must be in
    /// [`Incoming::bytes`], given its first bytes, or `None` if it needs more of them. Returns an
    /// error if the peer has corrupted its queue: no more requests can be popped.
    fn pop(&self, frame: &dyn Fn(&[u8]) -> Option<usize>) -> io::Result<Option<Box<dyn Exchange>>>;

    /// Returns a request, with its reply, to the peer as used, perhaps without a notification yet:
    /// see [`Ring::signal`].
    fn push_used(&self, exchange: Box<dyn Exchange>);

    /// Returns whether the ring is stopped and may be started again, with the requests that were
    /// [put back](Ring::put_back).
    fn restarts(&self) -> bool {
        false
    }

    /// Puts a request back that was popped and not answered, because the ring is stopped: it is
    /// popped again after the next start. Only for rings that [restart](Ring::restarts).
    fn put_back(&self, exchange: Box<dyn Exchange>) {
        self.push_used(exchange);
    }

    /// Signals the peer that there are used requests, unless it suppressed notifications.
    fn signal(&self);

    /// Waits until there may be a request. Without `wait`, returns `WouldBlock` unless there is
    /// one. Returns false once the ring is stopped.
    fn wait(&self, wait: bool) -> io::Result<bool>;

    /// Enables notifications: from now on the notifier is readable when there is a request. Returns
    /// whether there is one already, for which the peer need not kick.
    fn enable_notifications(&self) -> io::Result<bool>;

    /// Disables notifications: the peer need not kick any more.
    fn disable_notifications(&self) -> io::Result<()>;

    /// Returns the descriptor that is readable after a kick since [`Ring::enable_notifications`],
    /// perhaps until the next one.
    fn notifier(&self) -> BorrowedFd<'_>;

    /// Returns its name, for logs.
    fn name(&self) -> &str;
}

/// A request and its reply.
pub trait Exchange: Send {
    /// Returns both, for simultaneous use.
    fn split(&mut self) -> (&dyn Incoming, &mut dyn Outgoing);

    /// Returns the concrete exchange, with which a ring recognises its own.
    fn into_any(self: Box<Self>) -> Box<dyn Any>;
}
