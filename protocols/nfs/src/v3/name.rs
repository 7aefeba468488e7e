//! Directory operations: LOOKUP, READLINK, CREATE, MKDIR, SYMLINK, MKNOD, REMOVE, RMDIR, RENAME,
//! LINK.

use wire::{xdr_struct, xdr_union};

use super::{Attributes, Handle, SetAttributes, SpecData, Verifier, Wcc};

xdr_struct! {
    /// A name in a directory (`diropargs3`): the arguments of LOOKUP, REMOVE and RMDIR.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct NameArgs<'a> {
        /// The directory.
        pub dir: Handle,
        /// The name.
        pub name: &'a [u8],
    }

    /// The results of LOOKUP.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct LookupOk {
        /// The handle of the node found.
        pub object: Handle,
        /// Its attributes.
        pub attributes: Option<Attributes>,
        /// The directory's attributes.
        pub dir: Option<Attributes>,
    }

    /// The results of READLINK.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ReadLinkOk<'a> {
        /// The link's attributes.
        pub attributes: Option<Attributes>,
        /// The link's target.
        pub target: &'a [u8],
    }

    /// The arguments of CREATE (section 3.3.8).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct CreateArgs<'a> {
        /// The directory and name.
        pub place: NameArgs<'a>,
        /// The mode of creation.
        pub how: CreateHow,
    }

    /// The arguments of MKDIR (section 3.3.9).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct MkDirArgs<'a> {
        /// The directory and name.
        pub place: NameArgs<'a>,
        /// The initial attributes.
        pub attributes: SetAttributes,
    }

    /// The arguments of SYMLINK (section 3.3.10).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct SymlinkArgs<'a> {
        /// The directory and name.
        pub place: NameArgs<'a>,
        /// The initial attributes.
        pub attributes: SetAttributes,
        /// The link's target.
        pub target: &'a [u8],
    }

    /// The arguments of MKNOD (section 3.3.11).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct MkNodArgs<'a> {
        /// The directory and name.
        pub place: NameArgs<'a>,
        /// The type of node.
        pub what: MkNodData,
    }

    /// A new device node (`devicedata3`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct DeviceData {
        /// The initial attributes.
        pub attributes: SetAttributes,
        /// The device number.
        pub device: SpecData,
    }

    /// The results of CREATE, MKDIR, SYMLINK and MKNOD.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct CreateOk {
        /// The new node's handle.
        pub object: Option<Handle>,
        /// Its attributes.
        pub attributes: Option<Attributes>,
        /// The directory's attributes before and after.
        pub dir: Wcc,
    }

    /// The arguments of RENAME (section 3.3.14).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct RenameArgs<'a> {
        /// The source directory and name.
        pub from: NameArgs<'a>,
        /// The destination directory and name.
        pub to: NameArgs<'a>,
    }

    /// The attributes of both directories after RENAME.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    #[allow(missing_docs)]
    pub struct RenameWcc {
        pub from: Wcc,
        pub to: Wcc,
    }

    /// The arguments of LINK (section 3.3.15).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct LinkArgs<'a> {
        /// The node's handle.
        pub object: Handle,
        /// The directory and the new name.
        pub place: NameArgs<'a>,
    }

    /// The attributes of node and directory after LINK.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    #[allow(missing_docs)]
    pub struct LinkWcc {
        pub object: Option<Attributes>,
        pub dir: Wcc,
    }
}

xdr_union! {
    /// The treatment of an existing file by CREATE (`createhow3`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum CreateHow {
        /// An existing file is used.
        Unchecked(SetAttributes) = 0,
        /// An existing file is an error.
        Guarded(SetAttributes) = 1,
        /// An existing file is an error unless an earlier call with this verifier created it.
        Exclusive(Verifier) = 2,
    }

    /// The type of node that MKNOD creates (`mknoddata3`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum MkNodData {
        /// Invalid: use CREATE.
        File = 1,
        /// Invalid: use MKDIR.
        Directory = 2,
        /// A block device.
        BlockDevice(DeviceData) = 3,
        /// A character device.
        CharDevice(DeviceData) = 4,
        /// Invalid: use SYMLINK.
        Symlink = 5,
        /// A socket.
        Socket(SetAttributes) = 6,
        /// A named pipe.
        Fifo(SetAttributes) = 7,
    }
}
