//! 9P over virtio: the front end of a vhost-user device (virtio 1.3, 5.16), in user space.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;

use transports::Link;
use vfs::Errno;
use virtqueue::driver::{self, Driver, Queue, Stream, WaitMode};

use super::fs::Remote9p;
use super::options::Options;
use crate::ConnectError;

/// Connects to the device at `socket`, for messages of up to `msize` bytes.
pub(super) fn dial(socket: &Path, msize: u32) -> std::io::Result<impl Link + 'static> {
    link(UnixStream::connect(socket)?, msize)
}

impl Remote9p {
    /// Does [`Remote9p::connect`] to the device at the other end of `socket`, with messages of up
    /// to `options.msize` bytes.
    pub fn connect_device(
        socket: UnixStream,
        options: Options,
    ) -> Result<Arc<Remote9p>, ConnectError> {
        let link = link(socket, options.msize).map_err(|error| {
            let why = error.to_string();
            ConnectError::new(Errno::from(error), why)
        })?;
        Remote9p::connect(link, options)
    }
}

/// The most requests in flight: as many as in a Linux guest.
const DEPTH: u16 = 128;

fn link(socket: UnixStream, msize: u32) -> std::io::Result<impl Link + 'static> {
    // A message consists of an inline part and a payload.
    let payload = (msize as usize).saturating_sub(Queue::MAX_INLINE_REPLY);
    let options = driver::Options {
        queues: 1,
        depth: DEPTH,
        payload,
        // The receiving thread polls.
        waiting: WaitMode::Adaptive(std::time::Duration::ZERO),
    };
    let driver = Driver::connect(socket, 1, options)?;
    Stream::new(driver, size, "a device")
}

/// Each message begins with its length: intro(5).
fn size(head: &[u8]) -> Option<usize> {
    let size = head.first_chunk()?;
    Some(u32::from_le_bytes(*size) as usize)
}
