//! Small files, one behind the other, as they go into the packed inode.
//!
//! What each takes of it is known before any of them is read, so none is kept meanwhile: who reads a part of all reads the files.

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use crate::Contents;

/// Files that are put together.
#[derive(Default)]
pub(super) struct Small {
    members: Vec<Member>,
    len: u64,
}

struct Member {
    /// Where it begins.
    start: u64,
    /// Index of the file among the visits.
    at: usize,
    contents: Arc<dyn Contents>,
}

/// What went wrong with one of them.
#[derive(Debug)]
pub(super) struct OfMember {
    /// Index of the file among the visits.
    pub(super) at: usize,
    error: io::Error,
}

impl fmt::Display for OfMember {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for OfMember {}

impl Small {
    /// Puts a file behind the others, and says where.
    pub(super) fn add(&mut self, at: usize, contents: &Arc<dyn Contents>) -> u64 {
        let start = self.len;
        self.members.push(Member {
            start,
            at,
            contents: contents.clone(),
        });
        self.len += contents.len();
        start
    }

    /// Fills `buffer` with what is at `from` of a file; one that has been read to its end is closed.
    fn part(member: &Member, from: u64, buffer: &mut [u8]) -> io::Result<()> {
        let ends = from + buffer.len() as u64 == member.contents.len();
        member.contents.read(from, buffer).map_err(|error| {
            io::Error::other(OfMember {
                at: member.at,
                error,
            })
        })?;
        if ends {
            member.contents.close();
        }
        Ok(())
    }
}

impl Contents for Small {
    fn len(&self) -> u64 {
        self.len
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let end = offset + buffer.len() as u64;
        let first = self
            .members
            .partition_point(|member| member.start + member.contents.len() <= offset);
        let mut filled = 0;
        for member in self.members[first..]
            .iter()
            .take_while(|member| member.start < end)
        {
            let from = offset + filled as u64 - member.start;
            let len = (member.contents.len() - from).min((buffer.len() - filled) as u64) as usize;
            Small::part(member, from, &mut buffer[filled..filled + len])?;
            filled += len;
        }
        Ok(())
    }

    fn data(&self) -> io::Result<Vec<Range<u64>>> {
        Ok(std::iter::once(0..self.len).collect())
    }

    fn close(&self) {
        for member in &self.members {
            member.contents.close();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contents::Bytes;

    #[test]
    fn any_part_is_of_the_files_it_lies_in() {
        let mut small = Small::default();
        for (at, bytes) in ["abc", "defg", "h"].into_iter().enumerate() {
            let contents: Arc<dyn Contents> = Arc::new(Bytes(bytes.into()));
            small.add(at, &contents);
        }
        for start in 0..=8 {
            for end in start..=8 {
                let mut part = vec![0; end - start];
                small.read(start as u64, &mut part).expect("read");
                assert_eq!(part, b"abcdefgh"[start..end], "{start} to {end}");
            }
        }
    }
}
