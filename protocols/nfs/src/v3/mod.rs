//! NFS v3's messages (RFC 1813), as both halves have them: what a procedure takes and what it answers,
//! which is an [`Outcome`] for each but NULL.

mod acl;
mod attr;
mod data;
mod dir;
mod fs;
mod handle;
mod name;
mod outcome;
mod status;

use wire::xdr_enum;

pub use acl::{AclItem, AclList, AclProcedure, GetAclArgs, GetAclOk, SetAclArgs, acl_mask};
pub use attr::{
    AccessArgs, AccessOk, Attributes, Guard, Kind, PreAttributes, SetAttrArgs, SetAttributes,
    SetTime, SpecData, Time, Wcc, access,
};
pub use data::{CommitArgs, CommitOk, ReadArgs, ReadOk, Stable, WriteArgs, WriteOk};
pub use dir::{Entry, EntryPlus, List, ReadDirArgs, ReadDirOk, ReadDirPlusArgs, ReadDirPlusOk};
pub use fs::{FsInfoOk, FsStatOk, PathConfOk, properties};
pub use handle::Handle;
pub use name::{
    CreateArgs, CreateHow, CreateOk, DeviceData, LinkArgs, LinkWcc, LookupOk, MkDirArgs, MkNodArgs,
    MkNodData, NameArgs, ReadLinkOk, RenameArgs, RenameWcc, SymlinkArgs,
};
pub use outcome::Outcome;
pub use status::Status;

/// The bytes of a verifier: of an exclusive CREATE, of a listing's cookies, of unstable writes.
pub type Verifier = [u8; 8];

xdr_enum! {
    /// The procedures (section 3), with what each takes and answers.
    pub enum Procedure {
        /// Nothing.
        Null = 0,
        /// [`Handle`] to [`Attributes`].
        GetAttr = 1,
        /// [`SetAttrArgs`] to [`Wcc`], be it done or not.
        SetAttr = 2,
        /// [`NameArgs`] to [`LookupOk`], or the directory's attributes.
        Lookup = 3,
        /// [`AccessArgs`] to [`AccessOk`], or attributes.
        Access = 4,
        /// [`Handle`] to [`ReadLinkOk`], or attributes.
        ReadLink = 5,
        /// [`ReadArgs`] to [`ReadOk`], or attributes.
        Read = 6,
        /// [`WriteArgs`] to [`WriteOk`], or [`Wcc`].
        Write = 7,
        /// [`CreateArgs`] to [`CreateOk`], or the directory's [`Wcc`].
        Create = 8,
        /// [`MkDirArgs`] to [`CreateOk`], or the directory's [`Wcc`].
        MkDir = 9,
        /// [`SymlinkArgs`] to [`CreateOk`], or the directory's [`Wcc`].
        Symlink = 10,
        /// [`MkNodArgs`] to [`CreateOk`], or the directory's [`Wcc`].
        MkNod = 11,
        /// [`NameArgs`] to the directory's [`Wcc`], be it done or not.
        Remove = 12,
        /// [`NameArgs`] to the directory's [`Wcc`], be it done or not.
        RmDir = 13,
        /// [`RenameArgs`] to [`RenameWcc`], be it done or not.
        Rename = 14,
        /// [`LinkArgs`] to [`LinkWcc`], be it done or not.
        Link = 15,
        /// [`ReadDirArgs`] to [`ReadDirOk`], or attributes.
        ReadDir = 16,
        /// [`ReadDirPlusArgs`] to [`ReadDirPlusOk`], or attributes.
        ReadDirPlus = 17,
        /// [`Handle`] to [`FsStatOk`], or attributes.
        FsStat = 18,
        /// [`Handle`] to [`FsInfoOk`], or attributes.
        FsInfo = 19,
        /// [`Handle`] to [`PathConfOk`], or attributes.
        PathConf = 20,
        /// [`CommitArgs`] to [`CommitOk`], or [`Wcc`].
        Commit = 21,
    }
}
