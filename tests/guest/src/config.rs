//! The configuration of a guest that its machine needs, and its mounts.

/// Memory in MiB: enough for git and gcc, and for page caches without reclaim.
pub(crate) const MEMORY: &str = "2048";

/// The mount at the guest's `/mnt`.
#[derive(Clone, Debug)]
pub struct Mount {
    /// The file-system type, such as `9p`.
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
    /// Additional arguments for QEMU.
    pub qemu: Vec<String>,
}

impl GuestConfig {
    /// Applies `change` to all of its templates.
    pub(crate) fn map(&self, change: impl Fn(&str) -> String) -> Self {
        Self {
            mount: self.mount.map(&change),
            extra_fs_types: self.extra_fs_types.clone(),
            cpus: self.cpus,
            qemu: self.qemu.iter().map(|text| change(text)).collect(),
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
