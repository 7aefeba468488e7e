//! Attributes (RFC 8881 section 5, RFC 7862 section 12.2, RFC 8275, RFC 8276, RFC 9754). One table
//! generates the struct of all attributes, its encoder and its decoder.

use vfs::{Kind, Time};
use wire::{Malformed, Put, Xdr, XdrReader, xdr_enum, xdr_struct, xdr_union};

/// A set of attribute numbers, or of other small numbers (`bitmap4`). Unknown numbers are dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bitmap(pub(crate) [u32; Bitmap::WORDS]);

impl Bitmap {
    const WORDS: usize = 3;

    /// Returns the set of these numbers.
    pub(crate) const fn of(numbers: &[u32]) -> Bitmap {
        let mut words = [0; Bitmap::WORDS];
        let mut at = 0;
        while at < numbers.len() {
            words[numbers[at] as usize / 32] |= 1 << (numbers[at] % 32);
            at += 1;
        }
        Bitmap(words)
    }

    /// Returns whether the set contains `number`.
    pub(crate) const fn has(&self, number: u32) -> bool {
        let word = number as usize / 32;
        word < Bitmap::WORDS && self.0[word] & (1 << (number % 32)) != 0
    }

    /// Adds `number`.
    pub(crate) fn add(&mut self, number: u32) {
        self.0[number as usize / 32] |= 1 << (number % 32);
    }

    /// Returns the union.
    pub(crate) fn or(&self, other: &Bitmap) -> Bitmap {
        Bitmap(std::array::from_fn(|at| self.0[at] | other.0[at]))
    }

    /// Returns the intersection.
    pub(crate) fn and(&self, other: &Bitmap) -> Bitmap {
        Bitmap(std::array::from_fn(|at| self.0[at] & other.0[at]))
    }

    /// Returns the difference.
    pub(crate) fn without(&self, other: &Bitmap) -> Bitmap {
        Bitmap(std::array::from_fn(|at| self.0[at] & !other.0[at]))
    }

    /// Returns whether the set is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.0 == [0; Bitmap::WORDS]
    }
}

impl Bitmap {
    /// Decodes a set; returns also whether it contains numbers beyond the words kept here.
    fn get_and_beyond(from: &mut XdrReader<'_>) -> Result<(Bitmap, bool), Malformed> {
        let (mut set, mut beyond) = (Bitmap::default(), false);
        for at in 0..from.u32()? as usize {
            let word = from.u32()?;
            match set.0.get_mut(at) {
                Some(known) => *known = word,
                None => beyond |= word != 0,
            }
        }
        Ok((set, beyond))
    }
}

impl Xdr<'_> for Bitmap {
    fn get(from: &mut XdrReader<'_>) -> Result<Bitmap, Malformed> {
        Bitmap::get_and_beyond(from).map(|(set, _)| set)
    }

    fn put(&self, to: &mut impl Put) {
        let len = self
            .0
            .iter()
            .rposition(|&word| word != 0)
            .map_or(0, |at| at + 1);
        (len as u32).put(to);
        self.0[..len].iter().for_each(|word| word.put(to));
    }
}

xdr_enum! {
    /// The type of a node (`nfs_ftype4`).
    pub(crate) enum FileType {
        Regular = 1,
        Directory = 2,
        Block = 3,
        Character = 4,
        Link = 5,
        Socket = 6,
        Fifo = 7,
        AttributeDirectory = 8,
        NamedAttribute = 9,
    }
}

impl From<Kind> for FileType {
    fn from(kind: Kind) -> FileType {
        match kind {
            Kind::File => FileType::Regular,
            Kind::Directory => FileType::Directory,
            Kind::BlockDevice => FileType::Block,
            Kind::CharDevice => FileType::Character,
            Kind::Symlink => FileType::Link,
            Kind::Socket => FileType::Socket,
            Kind::Fifo => FileType::Fifo,
        }
    }
}

impl FileType {
    /// Returns the kind of node; `None` for named attributes.
    pub(crate) fn kind(self) -> Option<Kind> {
        Some(match self {
            FileType::Regular => Kind::File,
            FileType::Directory => Kind::Directory,
            FileType::Block => Kind::BlockDevice,
            FileType::Character => Kind::CharDevice,
            FileType::Link => Kind::Symlink,
            FileType::Socket => Kind::Socket,
            FileType::Fifo => Kind::Fifo,
            FileType::AttributeDirectory | FileType::NamedAttribute => return None,
        })
    }
}

