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
use crate::kept_files::{KeepFile, KeptDescriptor, KeptFiles, KeptLimit};

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

/// Maximum number of descriptors of a device: more than those of 509 regions of memory, and two
/// events of each of 65 queues.
const MAX_DESCRIPTORS: usize = 1024;

/// The devices of a process, by the addresses of their sockets.
pub(super) struct KeptDevices {
    devices: Mutex<HashMap<String, KeptDevice>>,
    limit: KeptLimit,
}

/// A device, and the process that sends its descriptors.
struct KeptDevice {
    state: Arc<Mutex<DeviceDescriptors>>,
    receiver: Option<Receiver>,
}

/// A thread that receives packets over a socket.
struct Receiver {
    socket: OwnedFd,
    thread: JoinHandle<()>,
}

/// The descriptors of a device.
struct DeviceDescriptors {
    /// All of them; none if nobody can continue the device.
    whole: Vec<KeptDescriptor>,
    /// Those of its next state, as far as they have arrived, and the number of those that have not.
    next: (Vec<KeptDescriptor>, usize),
    files: KeptFiles,
    limit: KeptLimit,
}

impl DeviceDescriptors {
    fn new(limit: &KeptLimit) -> DeviceDescriptors {
        DeviceDescriptors {
            whole: Vec::new(),
            next: (Vec::new(), 0),
            files: KeptFiles::new(limit.clone()),
            limit: limit.clone(),
        }
    }

    fn apply(&mut self, packet: Packet, passed: Option<OwnedFd>) {
        match (packet, passed) {
            (Packet::Device(count), _) => self.next = (Vec::new(), count.min(MAX_DESCRIPTORS)),
            (Packet::Descriptor, Some(fd)) => self.add(fd),
            (Packet::Descriptor, None) => {}
            (Packet::Forget, _) => self.forget(),
            (Packet::File(packet), file) => self.files.apply(&packet, file),
            (Packet::End, _) => {
                self.forget();
                self.files.clear();
            }
        }
    }

    /// Adds a descriptor of the next state. Beyond the limit that stays incomplete.
    fn add(&mut self, fd: OwnedFd) {
        let (arrived, missing) = &mut self.next;
        if *missing > 0
            && let Some(kept) = self.limit.keep(fd)
        {
            arrived.push(kept);
            *missing -= 1;
            if *missing == 0 {
                self.whole = std::mem::take(arrived);
            }
        }
    }

    fn forget(&mut self) {
        self.whole.clear();
        self.next = (Vec::new(), 0);
    }

    /// Returns duplicates of all descriptors, or `None` if nobody can continue the device.
    fn duplicates(&self) -> Option<Vec<OwnedFd>> {
        if self.whole.is_empty() {
            return None;
        }
        let all = self.whole.iter().chain(self.files.all());
        let all: io::Result<_> = all.map(KeptDescriptor::duplicate).collect();
        all.inspect_err(|error| tracing::warn!("a device is lost: {error}"))
            .ok()
    }
}

impl KeptDevice {
    fn new(limit: &KeptLimit) -> KeptDevice {
        KeptDevice {
            state: Arc::new(Mutex::new(DeviceDescriptors::new(limit))),
            receiver: None,
        }
    }

    /// Starts to receive packets, and returns the other end of their socket.
    fn receive(&mut self) -> io::Result<OwnedFd> {
        self.settle();
        let (here, there) = message::pair()?;
        let (socket, state) = (here.try_clone()?, self.state.clone());
        let receive = move || {
            loop {
                match message::receive::<Packet>(here.as_fd()) {
                    Ok((packet, passed)) => state.lock().apply(packet, passed),
                    Err(error) if error.kind() == io::ErrorKind::InvalidData => {}
                    Err(_) => return,
                }
            }
        };
        let thread = std::thread::Builder::new().name("barge-keeper".into());
        let thread = thread.spawn(receive)?;
        self.receiver = Some(Receiver { socket, thread });
        Ok(there)
    }

    /// Applies all packets that were sent, and refuses further ones.
    fn settle(&mut self) {
        if let Some(Receiver { socket, thread }) = self.receiver.take() {
            // The other end may be open for ever, as a process can pass it to the broker.
            let _ = rustix::net::shutdown(&socket, Shutdown::Both);
            // It does not panic.
            let _ = thread.join();
        }
    }
}

impl KeptDevices {
    pub(super) fn new(limit: KeptLimit) -> KeptDevices {
        KeptDevices {
            devices: Mutex::default(),
            limit,
        }
    }

    /// Returns the socket for packets about the device at `addr`, which may be kept already.
    pub(super) fn open(&self, addr: String) -> io::Result<OwnedFd> {
        let mut devices = self.devices.lock();
        let device = devices.entry(addr);
        device
            .or_insert_with(|| KeptDevice::new(&self.limit))
            .receive()
    }

    /// Returns the descriptors of the devices of a process that has ended.
    pub(super) fn take_over(&self) -> ConnectionDescriptors {
        let mut devices = self.devices.lock();
        let duplicates = |device: &mut KeptDevice| {
            device.settle();
            device.state.lock().duplicates()
        };
        devices.values_mut().filter_map(duplicates).collect()
    }

    /// Closes the descriptors of the device at `addr`.
    pub(super) fn remove(&self, addr: &str) {
        if let Some(mut device) = self.devices.lock().remove(addr) {
            device.settle();
        }
    }

    /// Closes all descriptors. Returns whether there was a device.
    pub(super) fn clear(&self) -> bool {
        let mut was_kept = false;
        for (_, mut device) in self.devices.lock().drain() {
            device.settle();
            was_kept |= !device.state.lock().whole.is_empty();
        }
        was_kept
    }
}

/// The broker as the keeper of a device, for the process that serves it.
pub(in crate::serve) struct DeviceChannel(OwnedFd);

impl DeviceChannel {
    pub(super) fn new(socket: OwnedFd) -> DeviceChannel {
        DeviceChannel(socket)
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
        message::send(self.0.as_fd(), packet, fd)
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
        let all = connections::connections(devices.take_over());
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
        let devices = KeptDevices::new(KeptLimit::for_one_of(1));
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
        let devices = KeptDevices::new(KeptLimit::for_one_of(1));
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
        let devices = KeptDevices::new(KeptLimit::for_one_of(1));
        let socket = devices.open(ADDR.into()).expect("a socket");
        let channel = DeviceChannel::new(socket.try_clone().expect("a descriptor"));
        // The broker has the other end of its own socket.
        channel.send(&Packet::Device(1), None).expect("sent");
        for _ in 0..2 {
            let sent = channel.send(&Packet::Descriptor, Some(socket.as_fd()));
            sent.expect("sent");
        }
        let packet = Packet::Device(usize::MAX);
        channel.send(&packet, None).expect("sent");
        // It is no connection.
        assert_eq!(taken(&devices), None);
        drop((channel, socket));
        assert!(devices.clear());
    }
}
