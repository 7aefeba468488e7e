//! The setups of scripts: servers, guests, and their roots.

use crate::guest::{Mount, Seat};
use crate::machine::Machine;
use crate::ways::{Protocol, Way, beside};

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Setup {
    /// A guest with the share, shared with other scripts.
    Usual,
    /// A guest with the share, which QEMU serves too, with mapped owners.
    Mapped,
    /// Two guests with the share of one server, with these two mount configurations.
    Two(&'static str, &'static str),
    /// A guest whose root is also served by barge, with the configuration of the share.
    Root,
    /// A guest whose root is a busybox image, made in `{run}/tree` and served by barge with the
    /// configuration of the share.
    Image,
    /// The same image as a disk that the guest mounts.
    ImageDisk,
    /// A guest with the share, and with a second device that serves it and a memory tree as a
    /// bundle.
    Bundle,
    /// A guest with the share, and with a vsock whose ports are Unix sockets of the host at
    /// `{run}/vm`; barge also serves the share there, on port 5640.
    Vsock,
    /// A guest with the share, and with a disk: the file `{run}/disk`, as a vhost-user device, and
    /// over NBD as well.
    Drive,
    /// A guest that may reset itself, and then restarts the script.
    Reset,
    /// A guest with a share that is a separate file system, made by this mkfs with these arguments.
    /// It is mounted only in the server's namespace: commands on the host see an empty directory.
    Disk(&'static str),
    /// A guest with the share, whose server is restarted when it is killed. Its process ID is in
    /// `{run}/server.pid`, its lease time is [`LEASE`] seconds.
    Restart,
    /// A guest with the share, whose server is configured by `{run}/barge.toml`; its process ID is
    /// in `{run}/server.pid`.
    Reload,
    /// A guest with the share as the server's only export, named `share`.
    Named,
}

/// The servers and guests of a setup, as templates.
pub(super) struct Scene {
    pub(super) serve: Vec<String>,
    pub(super) seats: Vec<Seat>,
    pub(super) root: Option<Mount>,
    /// The cache mode of the first guest.
    pub(super) cache: &'static str,
}

impl Setup {
    /// Returns whether guests need devices or the network of QEMU. v3's locks need the portmapper
    /// of the host, which answers on loopback.
    pub(super) fn needs_qemu(self, way: &Way) -> bool {
        let scene = self.scene(way, "", &[], &Machine::UserMode);
        let has_devices = scene.seats.iter().any(|seat| !seat.qemu.is_empty());
        // SQLite in two user-mode guests has failed over NFS 4.2; the cause is not known.
        has_devices || way.uses_rpcbind() || scene.seats.len() > 1
    }

    /// Returns the scene with the share mounted as `way` with additional mount options, unless the
    /// setup has its own configurations.
    pub(super) fn scene(
        self,
        way: &Way,
        barge: &str,
        options: &[String],
        machine: &Machine,
    ) -> Scene {
        let serve = |source, addresses: &str, way: &Way| {
            let arguments = way.arguments(machine);
            format!("{barge} serve {source} {addresses} {arguments}")
        };
        let mut scene = Scene {
            serve: vec![serve("{share}", way.address(), way)],
            seats: vec![way.seat(options)],
            root: None,
            cache: way.cache,
        };
        scene.seats[0] = scene.seats[0].map(|text| text.replace("{barge}", barge));
        let qemu = &mut scene.seats[0].qemu;
        match self {
            Self::Usual => {}
            Self::Mapped => qemu.extend(MAPPED.map(String::from)),
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
            Self::Root => {
                let root = format!("--read-only {}", beside(way.address()));
                // Excludes submounts: overlayfs rejects directories that a client would automount.
                let command = serve("/mnt", &root, way);
                let bound = format!("unshare -m sh -c 'mount --bind / /mnt && exec {command}'");
                scene.serve.push(bound);
                scene.root = Some(way.root().map(beside));
                qemu.extend(way.device("root").iter().map(|text| beside(text)));
            }
            Self::Image => {
                let command = serve("{run}/image", &beside(way.address()), way);
                scene.serve.push(packed(barge, &command));
                scene.root = Some(way.root().map(beside));
                qemu.extend(way.device("root").iter().map(|text| beside(text)));
            }
            Self::ImageDisk => {
                let command = format!("{barge} serve {{run}}/image --block {{socket2}},ro");
                scene.serve.push(packed(barge, &command));
                scene.root = Some(Mount {
                    kind: "erofs".into(),
                    options: "ro".into(),
                    device: "/dev/vda".into(),
                });
                qemu.extend(DRIVE.map(beside));
            }
            Self::Bundle => {
                let own = way.address().replace("{socket}", "one={socket}");
                let addresses = format!("{own} {}", beside(way.address()));
                scene.serve = vec![serve("one={share} two=mem:", &addresses, way)];
                qemu.extend(way.device("bundle").iter().map(|text| beside(text)));
            }
            Self::Vsock => {
                let addresses = format!("{} --9p vsock-uds:{{run}}/vm:5640", way.address());
                let device = "{tools}/vhost-device-vsock --guest-cid 3 --tx-buffer-size 262144 --socket {socket} --uds-path {run}/vm";
                scene.serve = vec![serve("{share}", &addresses, way), device.into()];
                qemu.extend(VSOCK.map(String::from));
            }
            Self::Drive => {
                let disk = "truncate -s 256M {run}/disk";
                let addresses = "--block {socket},file=disk --nbd tcp:127.0.0.1:{port2}";
                let command = format!("sh -c '{disk} && exec {barge} serve {{run}} {addresses}'");
                scene.serve.push(command);
                qemu.extend(DRIVE.map(String::from));
            }
            Self::Restart => {
                let lease = match way.protocol {
                    Protocol::Nfs { .. } => format!(" --nfs-lease {LEASE}"),
                    _ => String::new(),
                };
                scene.serve = vec![format!("{AGAIN} {}{lease}", scene.serve[0])];
            }
            Self::Reload => scene.serve = vec![by_file(barge, way, machine)],
            Self::Disk(mkfs) => {
                let disk = "truncate -s 1G {run}/disk && mkfs.".to_owned() + mkfs + " {run}/disk";
                let mounted = "mount -o loop {run}/disk {share} && chmod 755 {share}";
                let command = &scene.serve[0];
                scene.serve = vec![format!(
                    "unshare -m sh -c '{disk} && {mounted} && exec {command}'"
                )];
            }
            Self::Named => {
                scene.serve = vec![serve("share={share}", way.address(), way)];
            }
            Self::Reset => qemu.extend(["-action", "reboot=reset"].map(String::from)),
        }
        scene
    }
}

/// Returns a server command preceded by packing an image: busybox with a link for each applet, the
/// directories that a guest uses as mount points, and files of several sizes and types. Some
/// busyboxes lack flock(1), which a single guest does not need, and timeout(1) of busybox leaves a
/// process behind in the share.
fn packed(barge: &str, command: &str) -> String {
    let tree = "mkdir -p {run}/tree/bin && cd {run}/tree && mkdir dev proc sys run tmp mnt root etc data && ln -s /proc/mounts etc/mtab && cp {run}/busybox bin && \
        for name in $(bin/busybox --list); do [ $name = busybox ] || ln -s busybox bin/$name; done && \
        rm -f bin/flock bin/timeout && printf \"#!/bin/sh\\n\" >bin/flock && printf \"#!/bin/sh\\nshift 3; exec \\\"\\$@\\\"\\n\" >bin/timeout && \
        chmod 755 bin/flock bin/timeout && \
        for size in 0 1 511 512 4095 4096 4097 100000 3000000; do head -c $size /dev/urandom >data/$size; done && \
        ln data/4097 data/again && truncate -s 10M data/hole && mknod data/null c 1 3 && mkfifo data/pipe";
    let pack = format!("{barge} pack --quiet --compress lz4 {{run}}/tree {{run}}/image");
    format!("sh -ec '{tree} && {pack} && exec {command}'")
}

/// Returns a server command with a configuration file in place of options, including whether the
/// share is read-only.
fn by_file(barge: &str, way: &Way, machine: &Machine) -> String {
    let told = format!("{} {}", way.address(), way.arguments(machine));
    let mut keys = String::new();
    for option in told.split("--").skip(1) {
        let (key, value) = option.trim().split_once(' ').unwrap_or((option.trim(), ""));
        match value {
            "" => keys += &format!("{key} = true\n"),
            value => keys += &format!("{key} = \"{value}\"\n"),
        }
    }
    format!(
        "sh -ec 'cat >{{run}}/barge.toml <<END\nread-only = false\n{keys}[[share]]\nsource = \"{{share}}\"\nEND\necho $$ >{{run}}/server.pid\nexec {barge} serve --config {{run}}/barge.toml'"
    )
}

/// The minimum lease time in seconds.
const LEASE: &str = "10";

/// A shell command that restarts its argument whenever it is killed; on SIGTERM it stops it.
const AGAIN: &str = r#"sh -c 'trap "kill \$!; wait \$!; exit \$?" TERM; while "$@" & echo $! >{run}/server.pid; do wait $!; [ $? = 137 ] || exit 1; done' again"#;

/// QEMU's own server of the share, with mapped owners.
const MAPPED: [&str; 4] = [
    "-fsdev",
    "local,id=mapped,path={share},security_model=mapped-xattr",
    "-device",
    "virtio-9p-pci,fsdev=mapped,mount_tag=mapped",
];

/// A vsock with the device at the socket.
const VSOCK: [&str; 4] = [
    "-chardev",
    "socket,id=vsock,path={socket}",
    "-device",
    "vhost-user-vsock-pci,chardev=vsock",
];

/// A disk with the device at the socket.
const DRIVE: [&str; 4] = [
    "-chardev",
    "socket,id=drive,path={socket}",
    "-device",
    "vhost-user-blk-pci,chardev=drive",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_guests_meet_two_addresses_of_one_server() {
        let two = Setup::Two("virtiofs-never", "none");
        let scene = two.scene(Way::named("mmap"), "barge", &[], &Machine::qemu());
        assert_eq!(
            scene.serve,
            [
                "barge serve {share} --virtiofs {socket} --9p tcp:{listen}:{port2} --virtiofs-cache never"
            ]
        );
        assert!(scene.seats[0].qemu[1].ends_with("path={socket}"));
        assert!(scene.seats[1].mount.options.contains("port={port2},"));
    }

    #[test]
    fn a_bundle_is_served_beside_the_share() {
        let scene = Setup::Bundle.scene(Way::named("virtiofs"), "barge", &[], &Machine::qemu());
        assert_eq!(
            scene.serve,
            [
                "barge serve one={share} two=mem: --virtiofs one={socket} --virtiofs {socket2} --virtiofs-cache auto"
            ]
        );
        assert!(
            scene.seats[0]
                .qemu
                .contains(&"socket,id=bundle,path={socket2}".to_owned())
        );
    }

    #[test]
    fn a_disk_is_made_and_mounted_where_its_server_sees_it() {
        let scene =
            Setup::Disk("xfs -q").scene(Way::named("nfs4.2"), "barge", &[], &Machine::qemu());
        let [command] = &scene.serve[..] else {
            panic!("one server, not {:?}", scene.serve);
        };
        assert!(
            command.starts_with(
                "unshare -m sh -c 'truncate -s 1G {run}/disk && mkfs.xfs -q {run}/disk"
            )
        );
        assert!(command.contains("exec barge serve {share} --nfs tcp:{listen}:{port}"));
    }

    #[test]
    fn an_image_is_a_disk_or_is_served_as_the_share_is() {
        let scene = Setup::Image.scene(Way::named("nfs4.2"), "barge", &[], &Machine::qemu());
        let command = "exec barge serve {run}/image --nfs tcp:{listen}:{port2} ";
        assert!(scene.serve[1].contains(command), "{}", scene.serve[1]);
        let scene = Setup::ImageDisk.scene(Way::named("mmap"), "barge", &[], &Machine::qemu());
        assert_eq!(scene.root.unwrap().kind, "erofs");
        let socket = "socket,id=drive,path={socket2}".to_owned();
        assert!(scene.seats[0].qemu.contains(&socket));
    }

    #[test]
    fn a_file_says_what_a_command_line_would() {
        let scene = Setup::Reload.scene(Way::named("nfs4.1"), "barge", &[], &Machine::qemu());
        let keys = "nfs = \"tcp:{listen}:{port}\"\nnfs-state-dir = \"{run}/state\"\nnfs-delegations = true\n[[share]]\nsource = \"{share}\"\n";
        assert!(scene.serve[0].contains(keys), "{}", scene.serve[0]);
    }

    #[test]
    fn a_named_share_is_the_only_export() {
        let scene = Setup::Named.scene(Way::named("nfs4.2"), "barge", &[], &Machine::qemu());
        let command = "barge serve share={share} --nfs tcp:{listen}:{port} ";
        assert!(scene.serve[0].starts_with(command), "{}", scene.serve[0]);
    }

    #[test]
    fn a_root_has_a_server_of_its_own() {
        let scene = Setup::Root.scene(Way::named("virtiofs"), "barge", &[], &Machine::qemu());
        let command = "barge serve /mnt --read-only --virtiofs {socket2} --virtiofs-cache auto";
        assert!(scene.serve[1].contains(command));
        assert_eq!(scene.root.unwrap().device, "root");
        assert!(
            scene.seats[0]
                .qemu
                .contains(&"socket,id=root,path={socket2}".to_owned())
        );
    }
}
