//! Receiving the server's own requests while no caller waits for a reply.

use std::io;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use transports::Interest;
use vfs::fd::{AsFd, BorrowedFd};

use super::{ClientCodec, Connection};

impl<H: ClientCodec> Connection<H> {
    /// How long the listener leaves the connection to the threads that wait for replies, as these
    /// receive the server's requests, too. This avoids waking two threads for every reply.
    const BACKOFF: Duration = Duration::from_millis(10);

    /// Receives messages while no other thread does. Returns `true` when `wake_event` is readable,
    /// `false` when the connection has failed.
    pub(crate) fn listen(&self, wake_event: BorrowedFd<'_>) -> io::Result<bool> {
        loop {
            let interest = {
                let state = self.state();
                if state.is_failed() {
                    return Ok(false);
                }
                Interest {
                    read: state.input.is_some(),
                    // Replies to the server that could not be sent at once.
                    write: !state.queue.is_empty() && !state.sending,
                }
            };
            if interest.read {
                let ready = self.link.wait(interest, wake_event, None)?;
                if ready.woken {
                    return Ok(true);
                }
                if ready.write {
                    drop(self.send_queued(self.state(), false));
                }
                if ready.read || ready.hung_up {
                    self.receive_once();
                }
            }
            if wait_readable(wake_event, Connection::<H>::BACKOFF)? {
                return Ok(true);
            }
        }
    }

    fn receive_once(&self) {
        let mut state = self.state();
        if let Some(mut input) = state.input.take() {
            state = self.recv(state, &mut input, false, false);
            self.pass_role(&mut state, input);
        }
    }
}

/// Returns whether `wake_event` is or becomes readable within `time`.
pub(crate) fn wait_readable(wake_event: BorrowedFd<'_>, time: Duration) -> io::Result<bool> {
    let mut fds = [PollFd::from_borrowed_fd(wake_event.as_fd(), PollFlags::IN)];
    let time = Timespec {
        tv_sec: time.as_secs() as i64,
        tv_nsec: time.subsec_nanos() as _,
    };
    match poll(&mut fds, Some(&time)) {
        Ok(_) => Ok(!fds[0].revents().is_empty()),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
