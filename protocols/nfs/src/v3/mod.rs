//! NFS v3 messages (RFC 1813), common to client and server: the arguments and results of the
//! procedures. The results of all but NULL are an [`Outcome`].

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

/// A verifier: of an exclusive CREATE, of READDIR cookies, or of unstable writes.
pub type Verifier = [u8; 8];

xdr_enum! {
    /// The procedures (section 3), with their arguments and results.
    pub enum Procedure {
        /// No operation.
        Null = 0,
        /// Takes [`Handle`], returns [`Attributes`].
        GetAttr = 1,
        /// Takes [`SetAttrArgs`], returns [`Wcc`] on success and failure.
        SetAttr = 2,
        /// Takes [`NameArgs`], returns [`LookupOk`]; the directory's attributes on failure.
        Lookup = 3,
        /// Takes [`AccessArgs`], returns [`AccessOk`]; attributes on failure.
        Access = 4,
        /// Takes [`Handle`], returns [`ReadLinkOk`]; attributes on failure.
        ReadLink = 5,
        /// Takes [`ReadArgs`], returns [`ReadOk`]; attributes on failure.
        Read = 6,
        /// Takes [`WriteArgs`], returns [`WriteOk`]; [`Wcc`] on failure.
        Write = 7,
        /// Takes [`CreateArgs`], returns [`CreateOk`]; the directory's [`Wcc`] on failure.
        Create = 8,
        /// Takes [`MkDirArgs`], returns [`CreateOk`]; the directory's [`Wcc`] on failure.
        MkDir = 9,
        /// Takes [`SymlinkArgs`], returns [`CreateOk`]; the directory's [`Wcc`] on failure.
        Symlink = 10,
        /// Takes [`MkNodArgs`], returns [`CreateOk`]; the directory's [`Wcc`] on failure.
        MkNod = 11,
        /// Takes [`NameArgs`], returns the directory's [`Wcc`] on success and failure.
        Remove = 12,
        /// Takes [`NameArgs`], returns the directory's [`Wcc`] on success and failure.
        RmDir = 13,
        /// Takes [`RenameArgs`], returns [`RenameWcc`] on success and failure.
        Rename = 14,
        /// Takes [`LinkArgs`], returns [`LinkWcc`] on success and failure.
        Link = 15,
        /// Takes [`ReadDirArgs`], returns [`ReadDirOk`]; attributes on failure.
        ReadDir = 16,
        /// Takes [`ReadDirPlusArgs`], returns [`ReadDirPlusOk`]; attributes on failure.
        ReadDirPlus = 17,
        /// Takes [`Handle`], returns [`FsStatOk`]; attributes on failure.
        FsStat = 18,
        /// Takes [`Handle`], returns [`FsInfoOk`]; attributes on failure.
        FsInfo = 19,
        /// Takes [`Handle`], returns [`PathConfOk`]; attributes on failure.
        PathConf = 20,
        /// Takes [`CommitArgs`], returns [`CommitOk`]; [`Wcc`] on failure.
        Commit = 21,
    }
}
