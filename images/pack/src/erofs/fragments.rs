//! Contents of the packed inode: the concatenation of small files, and of the tails of larger ones.
//!
//! The offset of each part is known before any is read, so none is held in memory: a read of the
//! concatenation reads the files. Equal parts are stored once; they were read before to hash them,
//! and are verified when they are read again.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use crate::Contents;

/// A file, or the tail of one.
#[derive(Clone)]
pub(super) struct Fragment {
    /// Index of the file among the visits.
    pub(super) at: usize,
    pub(super) contents: Arc<dyn Contents>,
    /// The range of the part.
    pub(super) range: Range<u64>,
}

impl Fragment {
    pub(super) fn len(&self) -> u64 {
        self.range.end - self.range.start
    }
}

/// Concatenated parts.
#[derive(Default)]
pub(super) struct Fragments {
    /// In order, without duplicates.
    fragments: Vec<PlacedFragment>,
    len: u64,
}

struct PlacedFragment {
    /// Its offset.
    start: u64,
    fragment: Fragment,
    /// Its hash, if others were found to be equal to it.
    hash: Option<[u8; 32]>,
}

/// An error of one part.
#[derive(Debug)]
pub(super) struct FragmentError {
    /// Index of the file among the visits.
    pub(super) at: usize,
    error: io::Error,
}

impl fmt::Display for FragmentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for FragmentError {}

/// Returns the members that share their length with another, and so may be equal: their hashes are
/// needed.
pub(super) fn possible_duplicates(members: &[Fragment]) -> Vec<usize> {
    let mut counts = HashMap::<u64, usize>::new();
    for member in members {
        *counts.entry(member.len()).or_default() += 1;
    }
    let is_alike = |at: &usize| counts[&members[*at].len()] > 1;
    (0..members.len()).filter(is_alike).collect()
}

impl Fragments {
    /// Concatenates members in order, and returns the offset of each. `hashes` holds the known
    /// hashes, by index.
    pub(super) fn of(
        members: Vec<Fragment>,
        hashes: &HashMap<usize, [u8; 32]>,
    ) -> (Fragments, Vec<u64>) {
        let mut gathered = Fragments::default();
        let mut known = HashMap::<(u64, [u8; 32]), usize>::new();
        let mut places = Vec::with_capacity(members.len());
        for (at, member) in members.into_iter().enumerate() {
            if let Some(&hash) = hashes.get(&at) {
                let number =
                    *(known.entry((member.len(), hash))).or_insert(gathered.fragments.len());
                if let Some(same) = gathered.fragments.get_mut(number) {
                    same.hash = Some(hash);
                    places.push(same.start);
                    continue;
                }
            }
            let start = gathered.len;
            places.push(start);
            gathered.len += member.len();
            gathered.fragments.push(PlacedFragment {
                start,
                fragment: member,
                hash: None,
            });
        }
        (gathered, places)
    }
}

impl PlacedFragment {
    fn end(&self) -> u64 {
        self.start + self.fragment.len()
    }

    /// Fills `buffer` from offset `from` of the member, which is closed when it was read to its
    /// end.
    fn read(&self, from: u64, buffer: &mut [u8]) -> io::Result<()> {
        let Fragment {
            contents, range, ..
        } = &self.fragment;
        match self.hash {
            None => contents.read(range.start + from, buffer)?,
            Some(hash) => {
                let mut whole = vec![0; self.fragment.len() as usize];
                contents.read(range.start, &mut whole)?;
                if *blake3::hash(&whole).as_bytes() != hash {
                    return Err(io::Error::other("the file changed while it was read"));
                }
                buffer.copy_from_slice(&whole[from as usize..][..buffer.len()]);
            }
        }
        if from + buffer.len() as u64 == self.fragment.len() {
            contents.close();
        }
        Ok(())
    }
}

impl Contents for Fragments {
    fn len(&self) -> u64 {
        self.len
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let end = offset + buffer.len() as u64;
        let first = (self.fragments).partition_point(|placed| placed.end() <= offset);
        let mut filled = 0;
        let those = self.fragments[first..].iter();
        for placed in those.take_while(|placed| placed.start < end) {
            let from = offset + filled as u64 - placed.start;
            let left = (buffer.len() - filled) as u64;
            let len = (placed.fragment.len() - from).min(left) as usize;
            let part = placed.read(from, &mut buffer[filled..filled + len]);
            let at = placed.fragment.at;
            part.map_err(|error| io::Error::new(error.kind(), FragmentError { at, error }))?;
            filled += len;
        }
        Ok(())
    }

    fn data_ranges(&self) -> io::Result<Vec<Range<u64>>> {
        Ok(std::iter::once(0..self.len).collect())
    }

    fn close(&self) {
        for placed in &self.fragments {
            placed.fragment.contents.close();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contents::Bytes;

    fn member(bytes: &str, range: Range<u64>) -> Fragment {
        Fragment {
            at: 7,
            contents: Arc::new(Bytes(bytes.into())),
            range,
        }
    }

    #[test]
    fn any_part_is_of_the_files_it_lies_in() {
        let members = vec![
            member("abc", 0..3),
            member("xxdefg", 2..6),
            member("h", 0..1),
        ];
        let (gathered, places) = Fragments::of(members, &HashMap::new());
        assert_eq!(places, [0, 3, 7]);
        for start in 0..=8 {
            for end in start..=8 {
                let mut part = vec![0; end - start];
                gathered.read(start as u64, &mut part).expect("read");
                assert_eq!(part, b"abcdefgh"[start..end], "{start} to {end}");
            }
        }
    }

    #[test]
    fn equal_ones_are_there_once_and_have_to_stay_equal() {
        let members = vec![
            member("abcd", 0..4),
            member("12", 0..2),
            member("..abcd", 2..6),
            member("abce", 0..4),
        ];
        assert_eq!(possible_duplicates(&members), [0, 2, 3]);
        let hash = |bytes: &str| *blake3::hash(bytes.as_bytes()).as_bytes();
        let mut hashes = HashMap::from([(0, hash("abcd")), (2, hash("abcd")), (3, hash("abce"))]);
        let (gathered, places) = Fragments::of(members.clone(), &hashes);
        assert_eq!((places, gathered.len()), (vec![0, 4, 0, 6], 10));
        let mut all = [0; 10];
        gathered.read(0, &mut all).expect("read");
        assert_eq!(&all, b"abcd12abce");
        // Their contents changed after they were found to be equal.
        hashes.insert(0, hash("dcba"));
        hashes.insert(2, hash("dcba"));
        let (gathered, _) = Fragments::of(members, &hashes);
        let error = gathered.read(3, &mut all[..2]).expect_err("changed");
        assert!(error.to_string().contains("the file changed"), "{error}");
    }
}
