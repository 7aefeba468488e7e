//! `barge cat`.

use std::io::{self, Write};

use vfs::{Errno, Kind, OpenFlags};
use wire::payload::SliceSink;

use super::args::CatArgs;
use super::operand::Operand;
use super::{ErrorReporter, finish_output};
use crate::{CommandResult, confinement};
use sources::Tree;

/// Writes each file to standard output.
pub(crate) fn cat(args: &CatArgs) -> CommandResult {
    confinement::enter_reader(args.operands.iter().map(Operand::source));
    let errors = ErrorReporter::default();
    let mut written = Ok(());
    for operand in &args.operands {
        let shown = operand.to_string();
        let (tree, path) = match operand.open(&args.disk_cache) {
            Ok(opened) => opened,
            Err(failure) => {
                errors.report("cat", failure.message);
                continue;
            }
        };
        match cat_file(&tree, &path) {
            Ok(()) => {}
            Err(CatError::Source(errno)) => errors.report(&shown, errno),
            Err(CatError::Output(error)) => {
                written = Err(error);
                break;
            }
        }
    }
    finish_output(written, &errors)
}

enum CatError {
    Source(Errno),
    Output(io::Error),
}

impl From<Errno> for CatError {
    fn from(errno: Errno) -> CatError {
        CatError::Source(errno)
    }
}

fn cat_file(tree: &Tree, path: &[u8]) -> Result<(), CatError> {
    /// Bytes per read: several messages, which a remote source sends at once.
    const READ_SIZE: usize = 4 << 20;
    let entry = tree.resolve(path, true)?;
    if entry.attr.kind == Kind::Directory {
        return Err(Errno::EISDIR.into());
    }
    let file = tree.with(|cx| entry.node.open(cx, OpenFlags::READ))?;
    // Files of procfs report a size of zero.
    let size = usize::try_from(entry.attr.size).unwrap_or(READ_SIZE);
    let mut buffer = vec![0; (size + 1).clamp(64 << 10, READ_SIZE)];
    let mut offset = 0;
    loop {
        let mut sink = SliceSink::new(&mut buffer);
        let len = vfs::Sink::room(&sink);
        let got = tree.with(|cx| file.read(cx, offset, len, &mut sink))?;
        if got == 0 {
            return Ok(());
        }
        io::stdout()
            .write_all(sink.filled())
            .map_err(CatError::Output)?;
        offset += got as u64;
    }
}
