//! The scripts of the matrix.

use anyhow::Result;

use super::Options;
use super::setup::Setup;
use crate::Dirs;
use crate::guest::Case;
use crate::mounts::MountConfig;

/// A script of the matrix, with its sizes.
pub(super) struct Script {
    pub(super) name: &'static str,
    file: &'static str,
    /// Environment for a quick run, and for a full one.
    quick: &'static [(&'static str, &'static str)],
    full: &'static [(&'static str, &'static str)],
    pub(super) setup: Setup,
    /// The mount configurations to run it with; all if empty.
    mounts: &'static [&'static str],
    /// Whether it detects differences between kernels or protocols early.
    pub(super) core: bool,
}

/// The shell command on the host that upgrades the server in place.
const UPGRADE: &str = "$BARGE ctl --control unix:$RUN/control upgrade";

/// The shell command on the host that kills the process that serves; another one continues.
const KILL: &str = r#"pkill -KILL -P "$(cat "$RUN/server.pid")""#;

const DEFAULT: Script = Script {
    name: "",
    file: "",
    quick: &[],
    full: &[],
    setup: Setup::Default,
    mounts: &[],
    core: false,
};

impl Script {
    /// Returns whether it runs with this configuration. Other servers are tested only with the
    /// usual setup.
    pub(super) fn fits(&self, mount: &MountConfig, options: &Options) -> bool {
        (self.mounts.is_empty() || self.mounts.contains(&mount.name))
            && (self.has_usual_setup() || options.serve.is_none())
    }

    fn has_usual_setup(&self) -> bool {
        self.setup == Setup::Default
    }

    /// Returns whether it may run in the same boot as `other`, after it.
    pub(super) fn shares_boot(&self, other: &Script) -> bool {
        self.setup == other.setup && matches!(self.setup, Setup::Default | Setup::Agent)
    }

    /// Returns the case. May read a file of this workspace, for a guest that does not have it.
    pub(super) fn case(
        &self,
        dirs: &Dirs,
        options: &Options,
        usual: &[(&str, &str)],
    ) -> Result<Case> {
        let sizes = if options.quick { self.quick } else { self.full };
        let env: Vec<_> = sizes
            .iter()
            .chain(usual)
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .chain(options.env.iter().cloned())
            .collect();
        let file = dirs.scripts.join(self.file);
        let case = match self.setup {
            Setup::Image | Setup::ImageDisk => Case::text(self.name, &file)?,
            _ => Case::program(self.name, &file, &[], &env),
        };
        Ok(Case {
            own_dir: true,
            ..case
        })
    }
}

