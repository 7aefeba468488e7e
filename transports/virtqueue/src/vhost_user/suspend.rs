//! Devices that continue in another process, with the same connection.
//!
//! The monitor notices nothing: the queues stop and start as with GET_VRING_BASE and
//! SET_VRING_KICK, and messages that it sends meanwhile wait in the socket. A kick that the
//! previous process received needs no repetition, as a queue looks at its available ring when it
//! starts.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use rustix::net::{AddressFamily, SocketType, sockopt};
use vhost::vhost_user::message::VhostUserMemoryRegion;

use super::format::{SavedDevice, SavedQueue, SavedRegion, invalid};
use super::keep::Kept;
use super::replay::{self, Negotiation};
use super::{Control, Device, DeviceConfig, DeviceKeeper, QueueSetup, ServeRing, queue};
use crate::dirty_log::DirtyLog;
use crate::features::EVENT_IDX;
use crate::in_flight::InFlightMemory;
use crate::memory::Memory;
use crate::queue::signal_once;
use crate::state_transfer::DeviceState;

/// A device whose queues are stopped, and which can continue in any process that receives both of
/// its parts: see [`Device::resume`]. Dropping it closes the monitor's connection, unless the
/// descriptors were duplicated.
#[derive(Debug)]
pub struct SuspendedDevice {
    /// The state, in a format of its own with a version: at most about 2 KiB for each queue, and 16
    /// KiB for the memory.
    pub state: Vec<u8>,
    /// The descriptors that `state` refers to, in the order of the state: the connected socket, the
    /// guest's memory, the dirty log, the queues' events. At most 511 and two for each queue, more
    /// than one message over a Unix socket has (`SCM_MAX_FD` is 253).
    pub descriptors: Vec<OwnedFd>,
}

impl Device {
    /// Suspends the device after [`Device::run`] has returned [`super::RunEnd::Stopped`]: all
    /// queues stop as with GET_VRING_BASE. Requests in flight are answered, and those that wait are
    /// put back, for the next start. The connection stays open and nothing is sent to the monitor.
    ///
    /// The device cannot run any more afterwards: it continues as another one, which
    /// [`Device::resume`] creates, here or in another process.
    ///
    /// Returns `ResourceBusy` during a migration, from the start of a transfer of the device's
    /// state until a queue starts or the result of a load is requested, `NotConnected` if the
    /// connection has ended, and `InvalidData` if the monitor has removed the memory of a queue
    /// that runs. After an error the device is unchanged, and can run again unless the connection
    /// has ended.
    pub fn suspend(&mut self) -> io::Result<SuspendedDevice> {
        if self.ended {
            return Err(ErrorKind::NotConnected.into());
        }
        let socket = self.socket.try_clone()?;
        let (saved, mut descriptors) = self.control().suspend()?;
        self.forget();
        self.ended = true;
        descriptors.insert(0, socket.into());
        Ok(SuspendedDevice {
            state: saved.encode(),
            descriptors,
        })
    }

