//! The mount configurations of the share.

use anyhow::{Result, bail, ensure};

use crate::config::{GuestConfig, Mount, VirtiofsDevice};
use crate::machine::Machine;

/// A mount configuration of the share.
pub(crate) struct MountConfig {
    /// The name: a cache mode of 9P, or a protocol with its variant.
    pub(crate) name: &'static str,
    pub(crate) protocol: Protocol,
    /// The cache mode: a client option in 9P, a server option in virtiofs.
    pub(crate) cache: &'static str,
}

pub(crate) enum Protocol {
    /// 9P over TCP.
    NineP,
    /// 9P through barge in the guest, between the kernel and the server.
    BargeConnect,
    /// `barge mount` of a source in the guest, over the kernel's FUSE.
    BargeMount(&'static Protocol),
    /// 9P over a virtio device, for which QEMU needs [`TEST_DEVICE`].
    NinepVirtio,
    Virtiofs {
        /// Number of request queues, and of processors, since a kernel uses no more queues than
        /// processors.
        queues: u16,
    },
    /// virtiofs with the command line of virtiofsd, confined as by default.
    Virtiofsd,
    Nfs {
        version: &'static str,
        /// Whether v3 uses locks, which requires the host's port 111: one run at a time.
        rpcbind: bool,
        /// Required security of the connection (`xprtsec=`), if it is not plain.
        security: Option<&'static str>,
    },
}

use Protocol::{BargeConnect, BargeMount, Nfs, NineP, NinepVirtio, Virtiofs, Virtiofsd};

/// 9P in the cache modes that every kernel line supports and that need no other daemon; virtiofs
/// with one queue (6.1 uses no more), with several, without a cache, and by the confined `barge
/// virtiofsd`; NFS with an attribute cache timeout of one second at most, as with virtiofs.
pub(crate) const MOUNT_CONFIGS: &[MountConfig] = &[
    mount_config("none", NineP, "none"),
    mount_config("mmap", NineP, "mmap"),
    mount_config("loose", NineP, "loose"),
    mount_config("connect", BargeConnect, "none"),
    mount_config("connect-mmap", BargeConnect, "mmap"),
    mount_config("mount-9p", BargeMount(&NineP), "auto"),
    mount_config("mount-nfs4.2", BargeMount(&nfs("4.2", false)), "auto"),
    mount_config("9p-virtio", NinepVirtio, "mmap"),
    mount_config("virtiofs", Virtiofs { queues: 1 }, "auto"),
    mount_config("virtiofs-4q", Virtiofs { queues: 4 }, "auto"),
    mount_config("virtiofs-never", Virtiofs { queues: 1 }, "never"),
    mount_config("virtiofsd", Virtiofsd, "auto"),
    mount_config("nfs3", nfs("3", false), "auto"),
    mount_config("nfs3-locks", nfs("3", true), "auto"),
    mount_config("nfs4.0", nfs("4.0", false), "auto"),
    mount_config("nfs4.1", nfs("4.1", false), "auto"),
    mount_config("nfs4.2", nfs("4.2", false), "auto"),
    mount_config("nfs3-tls", secured("3", "tls"), "auto"),
    mount_config("nfs4.2-tls", secured("4.2", "tls"), "auto"),
    mount_config("nfs4.2-mtls", secured("4.2", "mtls"), "auto"),
];

const fn nfs(version: &'static str, rpcbind: bool) -> Protocol {
    Nfs {
        version,
        rpcbind,
        security: None,
    }
}

const fn secured(version: &'static str, security: &'static str) -> Protocol {
    Nfs {
        version,
        rpcbind: false,
        security: Some(security),
    }
}

const fn mount_config(name: &'static str, protocol: Protocol, cache: &'static str) -> MountConfig {
    MountConfig {
        name,
        protocol,
        cache,
    }
}

impl MountConfig {
    /// Returns the configuration with this name.
    pub(crate) fn named(name: &str) -> &'static MountConfig {
        let found = MOUNT_CONFIGS.iter().find(|mount| mount.name == name);
        found.expect("a known kind of mount")
    }

