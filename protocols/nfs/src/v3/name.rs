//! Names: LOOKUP, READLINK, CREATE, MKDIR, SYMLINK, MKNOD, REMOVE, RMDIR, RENAME, LINK.

use wire::{xdr_struct, xdr_union};

use super::{Attributes, Handle, SetAttributes, SpecData, Verifier, Wcc};

xdr_struct! {
    /// A name in a directory (`diropargs3`): LOOKUP, REMOVE, RMDIR.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct NameArgs<'a> {
        /// The directory.
        pub dir: Handle,
        /// The name.
        pub name: &'a [u8],
    }

    /// What LOOKUP answers.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct LookupOk {
        /// What has the name.
        pub object: Handle,
        /// Its attributes.
        pub attributes: Option<Attributes>,
        /// The directory's.
        pub dir: Option<Attributes>,
    }

    /// What READLINK answers.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ReadLinkOk<'a> {
        /// The link's attributes.
        pub attributes: Option<Attributes>,
        /// Where it leads.
        pub target: &'a [u8],
    }

    /// CREATE (section 3.3.8).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct CreateArgs<'a> {
        /// Where.
        pub place: NameArgs<'a>,
        /// How.
        pub how: CreateHow,
    }

    /// MKDIR (section 3.3.9).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct MkDirArgs<'a> {
        /// Where.
        pub place: NameArgs<'a>,
        /// With what attributes.
        pub attributes: SetAttributes,
    }

    /// SYMLINK (section 3.3.10).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct SymlinkArgs<'a> {
        /// Where.
        pub place: NameArgs<'a>,
        /// With what attributes.
        pub attributes: SetAttributes,
        /// Where it leads.
        pub target: &'a [u8],
    }

    /// MKNOD (section 3.3.11).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct MkNodArgs<'a> {
        /// Where.
        pub place: NameArgs<'a>,
        /// What.
        pub what: MkNodData,
    }

    /// A device node (`devicedata3`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct DeviceData {
        /// With what attributes.
        pub attributes: SetAttributes,
        /// What it stands for.
        pub device: SpecData,
    }

    /// What CREATE, MKDIR, SYMLINK and MKNOD answer.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct CreateOk {
        /// What was made.
        pub object: Option<Handle>,
        /// Its attributes.
        pub attributes: Option<Attributes>,
        /// The directory's.
        pub dir: Wcc,
    }

    /// RENAME (section 3.3.14).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct RenameArgs<'a> {
        /// What.
        pub from: NameArgs<'a>,
        /// As what.
        pub to: NameArgs<'a>,
    }

    /// What RENAME tells of the two directories.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    #[allow(missing_docs)]
    pub struct RenameWcc {
        pub from: Wcc,
        pub to: Wcc,
    }

    /// LINK (section 3.3.15).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct LinkArgs<'a> {
        /// What.
        pub object: Handle,
        /// As what.
        pub place: NameArgs<'a>,
    }

    /// What LINK tells of the file and the directory.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    #[allow(missing_docs)]
    pub struct LinkWcc {
        pub object: Option<Attributes>,
        pub dir: Wcc,
    }
}

xdr_union! {
    /// How CREATE deals with what is there (`createhow3`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum CreateHow {
        /// It is taken.
        Unchecked(SetAttributes) = 0,
        /// There must be nothing.
        Guarded(SetAttributes) = 1,
        /// There must be nothing, or what an earlier call with this verifier made.
        Exclusive(Verifier) = 2,
    }

    /// What MKNOD makes (`mknoddata3`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum MkNodData {
        /// CREATE's business.
        File = 1,
        /// MKDIR's business.
        Directory = 2,
        /// A block device.
        BlockDevice(DeviceData) = 3,
        /// A character device.
        CharDevice(DeviceData) = 4,
        /// SYMLINK's business.
        Symlink = 5,
        /// A socket.
        Socket(SetAttributes) = 6,
        /// A pipe.
        Fifo(SetAttributes) = 7,
    }
}
