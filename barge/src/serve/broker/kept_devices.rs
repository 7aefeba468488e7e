//! Devices that the broker keeps for the successor of a process that is killed.
//!
//! The process sends the descriptors of a device whenever its monitor has changed it, and those of
//! open files without a name. The broker reads none of them. After a crash, the next process gets
//! duplicates with the connections of an earlier one ([`super::connections`]); the broker goes on
//! to keep its own until that process sends others, as it may crash, too.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;

use engine::SuspendedConnection;
use fuse::server::FileKeeper;
use parking_lot::Mutex;
use rustix::net::Shutdown;
use serde::{Deserialize, Serialize};

use super::connections::{self, ConnectionDescriptors};
use crate::child::message;
use crate::kept_files::{KeepFile, Keeper, KeptDescriptor, KeptFiles, KeptLimit};

/// A packet about a device.
#[derive(Serialize, Deserialize)]
enum Packet {
    /// The device has this many descriptors, which follow.
    Device(usize),
    /// One of them is passed.
    Descriptor,
    /// The device is being changed: nobody can continue it.
    Forget,
    /// An open file.
    File(KeepFile),
    /// The device has ended, and all its files.
    End,
}

/// Maximum number of descriptors of a device: those of 509 regions of memory and 130 queues.
const MAX_DESCRIPTORS: usize = 1024;

/// The devices of a process, by the addresses of their sockets.
pub(super) struct KeptDevices {
    devices: Mutex<HashMap<String, Channel>>,
    limit: KeptLimit,
}

/// The packets of a process about one device.
struct Channel {
    device: Arc<Mutex<KeptDevice>>,
    socket: OwnedFd,
    thread: JoinHandle<()>,
}

/// A device.
struct KeptDevice {
    /// All its descriptors; none if nobody can continue it.
    descriptors: Vec<KeptDescriptor>,
    /// Those of its next state, as far as they have arrived, and their number.
    next: (Vec<KeptDescriptor>, usize),
    files: KeptFiles,
    limit: KeptLimit,
}

impl KeptDevice {
    fn new(limit: &KeptLimit) -> KeptDevice {
        KeptDevice {
            descriptors: Vec::new(),
            next: (Vec::new(), 0),
            files: KeptFiles::new(limit.clone()),
            limit: limit.clone(),
        }
    }

    fn apply(&mut self, packet: Packet, passed: Option<OwnedFd>) {
        match (packet, passed) {
            (Packet::Device(count), _) => self.next = (Vec::new(), count.min(MAX_DESCRIPTORS)),
            (Packet::Descriptor, fd) => {
                let (arrived, count) = &mut self.next;
                // Without one of them, it stays incomplete.
                let kept = fd.and_then(|fd| self.limit.keep(fd));
                arrived.extend(kept.filter(|_| arrived.len() < *count));
                if arrived.len() == *count {
                    self.descriptors = std::mem::take(arrived);
                    *count = 0;
                }
            }
            (Packet::Forget, _) => self.forget(),
            (Packet::File(packet), file) => self.files.apply(&packet, file),
            (Packet::End, _) => {
                self.forget();
                self.files.clear();
            }
        }
    }

    fn forget(&mut self) {
        self.descriptors.clear();
        self.next = (Vec::new(), 0);
    }

    /// Returns duplicates of all descriptors, or `None` if nobody can continue it.
    fn duplicates(&self) -> Option<Vec<OwnedFd>> {
        if self.descriptors.is_empty() {
            return None;
        }
        let all = self.descriptors.iter().chain(self.files.all());
        let all: rustix::io::Result<_> = all.map(rustix::io::dup).collect();
        all.inspect_err(|error| tracing::warn!("a device is lost: {error}"))
            .ok()
    }
}

impl Channel {
    /// Returns a channel for `device`, and the other end of its socket.
    fn open(device: Arc<Mutex<KeptDevice>>) -> io::Result<(Channel, OwnedFd)> {
        let (here, there) = message::pair()?;
        let (socket, receiving) = (here.try_clone()?, device.clone());
        let receive = move || {
            loop {
                match message::receive::<Packet>(here.as_fd()) {
                    Ok((packet, passed)) => receiving.lock().apply(packet, passed),
                    Err(error) if error.kind() == io::ErrorKind::InvalidData => {}
                    Err(_) => return,
                }
            }
        };
        let thread = std::thread::Builder::new().name("barge-keeper".into());
        let channel = Channel {
            device,
            socket,
            thread: thread.spawn(receive)?,
        };
        Ok((channel, there))
    }