xdr_struct! {
    /// A file system id (`fsid4`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct FsId {
        pub(crate) major: u64,
        pub(crate) minor: u64,
    }

    /// A device number (`specdata4`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct SpecData {
        pub(crate) major: u32,
        pub(crate) minor: u32,
    }

    /// A time (`nfstime4`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct NfsTime {
        pub(crate) seconds: i64,
        pub(crate) nseconds: u32,
    }

    /// Permissions, and the client's umask (`mode_umask4`, RFC 8275).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct ModeUmask {
        pub(crate) mode: u32,
        pub(crate) umask: u32,
    }

    /// A security label (`sec_label4`, RFC 7862 section 12.2.4).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct SecLabel<'a> {
        /// The security model that defines the label (RFC 7569); 0 for one that both sides agree
        /// on.
        pub(crate) format: u32,
        /// The policy within that model.
        pub(crate) policy: u32,
        pub(crate) label: &'a [u8],
    }

    /// The OPEN arguments that a server supports, as sets of their values (`open_arguments4`, RFC
    /// 9754 section 4).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct OpenArguments {
        pub(crate) share_access: Bitmap,
        pub(crate) share_deny: Bitmap,
        /// The supported bits that request or refuse delegations.
        pub(crate) share_access_want: Bitmap,
        pub(crate) open_claim: Bitmap,
        pub(crate) create_mode: Bitmap,
    }

    /// The locations of a file system (`fs_locations4`, RFC 8881 section 11.16).
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub(crate) struct FsLocations<'a> {
        /// Its path on this server, as components.
        pub(crate) root: Vec<&'a [u8]>,
        pub(crate) locations: Vec<FsLocation<'a>>,
    }

    /// Servers that have the file system at the same path (`fs_location4`).
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub(crate) struct FsLocation<'a> {
        pub(crate) servers: Vec<&'a [u8]>,
        /// Its path on those servers, as components.
        pub(crate) path: Vec<&'a [u8]>,
    }

    /// An entry of an access control list (`nfsace4`).
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub(crate) struct Ace<'a> {
        pub(crate) kind: u32,
        pub(crate) flag: u32,
        pub(crate) mask: u32,
        pub(crate) who: Who<'a>,
    }
}

impl From<Time> for NfsTime {
    fn from(time: Time) -> NfsTime {
        NfsTime {
            seconds: time.sec,
            nseconds: time.nsec,
        }
    }
}

impl From<NfsTime> for Time {
    fn from(time: NfsTime) -> Time {
        Time {
            sec: time.seconds,
            nsec: time.nseconds,
        }
    }
}

xdr_union! {
    /// A new value of a time (`settime4`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum SetTime {
        /// The server's current time.
        Server = 0,
        Client(NfsTime) = 1,
    }
}

/// An owner or group: a numeric id such as `1000`, or a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who<'a> {
    Number(u32),
    Name(&'a [u8]),
}

impl<'a> Xdr<'a> for Who<'a> {
    fn get(from: &mut XdrReader<'a>) -> Result<Who<'a>, Malformed> {
        let name = <&[u8]>::get(from)?;
        // A number has neither leading zeros nor a sign.
        let digits =
            name.iter().all(u8::is_ascii_digit) && (name.len() == 1 || !name.starts_with(b"0"));
        let number = std::str::from_utf8(name).ok().filter(|_| digits);
        Ok(match number.and_then(|number| number.parse().ok()) {
            Some(number) => Who::Number(number),
            None => Who::Name(name),
        })
    }

    fn put(&self, to: &mut impl Put) {
        match *self {
            Who::Name(name) => name.put(to),
            Who::Number(mut number) => {
                let mut digits = [0; 10];
                let mut at = digits.len();
                loop {
                    at -= 1;
                    digits[at] = b'0' + (number % 10) as u8;
                    number /= 10;
                    if number == 0 {
                        break;
                    }
                }
                (&digits[at..]).put(to);
            }
        }
    }
}

