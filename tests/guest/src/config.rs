//! The configuration of a guest that its machine needs, and its mounts.

/// The type of the mount of a guest that serves NFS to the others: it has ext4 in memory at `/mnt`,
/// and its kernel's server exports that.
pub(crate) const KNFSD: &str = "knfsd";

/// Memory in MiB: enough for git and gcc, and for page caches without reclaim.
pub(crate) const MEMORY: &str = "2048";

/// The mount at the guest's `/mnt`.
#[derive(Clone, Debug)]
pub struct Mount {
    /// The file-system type, such as `9p`; or `knfsd`, for the kernel's NFS server.
    pub fs_type: String,
    /// The mount options.
    pub options: String,
    /// The device: an address or a tag.
    pub device: String,
}

/// The individual configuration of a guest.
#[derive(Clone, Debug)]
pub struct GuestConfig {
    /// The mount of the share.
    pub mount: Mount,
    /// Types of other file systems that its scripts mount.
    pub extra_fs_types: Vec<&'static str>,
    /// Number of processors.
    pub cpus: u16,
    /// Its virtiofs devices.
    pub virtiofs: Vec<VirtiofsDevice>,
    /// Additional arguments for QEMU.
    pub qemu: Vec<String>,
}

/// The needs of guests that not every machine meets, in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Needs {
    /// No devices.
    Nothing,
    /// A virtiofs device with one queue.
    Virtiofs,
    /// A network of several guests, which user-mode Linux has.
    Network,
    /// Other devices, or the network, of QEMU.
    Qemu,
}

/// A virtiofs device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VirtiofsDevice {
    /// The tag. In user-mode Linux it is that of the server.
    pub tag: String,
    /// The server's vhost-user socket; a template.
    pub socket: String,
    /// Number of request queues.
    pub queues: u16,
}

impl GuestConfig {
    /// Applies `change` to all of its templates.
    pub(crate) fn map(&self, change: impl Fn(&str) -> String) -> Self {
        Self {
            mount: self.mount.map(&change),
            extra_fs_types: self.extra_fs_types.clone(),
            cpus: self.cpus,
            virtiofs: self
                .virtiofs
                .iter()
                .map(|device| VirtiofsDevice {
                    socket: change(&device.socket),
                    ..device.clone()
                })
                .collect(),
            qemu: self.qemu.iter().map(|text| change(text)).collect(),
        }
    }

    /// Returns a guest that serves NFS 4 to the others.
    pub(crate) fn knfsd() -> Self {
        Self {
            mount: Mount {
                fs_type: KNFSD.into(),
                options: "rw".into(),
                device: "none".into(),
            },
            extra_fs_types: Vec::new(),
            cpus: 1,
            virtiofs: Vec::new(),
            qemu: Vec::new(),
        }
    }

    /// Returns whether it serves the others, and runs no cases.
    pub(crate) fn is_server(&self) -> bool {
        self.mount.fs_type == KNFSD
    }

    /// Returns what it needs of a machine. Guests of QEMU do not reach each other.
    pub(crate) fn needs(&self) -> Needs {
        if self.is_server() {
            Needs::Network
        } else if !self.qemu.is_empty() || self.virtiofs.iter().any(|device| device.queues > 1) {
            Needs::Qemu
        } else if self.virtiofs.is_empty() {
            Needs::Nothing
        } else {
            Needs::Virtiofs
        }
    }
}

impl Mount {
    /// Applies `change` to its templates.
    pub(crate) fn map(&self, change: impl Fn(&str) -> String) -> Self {
        Self {
            fs_type: self.fs_type.clone(),
            options: change(&self.options),
            device: change(&self.device),
        }
    }

    /// Returns a mount with the usual device and options of its type, to which `options` are added.
    pub fn usual(kind: &str, device: Option<String>, options: &[String]) -> Self {
        let (usual_device, usual_options) = match kind {
            "9p" if options.iter().any(|option| option.contains("trans=")) => {
                ("share", "version=9p2000.L")
            }
            "9p" => ("{host}", "trans=tcp,port={port},version=9p2000.L"),
            // The mounting program with its first arguments.
            "barge9p" => ("{barge} connect 9p://{host}:{port}/", ""),
            "fuse.barge" => ("{barge} mount 9p://{host}:{port}/", ""),
            "nfs" | "nfs4" => ("{host}:/", "addr={host},port={port},mountport={port}"),
            _ => ("share", ""),
        };
        let options: Vec<&str> = std::iter::once(usual_options)
            .chain(options.iter().map(String::as_str))
            .filter(|option| !option.is_empty())
            .collect();
        let options = if options.is_empty() {
            "rw".into()
        } else {
            options.join(",")
        };
        Self {
            fs_type: kind.into(),
            options,
            device: device.unwrap_or_else(|| usual_device.into()),
        }
    }
}