    /// Waits until all packets that were sent are applied, and refuses further ones.
    fn close(self) -> Arc<Mutex<KeptDevice>> {
        // The other end may be open for ever, as a process can pass it to the broker.
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
        // It does not panic.
        let _ = self.thread.join();
        self.device
    }
}

impl KeptDevices {
    pub(super) fn new() -> KeptDevices {
        KeptDevices {
            devices: Mutex::default(),
            limit: KeptLimit::of_this_process(),
        }
    }

    /// Returns the socket for packets about the device at `addr`, which may be kept already.
    pub(super) fn open(&self, addr: String) -> io::Result<OwnedFd> {
        let mut devices = self.devices.lock();
        let device = match devices.remove(&addr) {
            Some(channel) => channel.close(),
            None => Arc::new(Mutex::new(KeptDevice::new(&self.limit))),
        };
        let (channel, socket) = Channel::open(device)?;
        devices.insert(addr, channel);
        Ok(socket)
    }

    /// Returns the descriptors of the devices of a process that has ended.
    pub(super) fn take_over(&self) -> io::Result<ConnectionDescriptors> {
        let mut all = Vec::new();
        let mut devices = self.devices.lock();
        for (addr, channel) in std::mem::take(&mut *devices) {
            let device = channel.close();
            all.extend(device.lock().duplicates());
            // The next process opens another one.
            let (channel, _) = Channel::open(device)?;
            devices.insert(addr, channel);
        }
        Ok(all)
    }

    /// Closes the descriptors of the device at `addr`.
    pub(super) fn remove(&self, addr: &str) {
        let channel = self.devices.lock().remove(addr);
        channel.map(Channel::close);
    }

    /// Closes all descriptors. Returns whether there was a device.
    pub(super) fn clear(&self) -> bool {
        let devices = std::mem::take(&mut *self.devices.lock());
        let was_kept = |channel: Channel| !channel.close().lock().descriptors.is_empty();
        devices
            .into_values()
            .map(was_kept)
            .fold(false, |all, one| all | one)
    }
}

/// The broker as the keeper of a device, for the process that serves it.
pub(in crate::serve) struct DeviceChannel(Keeper);

impl DeviceChannel {
    pub(super) fn new(socket: OwnedFd) -> DeviceChannel {
        DeviceChannel(Keeper::new(socket))
    }

    /// Keeps `connection`, in place of an earlier state of it.
    pub(in crate::serve) fn keep(&self, connection: &SuspendedConnection) -> io::Result<()> {
        let state = connections::state_file(connection)?;
        let own = std::iter::once(&state).chain(&connection.fds);
        let all: Vec<_> = own.chain(&connection.session.files).collect();
        self.send(&Packet::Device(all.len()), None)?;
        all.into_iter()
            .try_for_each(|fd| self.send(&Packet::Descriptor, Some(fd.as_fd())))
    }

    /// Drops the device, but not its files.
    pub(in crate::serve) fn forget(&self) {
        // The broker may have ended, and then so does this process.
        let _ = self.send(&Packet::Forget, None);
    }

    /// Drops the device and its files.
    pub(in crate::serve) fn end(&self) {
        let _ = self.send(&Packet::End, None);
    }

    fn send(&self, packet: &Packet, fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
        self.0.send(packet, fd)
    }
}

impl FileKeeper for DeviceChannel {
    fn keep(&self, nodeid: u64, file: BorrowedFd<'_>) {
        let _ = self.send(&Packet::File(KeepFile::Keep(nodeid)), Some(file));
    }

    fn release(&self, nodeid: u64) {
        let _ = self.send(&Packet::File(KeepFile::Release(nodeid)), None);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Seek, Write};

    use wire::SavedState;

    use super::*;

    const ADDR: &str = "unix:/a";

    fn file_of(contents: &str) -> OwnedFd {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(contents.as_bytes()).expect("written");
        file.into()
    }