macro_rules! attributes {
    ($($(#[$meta:meta])* $number:literal $field:ident $constant:ident: $type:ty,)*) => {
        /// The attribute numbers.
        pub(crate) mod number {
            $($(#[$meta])* pub(crate) const $constant: u32 = $number;)*
        }

        /// A set of attributes with their values (`fattr4`).
        #[derive(Clone, Debug, Default, PartialEq)]
        pub(crate) struct Attributes<'a> {
            $($(#[$meta])* pub(crate) $field: Option<$type>,)*
            /// Whether the set contains unknown attributes. Their values cannot be skipped, so all
            /// values are missing then.
            pub(crate) unknown: bool,
        }

        impl Attributes<'_> {
            /// All known attributes.
            pub(crate) const KNOWN: Bitmap = Bitmap::of(&[$($number,)*]);

            /// Returns the set of the attributes that have values.
            pub(crate) fn set(&self) -> Bitmap {
                let mut set = Bitmap::default();
                $(if self.$field.is_some() { set.add($number); })*
                set
            }

            /// Writes the values without the bitmap and the length.
            pub(crate) fn put_values(&self, to: &mut impl Put) {
                $(if let Some(value) = &self.$field { value.put(to); })*
            }
        }

        impl<'a> Attributes<'a> {
            fn get_values(set: Bitmap, from: &mut XdrReader<'a>) -> Result<Self, Malformed> {
                let mut found = Attributes::default();
                $(if set.has($number) { found.$field = Some(Xdr::get(from)?); })*
                Ok(found)
            }
        }
    };
}

attributes! {
    0 supported SUPPORTED: Bitmap,
    1 kind TYPE: FileType,
    2 handle_expires FH_EXPIRE_TYPE: u32,
    3 change CHANGE: u64,
    4 size SIZE: u64,
    5 link_support LINK_SUPPORT: bool,
    6 symlink_support SYMLINK_SUPPORT: bool,
    7 named_attributes NAMED_ATTR: bool,
    8 fsid FSID: FsId,
    9 unique_handles UNIQUE_HANDLES: bool,
    10 lease_time LEASE_TIME: u32,
    /// The reason for which a READDIR entry has no attributes.
    11 read_error RDATTR_ERROR: u32,
    12 acl ACL: Vec<Ace<'a>>,
    13 acl_support ACLSUPPORT: u32,
    15 can_set_time CANSETTIME: bool,
    16 case_insensitive CASE_INSENSITIVE: bool,
    17 case_preserving CASE_PRESERVING: bool,
    18 chown_restricted CHOWN_RESTRICTED: bool,
    19 handle FILEHANDLE: &'a [u8],
    20 fileid FILEID: u64,
    21 files_available FILES_AVAIL: u64,
    22 files_free FILES_FREE: u64,
    23 files_total FILES_TOTAL: u64,
    24 locations FS_LOCATIONS: FsLocations<'a>,
    26 homogeneous HOMOGENEOUS: bool,
    27 max_file_size MAXFILESIZE: u64,
    28 max_link MAXLINK: u32,
    29 max_name MAXNAME: u32,
    30 max_read MAXREAD: u64,
    31 max_write MAXWRITE: u64,
    33 mode MODE: u32,
    34 no_trunc NO_TRUNC: bool,
    35 links NUMLINKS: u32,
    36 owner OWNER: Who<'a>,
    37 group OWNER_GROUP: Who<'a>,
    41 device RAWDEV: SpecData,
    42 space_available SPACE_AVAIL: u64,
    43 space_free SPACE_FREE: u64,
    44 space_total SPACE_TOTAL: u64,
    45 space_used SPACE_USED: u64,
    47 accessed TIME_ACCESS: NfsTime,
    48 set_accessed TIME_ACCESS_SET: SetTime,
    50 created TIME_CREATE: NfsTime,
    51 time_delta TIME_DELTA: NfsTime,
    52 changed TIME_METADATA: NfsTime,
    53 modified TIME_MODIFY: NfsTime,
    54 set_modified TIME_MODIFY_SET: SetTime,
    55 mounted_on MOUNTED_ON_FILEID: u64,
    62 layouts FS_LAYOUT_TYPES: Vec<u32>,
    75 supported_exclusive SUPPATTR_EXCLCREAT: Bitmap,
    77 clone_block CLONE_BLKSIZE: u32,
    79 change_type CHANGE_ATTR_TYPE: u32,
    80 label SEC_LABEL: SecLabel<'a>,
    81 mode_umask MODE_UMASK: ModeUmask,
    82 xattr_support XATTR_SUPPORT: bool,
    86 open_arguments OPEN_ARGUMENTS: OpenArguments,
}

impl<'a> Xdr<'a> for Attributes<'a> {
    fn get(from: &mut XdrReader<'a>) -> Result<Attributes<'a>, Malformed> {
        let (set, beyond) = Bitmap::get_and_beyond(from)?;
        let values = <&[u8]>::get(from)?;
        if beyond || !set.without(&Attributes::KNOWN).is_empty() {
            return Ok(Attributes {
                unknown: true,
                ..Attributes::default()
            });
        }
        let mut values = XdrReader::new(values);
        let attributes = Attributes::get_values(set, &mut values)?;
        values.end()?;
        Ok(attributes)
    }

    fn put(&self, to: &mut impl Put) {
        self.set().put(to);
        let mut values = Vec::with_capacity(256);
        self.put_values(&mut values);
        values.as_slice().put(to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn there_and_back(attributes: &Attributes<'_>) {
        let mut bytes = Vec::new();
        attributes.put(&mut bytes);
        let mut reader = XdrReader::new(&bytes);
        assert_eq!(Attributes::get(&mut reader).as_ref(), Ok(attributes));
        assert_eq!(reader.end(), Ok(()));
        for len in 0..bytes.len() {
            assert!(Attributes::get(&mut XdrReader::new(&bytes[..len])).is_err());
        }
    }

    #[test]
    fn attributes_stand_in_the_order_of_their_numbers() {
        let attributes = Attributes {
            size: Some(5),
            kind: Some(FileType::Regular),
            owner: Some(Who::Number(1000)),
            group: Some(Who::Name(b"wheel")),
            xattr_support: Some(true),
            ..Default::default()
        };
        let mut bytes = Vec::new();
        attributes.put(&mut bytes);
        let want: &[u8] = b"\0\0\0\x03\0\0\0\x12\0\0\0\x30\0\x04\0\0\0\0\0\x24\
            \0\0\0\x01\0\0\0\0\0\0\0\x05\0\0\0\x041000\0\0\0\x05wheel\0\0\0\0\0\0\x01";
        assert_eq!(bytes, want);
        there_and_back(&attributes);
        there_and_back(&Attributes::default());
    }

    #[test]
    fn an_acl_and_what_open_takes_go_there_and_back() {
        let ace = |flag, who| Ace {
            kind: 1,
            flag,
            mask: 0x0010_0081,
            who,
        };
        let acl = Attributes {
            acl: Some(vec![
                ace(0, Who::Name(b"OWNER@")),
                ace(0x40, Who::Number(77)),
            ]),
            ..Default::default()
        };
        let mut bytes = Vec::new();
        acl.put(&mut bytes);
        let want: &[u8] = b"\0\0\0\x01\0\0\x10\0\0\0\0\x30\0\0\0\x02\
            \0\0\0\x01\0\0\0\0\0\x10\0\x81\0\0\0\x06OWNER@\0\0\
            \0\0\0\x01\0\0\0\x40\0\x10\0\x81\0\0\0\x0277\0\0";
        assert_eq!(bytes, want);
        there_and_back(&acl);
        let set = Bitmap::of(&[0, 4]);
        there_and_back(&Attributes {
            open_arguments: Some(OpenArguments {
                share_access: set,
                share_deny: set,
                share_access_want: set,
                open_claim: set,
                create_mode: set,
            }),
            ..Default::default()
        });
    }

    #[test]
    fn attributes_that_nobody_knows_hide_the_others() {
        let archive = [0, 0, 0, 1, 0, 0, 0x40, 0x10, 0, 0, 0, 4, 0, 0, 0, 1];
        let far = [
            0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0,
        ];
        for bytes in [&archive[..], &far] {
            let mut reader = XdrReader::new(bytes);
            let got = Attributes::get(&mut reader).expect("whole");
            assert!(got.unknown && got.set().is_empty(), "{got:?}");
            assert_eq!(reader.end(), Ok(()));
        }
    }

    #[test]
    fn a_number_as_a_name_is_one_only_as_we_write_it() {
        for (text, want) in [
            (&b"0"[..], Who::Number(0)),
            (b"4294967295", Who::Number(u32::MAX)),
            (b"4294967296", Who::Name(b"4294967296")),
            (b"007", Who::Name(b"007")),
            (b"+7", Who::Name(b"+7")),
            (b"", Who::Name(b"")),
        ] {
            let mut bytes = Vec::new();
            text.put(&mut bytes);
            let who = Who::get(&mut XdrReader::new(&bytes)).expect("whole");
            assert_eq!(who, want);
            let mut again = Vec::new();
            who.put(&mut again);
            assert_eq!(again, bytes);
        }
    }

    #[test]
    fn a_bitmap_of_more_words_than_are_known_is_cut() {
        let bytes = [
            0, 0, 0, 4, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0, 0, 0,
        ];
        assert_eq!(
            Bitmap::get(&mut XdrReader::new(&bytes)),
            Ok(Bitmap::of(&[0]))
        );
    }
}