    /// Returns the protocol that barge serves.
    fn served_protocol(&self) -> &Protocol {
        match &self.protocol {
            BargeMount(source) => source,
            protocol => protocol,
        }
    }

    /// Returns whether this kernel supports it: TLS requires 6.5, and 7.2 loses data that is
    /// written through mappings of 9P, with diod too (`docs/testing.md`).
    pub(crate) fn supports_kernel(&self, kernel: &str) -> bool {
        match self.protocol {
            Nfs {
                security: Some(_), ..
            } => kernel != "6.1",
            NineP | BargeConnect => kernel != "sid" || self.cache == "none",
            _ => true,
        }
    }

    /// Returns whether it registers with the host's portmapper.
    pub(crate) fn uses_rpcbind(&self) -> bool {
        matches!(self.protocol, Nfs { rpcbind: true, .. })
    }

    /// Returns the device it requires, if not every QEMU has it.
    pub(crate) fn required_device(&self) -> Option<&'static str> {
        match self.protocol {
            NinepVirtio => Some(TEST_DEVICE),
            _ => None,
        }
    }

    /// Returns the command of barge that serves `source`.
    pub(crate) fn command(&self, source: &str) -> String {
        match self.protocol {
            Virtiofsd => format!("virtiofsd --shared-dir {source}"),
            _ => format!("serve {source}"),
        }
    }

    /// Returns the server's address options.
    pub(crate) fn address(&self) -> &'static str {
        match self.served_protocol() {
            NineP | BargeConnect | BargeMount(_) => "--9p tcp:{listen}:{port}",
            NinepVirtio => "--virtio-9p {socket}",
            Virtiofs { .. } => "--virtiofs {socket},tag=share",
            Virtiofsd => "--socket-path {socket} --tag share",
            Nfs { rpcbind: false, .. } => "--nfs tcp:{listen}:{port}",
            Nfs { rpcbind: true, .. } => "--nfs tcp:127.0.0.1:{port} --nfs-rpcbind",
        }
    }

    /// Returns the server's other options, for guests on a machine.
    pub(crate) fn arguments(&self, machine: &Machine) -> String {
        let access = machine.access();
        // For attributes in trusted.*, which upper directories of overlayfs need.
        const TRUSTED: &str = "--modcaps +sys_admin";
        // With other guests, other protocols and the host.
        const SHARED_LOCKS: &str = "--virtiofs-locks shared";
        let own = match self.served_protocol() {
            NineP | BargeConnect | BargeMount(_) | NinepVirtio => TRUSTED.into(),
            Virtiofs { queues } => {
                let cache = format!("--virtiofs-cache {}", self.cache);
                let shared = if self.keeps_locks() { "" } else { SHARED_LOCKS };
                let trusted = if *queues > 1 { TRUSTED } else { "" };
                [&cache, shared, trusted].join(" ").trim_end().to_owned()
            }
            Virtiofsd => return "--xattr --posix-acl".into(),
            Nfs {
                version: "4.1",
                security: None,
                ..
            } => "--nfs-state-dir {run}/state --nfs-delegations".into(),
            Nfs { security: None, .. } => "--nfs-state-dir {run}/state".into(),
            Nfs {
                security: Some(security),
                ..
            } => format!(
                "--nfs-state-dir {{run}}/state --nfs-tls-cert {{tls}}/server.pem --nfs-tls-key {{tls}}/server.key --nfs-tls-ca {{tls}}/ca.pem --nfs-xprtsec {security}"
            ),
        };
        own + access
    }

    /// Returns whether locks stay in the guest, as virtiofs does by default: one configuration has
    /// the default, and the others share the locks.
    fn keeps_locks(&self) -> bool {
        let is_default = matches!(self.protocol, Virtiofs { queues: 1 }) && self.cache == "auto";
        is_default || matches!(self.protocol, Virtiofsd)
    }

    /// Returns environment variables for scripts.
    pub(crate) fn variables(&self) -> &'static [(&'static str, &'static str)] {
        const NO_XATTRS: (&str, &str) = ("XATTR", "no");
        const NO_ATTRIBUTE: (&str, &str) = ("ATTRIBUTE", "");
        // Clients rename an open file on unlink.
        const SILLY_RENAME: (&str, &str) = ("UNLINKED", "renamed");
        const NO_HOLES: (&str, &str) = ("HOLES", "no");
        // 9P clients support ACLs only with an option.
        const NO_ACLS: (&str, &str) = ("ACL", "no");
        const NFS4_ACLS: (&str, &str) = ("ACL", "nfs4");
        const NO_UPPER: (&str, &str) = ("UPPER", "no");
        match self.protocol {
            NineP | BargeConnect | NinepVirtio => &[NO_ACLS, NO_HOLES],
            BargeMount(NineP) => &[NO_ACLS, NO_HOLES, NO_UPPER],
            BargeMount(_) => &[NO_ACLS, NO_UPPER, ("ATTRIBUTE", "user.colour")],
            // Attributes in trusted.* take CAP_SYS_ADMIN on the host.
            Virtiofs { queues: 1 } | Virtiofsd if self.keeps_locks() => {
                &[("ATTRIBUTE", "user.colour"), NO_UPPER, ("HOST_LOCKS", "no")]
            }
            Virtiofs { queues: 1 } | Virtiofsd => &[("ATTRIBUTE", "user.colour"), NO_UPPER],
            Virtiofs { .. } => &[],
            Nfs { version: "4.2", .. } => &[
                ("ATTRIBUTE", "user.colour"),
                SILLY_RENAME,
                NFS4_ACLS,
                ("COPY", "yes"),
            ],
            Nfs {
                version: "3",
                rpcbind: false,
                ..
            } => &[
                NO_XATTRS,
                NO_ATTRIBUTE,
                SILLY_RENAME,
                NO_HOLES,
                ("HOST_LOCKS", "no"),
            ],
            Nfs { version: "3", .. } => &[NO_XATTRS, NO_ATTRIBUTE, SILLY_RENAME, NO_HOLES],
            // RFC 8275 applies to 4.2.
            Nfs { .. } => &[
                NO_XATTRS,
                NO_ATTRIBUTE,
                SILLY_RENAME,
                NO_HOLES,
                NFS4_ACLS,
                ("UMASK", "client"),
            ],
        }
    }

    /// Returns a guest that mounts the share with this configuration and additional mount options.
    pub(crate) fn guest_config(&self, further: &[String]) -> GuestConfig {
        let usual = match self.protocol {
            NineP | BargeConnect => vec![format!("cache={}", self.cache), "locktimeout=1".into()],
            NinepVirtio => [
                "trans=virtio,msize=512000".into(),
                format!("cache={}", self.cache),
                "locktimeout=1".into(),
            ]
            .into(),
            BargeMount(_) => vec!["allow_other".into()],
            Virtiofs { .. } | Virtiofsd => Vec::new(),
            Nfs {
                version,
                rpcbind,
                security,
            } => [nfs_options(version, rpcbind), "actimeo=1".into()]
                .into_iter()
                .chain(security.map(|security| format!("xprtsec={security}")))
                .collect(),
        };
        let options = [&usual, further].concat();
        GuestConfig {
            mount: Mount::usual(self.kind(), self.source(), &options),
            extra_fs_types: Vec::new(),
            cpus: match self.protocol {
                Virtiofs { queues } => queues.max(2),
                NineP | BargeConnect | BargeMount(_) | NinepVirtio | Virtiofsd | Nfs { .. } => 2,
            },
            virtiofs: self.virtiofs_device("share").into_iter().collect(),
            qemu: self.qemu_device("share"),
        }
    }

    /// Returns a guest that mounts the share with default options: only those that the mount needs.
    fn plain_guest(&self) -> GuestConfig {
        let needed = match self.protocol {
            Nfs {
                version, rpcbind, ..
            } => vec![nfs_options(version, rpcbind)],
            _ => Vec::new(),
        };
        GuestConfig {
            mount: Mount::usual(self.kind(), self.source(), &needed),
            ..self.guest_config(&[])
        }
    }

    /// Returns the read-only mount of a guest's root with this configuration.
    pub(crate) fn root(&self) -> Mount {
        let options: Vec<String> = match self.protocol {
            NineP | BargeConnect | BargeMount(_) | NinepVirtio => {
                ["ro", "cache=loose", "noxattr"].map(String::from).into()
            }
            Virtiofs { .. } | Virtiofsd => vec!["ro".into()],
            Nfs { version, .. } => vec!["ro".into(), nfs_options(version, false)],
        };
        let device = match self.protocol {
            NineP | BargeConnect | BargeMount(_) | NinepVirtio | Nfs { .. } => None,
            Virtiofs { .. } | Virtiofsd => Some("root".into()),
        };
        Mount::usual(self.kind(), device, &options)
    }

    fn kind(&self) -> &'static str {
        match self.protocol {
            NineP | NinepVirtio => "9p",
            BargeConnect => "barge9p",
            BargeMount(_) => "fuse.barge",
            Virtiofs { .. } | Virtiofsd => "virtiofs",
            Nfs { .. } => "nfs",
        }
    }

    /// Returns the mount source, if it is not the usual one of the type.
    fn source(&self) -> Option<String> {
        match self.protocol {
            BargeMount(Nfs { version, .. }) => Some(format!(
                "{{barge}} mount nfs://{{host}}:{{port}}/?vers={version}"
            )),
            _ => None,
        }
    }

    /// Adds a second device with this tag, if mounts need one, and returns the address options of
    /// its server.
    pub(crate) fn add_second(&self, tag: &str, guest: &mut GuestConfig) -> String {
        let device = self.virtiofs_device(tag).into_iter();
        guest.virtiofs.extend(device.map(|device| VirtiofsDevice {
            socket: second_endpoint(&device.socket),
            ..device
        }));
        let qemu = self.qemu_device(tag);
        guest
            .qemu
            .extend(qemu.iter().map(|text| second_endpoint(text)));
        let tagged = self.address().replace("tag=share", &format!("tag={tag}"));
        second_endpoint(&tagged)
    }

    /// Returns the virtiofs device of a mount with this tag, if it needs one.
    fn virtiofs_device(&self, tag: &str) -> Option<VirtiofsDevice> {
        let queues = match self.protocol {
            NineP | BargeConnect | BargeMount(_) | Nfs { .. } | NinepVirtio => return None,
            Virtiofs { queues } => queues,
            Virtiofsd => 1,
        };
        Some(VirtiofsDevice {
            tag: tag.into(),
            socket: "{socket}".into(),
            queues,
        })
    }

    /// Returns QEMU's arguments for the other device of a mount with this tag, if it needs one.
    fn qemu_device(&self, tag: &str) -> Vec<String> {
        match self.protocol {
            NinepVirtio => ninep_device(tag, "{socket}").into(),
            NineP | BargeConnect | BargeMount(_) | Nfs { .. } | Virtiofs { .. } | Virtiofsd => {
                Vec::new()
            }
        }
    }
}

