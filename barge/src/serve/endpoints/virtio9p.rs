//! 9P over virtio: a vhost-user socket for each device, which a guest mounts with `trans=virtio`
//! and the device's tag.

use std::path::Path;
use std::sync::Arc;

use engine::Engine;
use vfs::{Call, Export};
use virtqueue::DeviceConfig;
use wire::SavedState;

use super::p9::NinePServer;
use crate::Failure;
use crate::serve::args::device::{NinePDevice, SocketArg};
use crate::serve::endpoint::{BindContext, Endpoint, EndpointEntry};
use crate::serve::exports::Catalog;
use crate::serve::vhost::{self, DeviceKind, DeviceSession, DeviceSocket, VhostOptions};

/// The feature bit of a tag in the configuration (`VIRTIO_9P_F_MOUNT_TAG`).
const MOUNT_TAG: u64 = 1;

/// 9P devices.
pub(super) struct Virtio9p {
    devices: Vec<NinePDevice>,
    /// The server of devices with all sources.
    p9: NinePServer,
    vhost: VhostOptions,
    bound: Vec<DeviceSocket>,
}

impl Virtio9p {
    pub(super) fn new(device: NinePDevice, p9: NinePServer, vhost: VhostOptions) -> Virtio9p {
        Virtio9p {
            devices: vec![device],
            p9,
            vhost,
            bound: Vec::new(),
        }
    }

    fn bind_device(
        &self,
        device: &NinePDevice,
        context: &BindContext<'_>,
    ) -> Result<DeviceSocket, Failure> {
        let server = match device.socket.name.as_deref() {
            None => self.p9.server().clone(),
            name => {
                let only = context.exports.named(name, "--virtio-9p")?;
                self.p9.server_of(Arc::new(SingleExport(only)))
            }
        };
        let session = move |saved: Option<&SavedState>| {
            let session = match saved {
                None => server.queue_session(),
                Some(state) => server
                    .resume_queue_session(&Call::detached(), state)
                    .map_err(|error| error.to_string())?,
            };
            Ok(DeviceSession::fixed(session))
        };
        let kind = DeviceKind {
            session: Box::new(session),
            config: DeviceConfig {
                // Linux uses one queue.
                queues: 1,
                features: MOUNT_TAG,
                config_space: device.config_space(),
                repeats_requests: false,
            },
            keeper: None,
            unpinned: 0,
        };
        DeviceSocket::bind(&device.socket.addr, context, &self.vhost, kind)
    }
}

impl Endpoint for Virtio9p {
    fn keep_devices_of(&mut self, name: &str) -> bool {
        self.devices
            .retain(|device| device.socket.name.as_deref() == Some(name));
        !self.devices.is_empty()
    }

    fn devices(&self) -> Vec<&SocketArg> {
        self.devices.iter().map(|device| &device.socket).collect()
    }

    fn share_limits(&mut self, other: &dyn Endpoint) {
        if let Some(server) = NinePServer::of_endpoint(other) {
            self.p9 = server.clone();
        }
    }

    fn bind(&mut self, context: &BindContext<'_>) -> Result<(), Failure> {
        self.p9.set_exports(&context.exports.catalog());
        let devices = self.devices.iter();
        let bound = devices.map(|device| self.bind_device(device, context));
        self.bound = bound.collect::<Result<_, _>>()?;
        Ok(())
    }

    fn start(&mut self, engine: &Arc<Engine>) -> Result<(), Failure> {
        vhost::start(engine, std::mem::take(&mut self.bound))
    }

    fn entries(&self, _: &Catalog<'_>) -> Vec<EndpointEntry> {
        let entry = |device: &NinePDevice| EndpointEntry {
            commands: vec![mount_command(device)],
            ..vhost::entry("virtio-9p", &device.socket, |socket| {
                monitor_options(device, socket)
            })
        };
        self.devices.iter().map(entry).collect()
    }

    fn setting(&self) -> Option<(&'static str, String)> {
        Some(("virtio-9p", self.devices.first()?.to_string()))
    }

    fn set_exports(&self, catalog: &Catalog<'_>) {
        self.p9.set_exports(catalog);
    }
}

/// A single export, returned for every aname.
struct SingleExport(Arc<Export>);

impl ::p9::server::Exports for SingleExport {
    fn resolve<'a>(&self, aname: &'a [u8]) -> Option<(Arc<Export>, &'a [u8])> {
        Some((self.0.clone(), aname))
    }
}

/// Returns QEMU's options of a 9P device, for versions with `vhost-user-test-device`.
fn monitor_options(device: &NinePDevice, socket: &Path) -> String {
    format!(
        "-chardev socket,id=p9,path={} -device vhost-user-test-device-pci,chardev=p9,virtio-id=9,num_vqs=1,vq_size=128,config_size={}",
        socket.display(),
        device.config_space().len(),
    )
}

/// Returns the mount command for the guest. Linux uses at most 128 descriptors per message, and so
/// 500 KiB.
fn mount_command(device: &NinePDevice) -> String {
    let tag = &device.tag;
    format!("mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000 {tag} /mnt")
}
