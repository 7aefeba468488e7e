//! Extended attributes.

use alloc::vec::Vec;

use super::meta::MetadataReader;
use super::{Error, Image, Inode, Storage};
use crate::layout::{Compat, LONG_PREFIX, XattrEntry, XattrHeader, prefix_name};

impl Image {
    /// Returns the value of the attribute with the full name `name`.
    pub fn xattr<S: Storage>(
        &self,
        storage: &S,
        inode: &Inode,
        name: &[u8],
    ) -> Result<Option<Vec<u8>>, Error<S::Error>> {
        let mut found = None;
        self.for_each_xattr(storage, inode, &mut |attribute, value| {
            if attribute != name {
                return Ok(true);
            }
            found = Some(value()?);
            Ok(false)
        })?;
        Ok(found)
    }

    /// Calls `each` with the attributes' full names and functions that return their values, until
    /// it returns `false`.
    pub fn for_each_xattr<S: Storage>(
        &self,
        storage: &S,
        inode: &Inode,
        each: &mut XattrVisitor<'_, S::Error>,
    ) -> Result<(), Error<S::Error>> {
        if inode.xattr_size <= XattrHeader::SIZE {
            return Ok(());
        }
        let beyond = Error::Corrupt("extended attributes beyond their area");
        let end = inode.xattr_end();
        let mut meta = MetadataReader::new(self, storage, inode.in_metabox());
        let header = meta.bytes(inode.xattr_offset, XattrHeader::SIZE)?;
        let header = XattrHeader::parse(header).expect("as long as it is");
        let shared_at = inode.xattr_offset + XattrHeader::SIZE as u64;
        let mut at = shared_at + u64::from(header.shared) * 4;
        if at > end {
            return Err(beyond);
        }
        while at < end {
            let (next, go_on) = self.visit_xattr(&mut meta, at, Some(end), each)?;
            if !go_on {
                return Ok(());
            }
            at = next;
        }
        let in_metabox = self.compat.contains(Compat::SHARED_IN_METABOX);
        let mut shared = MetadataReader::new(self, storage, in_metabox);
        for number in 0..header.shared {
            let bytes = meta.bytes(shared_at + u64::from(number) * 4, 4)?;
            let id = u32::from_le_bytes(bytes.try_into().expect("4 bytes"));
            let at = self.xattr + u64::from(id) * 4;
            if !self.visit_xattr(&mut shared, at, None, each)?.1 {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Passes the attribute at `at`, which must not extend beyond `end`, to `each`. Returns the
    /// offset of the next, and whether to continue.
    fn visit_xattr<S: Storage>(
        &self,
        meta: &mut MetadataReader<'_, S>,
        at: u64,
        end: Option<u64>,
        each: &mut XattrVisitor<'_, S::Error>,
    ) -> Result<(u64, bool), Error<S::Error>> {
        let beyond = Error::Corrupt("extended attributes beyond their area");
        if end.is_some_and(|end| at + XattrEntry::SIZE as u64 > end) {
            return Err(beyond);
        }
        let entry = XattrEntry::parse(meta.bytes(at, XattrEntry::SIZE)?).expect("4 bytes");
        let name_at = at + XattrEntry::SIZE as u64;
        let value_at = name_at + u64::from(entry.name_len);
        let next = (value_at + u64::from(entry.value_len)).next_multiple_of(4);
        if end.is_some_and(|end| next > end) {
            return Err(beyond);
        }
        // As in Linux, attributes of unknown namespaces are skipped.
        let Some(mut name) = self.prefix_of(entry.prefix) else {
            return Ok((next, true));
        };
        name.extend_from_slice(meta.bytes(name_at, entry.name_len.into())?);
        if name.contains(&0) {
            return Err(Error::Corrupt("an attribute name with a NUL"));
        }
        let mut value = || {
            let bytes = meta.bytes(value_at, entry.value_len.into())?;
            Ok(bytes.to_vec())
        };
        Ok((next, each(&name, &mut value)?))
    }

    /// Returns the name prefix with this number.
    fn prefix_of(&self, prefix: u8) -> Option<Vec<u8>> {
        let (base, infix) = match prefix & LONG_PREFIX {
            0 => (prefix, &[][..]),
            _ => {
                let long = self.prefixes.get(usize::from(prefix & !LONG_PREFIX))?;
                (long.base, &long.infix[..])
            }
        };
        let mut name = prefix_name(base)?.as_bytes().to_vec();
        name.extend_from_slice(infix);
        Some(name)
    }
}

/// A callback that takes an attribute's name and a function that returns its value, and returns
/// whether to continue.
pub type XattrVisitor<'a, E> =
    dyn FnMut(&[u8], &mut dyn FnMut() -> Result<Vec<u8>, Error<E>>) -> Result<bool, Error<E>> + 'a;
