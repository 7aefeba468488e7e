//! The ways to mount the share.

/// A second way to the share: QEMU's own server with its own idea of owners.
pub(super) const MAPPED: &[&str] = &[
    "-fsdev",
    "local,id=mapped,path={share},security_model=mapped-xattr",
    "-device",
    "virtio-9p-pci,fsdev=mapped,mount_tag=mapped",
];

/// A way to mount the share.
pub(super) struct Way {
    /// What it is called: a cache mode of 9P, or the other protocol.
    pub(super) name: &'static str,
    pub(super) kind: &'static str,
    pub(super) options: &'static [&'static str],
    /// How barge serves it, behind the share.
    pub(super) serve: &'static str,
    pub(super) qemu: &'static [&'static str],
}

const NINE: &str = "--9p tcp:127.0.0.1:{port}";

/// 9P in the cache modes that every kernel line knows and that need no further daemon, and virtiofs.
pub(super) const WAYS: &[Way] = &[
    Way {
        name: "none",
        kind: "9p",
        options: &["cache=none", "locktimeout=1"],
        serve: NINE,
        qemu: &[],
    },
    Way {
        name: "mmap",
        kind: "9p",
        options: &["cache=mmap", "locktimeout=1"],
        serve: NINE,
        qemu: &[],
    },
    Way {
        name: "loose",
        kind: "9p",
        options: &["cache=loose", "locktimeout=1"],
        serve: NINE,
        qemu: &[],
    },
    Way {
        name: "virtiofs",
        kind: "virtiofs",
        options: &[],
        serve: "--virtiofs {socket}",
        qemu: &[
            "-object",
            "memory-backend-memfd,id=mem,size=2048M,share=on",
            "-numa",
            "node,memdev=mem",
            "-chardev",
            "socket,id=fs,path={socket}",
            "-device",
            "vhost-user-fs-pci,chardev=fs,tag=share,queue-size=1024,num-request-queues=2",
        ],
    },
];

/// The pairs of a quick run: both kernels, and each way a client reads.
pub(super) const QUICK: &[(&str, &str)] =
    &[("6.12", "mmap"), ("6.1", "none"), ("6.12", "virtiofs")];
