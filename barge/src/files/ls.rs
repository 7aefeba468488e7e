//! `barge ls`.

use std::collections::HashMap;
use std::io::{self, IsTerminal, Write};

use command::text::printable_json;
use vfs::listing::NamedEntry;
use vfs::{Attr, Entry, Kind};

use super::args::LsArgs;
use super::operand::Operand;
use super::{ErrorReporter, finish_output, format, users};
use crate::{CommandResult, confinement};
use sources::Tree;

/// Lists files first, then directories, each with a heading if there are several.
pub(crate) fn ls(args: &LsArgs) -> CommandResult {
    confinement::enter_reader(args.operands.iter().map(Operand::source));
    let mut lister = Lister {
        args,
        terminal: io::stdout().is_terminal(),
        owners: OwnerNames::default(),
        errors: ErrorReporter::default(),
        first: true,
    };
    let written = lister.run();
    finish_output(written, &lister.errors)
}

struct Lister<'a> {
    args: &'a LsArgs,
    terminal: bool,
    owners: OwnerNames,
    errors: ErrorReporter,
    /// Whether there was no output yet.
    first: bool,
}

impl Lister<'_> {
    fn run(&mut self) -> io::Result<()> {
        let mut directories = Vec::new();
        for operand in &self.args.operands {
            let shown = operand.to_string();
            let (tree, path) = match operand.open_tree(&self.args.disk_cache) {
                Ok(opened) => opened,
                Err(failure) => {
                    self.errors.report("ls", failure.message);
                    continue;
                }
            };
            // As in ls(1), -l shows a link instead of its target.
            let follow = !(self.args.long || self.args.numeric);
            let found = tree
                .resolve(&path, follow)
                .or_else(|_| tree.resolve(&path, false));
            match found {
                Ok(entry) if entry.attr.kind == Kind::Directory => {
                    directories.push((tree, entry, shown));
                }
                Ok(entry) => {
                    let name = shown.into_bytes();
                    let entry = Some(entry);
                    self.print(&tree, &[NamedEntry { name, entry }])?;
                }
                Err(errno) => self.errors.report(&shown, errno),
            }
        }
        let titled = self.args.recursive || self.args.operands.len() > 1;
        for (tree, entry, shown) in directories {
            self.list_directory(&tree, &entry, &shown, titled)?;
        }
        Ok(())
    }

    fn list_directory(
        &mut self,
        tree: &Tree,
        dir: &Entry,
        shown: &str,
        titled: bool,
    ) -> io::Result<()> {
        // Directories that remain, the next one last.
        let mut left = vec![(dir.clone(), shown.trim_end_matches('/').to_owned())];
        while let Some((dir, shown)) = left.pop() {
            let mut listed = match tree.list(&*dir.node) {
                Ok(listed) => listed,
                Err(errno) => {
                    self.errors.report(&shown, errno);
                    continue;
                }
            };
            listed.retain(|entry| self.args.all || !entry.name.starts_with(b"."));
            if titled && !self.args.json {
                let gap = if self.first { "" } else { "\n" };
                let title = format::name(shown.as_bytes(), self.terminal);
                let mut out = io::stdout().lock();
                write!(out, "{gap}")?;
                out.write_all(&title)?;
                writeln!(out, ":")?;
            }
            for missing in listed.iter().filter(|listed| listed.entry.is_none()) {
                let name = String::from_utf8_lossy(&missing.name);
                self.errors
                    .report(&format!("{shown}/{name}"), "cannot be accessed");
            }
            if self.args.json {
                let base = if titled { Some(shown.as_str()) } else { None };
                self.print_json(tree, base, &listed)?;
            } else {
                self.print(tree, &listed)?;
            }
            self.first = false;
            if self.args.recursive {
                let below = listed.into_iter().rev().filter_map(|listed| {
                    let entry = listed.entry?;
                    let name = String::from_utf8_lossy(&listed.name).into_owned();
                    (entry.attr.kind == Kind::Directory).then(|| (entry, format!("{shown}/{name}")))
                });
                left.extend(below);
            }
        }
        Ok(())
    }

    fn print(&mut self, tree: &Tree, listed: &[NamedEntry]) -> io::Result<()> {
        self.first = false;
        if self.args.json {
            return self.print_json(tree, None, listed);
        }
        let long = self.args.long || self.args.numeric;
        let mut rows = Vec::new();
        if long {
            for entry in listed.iter().filter_map(|listed| listed.entry.as_ref()) {
                rows.push(self.cells(&entry.attr));
            }
        }
        let mut lines = format::columns(&rows, &[1, 4]).into_iter();
        let mut out = io::stdout().lock();
        for entry in listed {
            let name = format::name(&entry.name, self.terminal);
            if let Some(entry) = entry.entry.as_ref().filter(|_| long) {
                write!(out, "{} ", lines.next().unwrap_or_default())?;
                out.write_all(&name)?;
                if entry.attr.kind == Kind::Symlink
                    && let Ok(target) = tree.readlink(&*entry.node)
                {
                    out.write_all(b" -> ")?;
                    out.write_all(&format::name(&target, self.terminal))?;
                }
            } else {
                out.write_all(&name)?;
            }
            out.write_all(b"\n")?;
        }
        Ok(())
    }

    fn print_json(&self, tree: &Tree, base: Option<&str>, listed: &[NamedEntry]) -> io::Result<()> {
        let mut out = io::stdout().lock();
        for listed in listed {
            let Some(entry) = &listed.entry else { continue };
            let target = match entry.attr.kind {
                Kind::Symlink => tree.readlink(&*entry.node).ok(),
                _ => None,
            };
            let mut object = format::json(&listed.name, &entry.attr, target.as_deref());
            if let Some(base) = base {
                object["directory"] = base.into();
            }
            writeln!(out, "{}", printable_json(&object.to_string()))?;
        }
        Ok(())
    }

    fn cells(&mut self, attr: &Attr) -> Vec<String> {
        let numeric = self.args.numeric;
        vec![
            format::mode(attr),
            attr.nlink.to_string(),
            self.owners.user(attr.uid, numeric),
            self.owners.group(attr.gid, numeric),
            format::size(attr),
            // Without seconds.
            format::time(attr.mtime).chars().take(16).collect(),
        ]
    }
}

/// A cache of names of this host's users and groups.
#[derive(Default)]
struct OwnerNames {
    users: HashMap<u32, String>,
    groups: HashMap<u32, String>,
}

impl OwnerNames {
    fn user(&mut self, uid: u32, numeric: bool) -> String {
        let look_up = || match users::user(uid) {
            Some(name) if !numeric => name,
            _ => uid.to_string(),
        };
        self.users.entry(uid).or_insert_with(look_up).clone()
    }

    fn group(&mut self, gid: u32, numeric: bool) -> String {
        let look_up = || match users::group(gid) {
            Some(name) if !numeric => name,
            _ => gid.to_string(),
        };
        self.groups.entry(gid).or_insert_with(look_up).clone()
    }
}
