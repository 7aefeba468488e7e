//! `barge tree`.

use std::io::{self, IsTerminal, Write};

use vfs::Kind;
use vfs::listing::NamedEntry;

use super::args::TreeArgs;
use super::operand::Operand;
use super::{ErrorReporter, finish_output, format};
use crate::{CommandResult, confinement};
use sources::Tree;

/// Shows each directory and its descendants.
pub(crate) fn tree(args: &TreeArgs) -> CommandResult {
    confinement::enter_reader(args.operands.iter().map(Operand::source));
    let mut shower = TreePrinter {
        args,
        terminal: io::stdout().is_terminal(),
        errors: ErrorReporter::default(),
        directories: 0,
        files: 0,
    };
    let written = shower.run();
    finish_output(written, &shower.errors)
}

struct TreePrinter<'a> {
    args: &'a TreeArgs,
    terminal: bool,
    errors: ErrorReporter,
    directories: u64,
    files: u64,
}

/// A directory that is being shown: its remaining entries, and the prefix of their lines.
struct Level {
    remaining: std::vec::IntoIter<NamedEntry>,
    prefix: String,
    shown: String,
}

impl TreePrinter<'_> {
    fn run(&mut self) -> io::Result<()> {
        for operand in &self.args.operands {
            let shown = operand.to_string();
            match operand.open_tree(&self.args.disk_cache) {
                Err(failure) => self.errors.report("tree", failure.message),
                Ok((tree, path)) => self.print(&tree, &path, &shown)?,
            }
        }
        let (directories, files) = (self.directories, self.files);
        let s = |count| if count == 1 { "" } else { "s" };
        let directory = if directories == 1 {
            "directory"
        } else {
            "directories"
        };
        let mut out = io::stdout().lock();
        match self.args.dirs_only {
            true => writeln!(out, "\n{directories} {directory}"),
            false => writeln!(out, "\n{directories} {directory}, {files} file{}", s(files)),
        }
    }

    fn print(&mut self, tree: &Tree, path: &[u8], shown: &str) -> io::Result<()> {
        let root = match tree.resolve(path, true) {
            Ok(root) => root,
            Err(errno) => {
                self.errors.report(shown, errno);
                return Ok(());
            }
        };
        writeln!(io::stdout().lock(), "{shown}")?;
        let mut levels = Vec::new();
        levels.extend(self.read_level(tree, &*root.node, String::new(), shown.to_owned()));
        while let Some(level) = levels.last_mut() {
            let Some(listed) = level.remaining.next() else {
                levels.pop();
                continue;
            };
            let last = level.remaining.len() == 0;
            let mut line = level.prefix.clone().into_bytes();
            line.extend(branch(last).bytes());
            line.extend(format::name(&listed.name, self.terminal));
            let Some(entry) = listed.entry else {
                line.extend(b" [cannot be accessed]\n");
                io::stdout().lock().write_all(&line)?;
                continue;
            };
            if entry.attr.kind == Kind::Symlink
                && let Ok(target) = tree.readlink(&*entry.node)
            {
                line.extend(b" -> ");
                line.extend(format::name(&target, self.terminal));
            }
            line.push(b'\n');
            let below = (entry.attr.kind == Kind::Directory).then(|| {
                let prefix = format!("{}{}", level.prefix, indent(last));
                let name = String::from_utf8_lossy(&listed.name);
                (prefix, format!("{}/{name}", level.shown))
            });
            io::stdout().lock().write_all(&line)?;
            let deep_enough = self
                .args
                .level
                .is_some_and(|most| levels.len() >= most as usize);
            match below {
                None => self.files += 1,
                Some((prefix, shown)) => {
                    self.directories += 1;
                    if !deep_enough {
                        levels.extend(self.read_level(tree, &*entry.node, prefix, shown));
                    }
                }
            }
        }
        Ok(())
    }

    fn read_level(
        &self,
        tree: &Tree,
        dir: &dyn vfs::Node,
        prefix: String,
        shown: String,
    ) -> Option<Level> {
        let mut listed = match tree.list(dir) {
            Ok(listed) => listed,
            Err(errno) => {
                self.errors.report(&shown, errno);
                return None;
            }
        };
        listed.retain(|listed| {
            let kind = listed.entry.as_ref().map(|entry| entry.attr.kind);
            (self.args.all || !listed.name.starts_with(b"."))
                && (!self.args.dirs_only || kind == Some(Kind::Directory))
        });
        Some(Level {
            remaining: listed.into_iter(),
            prefix,
            shown,
        })
    }
}

fn branch(last: bool) -> &'static str {
    if last { "└── " } else { "├── " }
}

/// Returns the prefix that a branch adds to the lines below it.
fn indent(last: bool) -> &'static str {
    if last { "    " } else { "│   " }
}
