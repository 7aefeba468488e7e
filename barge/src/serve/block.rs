//! Files as disks: vhost-user block devices and NBD.

use std::str::FromStr;
use std::sync::Arc;

use block::nbd::Server;
use block::{Disk, virtio};
use engine::{Engine, Service};
use transports::{Addr, Listener};
use vfs::{Call, Caller, Cx};
use virtqueue::Config;

use super::exports::Exports;
use super::vhost::{Kind, Place, Socket, Vhost};
use crate::Failure;

/// The disks to serve.
#[derive(Clone, Debug, Default)]
pub(super) struct Block {
    /// Block devices of virtual machines.
    pub(super) drives: Vec<Drive>,
    pub(super) nbd: Vec<Addr>,
}

impl Block {
    /// Returns whether no disk is served.
    pub(super) fn is_empty(&self) -> bool {
        self.drives.is_empty() && self.nbd.is_empty()
    }
}

/// `[NAME=]SOCKET[,file=FILE][,ro]`: a block device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Drive {
    pub(super) socket: Socket,
    /// The path of the file in the source; empty for a source that is an image.
    file: String,
    read_only: bool,
}

impl FromStr for Drive {
    type Err = String;

    fn from_str(text: &str) -> Result<Drive, String> {
        let (text, read_only) = match text.strip_suffix(",ro") {
            Some(text) => (text, true),
            None => (text, false),
        };
        let (place, file) = text.split_once(",file=").unwrap_or((text, ""));
        let socket = place
            .parse()
            .map_err(|expected| format!("{expected}[,file=FILE][,ro]"))?;
        Ok(Drive {
            socket,
            file: file.to_owned(),
            read_only,
        })
    }
}

/// Maximum number of queues of a device.
const QUEUES: u16 = 64;

/// Descriptors per queue, as QEMU's default.
const DEPTH: u32 = 128;

/// Opens the sockets of `block` with the permissions of `vhost`.
pub(super) fn places(
    exports: &Exports,
    block: &Block,
    vhost: &Vhost,
) -> Result<Vec<Place>, Failure> {
    let place = |drive: &Drive| {
        let disk = Arc::new(drive.open(exports)?);
        let config = Config {
            queues: QUEUES.into(),
            features: virtio::features(&disk),
            space: virtio::space(&disk, QUEUES, DEPTH),
        };
        let kind = Kind {
            session: Box::new(move || Arc::new(virtio::Device::new(disk.clone()))),
            config,
            free: 0,
        };
        Place::open(&drive.socket.at, vhost, kind)
    };
    block.drives.iter().map(place).collect()
}

impl Drive {
    fn open(&self, exports: &Exports) -> Result<Disk, Failure> {
        let Socket { name, at } = &self.socket;
        let export = exports.named(name.as_deref(), "--block")?;
        let name = name.as_deref().unwrap_or("").as_bytes();
        let image = exports.images.iter().find(|image| image.name == name);
        let call = Call::detached();
        let cx = Cx::new(&Caller::ROOT, &call);
        let opened = match image.filter(|_| self.file.is_empty()) {
            Some(image) => Disk::open(&cx, &image.export, &image.path, true),
            None => Disk::open(&cx, &export, self.file.as_bytes(), self.read_only),
        };
        opened.map_err(|errno| {
            let file = match self.file.as_str() {
                "" => "the source is no image; ,file=FILE names a file in it",
                file => file,
            };
            Failure::new(format!("--block {at}: {file}: {errno}"))
        })
    }
}

/// Opens the listeners of NBD.
pub(super) fn listeners(block: &Block, group: Option<u32>) -> Result<Vec<Listener>, Failure> {
    let addrs = block.nbd.iter();
    addrs.map(|addr| super::listen(addr, group)).collect()
}

/// Serves NBD clients.
pub(super) fn serve(
    engine: &Arc<Engine>,
    listeners: Vec<Listener>,
    exports: &Exports,
) -> Result<(), Failure> {
    let server = Server::new(exports.whole.clone(), false, exports.images.clone());
    let service = Arc::new(NbdService(server));
    for listener in listeners {
        engine
            .listen(listener, service.clone())
            .map_err(Failure::new)?;
    }
    Ok(())
}

/// The NBD service of the engine.
struct NbdService(Server);

impl Service for NbdService {
    fn session(&self) -> Box<dyn wire::Session> {
        Box::new(self.0.session())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drive_is_a_socket_perhaps_a_source_a_file_and_only_to_be_read() {
        for (text, name, socket, file, read_only) in [
            ("/run/s", None, "/run/s", "", false),
            ("/run/s,ro", None, "/run/s", "", true),
            ("vm=/run/s,file=a/b,c", Some("vm"), "/run/s", "a/b,c", false),
            ("/run/a=b,file=x=y,ro", None, "/run/a=b", "x=y", true),
        ] {
            let drive: Drive = text.parse().expect(text);
            assert_eq!(drive.socket.name.as_deref(), name);
            assert_eq!(drive.socket.at.to_string(), format!("unix:{socket}"));
            assert_eq!((drive.file.as_str(), drive.read_only), (file, read_only));
        }
        for bad in ["", "vm=", ",ro", ",file=x"] {
            assert!(bad.parse::<Drive>().is_err(), "{bad}");
        }
    }
}
