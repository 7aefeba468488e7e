//! Devices that continue after the end of their process, by `kill -9` too.
//!
//! When the monitor has changed it, the device gives its keeper whatever another process needs to
//! continue it: the connection, the guest's memory, the events of the queues, and the records of
//! requests in flight. The queues go on meanwhile. The successor finds their positions, and the
//! requests without a reply, in the records.
//!
//! A message that is being handled when the process ends may have changed half of the state, and
//! its reply may be missing. So the keeper forgets the device when one arrives, and gets it again
//! when it was handled and no other one is there: monitors send many when a guest starts. It does
//! not have the device during a migration either, in which another server may continue it.

use std::io::{self, ErrorKind};
use std::sync::{Arc, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Device, SuspendedDevice};
use crate::in_flight::{Dimensions, InFlightMemory};
use crate::vhost_user::MAX_QUEUE_SIZE;

/// A process, or a connection to one, that keeps a device for the successor of the process that
/// serves it. Methods may be called concurrently, also while a queue is locked.
pub trait DeviceKeeper: Send + Sync {
    /// Keeps `device`, in place of an earlier state of it. Its parts are duplicates. When this
    /// returns, a successor gets it, whatever happens to this process.
    fn keep(&self, device: SuspendedDevice);

    /// Drops the kept device: no successor continues it any more.
    fn forget(&self);

    /// Notes that the reply to a request, whose first bytes are `message`, is in the used ring: no
    /// successor serves it again. Called while the queue is locked.
    fn note_returned(&self, message: &[u8]);
}

/// The keeper of a device, and its records of requests in flight.
#[derive(Clone)]
pub(super) struct Kept {
    pub(super) keeper: Arc<dyn DeviceKeeper>,
    pub(super) in_flight: Arc<InFlightMemory>,
}

impl Kept {
    /// Returns a keeper with new records for a device with `queues` queues.
    pub(super) fn new(keeper: Arc<dyn DeviceKeeper>, queues: usize) -> io::Result<Kept> {
        let queues = u16::try_from(queues).map_err(|_| ErrorKind::InvalidInput)?;
        let dimensions = Dimensions {
            queues,
            size: MAX_QUEUE_SIZE,
        };
        let memory = InFlightMemory::create(dimensions)?;
        Ok(Kept {
            keeper,
            in_flight: Arc::new(InFlightMemory::map(memory.into(), dimensions)?),
        })
    }
}

impl Device {
    /// Lets `keeper` keep the device, before it runs. Returns an error if there is no memory for
    /// records.
    pub fn with_keeper(self, keeper: Arc<dyn DeviceKeeper>) -> io::Result<Device> {
        let mut control = self.control();
        control.kept = Some(Kept::new(keeper, control.queues.len())?);
        drop(control);
        Ok(self)
    }

    /// Gives the keeper the device, unless it has it already or the next message of the monitor is
    /// there. Returns whether the keeper, if there is one, has the device.
    pub(super) fn keep_between_messages(&mut self) -> io::Result<bool> {
        if self.is_kept || self.control().kept.is_none() {
            return Ok(true);
        }
        let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
        let ready = rustix::io::retry_on_intr(|| poll(&mut fds, Some(&Timespec::default())))?;
        if ready == 0 {
            self.keep();
        }
        Ok(self.is_kept)
    }

    /// Gives the keeper the device as it is now.
    pub(super) fn keep(&mut self) {
        let control = self.control();
        let Some(kept) = &control.kept else {
            return;
        };
        let state = || -> io::Result<SuspendedDevice> {
            let (saved, mut descriptors) = control.describe(true)?;
            descriptors.insert(0, self.socket.try_clone()?.into());
            Ok(SuspendedDevice {
                state: saved.encode(),
                descriptors,
            })
        };
        match state() {
            Ok(state) => kept.keeper.keep(state),
            Err(error) if error.kind() == ErrorKind::ResourceBusy => {}
            Err(error) => {
                let device = &control.name;
                tracing::warn!(device, "it ends with this process: {error}");
            }
        }
        drop(control);
        self.is_kept = true;
    }

    /// Makes the keeper forget the device.
    pub(super) fn forget(&mut self) {
        if std::mem::take(&mut self.is_kept) {
            let control = self.control.lock();
            let control = control.unwrap_or_else(PoisonError::into_inner);
            if let Some(kept) = &control.kept {
                kept.keeper.forget();
            }
        }
    }
}
