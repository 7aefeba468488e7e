//! Directory listings: READDIR, READDIRPLUS.

use wire::{Malformed, Put, Xdr, XdrReader, xdr_struct};

use super::{Attributes, Handle, Verifier};

xdr_struct! {
    /// The arguments of READDIR (section 3.3.16).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ReadDirArgs {
        /// The directory's handle.
        pub dir: Handle,
        /// The cookie of the entry to continue after.
        pub cookie: u64,
        /// The verifier that was returned with the cookie.
        pub verifier: Verifier,
        /// The maximum length in bytes of the results, from the attributes on.
        pub count: u32,
    }

    /// The arguments of READDIRPLUS (section 3.3.17).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ReadDirPlusArgs {
        /// The directory's handle.
        pub dir: Handle,
        /// The cookie of the entry to continue after.
        pub cookie: u64,
        /// The verifier that was returned with the cookie.
        pub verifier: Verifier,
        /// The maximum length in bytes of names, file ids and cookies.
        pub dir_count: u32,
        /// The maximum length in bytes of the results, from the attributes on.
        pub max_count: u32,
    }

    /// The results of READDIR.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct ReadDirOk<'a> {
        /// The directory's attributes.
        pub attributes: Option<Attributes>,
        /// The cookie verifier for the next request.
        pub verifier: Verifier,
        /// The entries.
        pub entries: List<Entry<'a>>,
        /// Whether the directory has no more entries.
        pub eof: bool,
    }

    /// The results of READDIRPLUS.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct ReadDirPlusOk<'a> {
        /// The directory's attributes.
        pub attributes: Option<Attributes>,
        /// The cookie verifier for the next request.
        pub verifier: Verifier,
        /// The entries.
        pub entries: List<EntryPlus<'a>>,
        /// Whether the directory has no more entries.
        pub eof: bool,
    }

    /// An entry (`entry3`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Entry<'a> {
        /// The file id.
        pub fileid: u64,
        /// The name.
        pub name: &'a [u8],
        /// The cookie for continuing after this entry.
        pub cookie: u64,
    }

    /// An entry with its attributes and handle (`entryplus3`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct EntryPlus<'a> {
        /// The entry as in READDIR.
        pub entry: Entry<'a>,
        /// Its attributes.
        pub attributes: Option<Attributes>,
        /// Its handle.
        pub object: Option<Handle>,
    }
}

/// A linked list: `true` before each element, and `false` after the last one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List<T>(pub Vec<T>);

impl<'a, T: Xdr<'a>> Xdr<'a> for List<T> {
    fn get(from: &mut XdrReader<'a>) -> Result<Self, Malformed> {
        let mut elements = Vec::new();
        while let Some(element) = Option::get(from)? {
            elements.push(element);
        }
        Ok(List(elements))
    }

    fn put(&self, to: &mut impl Put) {
        for element in &self.0 {
            true.put(to);
            element.put(to);
        }
        false.put(to);
    }
}
