//! The scripts of the matrix.

use anyhow::Result;

use super::Options;
use super::setup::Setup;
use crate::Dirs;
use crate::guest::Case;
use crate::ways::Way;

/// A script of the matrix, with its sizes.
pub(super) struct Script {
    pub(super) name: &'static str,
    file: &'static str,
    /// Environment for a quick run, and for a full one.
    quick: &'static [(&'static str, &'static str)],
    full: &'static [(&'static str, &'static str)],
    pub(super) setup: Setup,
    /// The mount configurations to run it with; all if empty.
    ways: &'static [&'static str],
    /// Whether it detects differences between kernels or protocols early.
    core: bool,
}

const PLAIN: Script = Script {
    name: "",
    file: "",
    quick: &[],
    full: &[],
    setup: Setup::Usual,
    ways: &[],
    core: false,
};

impl Script {
    /// Returns whether it runs with this configuration. Other servers are tested only with the
    /// usual setup.
    pub(super) fn fits(&self, way: &Way, options: &Options) -> bool {
        (self.ways.is_empty() || self.ways.contains(&way.name))
            && (self.shares_boot() || options.serve.is_none())
    }

    pub(super) fn is_core(&self) -> bool {
        self.core || !self.shares_boot()
    }

    pub(super) fn shares_boot(&self) -> bool {
        self.setup == Setup::Usual
    }

