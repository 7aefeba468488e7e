//! Files as disks of virtual machines: vhost-user-blk devices.

use std::path::Path;
use std::sync::Arc;

use block::{Disk, virtio};
use engine::Engine;
use vfs::{Call, Caller, Cx};
use virtqueue::DeviceConfig;

use crate::Failure;
use crate::serve::args::device::{Drive, SocketArg};
use crate::serve::endpoint::{BindContext, Endpoint, EndpointEntry};
use crate::serve::exports::{Catalog, Exports};
use crate::serve::vhost::{self, DeviceKind, DeviceSession, DeviceSocket, VhostOptions};

/// Block devices.
pub(super) struct VhostUserBlk {
    drives: Vec<Drive>,
    vhost: VhostOptions,
    bound: Vec<DeviceSocket>,
}

impl VhostUserBlk {
    pub(super) fn new(drive: Drive, vhost: VhostOptions) -> VhostUserBlk {
        VhostUserBlk {
            drives: vec![drive],
            vhost,
            bound: Vec::new(),
        }
    }

    fn bind_drive(
        &self,
        drive: &Drive,
        context: &BindContext<'_>,
    ) -> Result<DeviceSocket, Failure> {
        let disk = Arc::new(open(drive, context.exports)?);
        let config = DeviceConfig {
            queues: QUEUES.into(),
            features: virtio::features(&disk),
            config_space: virtio::config_space(&disk, QUEUES, DEPTH),
            repeats_requests: true,
        };
        let kind = DeviceKind {
            session: Box::new(move |_| Ok(DeviceSession::fixed(virtio::Device::new(disk.clone())))),
            config,
            keeper: None,
            unpinned: 0,
        };
        DeviceSocket::bind(&drive.socket.addr, context, &self.vhost, kind)
    }
}

/// Maximum number of queues of a device.
const QUEUES: u16 = 64;

/// Descriptors per queue, as QEMU's default.
const DEPTH: u32 = 128;

impl Endpoint for VhostUserBlk {
    fn keep_devices_of(&mut self, name: &str) -> bool {
        self.drives
            .retain(|drive| drive.socket.name.as_deref() == Some(name));
        !self.drives.is_empty()
    }

    fn devices(&self) -> Vec<&SocketArg> {
        self.drives.iter().map(|drive| &drive.socket).collect()
    }

    fn serves_images(&self) -> bool {
        !self.drives.is_empty()
    }

    fn bind(&mut self, context: &BindContext<'_>) -> Result<(), Failure> {
        let drives = self.drives.iter();
        let bound = drives.map(|drive| self.bind_drive(drive, context));
        self.bound = bound.collect::<Result<_, _>>()?;
        Ok(())
    }

    fn start(&mut self, engine: &Arc<Engine>) -> Result<(), Failure> {
        vhost::start(engine, std::mem::take(&mut self.bound))
    }

    fn entries(&self, _: &Catalog<'_>) -> Vec<EndpointEntry> {
        let entry = |drive: &Drive| vhost::entry("block", &drive.socket, monitor_options);
        self.drives.iter().map(entry).collect()
    }

    fn setting(&self) -> Option<(&'static str, String)> {
        Some(("block", self.drives.first()?.to_string()))
    }
}

/// Opens the file of `drive`.
fn open(drive: &Drive, exports: &Exports) -> Result<Disk, Failure> {
    let SocketArg { name, addr: at } = &drive.socket;
    let export = exports.named(name.as_deref(), "--block")?;
    let name = name.as_deref().unwrap_or("").as_bytes();
    let image = exports.images.iter().find(|image| image.name == name);
    let call = Call::detached();
    let cx = Cx::new(&Caller::ROOT, &call);
    let opened = match image.filter(|_| drive.file.is_empty()) {
        Some(image) => Disk::open(&cx, &image.export, &image.path, true),
        None => Disk::open(&cx, &export, drive.file.as_bytes(), drive.read_only),
    };
    opened.map_err(|errno| {
        let file = match drive.file.as_str() {
            "" => "the source is no image; ,file=FILE names a file in it",
            file => file,
        };
        Failure::new(format!("--block {at}: {file}: {errno}"))
    })
}

/// Returns QEMU's options of a block device, which has a queue for each processor of the guest.
fn monitor_options(socket: &Path) -> String {
    format!(
        "-chardev socket,id=blk,path={},reconnect=1 -device vhost-user-blk-pci,chardev=blk",
        socket.display()
    )
}
