//! 9P over virtio: a vhost-user socket for each device, which a guest mounts with `trans=virtio`
//! and the device's tag.

use std::str::FromStr;
use std::sync::Arc;

use p9::server::{Exports as Served, Server};
use vfs::Export;
use virtqueue::Config;
use wire::Session;

use super::exports::Exports;
use super::plan::NineP;
use super::vhost::{Kind, Place, Socket, Vhost};
use crate::Failure;

/// `[NAME=]SOCKET[,tag=TAG]`: a 9P device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NinePDevice {
    pub(super) socket: Socket,
    /// The mount tag of the device.
    pub(super) tag: String,
}

impl NinePDevice {
    /// Maximum length of a tag. Linux reads tags by pages (`net/9p/trans_virtio.c`), and a monitor
    /// reads no more than 256 bytes of configuration, of which two are the length.
    const LONGEST_TAG: usize = 254;

    /// Returns the device's configuration: the length of the tag, and the tag (virtio 1.3, 5.16.4).
    pub(super) fn space(&self) -> Vec<u8> {
        let len = self.tag.len() as u16;
        [&len.to_le_bytes(), self.tag.as_bytes()].concat()
    }
}

impl FromStr for NinePDevice {
    type Err = String;

    fn from_str(text: &str) -> Result<NinePDevice, String> {
        let (place, tag) = match text.rsplit_once(",tag=") {
            Some((place, tag)) => (place, Some(tag)),
            None => (text, None),
        };
        let socket: Socket = place
            .parse()
            .map_err(|expected| format!("{expected}[,tag=TAG]"))?;
        let tag = tag.or(socket.name.as_deref()).unwrap_or("share");
        if !(1..=NinePDevice::LONGEST_TAG).contains(&tag.len()) {
            let most = NinePDevice::LONGEST_TAG;
            return Err(format!("expected a tag of 1 to {most} bytes, got '{tag}'"));
        }
        let tag = tag.to_owned();
        Ok(NinePDevice { socket, tag })
    }
}

/// The feature bit of a tag in the configuration (`VIRTIO_9P_F_MOUNT_TAG`).
const MOUNT_TAG: u64 = 1;

/// Opens the sockets of `p9` with the permissions of `vhost`. `server` is for devices with all
/// sources.
pub(super) fn places(
    exports: &Exports,
    p9: &NineP,
    vhost: &Vhost,
    server: &Server,
) -> Result<Vec<Place>, Failure> {
    let place = |device: &NinePDevice| {
        let server = match device.socket.name.as_deref() {
            None => server.clone(),
            name => {
                let only = exports.named(name, "--virtio-9p")?;
                super::p9_server(Arc::new(Only(only)), p9)
            }
        };
        let session = move || -> Arc<dyn Session> { Arc::new(server.queue_session()) };
        let kind = Kind {
            session: Box::new(session),
            config: Config {
                // Linux uses one queue.
                queues: 1,
                features: MOUNT_TAG,
                space: device.space(),
            },
            free: 0,
        };
        Place::open(&device.socket.at, vhost, kind)
    };
    p9.devices.iter().map(place).collect()
}

/// A single export, returned for every aname.
struct Only(Arc<Export>);

impl Served for Only {
    fn resolve<'a>(&self, aname: &'a [u8]) -> Option<(Arc<Export>, &'a [u8])> {
        Some((self.0.clone(), aname))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_a_socket_perhaps_a_source_and_a_tag() {
        for (text, name, socket, tag) in [
            ("/run/s", None, "/run/s", "share"),
            ("/run/a=b", None, "/run/a=b", "share"),
            ("home=/run/s", Some("home"), "/run/s", "home"),
            ("home=/run/s,tag=x", Some("home"), "/run/s", "x"),
            ("/run/a,b,tag=x", None, "/run/a,b", "x"),
        ] {
            let device: NinePDevice = text.parse().expect(text);
            assert_eq!(device.socket.name.as_deref(), name);
            assert_eq!(device.socket.at.to_string(), format!("unix:{socket}"));
            assert_eq!(device.tag, tag);
        }
        let long = format!("/s,tag={}", "x".repeat(255));
        for bad in ["", "home=", ",tag=x", "/s,tag=", &long] {
            assert!(bad.parse::<NinePDevice>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_tag_stands_behind_its_length() {
        let device: NinePDevice = "/s,tag=abc".parse().expect("a device");
        assert_eq!(device.space(), b"\x03\0abc");
    }
}
