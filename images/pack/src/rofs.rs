//! ROFS writer, for OSv.

use std::collections::HashMap;
use std::io;

use ::rofs::{BLOCK, TooLong, Writer};

use crate::error::{Error, Result, display_path};
use crate::plan::{NodeId, Plan, Visit};
use crate::{Contents, Kind, Output, Progress};

/// Number of bytes copied at a time.
const COPY_SIZE: u64 = 1 << 20;

/// Properties of the tree that ROFS cannot store, besides permissions, owners and times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Devices, FIFOs and sockets, which are omitted.
    pub special: u64,
    /// Nodes with extended attributes, which are stored without them.
    pub xattrs: u64,
    /// Files with holes, which are stored as zeros.
    pub sparse: u64,
}

/// Writes `plan` as a ROFS image.
pub fn write(plan: &Plan, output: &mut Output, progress: &dyn Progress) -> Result<Dropped> {
    let visits = plan.walk()?;
    let mut dropped = Dropped::default();
    progress.set_total(plan.contents_size(&visits));
    for Visit { node, .. } in &visits {
        dropped.xattrs += u64::from(!plan.attributes(*node).xattrs.is_empty());
    }
    output.append(&[0; BLOCK as usize])?;
    let mut walk = TreeWriter {
        plan,
        output,
        progress,
        writer: Writer::new(),
        numbers: HashMap::new(),
        path: Vec::new(),
        dropped,
    };
    walk.run()?;
    let TreeWriter {
        writer,
        output,
        dropped,
        ..
    } = walk;
    let finished = writer.finish();
    debug_assert_eq!(finished.tables_offset, output.position());
    output.append(&finished.tables)?;
    output.overwrite(0, &finished.superblock)?;
    Ok(dropped)
}

struct TreeWriter<'a> {
    plan: &'a Plan,
    output: &'a mut Output,
    progress: &'a dyn Progress,
    writer: Writer,
    /// The inode numbers of nodes that may have more names.
    numbers: HashMap<NodeId, u64>,
    /// The current path.
    path: Vec<u8>,
    dropped: Dropped,
}

impl TreeWriter<'_> {
    fn run(&mut self) -> Result<()> {
        let plan = self.plan;
        let children = |node| match plan.kind(node) {
            Kind::Directory(children) => Some(children.iter()),
            _ => None,
        };
        let mut open: Vec<_> = children(NodeId::ROOT).into_iter().collect();
        while let Some(dir) = open.last_mut() {
            let Some((name, &node)) = dir.next() else {
                open.pop();
                if !open.is_empty() {
                    self.writer.leave();
                    self.pop_name();
                }
                continue;
            };
            self.path.push(b'/');
            self.path.extend(name);
            self.add(name, node)
                .map_err(|error| Error::from(error).of(display_path(&self.path)))?;
            match children(node) {
                Some(children) => open.push(children),
                None => self.pop_name(),
            }
        }
        Ok(())
    }

    fn pop_name(&mut self) {
        let last = self.path.iter().rposition(|&byte| byte == b'/');
        self.path.truncate(last.unwrap_or_default());
    }

    fn add(&mut self, name: &[u8], node: NodeId) -> io::Result<()> {
        let long =
            |_: TooLong| io::Error::other("a name or symbolic link of more than 65535 bytes");
        if let Some(&number) = self.numbers.get(&node) {
            return self.writer.link(name, number).map_err(long);
        }
        match self.plan.kind(node) {
            Kind::Directory(_) => self.writer.enter(name).map_err(long)?,
            Kind::Symlink(target) => {
                let number = self.writer.symlink(name, target).map_err(long)?;
                self.numbers.insert(node, number);
            }
            Kind::File(contents) => {
                let (number, at) = self.writer.file(name, contents.len()).map_err(long)?;
                self.numbers.insert(node, number);
                debug_assert_eq!(at, self.output.position());
                self.copy(&**contents)?;
            }
            _ => self.dropped.special += 1,
        }
        Ok(())
    }

    fn copy(&mut self, contents: &dyn Contents) -> io::Result<()> {
        let len = contents.len();
        let data = contents
            .data_ranges()?
            .iter()
            .map(|data| data.end - data.start)
            .sum::<u64>();
        self.dropped.sparse += u64::from(data < len);
        for at in (0..len).step_by(COPY_SIZE as usize) {
            let part = at..len.min(at + COPY_SIZE);
            self.output.copy(contents, part.clone())?;
            self.progress.advance(part.end - part.start);
        }
        contents.close();
        self.output.pad(BLOCK)
    }
}
