//! Decodes the directory entries that a server sends.

use vfs::{Kind, Name, NodeId};
use wire::{Malformed, Reader};

use super::attr::id_of;
use crate::field::Field;
use crate::{Dialect, Qid, QidType, Stat};

/// An entry of an Rreaddir.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dirent<'a> {
    /// The name, which may be `.` or `..`.
    pub name: &'a [u8],
    /// The node number.
    pub id: NodeId,
    /// The file type, if the server sent it.
    pub kind: Option<Kind>,
    /// The offset at which the next Treaddir continues after this entry.
    pub offset: u64,
}

impl Dirent<'_> {
    /// Returns whether the entry is `.` or `..`.
    pub fn is_dot(&self) -> bool {
        matches!(self.name, b"." | b"..")
    }
}

/// Yields the entries in the payload of an Rreaddir: `qid[13] offset[8] type[1] name[s]`. An
/// invalid name ends them with an error, so that a path made of it cannot lead elsewhere.
pub fn entries(data: &[u8]) -> impl Iterator<Item = Result<Dirent<'_>, Malformed>> {
    let mut from = Reader::new(data);
    std::iter::from_fn(move || {
        if from.rest().is_empty() {
            return None;
        }
        let entry = entry(&mut from);
        if entry.is_err() {
            from = Reader::new(&[]);
        }
        Some(entry)
    })
}

fn entry<'a>(from: &mut Reader<'a>) -> Result<Dirent<'a>, Malformed> {
    let qid = Qid::get(from, Dialect::Linux)?;
    let offset = from.u64()?;
    let kind = Kind::from_d_type(from.u8()?).or(kind_of(&qid));
    let name = checked(Field::get(from, Dialect::Linux)?)?;
    if offset == 0 {
        return Err(Malformed::new("expected an offset to go on from, got 0"));
    }
    Ok(Dirent {
        name,
        id: id_of(&qid),
        kind,
        offset,
    })
}

/// Decodes the next stat record of a directory's contents in 9P2000 and 9P2000.u; returns `None` at
/// the end.
pub fn record<'a>(from: &mut Reader<'a>, dialect: Dialect) -> Result<Option<Stat<'a>>, Malformed> {
    if from.rest().is_empty() {
        return Ok(None);
    }
    let stat = Stat::decode(from, dialect)?;
    checked(stat.name)?;
    Ok(Some(stat))
}

fn checked(name: &[u8]) -> Result<&[u8], Malformed> {
    if matches!(name, b"." | b"..") || Name::new(name).is_ok() {
        return Ok(name);
    }
    Err(Malformed::new(format!(
        "expected the name of an entry, got \"{}\"",
        name.escape_ascii()
    )))
}

/// Returns the file type if the qid shows it: directory or symbolic link.
pub fn kind_of(qid: &Qid) -> Option<Kind> {
    if qid.kind.contains(QidType::DIR) {
        Some(Kind::Directory)
    } else if qid.kind.contains(QidType::SYMLINK) {
        Some(Kind::Symlink)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(offset: u64, d_type: u8, name: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0x80, 1, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0];
        bytes.extend(offset.to_le_bytes());
        bytes.push(d_type);
        bytes.extend((name.len() as u16).to_le_bytes());
        bytes.extend(name);
        bytes
    }

    #[test]
    fn entries_come_one_by_one() {
        let data = [raw(1, 4, b"."), raw(2, 8, b"file"), raw(3, 0, b"x")].concat();
        let all: Vec<_> = entries(&data).map(|entry| entry.expect("good")).collect();
        assert_eq!(all.len(), 3);
        assert!(all[0].is_dot() && !all[1].is_dot());
        assert_eq!((all[1].name, all[1].offset), (&b"file"[..], 2));
        assert_eq!(all[1].kind, Some(Kind::File));
        assert_eq!((all[2].kind, all[2].id), (Some(Kind::Directory), 7));
    }

    #[test]
    fn names_that_lead_elsewhere_and_cut_entries_are_refused() {
        for bad in [
            raw(1, 8, b"../../etc/passwd"),
            raw(1, 8, b""),
            raw(1, 8, b"a\0b"),
            raw(0, 8, b"a"),
            raw(1, 8, b"abc")[..25].to_vec(),
        ] {
            let all: Vec<_> = entries(&bad).collect();
            assert_eq!(all.len(), 1);
            assert!(all[0].is_err());
        }
    }
}