/// In execution order: the scripts that fail most often come first.
pub(super) const SCRIPTS: &[Script] = &[
    Script {
        name: "pjdfstest",
        file: "pjdfstest.sh",
        core: true,
        ..DEFAULT
    },
    Script {
        name: "opened",
        file: "opened.py",
        core: true,
        ..DEFAULT
    },
    Script {
        name: "appended",
        file: "appended.py",
        core: true,
        ..DEFAULT
    },
    Script {
        name: "locks",
        file: "locks.py",
        core: true,
        ..DEFAULT
    },
    Script {
        name: "coherence",
        file: "coherence.sh",
        quick: &[("ROUNDS", "4")],
        full: &[("ROUNDS", "100")],
        ..DEFAULT
    },
    Script {
        name: "delegations",
        file: "delegations.sh",
        quick: &[("ROUNDS", "3")],
        full: &[("ROUNDS", "50")],
        mounts: &["nfs4.1"],
        ..DEFAULT
    },
    Script {
        name: "randomops",
        file: "randomops.sh",
        quick: &[("OPS", "3000")],
        full: &[("OPS", "100000")],
        core: true,
        ..DEFAULT
    },
    Script {
        name: "sqlite",
        file: "sqlite.sh",
        quick: &[("ROWS", "20")],
        full: &[("ROWS", "200")],
        ..DEFAULT
    },
    Script {
        name: "git",
        file: "git.sh",
        quick: &[("FILES", "40")],
        full: &[("FILES", "1000")],
        ..DEFAULT
    },
    Script {
        name: "build",
        file: "build.sh",
        quick: &[("FILES", "4")],
        full: &[("FILES", "30")],
        ..DEFAULT
    },
    Script {
        name: "tree",
        file: "tree.py",
        quick: &[("FILES", "400")],
        full: &[("FILES", "20000")],
        ..DEFAULT
    },
    Script {
        name: "listing",
        file: "listing.py",
        quick: &[("FILES", "2000")],
        full: &[("FILES", "100000")],
        ..DEFAULT
    },
    Script {
        name: "ways",
        file: "ways.py",
        mounts: &["none", "mmap", "loose"],
        ..DEFAULT
    },
    Script {
        name: "fio",
        file: "fio.sh",
        quick: &[("SIZE", "4M")],
        full: &[("SIZE", "64M")],
        ..DEFAULT
    },
    Script {
        name: "attributes",
        file: "attributes.py",
        ..DEFAULT
    },
    Script {
        name: "sparse",
        file: "sparse.py",
        quick: &[("SIZE", "8")],
        full: &[("SIZE", "256")],
        ..DEFAULT
    },
    Script {
        name: "overlay",
        file: "overlay.sh",
        ..DEFAULT
    },
    Script {
        name: "privileges",
        file: "privileges.py",
        mounts: &["virtiofs", "virtiofs-4q", "virtiofs-never", "virtiofsd"],
        ..DEFAULT
    },
    Script {
        name: "handed",
        file: "handed.sh",
        quick: &[("OPS", "4000"), ("FILTER", "truncate")],
        full: &[("OPS", "100000")],
        mounts: &["mmap"],
        ..DEFAULT
    },
    Script {
        name: "sparse-xfs",
        file: "sparse.py",
        quick: &[("SIZE", "8"), ("REFLINK", "yes")],
        full: &[("SIZE", "64"), ("REFLINK", "yes")],
        setup: Setup::Disk("xfs -q"),
        mounts: &["nfs4.2"],
        ..DEFAULT
    },
    Script {
        name: "sparse-btrfs",
        file: "sparse.py",
        quick: &[("SIZE", "8"), ("REFLINK", "yes")],
        full: &[("SIZE", "64"), ("REFLINK", "yes")],
        setup: Setup::Disk("btrfs -q"),
        mounts: &["nfs4.2"],
        ..DEFAULT
    },
    Script {
        name: "pair",
        file: "pair.py",
        quick: &[("ROWS", "20"), ("TURNS", "6")],
        full: &[("ROWS", "200"), ("TURNS", "50")],
        setup: Setup::TwoGuests("virtiofs-never", "virtiofs-never"),
        mounts: &["virtiofs-4q"],
        ..DEFAULT
    },
    Script {
        name: "pair-9p",
        file: "pair.py",
        quick: &[("ROWS", "20"), ("TURNS", "6"), ("FLOCK", "no")],
        full: &[("ROWS", "200"), ("TURNS", "50"), ("FLOCK", "no")],
        setup: Setup::TwoGuests("virtiofs-never", "none"),
        mounts: &["virtiofs-4q"],
        ..DEFAULT
    },
    Script {
        name: "pair-nfs",
        file: "pair.py",
        quick: &[("ROWS", "20"), ("TURNS", "6"), ("FLOCK", "no")],
        full: &[("ROWS", "200"), ("TURNS", "50"), ("FLOCK", "no")],
        setup: Setup::TwoGuests("nfs4.2", "nfs4.2"),
        mounts: &["nfs4.2"],
        ..DEFAULT
    },
    Script {
        name: "control",
        file: "control.py",
        quick: &[("SHARES", "40")],
        full: &[("SHARES", "1000")],
        setup: Setup::Control,
        mounts: &["virtiofs-4q"],
        ..DEFAULT
    },
    Script {
        name: "limits",
        file: "limits.py",
        quick: &[("RUNTIME", "1"), ("LEAST", "0.5"), ("OPTIONS", "--limit")],
        full: &[("RUNTIME", "8")],
        setup: Setup::Controlled,
        mounts: &["none", "virtiofs", "nfs4.2"],
        ..DEFAULT
    },
    Script {
        name: "quota",
        file: "quota.py",
        setup: Setup::Quota("ext4 -q", "virtiofs-never", "none"),
        mounts: &["virtiofs-4q"],
        ..DEFAULT
    },
    Script {
        name: "quota-nfs",
        file: "quota.py",
        setup: Setup::Quota("xfs -q", "nfs4.2", "nfs4.2"),
        mounts: &["nfs4.2"],
        ..DEFAULT
    },
    Script {
        name: "quota-xfs",
        file: "quota.py",
        setup: Setup::Quota("xfs -q", "virtiofs-never", "none"),
        mounts: &["virtiofs"],
        ..DEFAULT
    },
    Script {
        name: "quota-ext4",
        file: "quota.py",
        setup: Setup::Quota("ext4 -q", "nfs4.2", "none"),
        mounts: &["nfs4.1"],
        ..DEFAULT
    },
    Script {
        name: "project-quota",
        file: "project-quota.sh",
        setup: Setup::BlockDevice,
        mounts: &["mmap"],
        ..DEFAULT
    },
    Script {
        name: "several-servers",
        file: "several-servers.py",
        mounts: &["nfs4.2"],
        ..DEFAULT
    },
    Script {
        name: "mapped",
        file: "mapped.py",
        setup: Setup::Mapped,
        mounts: &["none", "mmap", "loose"],
        ..DEFAULT
    },
    Script {
        name: "vsock",
        file: "vsock.py",
        quick: &[("SIZE", "4")],
        full: &[("SIZE", "64"), ("KILLS", "30")],
        setup: Setup::Vsock,
        mounts: &["mmap"],
        ..DEFAULT
    },
    Script {
        name: "agent",
        file: "agent.py",
        quick: &[("CHANGES", "500")],
        full: &[("CHANGES", "10000"), ("MEASURED", "10000")],
        setup: Setup::Agent,
        mounts: &["virtiofs", "virtiofs-4q"],
        ..DEFAULT
    },
    Script {
        name: "watchers",
        file: "watchers.py",
        setup: Setup::Agent,
        mounts: &["virtiofs", "virtiofs-4q"],
        ..DEFAULT
    },
    Script {
        name: "agent-net",
        file: "agent.py",
        quick: &[("CHANGES", "500"), ("SELF", "no")],
        full: &[("CHANGES", "10000"), ("MEASURED", "10000"), ("SELF", "no")],
        setup: Setup::Agent,
        mounts: &["loose", "nfs3", "nfs4.1", "nfs4.2"],
        ..DEFAULT
    },
    Script {
        name: "watchers-net",
        file: "watchers.py",
        quick: &[("SELF", "no")],
        full: &[("SELF", "no")],
        setup: Setup::Agent,
        mounts: &["loose", "nfs4.2"],
        ..DEFAULT
    },
    Script {
        name: "block",
        file: "block.py",
        quick: &[("SIZE", "8"), ("KILLS", "3")],
        full: &[("SIZE", "100"), ("KILLS", "50")],
        setup: Setup::BlockDevice,
        mounts: &["mmap", "none"],
        ..DEFAULT
    },
    Script {
        name: "root",
        file: "root.sh",
        quick: &[("TREES", "/etc")],
        full: &[("TREES", "/usr/bin /etc /usr/lib/python3 /usr/share/doc")],
        setup: Setup::Root,
        mounts: &["loose", "virtiofs-4q", "nfs4.2"],
        ..DEFAULT
    },
    Script {
        name: "image",
        file: "image.sh",
        setup: Setup::Image,
        mounts: &["loose", "virtiofs-4q", "nfs4.2"],
        ..DEFAULT
    },
    Script {
        name: "image-disk",
        file: "image.sh",
        setup: Setup::ImageDisk,
        mounts: &["mmap"],
        ..DEFAULT
    },
    Script {
        name: "bundle",
        file: "bundle.py",
        setup: Setup::Bundle,
        mounts: &["virtiofs-4q"],
        ..DEFAULT
    },
    Script {
        name: "reset",
        file: "reset.py",
        quick: &[("RESETS", "1")],
        full: &[("RESETS", "3")],
        setup: Setup::Reset,
        mounts: &["virtiofs", "virtiofs-4q"],
        ..DEFAULT
    },
    Script {
        name: "restart",
        file: "restart.py",
        quick: &[("KILLS", "3")],
        full: &[("KILLS", "50")],
        setup: Setup::Restart,
        mounts: &[
            "nfs3",
            "nfs4.0",
            "nfs4.1",
            "nfs4.2",
            "nfs4.2-tls",
            "connect",
            "connect-mmap",
        ],
        ..DEFAULT
    },
    Script {
        name: "takeover",
        file: "restart.py",
        // Machines of tests are busy, so a quick run has more time for each takeover.
        quick: &[
            ("KILLS", "1"),
            ("CLUSTER", "sh $RUN/cluster"),
            ("LIMIT", "10"),
        ],
        full: &[
            ("KILLS", "30"),
            ("CLUSTER", "sh $RUN/cluster"),
            ("LIMIT", "5"),
        ],
        setup: Setup::Takeover,
        mounts: &["nfs3", "nfs4.0", "nfs4.2"],
        ..DEFAULT
    },
    Script {
        name: "upgrade",
        file: "restart.py",
        quick: &[("KILLS", "3"), ("KILL", UPGRADE)],
        full: &[("KILLS", "50"), ("KILL", UPGRADE)],
        setup: Setup::Controlled,
        mounts: &[
            "none",
            "mmap",
            "9p-virtio",
            "connect",
            "nfs3",
            "nfs4.0",
            "nfs4.2",
            "virtiofs",
            "virtiofs-4q",
        ],
        ..DEFAULT
    },
    Script {
        name: "crash",
        file: "restart.py",
        quick: &[("KILLS", "3"), ("KILL", KILL)],
        full: &[("KILLS", "50"), ("KILL", KILL)],
        setup: Setup::Controlled,
        mounts: &["virtiofs", "virtiofs-4q"],
        ..DEFAULT
    },
    Script {
        name: "named",
        file: "named.py",
        quick: &[("ROUNDS", "5")],
        full: &[("ROUNDS", "50")],
        setup: Setup::Named,
        mounts: &["nfs3", "nfs4.0", "nfs4.1", "nfs4.2"],
        ..DEFAULT
    },
    Script {
        name: "reload",
        file: "reload.py",
        quick: &[("TURNS", "1")],
        full: &[("TURNS", "10")],
        setup: Setup::Reload,
        mounts: &["none", "nfs3", "nfs4.2", "virtiofs-4q"],
        ..DEFAULT
    },
];
