//! `barge stat`.

use std::io::{self, IsTerminal, Write};

use command::text::printable_json;
use serde_json::json;
use vfs::{Attr, AttrMask, Kind, Result, StatFs};

use super::args::StatArgs;
use super::operand::Operand;
use super::{ErrorReporter, finish_output, format};
use crate::{CommandResult, confinement};

/// Shows the attributes of each file, or of its file system.
pub(crate) fn stat(args: &StatArgs) -> CommandResult {
    confinement::enter_reader(args.operands.iter().map(Operand::source));
    let errors = ErrorReporter::default();
    let mut text = Vec::new();
    for operand in &args.operands {
        let shown = operand.to_string();
        match operand.open(&args.disk_cache) {
            Err(failure) => errors.report("stat", failure.message),
            Ok((tree, path)) => match stat_file(args, &tree, &path, &shown) {
                Ok(lines) => text.extend(lines),
                Err(errno) => errors.report(&shown, errno),
            },
        }
    }
    finish_output(io::stdout().write_all(&text), &errors)
}

fn stat_file(args: &StatArgs, tree: &sources::Tree, path: &[u8], shown: &str) -> Result<Vec<u8>> {
    let entry = tree.resolve(path, args.dereference)?;
    if args.file_system {
        let figures = tree.with(|cx| entry.node.statfs(cx))?;
        return Ok(match args.json {
            true => format!("{}\n", json_of(shown, &figures)).into_bytes(),
            false => file_system(shown, &figures).into_bytes(),
        });
    }
    // A look-up does not return birth time and generation.
    let want = AttrMask::STAT | AttrMask::BTIME | AttrMask::GENERATION;
    let attr = tree.with(|cx| entry.node.attr(cx, want))?;
    let target = match attr.kind {
        Kind::Symlink => Some(tree.readlink(&*entry.node)?),
        _ => None,
    };
    if args.json {
        let object = format::json(shown.as_bytes(), &attr, target.as_deref());
        return Ok(format!("{}\n", printable_json(&object.to_string())).into_bytes());
    }
    Ok(file(
        shown,
        &attr,
        target.as_deref(),
        io::stdout().is_terminal(),
    ))
}

fn file(shown: &str, attr: &Attr, target: Option<&[u8]>, terminal: bool) -> Vec<u8> {
    let mut text = b"  File: ".to_vec();
    text.extend(format::name(shown.as_bytes(), terminal));
    if let Some(target) = target {
        text.extend(b" -> ");
        text.extend(format::name(target, terminal));
    }
    let born = attr.btime.map_or_else(|| "-".into(), format::time);
    let more = format!(
        "\n  Kind: {}\n  Size: {}  Blocks: {}  Block: {}\n Inode: {}  Links: {}  Generation: {}\n  \
         Mode: {} ({:04o})  Uid: {}  Gid: {}\nAccess: {}\nModify: {}\nChange: {} ({})\n Birth: {}\n",
        format::kind(attr.kind),
        format::size(attr),
        attr.blocks,
        attr.blksize,
        attr.id,
        attr.nlink,
        attr.generation,
        format::mode(attr),
        attr.mode,
        attr.uid,
        attr.gid,
        format::time(attr.atime),
        format::time(attr.mtime),
        format::time(attr.ctime),
        attr.change,
        born,
    );
    text.extend(more.into_bytes());
    text
}

fn file_system(shown: &str, figures: &StatFs) -> String {
    format!(
        "  File: {shown}\n  Kind: {:#x}  Id: {:#x}  Longest name: {}\nBlocks: {} of {} bytes, \
         {} free, {} available\n Nodes: {}, {} free\n",
        figures.magic,
        figures.fsid,
        figures.namelen,
        figures.blocks,
        figures.bsize,
        figures.bfree,
        figures.bavail,
        figures.files,
        figures.ffree,
    )
}

fn json_of(shown: &str, figures: &StatFs) -> serde_json::Value {
    json!({
        "name": shown,
        "kind": figures.magic,
        "id": figures.fsid,
        "longest_name": figures.namelen,
        "block_size": figures.bsize,
        "blocks": figures.blocks,
        "blocks_free": figures.bfree,
        "blocks_available": figures.bavail,
        "nodes": figures.files,
        "nodes_free": figures.ffree,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_named() {
        let figures = StatFs {
            bsize: 4096,
            blocks: 10,
            bfree: 5,
            bavail: 4,
            files: 3,
            ffree: 2,
            ..StatFs::default()
        };
        let text = file_system("x", &figures);
        assert!(
            text.contains("10 of 4096 bytes, 5 free, 4 available"),
            "{text}"
        );
        assert_eq!(json_of("x", &figures)["nodes_free"], json!(2));
    }
}