/// Returns the mount options for an NFS version: v3 uses a separate lock protocol, if any.
fn nfs_options(version: &str, rpcbind: bool) -> String {
    match (version, rpcbind) {
        ("3", true) => "vers=3,proto=tcp,mountproto=tcp,lock".into(),
        ("3", false) => "vers=3,proto=tcp,mountproto=tcp,nolock".into(),
        _ => format!("vers={version},proto=tcp"),
    }
}

/// A generic vhost-user device; users can instantiate it since QEMU 10.2.
const TEST_DEVICE: &str = "vhost-user-test-device-pci";

/// Returns QEMU's arguments for a 9P device with a tag, which its configuration holds after two
/// bytes. Linux uses up to 128 descriptors at once.
fn ninep_device(tag: &str, socket: &str) -> [String; 4] {
    let config = 2 + tag.len();
    [
        "-chardev".into(),
        format!("socket,id={tag},path={socket}"),
        "-device".into(),
        format!(
            "{TEST_DEVICE},chardev={tag},virtio-id=9,num_vqs=1,vq_size=128,config_size={config}"
        ),
    ]
}

/// The prefix of mounts from a guest's kernel in place of barge.
const KNFSD_PREFIX: &str = "knfsd-";

/// Returns the servers' commands and the guests of a mount with this name and with default options:
/// of a mount configuration, or of `knfsd-` and one of NFS 4, which another guest then serves.
pub fn plain(name: &str, barge: &str) -> Result<(Vec<String>, Vec<GuestConfig>)> {
    let configured = name.strip_prefix(KNFSD_PREFIX).unwrap_or(name);
    let Some(mount) = MOUNT_CONFIGS.iter().find(|mount| mount.name == configured) else {
        let known: Vec<_> = MOUNT_CONFIGS.iter().map(|mount| mount.name).collect();
        bail!("no mount {name:?}: expected one of {}", known.join(", "));
    };
    let guest = mount
        .plain_guest()
        .map(|text| text.replace("{barge}", barge));
    if configured == name {
        let state = match mount.served_protocol() {
            Nfs { .. } => " --nfs-state-dir {run}/state",
            _ => "",
        };
        // User-mode Linux is another host, whose root is to be root.
        let access = Machine::UserMode.access();
        let (command, address) = (mount.command("{share}"), mount.address());
        let serve = format!("{barge} {command} {address}{state}{access}");
        return Ok((vec![serve], vec![guest]));
    }
    ensure!(
        matches!(mount.protocol, Nfs { version, security: None, .. } if version != "3"),
        "no mount {name:?}: the server of a guest has NFS 4 alone"
    );
    let of_peer = |text: &str| text.replace("{host}", "{peer}").replace("{port}", "2049");
    Ok((Vec::new(), vec![guest.map(of_peer), GuestConfig::knfsd()]))
}

