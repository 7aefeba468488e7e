//! Notifications to the service manager (sd_notify(3)).

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

pub(crate) use command::notify::{ready, send as notify};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::time::{ClockId, clock_gettime};
use transports::fd_passing::send_with_file;

/// Sends the text of [`ready`].
pub(crate) fn notify_ready(status: &str) {
    notify(&ready(status));
}

/// Returns RELOADING=1: the shares are being replaced until the next [`ready`].
pub(crate) fn reloading() -> String {
    let now = clock_gettime(ClockId::Monotonic);
    let micros = i128::from(now.tv_sec) * 1_000_000 + i128::from(now.tv_nsec) / 1_000;
    format!("RELOADING=1\nMONOTONIC_USEC={micros}\n")
}

/// Passes `fd` to the service manager's store with the name `name`.
pub(crate) fn store(name: &str, fd: BorrowedFd<'_>) -> io::Result<()> {
    send_with(&format!("FDSTORE=1\nFDNAME={name}\n"), fd)
}

/// Waits until the service manager has processed all messages: after the end of this process it
/// ignores them (sd_notify_barrier(3)).
pub(crate) fn wait_until_processed() -> io::Result<()> {
    let (here, there) = pipe_with(PipeFlags::CLOEXEC)?;
    send_with("BARRIER=1", there.as_fd())?;
    drop(there);
    let mut closed = [PollFd::new(&here, PollFlags::empty())];
    rustix::io::retry_on_intr(|| poll(&mut closed, None))?;
    Ok(())
}

fn send_with(what: &str, fd: BorrowedFd<'_>) -> io::Result<()> {
    let socket = command::notify::connect()?.ok_or(io::ErrorKind::NotConnected)?;
    send_with_file(socket.as_fd(), what.as_bytes(), fd, true)?;
    Ok(())
}
