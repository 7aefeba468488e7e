//! Listings: READDIR, READDIRPLUS.

use wire::{Malformed, Put, Xdr, XdrReader, xdr_struct};

use super::{Attributes, Handle, Verifier};

xdr_struct! {
    /// READDIR (section 3.3.16).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ReadDirArgs {
        /// Of what.
        pub dir: Handle,
        /// Behind which entry.
        pub cookie: u64,
        /// What came with the cookie.
        pub verifier: Verifier,
        /// How many bytes the answer may have, from its attributes on.
        pub count: u32,
    }

    /// READDIRPLUS (section 3.3.17).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ReadDirPlusArgs {
        /// Of what.
        pub dir: Handle,
        /// Behind which entry.
        pub cookie: u64,
        /// What came with the cookie.
        pub verifier: Verifier,
        /// How many bytes the names, numbers and cookies may have.
        pub dir_count: u32,
        /// How many bytes the answer may have, from its attributes on.
        pub max_count: u32,
    }

    /// What READDIR answers.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct ReadDirOk<'a> {
        /// The directory's.
        pub attributes: Option<Attributes>,
        /// To go on with.
        pub verifier: Verifier,
        /// The entries.
        pub entries: List<Entry<'a>>,
        /// Whether there are no more.
        pub eof: bool,
    }

    /// What READDIRPLUS answers.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct ReadDirPlusOk<'a> {
        /// The directory's.
        pub attributes: Option<Attributes>,
        /// To go on with.
        pub verifier: Verifier,
        /// The entries.
        pub entries: List<EntryPlus<'a>>,
        /// Whether there are no more.
        pub eof: bool,
    }

    /// An entry (`entry3`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Entry<'a> {
        /// Its number.
        pub fileid: u64,
        /// Its name.
        pub name: &'a [u8],
        /// Where to go on behind it.
        pub cookie: u64,
    }

    /// An entry with what LOOKUP tells (`entryplus3`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct EntryPlus<'a> {
        /// As READDIR has it.
        pub entry: Entry<'a>,
        /// Its attributes.
        pub attributes: Option<Attributes>,
        /// What it is.
        pub object: Option<Handle>,
    }
}

/// A linked list: before each element that there is one, behind the last that there is none.
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