/// Replaces the first port and socket in a template with the second ones.
pub(crate) fn second_endpoint(template: &str) -> String {
    template
        .replace("{port}", "{port2}")
        .replace("{socket}", "{socket2}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_mount_has_the_options_it_needs() {
        let (serve, guests) = plain("nfs4.0", "barge").expect("a mount");
        let command = "barge serve {share} --nfs tcp:{listen}:{port} --nfs-state-dir {run}/state --squash none";
        assert_eq!(serve, [command]);
        let options = "addr={host},port={port},mountport={port},vers=4.0,proto=tcp";
        assert_eq!(guests[0].mount.options, options);
        let (_, guests) = plain("none", "barge").expect("a mount");
        let options = "trans=tcp,port={port},version=9p2000.L";
        assert_eq!(guests[0].mount.options, options);
        let (serve, guests) = plain("virtiofs", "barge").expect("a mount");
        assert!(serve[0].contains("--virtiofs {socket},tag=share --squash"));
        assert_eq!(
            (guests[0].virtiofs.len(), &*guests[0].mount.options),
            (1, "rw")
        );
    }

    #[test]
    fn a_guest_serves_in_place_of_barge() {
        let (serve, guests) = plain("knfsd-nfs4.2", "barge").expect("a mount");
        assert!(serve.is_empty() && guests[1].is_server());
        assert_eq!(guests[0].mount.device, "{peer}:/");
        assert!(guests[0].mount.options.contains("addr={peer},port=2049,"));
        for bad in ["knfsd-nfs3", "knfsd-none", "knfsd-nfs4.2-tls", "nfs"] {
            assert!(plain(bad, "barge").is_err(), "{bad}");
        }
    }
}