    /// Continues a suspended device, whose queues start at once if they ran. `config` must have at
    /// least as many queues and features as that of the suspended device. `migration` is as in
    /// [`Device::with_state`], and `keeper` as in [`Device::with_keeper`]: a device that was kept
    /// needs one.
    ///
    /// Trusts none of the parts: numbers are bounded, addresses and files are checked as those in
    /// the monitor's messages.
    ///
    /// Returns `InvalidData` or `UnexpectedEof` for an invalid state, and other errors if the
    /// process lacks resources. No request is popped before everything else has succeeded. If the
    /// thread of a queue cannot be started, however, the earlier queues have run already: the error
    /// is `Other` then, and the parts cannot be resumed again.
    pub fn resume(
        suspended: SuspendedDevice,
        name: &str,
        config: DeviceConfig,
        drive: Arc<ServeRing>,
        migration: Option<Arc<dyn DeviceState>>,
        keeper: Option<Arc<dyn DeviceKeeper>>,
    ) -> io::Result<Device> {
        let saved = SavedDevice::parse(&suspended.state, config.queues)?;
        let (expected, got) = (saved.descriptors(), suspended.descriptors.len());
        if got != expected {
            return Err(invalid(&format!("{expected} descriptors, got {got}")));
        }
        let mut descriptors = suspended.descriptors.into_iter();
        // The number of descriptors is right.
        let mut next = || descriptors.next().ok_or(ErrorKind::InvalidData);
        let socket = stream_socket(next()?)?;
        let mut memory = Memory::map([]).map_err(refused)?;
        for region in &saved.regions {
            memory = region.map_into(&memory, next()?.into())?;
        }
        let log = match saved.log {
            Some((offset, size)) => {
                let map = DirtyLog::map(next()?.into(), offset, size);
                Some(Arc::new(map.map_err(refused)?))
            }
            None => None,
        };
        let mut in_flight = match saved.in_flight {
            Some(dimensions) => {
                let memory = InFlightMemory::map(next()?.into(), dimensions)?;
                Some(Arc::new(memory))
            }
            None => None,
        };
        let own = in_flight.take_if(|_| saved.is_kept);
        let kept = match (keeper, own) {
            (Some(keeper), Some(in_flight)) => Some(Kept { keeper, in_flight }),
            (Some(keeper), None) => Some(Kept::new(keeper, config.queues)?),
            (None, None) => None,
            (None, Some(_)) => return Err(invalid("a device that was not kept")),
        };
        let queues = saved.queues.iter().map(|queue| {
            let mut event = |exists: bool| exists.then(&mut next).transpose();
            Ok(QueueSetup {
                size: queue.size,
                addresses: queue.addresses,
                log_used: queue.log_used,
                next_avail: queue.next_avail,
                kick: event(queue.has_kick)?,
                call: event(queue.has_call)?,
                enabled: queue.enabled,
                put_back: queue.put_back.clone(),
                running: None,
            })
        });
        let queues: Vec<_> = queues.collect::<io::Result<_>>()?;
        let negotiation = Negotiation {
            features_requested: saved.features_requested,
            features: saved.acked_features,
            protocol_features: saved.acked_protocol_features,
        };
        let control = Control::new(name, config, drive, migration);
        let mut device = Device::with(socket, control, |control, socket| {
            replay::handler(control, socket, &negotiation)
        })?;
        let mut control = device.control();
        if saved.features & !control.offered() != 0 {
            return Err(invalid("features of this device"));
        }
        control.features = saved.features;
        control.memory = Arc::new(memory);
        (control.log, control.in_flight, control.kept) = (log, in_flight, kept);
        for (slot, queue) in control.queues.iter_mut().zip(queues) {
            *slot = queue;
        }
        control.recovers = saved.is_kept;
        control.start_again(&saved.queues)?;
        control.recovers = false;
        drop(control);
        device.keep();
        Ok(device)
    }
}

impl Control {
    /// Stops all queues, and returns the state and the descriptors, except the socket. After an
    /// error nothing has changed.
    fn suspend(&mut self) -> io::Result<(SavedDevice, Vec<OwnedFd>)> {
        for slot in &self.queues {
            if slot.running.is_some() {
                self.check_restart(slot)?;
            }
        }
        let (mut saved, descriptors) = self.describe(false)?;
        for (slot, queue) in self.queues.iter_mut().zip(&mut saved.queues) {
            slot.stop(true);
            queue.next_avail = slot.next_avail;
            queue.put_back = std::mem::take(&mut slot.put_back);
            (slot.kick, slot.call) = (None, None);
        }
        Ok((saved, descriptors))
    }