    fn device(records: &str) -> SuspendedConnection {
        let (fd, _) = message::pair().expect("a pair");
        SuspendedConnection {
            listener: ADDR.into(),
            peer: "a monitor".into(),
            session: SavedState {
                bytes: vec![1],
                files: vec![file_of(records)],
            },
            transport: vec![2],
            fds: vec![fd],
        }
    }

    fn open(devices: &KeptDevices) -> DeviceChannel {
        DeviceChannel::new(devices.open(ADDR.into()).expect("a socket"))
    }

    /// Returns the contents of the files of the device that the next process gets, if there is one.
    fn taken(devices: &KeptDevices) -> Option<Vec<String>> {
        let all = connections::connections(devices.take_over().expect("duplicates"));
        assert!(all.len() < 2);
        let connection = all.into_iter().next()?;
        assert_eq!(connection.listener, ADDR);
        assert_eq!(connection.fds.len(), 1);
        let contents = |fd: OwnedFd| {
            let (mut file, mut text) = (File::from(fd), String::new());
            file.rewind().expect("a file");
            file.read_to_string(&mut text).expect("read");
            text
        };
        Some(connection.session.files.into_iter().map(contents).collect())
    }

    #[test]
    fn a_device_outlives_several_processes() {
        let devices = KeptDevices::new();
        let channel = open(&devices);
        assert_eq!(taken(&devices), None);
        let channel = {
            drop(channel);
            open(&devices)
        };
        channel.keep(&device("old")).expect("sent");
        FileKeeper::keep(&channel, 9, file_of("nine").as_fd());
        channel.keep(&device("new")).expect("sent");
        FileKeeper::keep(&channel, 5, file_of("five").as_fd());
        // The process is killed, and so is the next one before it has opened its channel.
        drop(channel);
        let expected = ["new", "five", "nine"].map(String::from).to_vec();
        assert_eq!(taken(&devices), Some(expected.clone()));
        assert_eq!(taken(&devices), Some(expected));
        let channel = open(&devices);
        channel.release(5);
        assert_eq!(taken(&devices), Some(vec!["new".into(), "nine".into()]));
        let channel = open(&devices);
        channel.forget();
        assert_eq!(taken(&devices), None);
        let channel = open(&devices);
        channel.keep(&device("newer")).expect("sent");
        assert_eq!(taken(&devices), Some(vec!["newer".into(), "nine".into()]));
        open(&devices).end();
        open(&devices).keep(&device("another")).expect("sent");
        assert_eq!(taken(&devices), Some(vec!["another".into()]));
        assert!(devices.clear() && !devices.clear());
        assert_eq!(taken(&devices), None);
    }

    #[test]
    fn a_state_whose_descriptors_have_not_all_arrived_is_not_used() {
        let devices = KeptDevices::new();
        let part = |channel: &DeviceChannel| {
            channel.send(&Packet::Device(3), None).expect("sent");
            for _ in 0..2 {
                let fd = file_of("");
                let sent = channel.send(&Packet::Descriptor, Some(fd.as_fd()));
                sent.expect("sent");
            }
        };
        part(&open(&devices));
        assert_eq!(taken(&devices), None);
        let channel = open(&devices);
        channel.keep(&device("whole")).expect("sent");
        part(&channel);
        assert_eq!(taken(&devices), Some(vec!["whole".into()]));
        let channel = open(&devices);
        channel.forget();
        part(&channel);
        assert_eq!(taken(&devices), None);
    }

    #[test]
    fn a_process_cannot_delay_its_successor() {
        let devices = KeptDevices::new();
        let socket = devices.open(ADDR.into()).expect("a socket");
        let channel = DeviceChannel::new(socket.try_clone().expect("a descriptor"));
        // The broker has the other end of its own socket.
        channel.send(&Packet::Device(1), None).expect("sent");
        let sent = channel.send(&Packet::Descriptor, Some(socket.as_fd()));
        sent.expect("sent");
        let packet = Packet::Device(usize::MAX);
        channel.send(&packet, None).expect("sent");
        // It is no connection.
        assert_eq!(taken(&devices), None);
        drop((channel, socket));
        assert!(devices.clear());
    }
}
