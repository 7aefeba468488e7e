//! The setups of scripts: servers, guests, and their roots.

use crate::config::{GuestConfig, Mount, Needs};
use crate::machine::Machine;
use crate::mounts::{MountConfig, Protocol, second_endpoint};

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Setup {
    /// A guest with the share, shared with other scripts.
    Default,
    /// A guest with the share, which QEMU serves too, with mapped owners.
    Mapped,
    /// Two guests with the share of one server, with these two mount configurations.
    TwoGuests(&'static str, &'static str),
    /// The same, with a quota of [`QUOTA`] bytes, and with a share that is a separate file system,
    /// made by this mkfs with these arguments and mounted only in the namespace of the process in
    /// `{run}/server.pid`.
    Quota(&'static str, &'static str, &'static str),
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
    BlockDevice,
    /// A guest that may reset itself, and then restarts the script.
    Reset,
    /// A guest with a share that is a separate file system, made by this mkfs with these arguments.
    /// It is mounted only in the server's namespace: commands on the host see an empty directory.
    Disk(&'static str),
    /// A guest with the share, whose server is restarted when it is killed. Its process ID is in
    /// `{run}/server.pid`, its lease time is [`LEASE_TIME`] seconds.
    Restart,
    /// A guest with the share of two servers, which share their state in an etcd of three members:
    /// one of them is active. `{scripts}/cluster.py` starts them in network namespaces, and is
    /// controlled with the shell script `{run}/cluster`. v3 is mounted with locks.
    Takeover,
    /// A guest with the share, whose server is configured by `{run}/barge.toml`; its process ID is
    /// in `{run}/server.pid`.
    Reload,
    /// A guest with the share, whose agent connects over TCP, or over a port of virtio-serial if
    /// the guest is on QEMU for its share.
    Agent,
    /// A guest with the share as the server's only export, named `share`.
    Named,
    /// The same over virtiofs, with a control socket at `{run}/control`.
    Control,
    /// A guest with the share, without a name, whose server has a control socket at
    /// `{run}/control`. Its process ID is in `{run}/server.pid`, its lease time is [`LEASE_TIME`]
    /// seconds.
    Controlled,
}

/// The servers and guests of a setup, as templates.
pub(super) struct SetupConfig {
    pub(super) server_commands: Vec<String>,
    pub(super) guests: Vec<GuestConfig>,
    pub(super) root: Option<Mount>,
    /// The cache mode of the first guest.
    pub(super) cache: &'static str,
}

impl Setup {
    /// Returns what guests need. v3's locks need the portmapper of the host, which answers on
    /// loopback of QEMU's network.
    pub(super) fn needs(self, mount: &MountConfig) -> Needs {
        let scene = self.config(mount, "", &[], &Machine::UserMode);
        let devices = scene.guests.iter().map(GuestConfig::needs).max();
        if mount.uses_rpcbind() {
            Needs::Qemu
        } else {
            devices.unwrap_or(Needs::Nothing)
        }
    }

    /// Returns whether guests on a machine reach its servers: those of [`Setup::Takeover`] are on
    /// the bridge of user-mode Linux.
    pub(super) fn runs_on(self, machine: &Machine) -> bool {
        self != Self::Takeover || *machine == Machine::UserMode
    }

    /// Returns the scene with the share mounted as `mount` with additional mount options, unless
    /// the setup has its own configurations.
    pub(super) fn config(
        self,
        mount: &MountConfig,
        barge: &str,
        options: &[String],
        machine: &Machine,
    ) -> SetupConfig {
        let serve = |source, addresses: &str, mount: &MountConfig| {
            let arguments = mount.arguments(machine);
            let command = mount.command(source);
            format!("{barge} {command} {addresses} {arguments}")
        };
        let mut scene = SetupConfig {
            server_commands: vec![serve("{share}", mount.address(), mount)],
            guests: vec![mount.guest_config(options)],
            root: None,
            cache: mount.cache,
        };
        scene.guests[0] = scene.guests[0].map(|text| text.replace("{barge}", barge));
        let guest = &mut scene.guests[0];
        let qemu = &mut guest.qemu;
        match self {
            Self::Default => {}
            Self::Mapped => qemu.extend(MAPPED.map(String::from)),
            Self::TwoGuests(first, second) | Self::Quota(_, first, second) => {
                let (first, second) = (MountConfig::named(first), MountConfig::named(second));
                let addresses =
                    format!("{} {}", first.address(), second_endpoint(second.address()));
                let mut command = serve("{share}", &addresses, first);
                if let Self::Quota(mkfs, ..) = self {
                    command = on_disk(mkfs, &format!("{command} --quota {QUOTA}"));
                }
                return SetupConfig {
                    server_commands: vec![command],
                    guests: vec![
                        first.guest_config(&[]),
                        second.guest_config(&[]).map(second_endpoint),
                    ],
                    root: None,
                    cache: first.cache,
                };
            }
            Self::Root => {
                let root = format!("--read-only {}", mount.add_second("root", guest));
                // Excludes submounts: overlayfs rejects directories that a client would automount.
                let command = serve("/mnt", &root, mount);
                let bound = format!("unshare -m sh -c 'mount --bind / /mnt && exec {command}'");
                scene.server_commands.push(bound);
                scene.root = Some(mount.root().map(second_endpoint));
            }
            Self::Image => {
                let addresses = mount.add_second("root", guest);
                let command = serve("{run}/image", &addresses, mount);
                scene.server_commands.push(pack_command(barge, &command));
                scene.root = Some(mount.root().map(second_endpoint));
            }
            Self::ImageDisk => {
                let command = format!("{barge} serve {{run}}/image --block {{socket2}},ro");
                scene.server_commands.push(pack_command(barge, &command));
                scene.root = Some(Mount {
                    fs_type: "erofs".into(),
                    options: "ro".into(),
                    device: "/dev/vda".into(),
                });
                qemu.extend(DRIVE.map(second_endpoint));
            }
            Self::Bundle => {
                let own = mount.address().replace("{socket}", "one={socket}");
                let addresses = format!("{own} {}", mount.add_second("bundle", guest));
                scene.server_commands = vec![serve("one={share} two=mem:", &addresses, mount)];
            }
            Self::Vsock => {
                let addresses = format!("{} --9p vsock-uds:{{run}}/vm:5640", mount.address());
                let device = "{tools}/vhost-device-vsock --guest-cid 3 --tx-buffer-size 262144 --socket {socket} --uds-path {run}/vm";
                scene.server_commands = vec![serve("{share}", &addresses, mount), device.into()];
                qemu.extend(VSOCK.map(String::from));
            }
            Self::BlockDevice => {
                let disk = "truncate -s 256M {run}/disk";
                let addresses = "--block {socket},file=disk --nbd tcp:127.0.0.1:{port2}";
                let command = format!(
                    "sh -c '{disk} && echo $$ >{{run}}/drive.pid && exec {barge} serve {{run}} {addresses}'"
                );
                scene.server_commands.push(command);
                qemu.extend(DRIVE.map(String::from));
            }
            Self::Restart => {
                let lease = lease_option(mount);
                scene.server_commands =
                    vec![format!("{RESTART} {}{lease}", scene.server_commands[0])];
            }
            Self::Takeover => {
                let Protocol::Nfs { version, .. } = mount.protocol else {
                    unreachable!("only NFS has standby servers");
                };
                // The second client recovers its locks with v4 only.
                let (rival, rpcbind) = match version {
                    "3" => ("4.2", " --nfs-rpcbind"),
                    _ => (version, ""),
                };
                let access = machine.access();
                scene.server_commands = vec![format!(
                    "unshare -m {{scripts}}/cluster.py {{run}} {{socket}} takeover {rival} {barge} serve {{share}} --nfs tcp:{SERVICE}:2049{rpcbind} --nfs-lease {LEASE_TIME}{access}"
                )];
                scene.guests[0] = scene.guests[0].map(|text| {
                    text.replace("{host}", SERVICE)
                        .replace("{port}", "2049")
                        .replace(",nolock", ",lock")
                });
            }
            Self::Reload => {
                scene.server_commands = vec![config_file_command(barge, mount, machine)]
            }
            Self::Disk(mkfs) => {
                scene.server_commands = vec![on_disk(mkfs, &scene.server_commands[0])];
            }
            Self::Agent => {
                let (addr, device) = match mount.protocol {
                    Protocol::Virtiofs { .. } => ("unix:{socket2}", &AGENT_PORT[..]),
                    _ => ("tcp:{listen}:{port2}", &[][..]),
                };
                let addresses = format!("{} --agent {addr}", mount.address());
                scene.server_commands = vec![serve("{share}", &addresses, mount)];
                qemu.extend(device.iter().copied().map(String::from));
            }
            Self::Named => {
                scene.server_commands = vec![serve("share={share}", mount.address(), mount)];
            }
            Self::Control => {
                let device = mount.address().replace("{socket}", "share={socket}");
                let addresses = format!("{device} --control unix:{{run}}/control");
                scene.server_commands = vec![serve("share={share}", &addresses, mount)];
            }
            Self::Controlled => {
                let command = &scene.server_commands[0];
                let lease = lease_option(mount);
                scene.server_commands[0] =
                    format!("{WITH_PID} {command} --control unix:{{run}}/control{lease}");
            }
            Self::Reset => qemu.extend(["-action", "reboot=reset"].map(String::from)),
        }
        scene
    }
}

/// Returns a server command whose share is a file system made by this mkfs with these arguments. It
/// is mounted in the server's namespace; the process ID is in `{run}/server.pid`.
fn on_disk(mkfs: &str, command: &str) -> String {
    let disk = "truncate -s 1G {run}/disk && mkfs.".to_owned() + mkfs + " {run}/disk";
    let mounted = "mount -o loop {run}/disk {share} && chmod 755 {share}";
    format!(
        "unshare -m sh -c '{disk} && {mounted} && echo $$ >{{run}}/server.pid && exec {command}'"
    )
}

/// Returns a server command preceded by packing an image: busybox with a link for each applet, the
/// directories that a guest uses as mount points, and files of several sizes and types. Some
/// busyboxes lack flock(1), which a single guest does not need, and timeout(1) of busybox leaves a
/// process behind in the share.
fn pack_command(barge: &str, command: &str) -> String {
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
fn config_file_command(barge: &str, mount: &MountConfig, machine: &Machine) -> String {
    let told = format!("{} {}", mount.address(), mount.arguments(machine));
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

/// The quota of a share in bytes.
const QUOTA: u64 = 24 << 20;

/// The minimum lease time in seconds.
const LEASE_TIME: &str = "10";

/// Returns the option that sets it.
fn lease_option(mount: &MountConfig) -> String {
    match mount.protocol {
        Protocol::Nfs { .. } => format!(" --nfs-lease {LEASE_TIME}"),
        _ => String::new(),
    }
}

/// A shell command that restarts its argument whenever it is killed; on SIGTERM it stops it.
const RESTART: &str = r#"sh -c 'trap "kill \$!; wait \$!; exit \$?" TERM; while "$@" & echo $! >{run}/server.pid; do wait $!; [ $? = 137 ] || exit 1; done' again"#;

/// A shell command that executes its arguments, and writes their process ID to a file.
const WITH_PID: &str = r#"sh -c 'echo $$ >{run}/server.pid && exec "$@"' sh"#;

/// The address that clients of [`Setup::Takeover`] use.
const SERVICE: &str = "10.0.2.3";

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

/// A port of virtio-serial that is connected to the server's socket.
const AGENT_PORT: [&str; 4] = [
    "-chardev",
    "socket,id=agent,path={socket2}",
    "-device",
    "virtserialport,chardev=agent,name=barge.agent",
];

/// A disk with the device at the socket.
const DRIVE: [&str; 4] = [
    "-chardev",
    "socket,id=drive,path={socket},reconnect=1",
    "-device",
    "vhost-user-blk-pci,chardev=drive",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_guests_meet_two_addresses_of_one_server() {
        let two = Setup::TwoGuests("virtiofs-never", "none");
        let scene = two.config(MountConfig::named("mmap"), "barge", &[], &Machine::qemu());
        assert_eq!(
            scene.server_commands,
            [
                "barge serve {share} --virtiofs {socket},tag=share --9p tcp:{listen}:{port2} --virtiofs-cache never --virtiofs-locks shared"
            ]
        );
        assert_eq!(scene.guests[0].virtiofs[0].socket, "{socket}");
        assert!(scene.guests[1].mount.options.contains("port={port2},"));
    }

    #[test]
    fn a_bundle_is_served_beside_the_share() {
        let scene = Setup::Bundle.config(
            MountConfig::named("virtiofs"),
            "barge",
            &[],
            &Machine::qemu(),
        );
        assert_eq!(
            scene.server_commands,
            [
                "barge serve one={share} two=mem: --virtiofs one={socket},tag=share --virtiofs {socket2},tag=bundle --virtiofs-cache auto"
            ]
        );
        let second = &scene.guests[0].virtiofs[1];
        assert_eq!((&*second.tag, &*second.socket), ("bundle", "{socket2}"));
    }

    #[test]
    fn a_disk_is_made_and_mounted_where_its_server_sees_it() {
        let scene = Setup::Disk("xfs -q").config(
            MountConfig::named("nfs4.2"),
            "barge",
            &[],
            &Machine::qemu(),
        );
        let [command] = &scene.server_commands[..] else {
            panic!("one server, not {:?}", scene.server_commands);
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
        let scene =
            Setup::Image.config(MountConfig::named("nfs4.2"), "barge", &[], &Machine::qemu());
        let command = "exec barge serve {run}/image --nfs tcp:{listen}:{port2} ";
        assert!(
            scene.server_commands[1].contains(command),
            "{}",
            scene.server_commands[1]
        );
        let scene =
            Setup::ImageDisk.config(MountConfig::named("mmap"), "barge", &[], &Machine::qemu());
        assert_eq!(scene.root.unwrap().fs_type, "erofs");
        let socket = "socket,id=drive,path={socket2},reconnect=1".to_owned();
        assert!(scene.guests[0].qemu.contains(&socket));
    }

    #[test]
    fn a_file_says_what_a_command_line_would() {
        let scene =
            Setup::Reload.config(MountConfig::named("nfs4.1"), "barge", &[], &Machine::qemu());
        let keys = "nfs = \"tcp:{listen}:{port}\"\nnfs-state-dir = \"{run}/state\"\nnfs-delegations = true\n[[share]]\nsource = \"{share}\"\n";
        assert!(
            scene.server_commands[0].contains(keys),
            "{}",
            scene.server_commands[0]
        );
    }

    #[test]
    fn a_named_share_is_the_only_export() {
        let scene =
            Setup::Named.config(MountConfig::named("nfs4.2"), "barge", &[], &Machine::qemu());
        let command = "barge serve share={share} --nfs tcp:{listen}:{port} ";
        assert!(
            scene.server_commands[0].starts_with(command),
            "{}",
            scene.server_commands[0]
        );
    }

    #[test]
    fn a_root_has_a_server_of_its_own() {
        let scene = Setup::Root.config(
            MountConfig::named("virtiofs"),
            "barge",
            &[],
            &Machine::qemu(),
        );
        let command =
            "barge serve /mnt --read-only --virtiofs {socket2},tag=root --virtiofs-cache auto";
        assert!(scene.server_commands[1].contains(command));
        assert_eq!(scene.root.unwrap().device, "root");
        let second = &scene.guests[0].virtiofs[1];
        assert_eq!((&*second.tag, &*second.socket), ("root", "{socket2}"));
    }
}
