use std::any::Any;
use std::io;
use std::os::fd::BorrowedFd;

use wire::{Incoming, Outgoing};

/// A queue that a peer puts requests into, each with the memory for its reply: what a virtqueue is to
/// whoever drives it. One thread takes requests out; any thread may give replies back.
pub trait Ring: Send + Sync {
    /// The next request, if there is one. `frame` says how much of a request that begins so must stand
    /// in [`Incoming::bytes`], nothing if it needs more to tell. An error means that the peer has broken
    /// its queue: nothing more can come.
    fn take(&self, frame: &dyn Fn(&[u8]) -> Option<usize>)
    -> io::Result<Option<Box<dyn Exchange>>>;

    /// Gives a request back with the reply that stands in it, perhaps without telling the peer yet:
    /// see [`Ring::tell`].
    fn give(&self, exchange: Box<dyn Exchange>);

    /// Tells the peer of what was given back, if it wants to be told.
    fn tell(&self);

    /// Waits until there may be something to take; without `wait`, `WouldBlock` unless there is. False
    /// once the ring is to be left alone.
    fn wait(&self, wait: bool) -> io::Result<bool>;

    /// Leaves the ring: from now on its bell rings when there is something to take. Returns whether
    /// there is something already, for which it need not ring.
    fn leave(&self) -> io::Result<bool>;

    /// Comes back to it: the bell need not ring any more.
    fn come_back(&self) -> io::Result<()>;

    /// Readable once the bell has rung after [`Ring::leave`], perhaps until the next one.
    fn bell(&self) -> BorrowedFd<'_>;

    /// Whose it is, for logs.
    fn name(&self) -> &str;
}

/// A request and its reply.
pub trait Exchange: Send {
    /// Both, to be used at once.
    fn split(&mut self) -> (&dyn Incoming, &mut dyn Outgoing);

    /// The concrete exchange: how a ring knows its own.
    fn into_any(self: Box<Self>) -> Box<dyn Any>;
}