    /// Returns the case. May read a file of this workspace, for a guest that does not have it.
    pub(super) fn case(&self, dirs: &Dirs, quick: bool, usual: &[(&str, &str)]) -> Result<Case> {
        let sizes = if quick { self.quick } else { self.full };
        let env: Vec<_> = sizes
            .iter()
            .chain(usual)
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
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
        ..PLAIN
    },
    Script {
        name: "opened",
        file: "opened.py",
        core: true,
        ..PLAIN
    },
    Script {
        name: "appended",
        file: "appended.py",
        core: true,
        ..PLAIN
    },
    Script {
        name: "locks",
        file: "locks.py",
        core: true,
        ..PLAIN
    },
    Script {
        name: "coherence",
        file: "coherence.sh",
        quick: &[("ROUNDS", "10")],
        full: &[("ROUNDS", "100")],
        ..PLAIN
    },
    Script {
        name: "delegations",
        file: "delegations.sh",
        quick: &[("ROUNDS", "3")],
        full: &[("ROUNDS", "50")],
        ways: &["nfs4.1"],
        ..PLAIN
    },
    Script {
        name: "randomops",
        file: "randomops.sh",
        quick: &[("OPS", "8000")],
        full: &[("OPS", "100000")],
        core: true,
        ..PLAIN
    },
    Script {
        name: "sqlite",
        file: "sqlite.sh",
        quick: &[("ROWS", "20")],
        full: &[("ROWS", "200")],
        ..PLAIN
    },
    Script {
        name: "git",
        file: "git.sh",
        quick: &[("FILES", "40")],
        full: &[("FILES", "1000")],
        ..PLAIN
    },
    Script {
        name: "build",
        file: "build.sh",
        quick: &[("FILES", "4")],
        full: &[("FILES", "30")],
        ..PLAIN
    },
    Script {
        name: "tree",
        file: "tree.py",
        quick: &[("FILES", "400")],
        full: &[("FILES", "20000")],
        ..PLAIN
    },
    Script {
        name: "listing",
        file: "listing.py",
        quick: &[("FILES", "2000")],
        full: &[("FILES", "100000")],
        ..PLAIN
    },
    Script {
        name: "ways",
        file: "ways.py",
        ways: &["none", "mmap", "loose"],
        ..PLAIN
    },
    Script {
        name: "fio",
        file: "fio.sh",
        quick: &[("SIZE", "4M")],
        full: &[("SIZE", "64M")],
        ..PLAIN
    },
    Script {
        name: "attributes",
        file: "attributes.py",
        ..PLAIN
    },
    Script {
        name: "sparse",
        file: "sparse.py",
        quick: &[("SIZE", "8")],
        full: &[("SIZE", "256")],
        ..PLAIN
    },
    Script {
        name: "overlay",
        file: "overlay.sh",
        ..PLAIN
    },
    Script {
        name: "privileges",
        file: "privileges.py",
        ways: &["virtiofs", "virtiofs-4q", "virtiofs-never"],
        core: true,
        ..PLAIN
    },
    Script {
        name: "handed",
        file: "handed.sh",
        quick: &[("OPS", "4000"), ("FILTER", "truncate")],
        full: &[("OPS", "100000")],
        ways: &["mmap"],
        ..PLAIN
    },
    Script {
        name: "sparse-xfs",
        file: "sparse.py",
        quick: &[("SIZE", "8"), ("REFLINK", "yes")],
        full: &[("SIZE", "64"), ("REFLINK", "yes")],
        setup: Setup::Disk("xfs -q"),
        ways: &["nfs4.2"],
        ..PLAIN
    },
    Script {
        name: "sparse-btrfs",
        file: "sparse.py",
        quick: &[("SIZE", "8"), ("REFLINK", "yes")],
        full: &[("SIZE", "64"), ("REFLINK", "yes")],
        setup: Setup::Disk("btrfs -q"),
        ways: &["nfs4.2"],
        ..PLAIN
    },
    Script {
        name: "pair",
        file: "pair.py",
        quick: &[("ROWS", "20"), ("TURNS", "6")],
        full: &[("ROWS", "200"), ("TURNS", "50")],
        setup: Setup::Two("virtiofs-never", "virtiofs-never"),
        ways: &["virtiofs-4q"],
        ..PLAIN
    },
    Script {
        name: "pair-9p",
        file: "pair.py",
        quick: &[("ROWS", "20"), ("TURNS", "6"), ("FLOCK", "no")],
        full: &[("ROWS", "200"), ("TURNS", "50"), ("FLOCK", "no")],
        setup: Setup::Two("virtiofs-never", "none"),
        ways: &["virtiofs-4q"],
        ..PLAIN
    },
    Script {
        name: "pair-nfs",
        file: "pair.py",
        quick: &[("ROWS", "20"), ("TURNS", "6"), ("FLOCK", "no")],
        full: &[("ROWS", "200"), ("TURNS", "50"), ("FLOCK", "no")],
        setup: Setup::Two("nfs4.2", "nfs4.2"),
        ways: &["nfs4.2"],
        ..PLAIN
    },
    Script {
        name: "mapped",
        file: "mapped.py",
        setup: Setup::Mapped,
        ways: &["none", "mmap", "loose"],
        ..PLAIN
    },
    Script {
        name: "vsock",
        file: "vsock.py",
        quick: &[("SIZE", "4")],
        full: &[("SIZE", "64")],
        setup: Setup::Vsock,
        ways: &["mmap"],
        ..PLAIN
    },
    Script {
        name: "block",
        file: "block.py",
        quick: &[("SIZE", "8")],
        full: &[("SIZE", "100")],
        setup: Setup::Drive,
        ways: &["mmap", "none"],
        ..PLAIN
    },
    Script {
        name: "root",
        file: "root.sh",
        quick: &[("TREES", "/etc")],
        full: &[("TREES", "/usr/bin /etc /usr/lib/python3 /usr/share/doc")],
        setup: Setup::Root,
        ways: &["loose", "virtiofs-4q", "nfs4.2"],
        ..PLAIN
    },
    Script {
        name: "image",
        file: "image.sh",
        setup: Setup::Image,
        ways: &["loose", "virtiofs-4q", "nfs4.2"],
        ..PLAIN
    },
    Script {
        name: "image-disk",
        file: "image.sh",
        setup: Setup::ImageDisk,
        ways: &["mmap"],
        ..PLAIN
    },
    Script {
        name: "bundle",
        file: "bundle.py",
        setup: Setup::Bundle,
        ways: &["virtiofs", "virtiofs-4q"],
        ..PLAIN
    },
    Script {
        name: "reset",
        file: "reset.py",
        quick: &[("RESETS", "1")],
        full: &[("RESETS", "3")],
        setup: Setup::Reset,
        ways: &["virtiofs", "virtiofs-4q"],
        ..PLAIN
    },
    Script {
        name: "restart",
        file: "restart.py",
        quick: &[("KILLS", "3")],
        full: &[("KILLS", "50")],
        setup: Setup::Restart,
        ways: &[
            "nfs3",
            "nfs4.0",
            "nfs4.1",
            "nfs4.2",
            "nfs4.2-tls",
            "connect",
            "connect-mmap",
        ],
        ..PLAIN
    },
    Script {
        name: "named",
        file: "named.py",
        quick: &[("ROUNDS", "5")],
        full: &[("ROUNDS", "50")],
        setup: Setup::Named,
        ways: &["nfs3", "nfs4.0", "nfs4.1", "nfs4.2"],
        ..PLAIN
    },
    Script {
        name: "reload",
        file: "reload.py",
        quick: &[("TURNS", "1")],
        full: &[("TURNS", "10")],
        setup: Setup::Reload,
        ways: &["none", "nfs3", "nfs4.2", "virtiofs-4q"],
        ..PLAIN
    },
];