    /// Returns the state and duplicates of the descriptors, except the socket. The positions of
    /// queues that run are not in it, but if the device `is_kept` its records are. Returns
    /// `ResourceBusy` during a migration.
    pub(super) fn describe(&self, is_kept: bool) -> io::Result<(SavedDevice, Vec<OwnedFd>)> {
        if self.transfer.is_some() || self.saved {
            let why = "the device is being migrated";
            return Err(io::Error::new(ErrorKind::ResourceBusy, why));
        }
        let mut saved = SavedDevice {
            features: self.features,
            acked_features: self.acked_features,
            acked_protocol_features: self.acked_protocol_features,
            features_requested: self.features_requested,
            is_kept,
            ..SavedDevice::default()
        };
        let mut descriptors = Vec::new();
        for (region, file) in self.memory.files() {
            descriptors.push(file.try_clone()?.into());
            saved.regions.push(SavedRegion {
                guest: region.guest_phys_addr,
                monitor: region.user_addr,
                size: region.memory_size,
                offset: region.mmap_offset,
            });
        }
        if let Some((file, offset, size)) = self.log.as_ref().and_then(|log| log.file()) {
            descriptors.push(file.try_clone()?.into());
            saved.log = Some((offset, size));
        }
        let records = match &self.kept {
            Some(kept) if is_kept => Some(&kept.in_flight),
            _ => self.in_flight.as_ref(),
        };
        if let Some(memory) = records {
            descriptors.push(memory.file().try_clone()?.into());
            saved.in_flight = Some(memory.dimensions());
        }
        for slot in &self.queues {
            let call = match &slot.running {
                Some((running, _)) => running.call()?,
                None => slot.call.as_ref().map(OwnedFd::try_clone).transpose()?,
            };
            let kick = slot.kick.as_ref().map(OwnedFd::try_clone).transpose()?;
            saved.queues.push(SavedQueue {
                size: slot.size,
                next_avail: slot.next_avail,
                addresses: slot.addresses,
                log_used: slot.log_used,
                has_kick: kick.is_some(),
                has_call: call.is_some(),
                enabled: slot.enabled,
                runs: slot.running.is_some(),
                put_back: slot.put_back.clone(),
            });
            descriptors.extend(kick.into_iter().chain(call));
        }
        Ok((saved, descriptors))
    }

    /// Returns an error if a queue could not be started with the present memory.
    fn check_restart(&self, slot: &QueueSetup) -> io::Result<()> {
        let (Some(addresses), true, Some(_)) = (slot.addresses, slot.enabled, &slot.kick) else {
            return Err(invalid("a queue that runs to be complete"));
        };
        let event_idx = self.features & EVENT_IDX != 0;
        queue(&self.memory, slot, addresses, event_idx).map_err(refused)?;
        Ok(())
    }

    /// Starts the queues that ran.
    fn start_again(&mut self, saved: &[SavedQueue]) -> io::Result<()> {
        let ran = || (0..).zip(saved).filter(|(_, queue)| queue.runs);
        for (slot, queue) in self.queues.iter().zip(saved) {
            if queue.runs {
                self.check_restart(slot)?;
            }
        }
        for (index, _) in ran() {
            // The guest may not know of all replies of the previous process.
            let slot = self.queue_setup(index).map_err(refused)?;
            slot.call = slot.call.take().map(signal_once).transpose()?;
            self.start_if_ready(index).map_err(refused)?;
        }
        self.start_prepared()
            .map_err(|error| io::Error::other(error.to_string()))
    }
}

impl SavedRegion {
    /// Returns the memory with this region.
    fn map_into(&self, memory: &Memory, file: File) -> io::Result<Memory> {
        let numbers = [self.guest, self.monitor, self.offset];
        let fits = |number: &u64| number.checked_add(self.size).is_some();
        if self.size == 0 || !numbers.iter().all(fits) {
            return Err(invalid("regions within the address space"));
        }
        let region = VhostUserMemoryRegion::new(self.guest, self.size, self.monitor, self.offset);
        memory.with(&region, file).map_err(refused)
    }
}

/// Returns a connection, if `fd` is a Unix stream socket.
fn stream_socket(fd: OwnedFd) -> io::Result<UnixStream> {
    let is_stream = sockopt::socket_domain(&fd) == Ok(AddressFamily::UNIX)
        && sockopt::socket_type(&fd) == Ok(SocketType::STREAM);
    match is_stream {
        true => Ok(fd.into()),
        false => Err(invalid("the monitor's connection")),
    }
}

fn refused(error: vhost::vhost_user::Error) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, error.to_string())
}

#[cfg(test)]
mod tests;
