//! The scripts of the matrix.

use crate::Dirs;
use crate::guest::Case;

/// A script of the matrix, with the sizes it is given.
pub(super) struct Script {
    pub(super) name: &'static str,
    file: &'static str,
    /// Environment for a quick run, and for a full one.
    quick: &'static [(&'static str, &'static str)],
    full: &'static [(&'static str, &'static str)],
}

impl Script {
    pub(super) fn case(&self, dirs: &Dirs, quick: bool, usual: [(&str, &str); 2]) -> Case {
        let sizes = if quick { self.quick } else { self.full };
        let env: Vec<_> = sizes
            .iter()
            .chain(&usual)
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        Case {
            own_dir: true,
            ..Case::program(self.name, &dirs.scripts.join(self.file), &[], &env)
        }
    }
}

/// In the order of running: what breaks most tells first.
pub(super) const SCRIPTS: &[Script] = &[
    Script {
        name: "pjdfstest",
        file: "pjdfstest.sh",
        quick: &[],
        full: &[],
    },
    Script {
        name: "opened",
        file: "opened.py",
        quick: &[],
        full: &[],
    },
    Script {
        name: "locks",
        file: "locks.py",
        quick: &[],
        full: &[],
    },
    Script {
        name: "coherence",
        file: "coherence.sh",
        quick: &[("ROUNDS", "10")],
        full: &[("ROUNDS", "100")],
    },
    Script {
        name: "randomops",
        file: "randomops.sh",
        quick: &[("OPS", "8000")],
        full: &[("OPS", "100000")],
    },
    Script {
        name: "sqlite",
        file: "sqlite.sh",
        quick: &[("ROWS", "20")],
        full: &[("ROWS", "200")],
    },
    Script {
        name: "git",
        file: "git.sh",
        quick: &[("FILES", "40")],
        full: &[("FILES", "1000")],
    },
    Script {
        name: "build",
        file: "build.sh",
        quick: &[("FILES", "4")],
        full: &[("FILES", "30")],
    },
    Script {
        name: "tree",
        file: "tree.py",
        quick: &[("FILES", "400")],
        full: &[("FILES", "20000")],
    },
    Script {
        name: "ways",
        file: "ways.py",
        quick: &[],
        full: &[],
    },
    Script {
        name: "fio",
        file: "fio.sh",
        quick: &[("SIZE", "4M")],
        full: &[("SIZE", "64M")],
    },
];
