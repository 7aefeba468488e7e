//! Wake-up events for [`crate::Link::wait`], on systems without eventfd(2).

use std::io;
use std::net::{Ipv4Addr, UdpSocket};

use vfs::fd::{AsFd, BorrowedFd};

/// An event that a thread waits for, and others set: a socket that is connected to itself, and
/// receives datagrams of no other.
#[derive(Debug)]
pub struct Event(UdpSocket);

impl Event {
    /// Creates an event that is not set.
    pub fn new() -> io::Result<Event> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        socket.connect(socket.local_addr()?)?;
        socket.set_nonblocking(true)?;
        Ok(Event(socket))
    }

    /// Sets the event: it is readable until it is cleared.
    pub fn set(&self) {
        // Fails only if datagrams fill the buffer, and then the socket is readable.
        let _ = self.0.send(&[1]);
    }

    /// Clears the event.
    pub fn clear(&self) {
        while self.0.recv(&mut [0]).is_ok() {}
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
