//! The file-system traits that sources implement, layers wrap and protocols serve.
//!
//! Their vocabulary is that of POSIX: no protocol's structures, no I/O, no clock, no thread. A node
//! is an `Arc<dyn Node>` and an open file an `Arc<dyn File>`, not a number, and dropping one
//! forgets or closes it. Every call takes a [`Cx`] with the caller and the [`Patience`]; there is
//! no ambient state. `docs/design/vfs.md` describes how FUSE, NFS, 9P and remote sources map onto
//! these traits.
//!
//! Lock order: a [`lock::LockTable`]'s; then those of [`quota`] and [`memory`], the innermost.

#![forbid(unsafe_code)]

pub mod acl;
pub mod attr;
pub mod change;
pub mod copies;
pub mod cx;
pub mod errno;
pub mod export;
pub mod fd;
pub mod histogram;
pub mod holes;
pub mod lease;
pub mod listing;
pub mod location;
pub mod lock;
pub mod log_limit;
pub mod memory;
pub mod name;
pub mod node;
pub mod op;
pub mod outage;
pub mod payload;
pub mod peer;
pub mod perm;
pub mod quota;
pub mod ranges;
pub mod relay;
pub mod seal;
pub mod siphash;
pub mod source_stats;
pub mod stale;
pub mod time;

pub use acl::{Acl, AclEntry, AclSubject};
pub use attr::{Attr, AttrMask, Device, Kind, Limited, SetAttr, SetTime, StatFs};
pub use change::{Change, ChangeKinds, ChangeStream, ChangedBy, ChangedName};
pub use cx::{Call, Caller, Cx, Groups, Patience};
pub use errno::Errno;
pub use export::{Capabilities, Export, FileSystem, Handle, LocalLocksClient, Support};
pub use lease::{BreakCallback, Lease, LeaseKind};
pub use location::{BadLocation, Location};
pub use log_limit::LogLimit;
pub use name::Name;
pub use node::{
    Access, AllocateMode, Backing, BackingRestrictions, CopyMode, DirEntry, DirSink, Entry, Extent,
    File, Mode, NewNode, Node, NodeId, OpenFlags, ReaddirMode, RenameFlags, Whence, XattrFlags,
    may_be_exec_open, open_by_owner, or_open_for_exec,
};
pub use op::Op;
pub use outage::Outage;
pub use payload::{Fill, Payload, Sink};
pub use peer::{LocalUsers, Origin, Peer, PeerKey};
pub use quota::{Account, Allotment, Charge, Portion, Quota, QuotaExceeded};
pub use ranges::Ranges;
pub use relay::RelaySink;
pub use seal::HandleKey;
pub use source_stats::SourceStats;
pub use stale::StaleNode;
pub use time::Time;

/// The result of every operation: a value or a Linux errno.
pub type Result<T> = core::result::Result<T, Errno>;
