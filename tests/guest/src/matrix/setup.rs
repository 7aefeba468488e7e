//! What is set up for a script: servers, guests, and the root of those.

use super::ways::Way;
use crate::guest::{Mount, Seat};

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Setup {
    /// A guest with the share, in which other scripts run too.
    Usual,
    /// Two guests with the share of one server, by the ways of these names.
    Two(&'static str, &'static str),
}

/// All of it, as templates.
pub(super) struct Scene {
    pub(super) serve: Vec<String>,
    pub(super) seats: Vec<Seat>,
    pub(super) root: Option<Mount>,
    /// The cache mode of the first guest.
    pub(super) cache: &'static str,
}

impl Setup {
    /// With the share by `way` and with mount options besides its own, where the setup has no ways of its own.
    pub(super) fn scene(self, way: &Way, barge: &str, options: &[String]) -> Scene {
        let serve = |source, addresses: &str, way: &Way| {
            let arguments = way.arguments();
            format!("{barge} serve {source} {addresses} {arguments}")
        };
        let mut scene = Scene {
            serve: vec![serve("{share}", way.address(), way)],
            seats: vec![way.seat(options)],
            root: None,
            cache: way.cache,
        };
        let qemu = &mut scene.seats[0].qemu;
        match self {
            Self::Usual => qemu.extend(MAPPED.map(String::from)),
            Self::Two(first, second) => {
                let (first, second) = (Way::named(first), Way::named(second));
                let addresses = format!("{} {}", first.address(), beside(second.address()));
                return Scene {
                    serve: vec![serve("{share}", &addresses, first)],
                    seats: vec![first.seat(&[]), second.seat(&[]).map(beside)],
                    root: None,
                    cache: first.cache,
                };
            }
        }
        scene
    }
}

/// A template with the second port and socket in the place of the first.
fn beside(template: &str) -> String {
    template
        .replace("{port}", "{port2}")
        .replace("{socket}", "{socket2}")
}

/// A second way to the share: QEMU's own server with its own idea of owners.
const MAPPED: [&str; 4] = [
    "-fsdev",
    "local,id=mapped,path={share},security_model=mapped-xattr",
    "-device",
    "virtio-9p-pci,fsdev=mapped,mount_tag=mapped",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_guests_meet_two_addresses_of_one_server() {
        let two = Setup::Two("virtiofs-never", "none");
        let scene = two.scene(Way::named("mmap"), "barge", &[]);
        assert_eq!(
            scene.serve,
            ["barge serve {share} --virtiofs {socket} --9p tcp:127.0.0.1:{port2} --cache never"]
        );
        assert!(scene.seats[0].qemu[1].ends_with("path={socket}"));
        assert!(scene.seats[1].mount.options.contains("port={port2},"));
    }
}
